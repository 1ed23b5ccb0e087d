"""Conditions: two branches, traced once each, of which the device computes the one taken.

The primitive's inputs are the condition, the operands of the branch for False and those of the branch for True. The gradient is a condition
too, of the branches' pullbacks. The values that these read (residuals) are further results of the forward condition, which the compiler
merges with the original (compiler/trace/equations.py). Each branch sets its own residuals; those of the other one stay as the memory was,
and only the pullback of the same branch reads them. Where branches cost less than launches that do nothing, both are computed, with a
select.
"""

from keras_ocl import primitives as P
from keras_ocl.core.autodiff import GradientTape, backward, differentiable
from keras_ocl.core.body import Body, Draft, needed
from keras_ocl.core.dim import hint, size_hint
from keras_ocl.core.factors import Seen
from keras_ocl.core.primitive import Equation, Kind, Primitive, active_tapes
from keras_ocl.kernels import elementwise
from keras_ocl.primitives.batching import batch_equations, spread
from keras_ocl.primitives.movement import reshape_p

_LAUNCHES = 2**17  # operations in the time of the launches that a condition adds
_MOVED = 8  # operations in the time of storing an element of a result and loading it again
_FREE = (Kind.VIEW, Kind.SOURCE, Kind.PROJECTION, Kind.STEP_SLICE)
_AGAIN = (Kind.VIEW, Kind.MASKED, Kind.SOURCE)  # computed again in a pullback rather than kept, as are cheap elementwise operations


def branches_of(params, inputs):
    """For False and True, (the branch's Body, its operands among the primitive's inputs)."""
    on_false, on_true = params["on_false"], params["on_true"]
    split = 1 + len(on_false.inputs)
    return (on_false, inputs[1:split]), (on_true, inputs[split:])


def sets(body):
    """For each result, whether this branch computes it or hands an operand through. Others are residuals of the other branch."""
    known = {id(t) for t in body.inputs} | {id(t) for eq in body.equations for t in eq.outputs}
    return [id(t) in known for t in body.outputs]


def bodies_in(eq):
    """The Bodies among an equation's parameters."""
    return [value for value in eq.params.values() if isinstance(value, Body)]


def nested(equations):
    """The equations, and those of the bodies in them."""
    for eq in equations:
        yield eq
        for body in bodies_in(eq):
            yield from nested(body.equations)


# ---- recording a condition


def cond(pred, drafts, results):
    """Tensors: those of the branch that a condition chooses.

    Args:
        pred: a bool of rank 0.
        drafts: the Drafts in which the branches for False and True were traced. They may have read and assigned Variables.
        results: for each, a list of its results. Both lists have the same shapes and dtypes.
    """
    outer = drafts[0].outer
    variables = {id(s.variable): s.variable for d in drafts for s in d.assigned()}
    states = [[d.trace.states[key].value if key in d.trace.states else None for key in variables] for d in drafts]
    if not _pays(drafts, [[*r, *(t for t in s if t is not None)] for r, s in zip(results, states, strict=True)]):
        return _both(pred, drafts, results, variables, states)
    outputs = [list(r) for r in results]
    for known, own in zip(states, outputs, strict=True):
        own += [outer.read(v) if t is None else t for v, t in zip(variables.values(), known, strict=True)]
    noted = [(k, c) for k, d in enumerate(drafts) for c in d.trace.checks]
    for k, c in noted:
        for other, own in enumerate(outputs):
            with drafts[other]:
                own.append(c.found if other == k else P.zeros_like(c.found, -1))
    results = _bound(pred, drafts, outputs)
    for variable, value in zip(variables.values(), results[len(outputs[0]) - len(noted) - len(variables) :], strict=False):
        outer.assign(variable, value)
    outer.checks += [c._replace(found=t) for (_, c), t in zip(noted, results[len(results) - len(noted) :], strict=True)]
    return list(results[: len(outputs[0]) - len(noted) - len(variables)])


def _bound(pred, drafts, outputs, outside=lambda t: t):
    """The results of the primitive. `outside`: the function from what a branch takes from the trace around it to the value there."""
    bodies, operands = [], []
    for draft, own in zip(drafts, outputs, strict=True):
        pairs = draft.captured(own)
        bodies.append(Body([t for t, _ in pairs], own, draft.equations, draft.recorded))
        operands += [outside(t) if t is x else x for t, x in pairs]
    return cond_p(pred, *operands, on_false=bodies[0], on_true=bodies[1])


