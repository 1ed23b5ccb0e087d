"""Control flow over tensors: conditions, loops, scans and maps.

Eagerly these are Python's own. Inside a trace a condition that is a traced value is a primitive (primitives/cond.py). A loop of a known
number of steps is a scan, whose body is traced and compiled once; one of at most four steps is unrolled. So is the body of a while_loop
whose condition is a traced value; with a Python number as `maximum_iterations` it runs masked as often as that, to be differentiated.
"""

import contextlib
import functools

from keras.src import tree
from keras.src.backend.common.backend_utils import canonicalize_axis
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import Variable as KerasVariable

from keras_ocl import primitives as P
from keras_ocl.core.body import Draft
from keras_ocl.core.dim import Dim
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.integer_arguments import with_integers
from keras_ocl.ops.promotion import as_bool, broadcast, operand, promote
from keras_ocl.ops.result_types import dtype_of, result_type
from keras_ocl.ops.slicing import stacked, unstacked

_UNROLLED = 4  # steps up to which a traced loop is unrolled


def _unknown(x):
    """Whether the value of `x` is not available now: it is traced, or this is shape inference, which does not touch the device."""
    return isinstance(x, Tensor) and (x.is_symbolic() or in_symbolic_scope())


def cond(pred, true_fn, false_fn):
    """true_fn() if `pred` else false_fn(). Where `pred` is traced, both are traced, and the compiled code computes the one that is taken
    unless both cost less than that; what either assigns to Variables counts if it is taken."""
    if isinstance(pred, KerasVariable):
        pred = pred.value
    if not _unknown(pred):
        return true_fn() if pred else false_fn()
    if in_symbolic_scope() or pred.shape:
        return _select_run(pred, [false_fn, true_fn])
    return _traced_cond(as_bool(pred), [false_fn, true_fn])


def _traced_cond(pred, branches):
    scope = get_stateless_scope()
    before, drafts, results, assigned, states = dict(scope.state_mapping) if scope else {}, [], [], [], []
    for branch in branches:
        with Draft() as draft, _noting_updates(scope, assigned) if scope else contextlib.nullcontext():
            results.append(branch())
        drafts.append(draft)
        if scope:
            states.append(dict(scope.state_mapping))
            scope.state_mapping = dict(before)
    with _cond_errors():
        tree.assert_same_structure(*results)
        leaves = [tree.flatten(result) for result in results]
        # What is the same object in both branches, or None, is no result of the condition.
        places = [k for k, (a, b) in enumerate(zip(*leaves, strict=True)) if a is not b and b is not None]
        pairs = [(leaves[0][k], leaves[1][k]) for k in places]
        pairs += [tuple(known.get(id(v), before.get(id(v), v.value)) for known in states) for v in assigned]
        own = _alike(drafts, pairs)
    found = P.cond(pred, drafts, own)
    chosen = dict(zip(places, found, strict=False))
    if scope:
        scope.state_mapping.update({id(v): value for v, value in zip(assigned, found[len(places) :], strict=True)})
    return tree.pack_sequence_as(results[1], [chosen.get(k, leaf) for k, leaf in enumerate(leaves[1])])


def _alike(drafts, pairs):
    """For each of two branches its results as Tensors, given pairs of them; of a common dtype, and of the same shape, else ValueError."""
    made = [[], []]
    for pair in pairs:
        operands = []
        for draft, x in zip(drafts, pair, strict=True):
            with draft:
                operands.append(operand(x))
        dtype = result_type(*(dtype_of(x) for x in operands))
        for draft, x, own in zip(drafts, operands, made, strict=True):
            with draft:
                own.append(convert_to_tensor(x, dtype))
        _check_shapes(made[1][-1], made[0][-1])
    return made


def switch(index, branches, *operands):
    """branches[index](*operands), the index limited to those there are."""
    if isinstance(index, KerasVariable):
        index = index.value
    if not _unknown(index):
        return branches[max(0, min(int(index), len(branches) - 1))](*operands)
    results, states = [], []
    _run_all([functools.partial(b, *operands) for b in branches], results, states)
    result, state = results[0], states[0]
    for i in range(1, len(branches)):
        chosen = P.ge(index, convert_to_tensor(i, index.dtype))
        result = tree.map_structure(lambda a, b, chosen=chosen: _select(chosen, b, a), result, results[i])
        state = _merge(chosen, states[i], state)
    _set_state(state)
    return result


