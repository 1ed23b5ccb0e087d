"""Simplification of scans and conditions in a trace: those with the same body and inputs are merged, and unused results are dropped.

Passes that know no conditions get both branches and selects in their place.
"""

from keras_ocl.core.body import Body, needed
from keras_ocl.core.dim import key
from keras_ocl.core.origin import scope
from keras_ocl.core.primitive import Equation, Kind, active_tapes
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.primitives.cond import both, branches_of
from keras_ocl.primitives.elementwise import stop_gradient_p

_MERGED = (Kind.SCAN, Kind.COND)


def expanded(equations):
    """The equations, with both branches and selects in the place of conditions. Scans keep their bodies."""
    if all(eq.primitive.kind is not Kind.COND for eq in equations):
        return equations
    result, token = [], active_tapes.set(())
    try:
        for eq in merged(equations):
            if eq.primitive.kind is not Kind.COND:
                result.append(eq)
                continue
            trace = Trace()
            trace.tag = eq.tag
            with tracing(trace), scope(eq.origin):
                found = both(eq.inputs, eq.params)
            result += expanded(trace.equations)
            result += [Equation(stop_gradient_p, (x,), {}, (o,), eq.origin) for x, o in zip(found, eq.outputs, strict=True)]
    finally:
        active_tapes.reset(token)
    return result


def merged(equations):
    """The equations, with scans, and conditions, of the same body and inputs (such as a forward pass and one with more results) merged into
    the first."""
    groups = {}
    for eq in equations:
        if eq.primitive.kind in _MERGED:
            groups.setdefault(_identity(eq), []).append(eq)
    if all(len(group) == 1 for group in groups.values()):
        return equations
    result, done = [], set()
    for eq in equations:
        group = groups[_identity(eq)] if eq.primitive.kind in _MERGED else [eq]
        if len(group) == 1:
            result.append(eq)
        elif id(group) not in done:
            done.add(id(group))
            result += _union(group) if eq.primitive.kind is Kind.SCAN else _union_of_conditions(group)
    return result


def _identity(eq):
    p = eq.params
    if eq.primitive.kind is Kind.COND:
        return id(p["on_false"].equations), id(p["on_true"].equations), tuple(id(t) for t in eq.inputs), eq.tag
    return id(p["body"].equations), tuple(id(t) for t in eq.inputs), key(p["length"]), p["reverse"], p["carries"], eq.tag


def _union(group):
    """One equation with the results of the whole group, and equations that define the outputs of the others by these results."""
    first = group[0]
    count = first.params["carries"]
    results = {}  # which result it is -> (its Tensor in the body, the Tensor that first stood for it)
    names = []
    for eq in group:
        body, histories = eq.params["body"], eq.params["histories"]
        ys = len(body.outputs) - count
        whats = [("carry", k) for k in range(count)] + [("y", id(t)) for t in body.outputs[count:]] + [("history", k) for k in histories]
        inner = [*body.outputs[:count], *body.outputs[count:], *(None for _ in histories)]
        assert len(whats) == len(eq.outputs) == count + ys + len(histories)
        for what, t, o in zip(whats, inner, eq.outputs, strict=True):
            if what in results:
                names.append(Equation(stop_gradient_p, (results[what][1],), {}, (o,), eq.origin))
            else:
                results[what] = (t, o)
    order = [[(what, *r) for what, r in results.items() if what[0] == kind] for kind in ("carry", "y", "history")]
    body = first.params["body"]
    body = Body(body.inputs, [t for part in order[:2] for _, t, _ in part], body.equations, body.recorded)
    params = {**first.params, "body": body, "histories": tuple(what[1] for what, _, _ in order[2])}
    return [Equation(first.primitive, first.inputs, params, [o for part in order for _, _, o in part], first.origin, first.tag), *names]


def _union_of_conditions(group):
    """`_union` for conditions."""
    first, names, results = group[0], [], {}  # results: ids in both branches -> (the Tensors there, the Tensor that first stood for them)
    for eq in group:
        for inner, o in zip(zip(eq.params["on_false"].outputs, eq.params["on_true"].outputs, strict=True), eq.outputs, strict=True):
            known = results.setdefault(tuple(map(id, inner)), (inner, o))[1]
            if known is not o:
                names.append(Equation(stop_gradient_p, (known,), {}, (o,), eq.origin))
    bodies = {}
    for k, name in enumerate(("on_false", "on_true")):
        body = first.params[name]
        bodies[name] = Body(body.inputs, [inner[k] for inner, _ in results.values()], body.equations, body.recorded)
    return [Equation(first.primitive, first.inputs, bodies, [o for _, o in results.values()], first.origin, first.tag), *names]


def pruned(equations, outputs):
    """The equations that `outputs` (Tensors) depend on, in order; scans and conditions lose unused results, and what only those need."""
    wanted = {id(o) for o in outputs}
    kept = []
    for eq in reversed(equations):
        if any(id(o) in wanted for o in eq.outputs):
            if eq.primitive.kind is Kind.SCAN:
                eq = _trimmed(eq, wanted)
            elif eq.primitive.kind is Kind.COND:
                eq = _trimmed_condition(eq, wanted)
            kept.append(eq)
            wanted.update(id(i) for i in eq.inputs)
    return kept[::-1]


def _trimmed(eq, wanted):
    p = eq.params
    body, consts, count = p["body"], p["consts"], p["carries"]
    carry_in = body.inputs[consts : consts + count]
    use = [id(o) in wanted for o in eq.outputs]
    first_history = len(body.outputs)
    ys = [k for k in range(count, first_history) if use[k]]
    histories = [j for j in range(len(p["histories"])) if use[first_history + j]]
    carries = {k for k in range(count) if use[k]} | {p["histories"][j] for j in histories}
    while True:
        results = [body.outputs[k] for k in (*sorted(carries), *ys)]
        read = {id(t) for e in needed(body.equations, results) for t in e.inputs} | {id(t) for t in results}
        more = {k for k, t in enumerate(carry_in) if id(t) in read} - carries
        if not more:
            break
        carries |= more
    order = sorted(carries)
    inputs = [k for k, t in enumerate(body.inputs) if (k - consts in carries if consts <= k < consts + count else id(t) in read)]
    if len(inputs) == len(body.inputs) and all(use[k] for k in range(count, len(use))):
        return eq
    trimmed = Body([body.inputs[k] for k in inputs], results, body.equations, body.recorded)
    params = {
        **p,
        "body": trimmed,
        "consts": sum(k < consts for k in inputs),
        "carries": len(order),
        "histories": tuple(order.index(p["histories"][j]) for j in histories),
    }
    outputs = [eq.outputs[k] for k in (*order, *ys, *(first_history + j for j in histories))]
    return Equation(eq.primitive, tuple(eq.inputs[k] for k in inputs), params, outputs, eq.origin, eq.tag)


def _trimmed_condition(eq, wanted):
    use = [k for k, o in enumerate(eq.outputs) if id(o) in wanted]
    bodies, inputs = [], [eq.inputs[0]]
    for body, operands in branches_of(eq.params, eq.inputs):
        results = [body.outputs[k] for k in use]
        read = {id(t) for e in needed(body.equations, results) for t in e.inputs} | {id(t) for t in results}
        kept = [k for k, t in enumerate(body.inputs) if id(t) in read]
        bodies.append(Body([body.inputs[k] for k in kept], results, body.equations, body.recorded))
        inputs += [operands[k] for k in kept]
    params = dict(zip(("on_false", "on_true"), bodies, strict=True))
    return Equation(eq.primitive, tuple(inputs), params, [eq.outputs[k] for k in use], eq.origin, eq.tag)