def _both(pred, drafts, results, variables, states):
    """`cond` with both branches in the surrounding trace, and a select."""
    outer = drafts[0].outer
    for draft in drafts:
        entries = [(s.entry, draft.value_outside(s)) for s in draft.trace.states.values()]
        same = [Equation(reshape_p, (x,), {"shape": tuple(t.shape)}, (t,), tag=outer.tag) for t, x in entries]
        for eq in draft.equations:
            eq.tag = eq.tag or outer.tag
        outer.equations += same + draft.equations
        for tape in active_tapes.get():
            for eq in same + draft.recorded:
                tape.record(eq)
        outer.checks += draft.trace.checks
    values = dict(zip(variables, zip(*states, strict=True), strict=True))
    for key in [key for key in outer.states if key in values]:  # the variables' order in a step, whatever the branches' order
        on_false, on_true = (outer.states[key].value if t is None else t for t in values[key])
        outer.assign(variables[key], _chosen(pred, on_true, on_false))
    return [_chosen(pred, on_true, on_false) for on_false, on_true in zip(*results, strict=True)]


def _chosen(pred, on_true, on_false):
    if on_true is on_false:
        return on_true
    return P.select(P.broadcast(pred, on_true.shape, ()) if on_true.shape else pred, on_true, on_false)


def _pays(drafts, outputs):
    """Whether leaving a branch out saves more than launches that do nothing and results in memory of their own cost; and whether it can be
    left out: the device cannot tell the host not to do its operations."""
    equations = [needed(d.equations, own) for d, own in zip(drafts, outputs, strict=True)]
    if any(eq.primitive.host is not None for d in drafts for eq in nested(d.equations)):
        return False
    saved = sum(_price(eq) for part in equations for eq in part) / 2
    return saved > _LAUNCHES + _MOVED * sum(size_hint(t.shape) for t in outputs[1])


def _price(eq):
    """An estimate of an equation's additions, multiplications and the like."""
    p, size = eq.primitive, sum(size_hint(t.shape) for t in eq.outputs)
    if p.kind in _FREE:
        return 0
    if bodies_in(eq):
        steps = hint(eq.params["length"]) if p.kind is Kind.SCAN else float("inf") if p.kind is Kind.WHILE else 0.5
        return steps * sum(_price(inner) for body in bodies_in(eq) for inner in body.equations)
    seen = Seen(eq.inputs, eq.outputs, eq.params, lambda tensor: None)
    if p.operations is not None:
        return hint(p.operations(seen))
    return size * (p.cost(seen) if callable(p.cost) else p.cost) * (1 if p.terms is None else hint(p.terms(seen)))


# ---- the primitive's rules


def _vjp(cts, outs, pred, *operands, **params):
    """Gradients for the inputs of a condition: those for an operand are the first place's at which it is given."""
    given = branches_of(params, (pred, *operands))
    seeds = [(k, ct) for k, (ct, out) in enumerate(zip(cts, outs, strict=True)) if ct is not None and differentiable(out.dtype)]
    pullbacks = [_Pullback(body, xs, seeds) for body, xs in given]
    if any(eq.primitive.host is not None for p in pullbacks for eq in nested(p.draft.equations)):  # cannot be left out, see _pays
        different = {id(x): x for x in operands}
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(different.values()))
            results = both((pred, *operands), params, recorded=True)
        found = tape.gradient([results[k] for k, _ in seeds], list(different.values()), [ct for _, ct in seeds])
        left = dict(zip(different, found, strict=True))
        return None, *(left.pop(id(x), None) for x in operands)
    sources = {id(x): x for p in pullbacks for x, _ in p.found.values()}
    if not sources:
        return (None,) * (1 + len(operands))
    kept = [p.choose(sources) for p in pullbacks]
    results, known = list(outs), [{id(t): k for k, t in enumerate(p.body.outputs)} for p in pullbacks]
    extra = [t for places, part in zip(known, kept, strict=True) for t in part if id(t) not in places]
    if extra:
        bodies = [Body(p.body.inputs, (*p.body.outputs, *extra), p.body.equations, p.body.recorded) for p in pullbacks]
        results = cond_p(pred, *operands, on_false=bodies[0], on_true=bodies[1])
    places = {id(t): len(outs) + k for k, t in enumerate(extra)} | known[0] | known[1]
    values = {id(t): results[places[id(t)]] for part in kept for t in part}
    values |= {id(t): x for body, xs in given for t, x in zip(body.inputs, xs, strict=True)}
    grads = _bound(pred, [p.draft for p in pullbacks], [p.gradients for p in pullbacks], lambda t: values.get(id(t), t))
    left = dict(zip(sources, grads, strict=True))
    return None, *(left.pop(id(x), None) for x in operands)


