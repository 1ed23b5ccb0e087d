"""Loops whose body is traced and compiled once: scan over a known number of steps, and while.

A scan's inputs are constants of the body, the first values of what it carries from step to step, and stacked tensors of which a step
reads one slice (`at_step`). Its results are the last carried values, the stacked ys, and, for the gradient, histories: all values that
a carry took, in the order of the index, one more than there are steps. Both exist inside traces only; eager loops are Python's.
"""

from keras_ocl import primitives as P
from keras_ocl.core.body import Body, Draft
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.primitives import loop_gradient
from keras_ocl.primitives.batching import all_spread, batch_equations, from_front, spread, to_front
from keras_ocl.primitives.loop_hoist import hoisted
from keras_ocl.primitives.loop_steps import at_step, step_index_p
from keras_ocl.primitives.while_gradient import while_vjp

# ---- scan


def _scan_shape(*inputs, body, consts, carries, length, reverse, histories):
    specs = body.specs()
    stacked = [((length, *shape), dtype) for shape, dtype in specs[carries:]]
    return specs[:carries] + stacked + [((length + 1, *specs[k][0]), specs[k][1]) for k in histories]


def _scan_batch(inputs, batched, size, *, body, consts, carries, **params):
    """Carries differ between examples; a step computes all examples at once, so stacks hold them along their second axis."""
    last = consts + carries
    operands = [
        *inputs[:consts],
        *all_spread(inputs[consts:last], batched[consts:last], size),
        *(from_front(x, 1) if differs else x for x, differs in zip(inputs[last:], batched[last:], strict=True)),
    ]
    batched = (*batched[:consts], *(True,) * carries, *batched[last:])
    with Draft() as draft:
        values = {id(t): (draft.input(x.shape, x.dtype), differs) for t, x, differs in zip(body.inputs, operands, batched, strict=True)}
        batch_equations(body.recorded, values, size)
        outputs = [spread(*values.get(id(t), (t, False)), size) for t in body.outputs]
    together = Body(draft.inputs, outputs, draft.equations, draft.recorded)
    results = scan_p(*operands, body=together, consts=consts, carries=carries, **params)
    return (*results[:carries], *(to_front(y, 1) for y in results[carries:]))


scan_p = Primitive("scan", _scan_shape, loop_gradient.scan_vjp, multiple_results=True, kind=Kind.SCAN, batch=_scan_batch)


def scan(function, init, xs, length, reverse=False):
    """Repeat `function(index, carries, slices) -> (new carries, ys)`, lists of Tensors, `length` times (an int or Dim).

    Args:
        function: traced once. `index` is an int32 of rank 0 that counts from 0 up, or with `reverse` from length - 1 down; `slices` are
            `xs[k][index]`. It may read and assign Variables.
        init: the carries' first values.
        xs: tensors with first extent `length`.
    Returns:
        (last carries, stacked ys): lists of Tensors.
    Raises:
        ValueError: a carry changes its shape or dtype.
    """
    with Draft() as draft:
        carries = [draft.input(t.shape, t.dtype) for t in init]
        stacked = [draft.input(x.shape, x.dtype) for x in xs]
        new, ys = function(step_index_p(extent=length), carries, [at_step(x) for x in stacked])
    _check("scan", init, new)
    slots = draft.assigned()
    noted = draft.trace.checks
    outputs = [*new, *(s.value for s in slots), *ys, *(c.found for c in noted)]
    pairs = draft.captured(outputs, [s.entry for s in slots])
    first = [*init, *(draft.value_outside(s) for s in slots)]
    pairs, stacked, xs = hoisted(draft, outputs, pairs, stacked, list(xs), length)
    body = Body([*(c for c, _ in pairs), *carries, *(s.entry for s in slots), *stacked], outputs, draft.equations, draft.recorded)
    results = scan_p(
        *(t for _, t in pairs), *first, *xs, body=body, consts=len(pairs), carries=len(first), length=length, reverse=reverse, histories=()
    )
    for k, slot in enumerate(slots):
        draft.outer.assign(slot.variable, results[len(init) + k])
    last = len(first) + len(ys)
    _pass_on(noted, results[last:], draft)
    return list(results[: len(init)]), list(results[len(first) : last])


