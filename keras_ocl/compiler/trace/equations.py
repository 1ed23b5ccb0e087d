"""Simplification of the scans in a trace: those that repeat the same body on the same inputs are merged; unused results are dropped."""

from keras_ocl.core.body import Body, needed
from keras_ocl.core.dim import key
from keras_ocl.core.primitive import Equation, Kind
from keras_ocl.primitives.elementwise import stop_gradient_p


def merged(equations):
    """The equations, with scans of the same body and inputs (such as a forward pass and one with more results) merged into the first."""
    groups = {}
    for eq in equations:
        if eq.primitive.kind is Kind.SCAN:
            groups.setdefault(_identity(eq), []).append(eq)
    if all(len(group) == 1 for group in groups.values()):
        return equations
    result, done = [], set()
    for eq in equations:
        group = groups[_identity(eq)] if eq.primitive.kind is Kind.SCAN else [eq]
        if len(group) == 1:
            result.append(eq)
        elif id(group) not in done:
            done.add(id(group))
            result += _union(group)
    return result


def _identity(eq):
    p = eq.params
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


def pruned(equations, outputs):
    """The equations that `outputs` (Tensors) depend on, in order; scans lose unused results, and carries and inputs only those need."""
    wanted = {id(o) for o in outputs}
    kept = []
    for eq in reversed(equations):
        if any(id(o) in wanted for o in eq.outputs):
            if eq.primitive.kind is Kind.SCAN:
                eq = _trimmed(eq, wanted)
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