def _select_run(pred, branches):
    """Run both branches from the same state; select their results and the states they leave."""
    pred = as_bool(pred)
    results, states = [], []
    _run_all(branches, results, states)
    with _cond_errors():
        result = tree.map_structure(lambda a, b: _select(pred, b, a), *results)
    _set_state(_merge(pred, states[1], states[0]))
    return result


@contextlib.contextmanager
def _cond_errors():
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"cond: true_fn and false_fn must return the same structure, shapes included: {error}") from error


def _run_all(branches, results, states):
    start = _state()
    for branch in branches:
        _set_state(start)
        results.append(branch())
        states.append(_state())
    _set_state(start)


def _state():
    """The newest values of all variables: the trace's, and those of a stateless scope."""
    trace, scope = current_trace.get(), get_stateless_scope()
    return trace.snapshot() if trace is not None else {}, dict(scope.state_mapping) if scope is not None else {}


def _set_state(state):
    trace, scope = current_trace.get(), get_stateless_scope()
    if trace is not None:
        trace.restore(state[0])
    if scope is not None:
        scope.state_mapping = dict(state[1])


def _merge(pred, chosen, other):
    """For each variable the value of `chosen` where `pred` holds, else that of `other`."""
    trace = current_trace.get()
    merged = dict(other[0])
    for key, value in chosen[0].items():
        before = other[0].get(key, trace.states[key].entry)
        merged[key] = value if value is before else _select(pred, value, before)
    for key, value in other[0].items():
        if key not in chosen[0]:
            merged[key] = value if value is trace.states[key].entry else _select(pred, trace.states[key].entry, value)
    scoped = dict(other[1])
    for key, value in chosen[1].items():
        before = other[1].get(key)
        scoped[key] = value if before is None or value is before else _select(pred, value, before)
    return merged, scoped


def _select(pred, on_true, on_false):
    if on_true is on_false or on_true is None:
        return on_true
    on_true, on_false = promote(on_true, on_false)
    _check_shapes(on_true, on_false)
    return P.select(*broadcast("cond", pred, on_true, on_false))


def _check_shapes(on_true, on_false):
    if on_true.shape != on_false.shape:
        raise ValueError(f"shapes {tuple(on_true.shape)} and {tuple(on_false.shape)} differ")


def while_loop(cond, body, loop_vars, maximum_iterations=None):
    """Repeat `body` on the loop variables while `cond` of them holds, at most `maximum_iterations` times.

    `maximum_iterations` is a number or a tensor of one. Inside a trace, a condition or a limit that is traced makes a compiled loop, whose
    variables keep their shapes and dtypes. Under a gradient tape it runs as often as a limit of Python's says, masked; without such a limit
    the gradient runs its steps again (primitives/while_gradient.py). A condition of Python values unrolls.
    """
    is_sequence = isinstance(loop_vars, (tuple, list))
    state = tuple(loop_vars) if is_sequence else (loop_vars,)
    limit = maximum_iterations.value if isinstance(maximum_iterations, KerasVariable) else maximum_iterations
    if current_trace.get() is None:
        state = tree.map_structure(convert_to_tensor, state)
    if isinstance(limit, Tensor) and not _unknown(limit):
        limit = int(limit)
    done = 0
    while limit is None or _unknown(limit) or done < limit:
        going = cond(*state)
        if _unknown(going) or _unknown(limit):
            if in_symbolic_scope():
                state = _step(body, state)
            else:
                rest = limit if limit is None or _unknown(limit) else limit - done
                state = _compiled_while(cond, body, tree.map_structure(convert_to_tensor, state), rest)
            break
        if not going:
            break
        state = _step(body, state)
        done += 1
    state = tree.map_structure(convert_to_tensor, state)
    return state if is_sequence else state[0]


def _step(body, state):
    result = body(*state)
    return tuple(result) if isinstance(result, (list, tuple)) else (result,)