def _pass_on(noted, found, draft):
    """Index checks noted in a body, with what they found in all steps, are the surrounding trace's."""
    if noted:
        draft.outer.checks += [c._replace(found=value) for c, value in zip(noted, found, strict=True)]


def _check(name, init, new):
    if len(new) != len(init):
        raise ValueError(f"{name}: the body returns {len(new)} loop variables for {len(init)}.")
    for before, after in zip(init, new, strict=True):
        if tuple(before.shape) != tuple(after.shape) or before.dtype != after.dtype:
            raise ValueError(
                f"{name}: a loop variable begins as {tuple(before.shape)} {before.dtype} and becomes {tuple(after.shape)} {after.dtype};"
                " both must be the same: convert or reshape its first value, or what the body returns."
            )


# ---- while


def _while_batch(inputs, batched, size, *, body, consts):
    """Steps go on while one example's condition holds; the variables of the others stay as they are."""
    going, *first = all_spread(inputs[consts:], batched[consts:], size)
    operands = [*inputs[:consts], P.reduce_or(going, (0,)), going, *first]
    with Draft() as draft:
        inner = [draft.input(x.shape, x.dtype) for x in operands]
        going_in, variables = inner[consts + 1], inner[consts + 2 :]
        known = [*zip(inner[:consts], batched[:consts], strict=True), (going_in, True), *((v, True) for v in variables)]
        values = {id(t): value for t, value in zip(body.inputs, known, strict=True)}
        batch_equations(body.recorded, values, size)
        again, *new = (spread(*values.get(id(t), (t, False)), size) for t in body.outputs)
        kept = [P.select(P.broadcast(going_in, v.shape, (0,)), n, v) for n, v in zip(new, variables, strict=True)]
        again = P.and_(going_in, again)
        outputs = [P.reduce_or(again, (0,)), again, *kept]
    together = Body(draft.inputs, outputs, draft.equations, draft.recorded)
    _, *results = _while(*operands, body=together, consts=consts)
    return tuple(results)


_while = Primitive(
    "while", lambda *inputs, body, consts: body.specs(), while_vjp, multiple_results=True, kind=Kind.WHILE, batch=_while_batch
)


def while_loop(condition, function, init):
    """Repeat `function(variables) -> variables`, lists of Tensors, while `condition(variables)`, a bool of rank 0, holds.

    Each is traced once; the host reads the condition once in several steps, or before each that is more than kernels. Returns the last
    variables. ValueError when one changes its shape or dtype. Differentiated, its steps run again, twice at least.
    """
    going = condition(list(init))
    with Draft() as draft:
        flag = draft.input((), "bool")
        variables = [draft.input(t.shape, t.dtype) for t in init]
        new = function(variables)
        again = condition(list(new))
        noted = draft.trace.checks
        seen = [draft.input(c.found.shape, c.found.dtype) for c in noted]
        found = [_first_found(before, c.found) for before, c in zip(seen, noted, strict=True)]
    _check("while_loop", [*init, going], [*new, again])
    slots = draft.assigned()
    outputs = [again, *new, *(s.value for s in slots), *found]
    pairs = draft.captured(outputs, [s.entry for s in slots])
    first = [going, *init, *(draft.value_outside(s) for s in slots), *(P.zeros_like(c, -1) for c in found)]
    body = Body([*(c for c, _ in pairs), flag, *variables, *(s.entry for s in slots), *seen], outputs, draft.equations, draft.recorded)
    results = _while(*(t for _, t in pairs), *first, body=body, consts=len(pairs))
    for k, slot in enumerate(slots):
        draft.outer.assign(slot.variable, results[1 + len(init) + k])
    _pass_on(noted, results[len(results) - len(noted) :], draft)
    return list(results[1 : 1 + len(init)])


def _first_found(before, now):
    """An index check's finding after a step: the one from before if there was one (its place is not negative), else that of the step."""
    *steps, _ = before.shape
    place = P.reshape(P.slice(before, (0,) * len(before.shape), (*steps, 1)), tuple(steps))
    return P.select(P.broadcast(P.ge(place, P.zeros_like(place)), before.shape, tuple(range(len(steps)))), before, now)