class _Pullback:
    """The pullback of one branch while it is made. `found`: dict from the id of an operand to (operand, its gradient in the draft)."""

    def __init__(self, body, operands, seeds):
        self.body, self.found, cotangents = body, {}, {}
        self._makers = {id(o): eq for eq in body.equations for o in eq.outputs}
        self._plain = {id(eq) for eq in body.recorded}
        with Draft() as self.draft:
            for (k, ct), known in zip(seeds, (sets(body)[k] for k, _ in seeds), strict=True):
                t = body.outputs[k]
                if known:
                    cotangents[id(t)] = (t, P.add(cotangents[id(t)][1], ct) if id(t) in cotangents else ct)
            reached = backward(body.recorded, cotangents)
            for t, x in zip(body.inputs, operands, strict=True):
                if id(t) in reached and differentiable(t.dtype):
                    g = reached[id(t)][1]
                    self.found[id(x)] = x, P.add(self.found[id(x)][1], g) if id(x) in self.found else g

    def choose(self, sources):
        """Completes the pullback, whose results are gradients for `sources`; returns the values of the branch that it needs (residuals)."""
        with self.draft:
            self.gradients = [self.found[i][1] if i in self.found else P.zeros_like(x) for i, x in sources.items()]
        made = {id(o) for eq in self.draft.equations for o in eq.outputs}
        read = [t for eq in needed(self.draft.equations, self.gradients) for t in eq.inputs]
        kept, again = {}, set()
        pending = [t for t in (*read, *self.gradients) if id(t) not in made]
        while pending:
            t = pending.pop()
            eq = self._makers.get(id(t))
            if eq is None:
                continue
            if not self._again(eq):
                kept[id(t)] = t
            elif id(eq) not in again:
                again.add(id(eq))
                pending += eq.inputs
        repeated = [eq for eq in self.body.equations if id(eq) in again]
        self.draft.equations[:0] = repeated
        self.draft.recorded[:0] = repeated
        return list(kept.values())

    def _again(self, eq):
        """Whether computing an equation of the branch again from its operands is cheap."""
        kind = eq.primitive.kind
        cheap = kind is Kind.ELEMENTWISE and eq.primitive.cost <= elementwise.MEDIUM
        return id(eq) in self._plain and (kind in _AGAIN or not eq.inputs or cheap)


def _batch(inputs, batched, size, **params):
    """Both branches and a select where the condition differs between examples."""
    pred, *operands = inputs
    differs = [part for _, part in branches_of(params, batched)]
    parts = [(body, xs, own) for (body, xs), own in zip(branches_of(params, inputs), differs, strict=True)]
    if batched[0]:
        return _selected(pred, parts, size)
    drafts, outputs = [], []
    for body, xs, own in parts:
        with Draft() as draft:
            inner = [draft.input(x.shape, x.dtype) for x in xs]
            outputs.append(_evaluated(body, inner, own, size))
        drafts.append(draft)
    for k, known in enumerate(zip(*(sets(body) for body, _, _ in parts), strict=True)):
        if not all(known):  # a residual: the branch that does not set it has none of its own to name
            outputs[known.index(False)][k] = outputs[known.index(True)][k]
    bodies = [Body(d.inputs, own, d.equations, d.recorded) for d, own in zip(drafts, outputs, strict=True)]
    return cond_p(pred, *operands, on_false=bodies[0], on_true=bodies[1])


def _evaluated(body, operands, batched, size):
    values = {id(t): (x, own) for t, x, own in zip(body.inputs, operands, batched, strict=True)}
    batch_equations(body.recorded, values, size)
    return [spread(*values.get(id(t), (t, False)), size) if known else None for t, known in zip(body.outputs, sets(body), strict=True)]


def _selected(pred, parts, size):
    found = [_evaluated(body, xs, own, size) for body, xs, own in parts]
    return tuple(
        b if a is None else a if b is None else P.select(P.broadcast(pred, a.shape, (0,)), b, a) for a, b in zip(*found, strict=True)
    )


cond_p = Primitive(
    "cond", lambda pred, *operands, on_false, on_true: on_true.specs(), _vjp, multiple_results=True, kind=Kind.COND, batch=_batch
)


def both(inputs, params, recorded=False):
    """The results of a condition by both branches and a select. `recorded`: with the gradients that parts of them define for themselves."""
    found = []
    for body, xs in branches_of(params, inputs):
        values = {id(t): (x, False) for t, x in zip(body.inputs, xs, strict=True)}
        batch_equations(needed(body.recorded if recorded else body.equations, body.outputs), values, None)
        found.append([values[id(t)][0] if known else None for t, known in zip(body.outputs, sets(body), strict=True)])
    return [b if a is None else a if b is None else _chosen(inputs[0], b, a) for a, b in zip(*found, strict=True)]