def _compiled_while(cond, body, state, limit):
    def packed(variables):
        return tree.pack_sequence_as(state, variables)

    def going(variables):
        return P.reshape(as_bool(cond(*packed(variables))), ())

    def step(variables):
        return _as_before(_step(body, packed(variables)), state)

    flat = tree.flatten(state)
    if limit is None:
        return packed(with_scope(lambda function, init: P.while_loop(lambda v: going(v[: len(flat)]), function, init), step, flat))

    if isinstance(limit, Tensor) or not active_tapes.get():
        limit = limit if isinstance(limit, (Tensor, Dim)) else min(limit, 2**31 - 1)
        limit, one = P.reshape(convert_to_tensor(limit, "int32"), ()), P.constant(1, "int32")

        def below(variables):
            return P.and_(P.lt(variables[0], limit), going(variables[1 : 1 + len(flat)]))

        def counted(variables):
            return [P.add(variables[0], one), *step(variables[1:])]

        first = [P.constant(0, "int32"), *flat]
        return packed(with_scope(lambda function, init: P.while_loop(below, function, init), counted, first)[1:])

    def masked(_, carries, slices):
        # Behind the last step it is done again, in vain: a step from its results might give infinities, and 0 times infinity is NaN.
        active, variables, before = carries[0], carries[1 : 1 + len(flat)], carries[1 + len(flat) :]
        active = P.and_(active, going(variables))
        begin = [_select(active, v, P.stop_gradient(b)) for v, b in zip(variables, before, strict=True)]
        return [active, *_select_run(active, [lambda: variables, lambda: step(begin)]), *begin], []

    first = [P.constant(True, "bool"), *flat, *flat]
    return packed(scan_steps(masked, first, [], limit)[0][1 : 1 + len(flat)])


def _as_before(new, old):
    """The leaves of `new`, checked to have the structure of `old`; Python numbers take its dtypes."""
    tree.assert_same_structure(old, new)
    return [
        n if isinstance(n, Tensor) else convert_to_tensor(n, o.dtype) for n, o in zip(tree.flatten(new), tree.flatten(old), strict=True)
    ]


def fori_loop(lower, upper, body_fun, init_val):
    """body_fun(i, value) for i from `lower` up to, not including, `upper`. With a traced bound it is a while_loop."""
    if _unknown(lower) or _unknown(upper):
        if in_symbolic_scope():
            return body_fun(convert_to_tensor(0, "int32"), init_val)
        lower, upper = convert_to_tensor(lower, "int32"), convert_to_tensor(upper, "int32")
        one = P.constant(1, "int32")
        return while_loop(lambda i, _: P.lt(i, upper), lambda i, value: (P.add(i, one), body_fun(i, value)), (lower, init_val))[1]
    count = upper - lower if isinstance(upper, int) and isinstance(lower, int) else int(upper) - int(lower)
    if unrolls(count):
        value = init_val
        for i in range(int(lower), int(upper)):
            value = body_fun(convert_to_tensor(i, "int32"), value)
        return value
    init_val = tree.map_structure(convert_to_tensor, init_val)
    start = P.constant(lower, "int32")

    def step(index, carries, slices):
        new = body_fun(P.add(index, start), tree.pack_sequence_as(init_val, carries))
        return _as_before(new, init_val), []

    return tree.pack_sequence_as(init_val, scan_steps(step, tree.flatten(init_val), [], count)[0])


def unrolls(steps):
    """Whether a loop of so many steps is Python's own here."""
    return current_trace.get() is None or (not isinstance(steps, Dim) and steps <= _UNROLLED)


def map(f, xs):
    """f of each slice of `xs` (a tensor or nest of them) along the first axis, stacked."""
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


@with_integers
def scan(f, init, xs=None, length=None, reverse=False, unroll=1):
    """carry, y = f(carry, x) over the first axis of `xs`, or `length` times; the last carry and the stacked ys.

    Inside a trace `f` is traced once, and the carry keeps its shapes and dtypes (otherwise ValueError); `unroll=True` unrolls.
    """
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    if not isinstance(unroll, bool) and (not isinstance(unroll, int) or unroll < 1):
        raise ValueError(f"`unroll` must be an positive integer or boolean. Received: unroll={unroll}")
    if xs is None and length is None:
        raise ValueError("Got no `xs` to scan over and `length` not provided.")
    flat = [convert_to_tensor(x) for x in tree.flatten(xs)] if xs is not None else []
    n = length if length is not None else flat[0].shape[0]
    if any(x.shape[0] != n for x in flat):
        raise ValueError(f"scan: all xs must have the same first extent, {n}; got shapes {[tuple(x.shape) for x in flat]}.")
    carry = tree.map_structure(convert_to_tensor, init)
    if unrolls(n) or unroll is True:
        return _unrolled_scan(f, carry, xs, flat, int(n), reverse)
    structure = None

    def step(_, carries, slices):
        nonlocal structure
        x = tree.pack_sequence_as(xs, slices) if xs is not None else None
        new, structure = f(tree.pack_sequence_as(carry, carries), x)
        return _as_before(new, carry), [convert_to_tensor(y) for y in tree.flatten(structure) if y is not None]

    last, ys = scan_steps(step, tree.flatten(carry), flat, n, reverse)
    ys = iter(ys)
    stacked = tree.map_structure(lambda y: None if y is None else next(ys), structure)
    return tree.pack_sequence_as(carry, last), stacked


def _unrolled_scan(f, carry, xs, flat, n, reverse):
    slices = [unstacked(x) for x in flat]
    ys = []
    for i in reversed(range(n)) if reverse else range(n):
        x = tree.pack_sequence_as(xs, [s[i] for s in slices]) if xs is not None else None
        carry, y = f(carry, x)
        ys.append(y)
    if not ys:
        with discarded():  # what the rows would be
            y = f(carry, tree.pack_sequence_as(xs, [P.full(x.shape[1:], 0, x.dtype) for x in flat]) if xs is not None else None)[1]
            y = tree.map_structure(lambda part: None if part is None else convert_to_tensor(part), y)
        return carry, tree.map_structure(lambda part: None if part is None else P.full((0, *part.shape), 0, part.dtype), y)
    if reverse:
        ys.reverse()
    return carry, tree.map_structure(lambda *parts: None if parts[0] is None else stacked(promote(*parts)), *ys)


def scan_steps(function, init, xs, length, reverse=False):
    """primitives.scan, whose `function` may also assign Variables in a stateless scope."""
    return with_scope(lambda step, first: P.scan(step, first, xs, length, reverse), function, init)


def with_scope(run, function, init):
    """run(function, init), a traced loop, where what `function` assigns in a stateless scope is carried from step to step too.

    Which Variables that are turns out while tracing: with new ones it traces again.
    """
    scope = get_stateless_scope()
    if scope is None:
        return run(function, init)
    before, carried = dict(scope.state_mapping), []
    while True:
        assigned = []

        def step(*args, carried=tuple(carried), assigned=assigned):
            # Of a scan (index, carries, slices), of a while (variables,).
            place = min(1, len(args) - 1)
            own = args[place][: len(init)]
            scope.state_mapping.update({id(v): value for v, value in zip(carried, args[place][len(init) :], strict=True)})
            result = function(*args[:place], own, *args[place + 1 :])
            states = [scope.state_mapping[id(v)] for v in carried]
            return ([*result[0], *states], result[1]) if len(args) > 1 else [*result, *states]

        first = [scope.state_mapping.get(id(v), v.value if v._value is None else v._value) for v in carried]
        with _noting_updates(scope, assigned):
            result = run(step, [*init, *(convert_to_tensor(x) for x in first)])
        scope.state_mapping.clear()
        scope.state_mapping.update(before)
        new = [v for v in assigned if not any(v is c for c in carried)]
        if not new:
            break
        carried += new
    last, ys = result if isinstance(result, tuple) else (result, None)
    scope.state_mapping.update({id(v): value for v, value in zip(carried, last[len(init) :], strict=True)})
    return (last[: len(init)], ys) if isinstance(result, tuple) else last[: len(init)]


@contextlib.contextmanager
def discarded():
    """A trace inside the current one of which nothing remains, to look at shapes."""
    scope = get_stateless_scope()
    before = {} if scope is None else dict(scope.state_mapping)
    with Draft():
        yield
    if scope is not None:
        scope.state_mapping = before


class _noting_updates:
    """While it is entered, Variables assigned in the stateless scope are appended to a list, each once."""

    def __init__(self, scope, assigned):
        self.scope, self.assigned = scope, assigned

    def __enter__(self):
        update = self.scope.add_update

        def noting(pair):
            if not any(v is pair[0] for v in self.assigned):
                self.assigned.append(pair[0])
            update(pair)

        self.scope.add_update = noting

    def __exit__(self, *_):
        del self.scope.add_update


@with_integers
def unstack(x, num=None, axis=0):
    """The slices along an axis as a list. ValueError if there are not `num` of them, where it is given."""
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    if num is not None and num != x.shape[axis]:
        raise ValueError(
            f"unstack: num={num}, but axis {axis} of shape {tuple(x.shape)} has extent {x.shape[axis]}; give that number, or None."
        )
    return unstacked(x, axis)
