"""The gradient of scan: a scan backwards over what the forward steps left.

Of the values that the gradient needs, cheap ones are computed again from what is at hand, the others are further results of the forward
scan (the compiler merges it with the original, see compiler/trace/equations.py). Contributions to a constant's gradient that are products
or sums over per-step tensors are formed once, over all steps, after the loop.
"""

from keras_ocl import primitives as P
from keras_ocl.core.autodiff import backward, differentiable
from keras_ocl.core.body import Body, Draft, needed
from keras_ocl.core.dim import size_hint
from keras_ocl.core.primitive import Equation, Kind, bind
from keras_ocl.kernels import elementwise
from keras_ocl.primitives.loop_hoist import fits, hoisted
from keras_ocl.primitives.loop_steps import at_step, at_step_p

_AGAIN = (Kind.VIEW, Kind.MASKED, Kind.SOURCE)  # computed again rather than kept, as are cheap elementwise operations


def scan_vjp(cts, outs, *inputs, body, consts, carries, length, reverse, histories):
    """Gradients for the inputs of a scan."""
    return _Backward(cts, outs, inputs, body, consts, carries, length, reverse, histories).gradients()


class _Backward:
    def __init__(self, cts, outs, inputs, body, consts, carries, length, reverse, histories):
        self.outs, self.inputs, self.body, self.length, self.reverse, self.histories = outs, inputs, body, length, reverse, histories
        self.consts, self.carries = consts, carries
        self.n_ys = len(body.outputs) - carries
        self.carry_cts, self.y_cts = list(cts[:carries]), list(cts[carries : carries + self.n_ys])
        self.history_cts = list(cts[carries + self.n_ys :])
        self.const_in = body.inputs[:consts]
        self.carry_in = body.inputs[consts : consts + carries]
        self.stacked_in = body.inputs[consts + carries :]
        self.moving = [k for k, t in enumerate(self.carry_in) if differentiable(t.dtype)]
        self.before, self.after = (1, 0) if reverse else (0, 1)  # places of a step's carry in and out in the history
        self.forward_of = {id(o): eq for eq in body.equations for o in eq.outputs}
        self.plain = {id(eq) for eq in body.recorded}

    def gradients(self):
        self._trace()
        self._choose_residuals()
        residuals = self._forward_again()
        return self._run(residuals)

    # ---- the backward body

    def _trace(self):
        """Record one step's backward pass: from cotangents of its results to those of its inputs."""
        body = self.body
        self.xs_in, self.xs_out = [], []  # stacked inputs of the backward body, inside and outside
        with Draft() as self.draft:
            self.ct_in = [self.draft.input(self.carry_in[k].shape, self.carry_in[k].dtype) for k in self.moving]
            seeds = {}

            def seed(tensor, ct):
                old = seeds.get(id(tensor))
                seeds[id(tensor)] = (tensor, ct if old is None else P.add(old[1], ct))

            for k, ct in zip(self.moving, self.ct_in, strict=True):
                seed(body.outputs[k], ct)
            for tensor, ct in zip(body.outputs[self.carries :], self.y_cts, strict=True):
                if ct is not None and differentiable(tensor.dtype):
                    seed(tensor, self._slice_of(ct, 0))
            for k, ct in zip(self.histories, self.history_cts, strict=True):
                if ct is not None and k in self.moving:
                    seed(body.outputs[k], self._slice_of(ct, self.after))
            reached = backward(body.recorded, seeds)

            def found(tensor):
                return reached[id(tensor)][1] if id(tensor) in reached else None

            self.ct_out = [self._or_zeros(found(self.carry_in[k]), self.carry_in[k]) for k in self.moving]
            self.const_cts = [found(t) if differentiable(t.dtype) else None for t in self.const_in]
            self.slices = [eq for eq in body.equations if eq.primitive is at_step_p]
            self.slice_cts = [found(eq.outputs[0]) for eq in self.slices]

    def _slice_of(self, ct, shift):
        inside = self.draft.input(ct.shape, ct.dtype)
        self.xs_in.append(inside)
        self.xs_out.append(ct)
        return at_step(inside, shift)

    @staticmethod
    def _or_zeros(ct, like):
        return P.zeros_like(like) if ct is None else ct

    # ---- what to keep and what to compute again

    def _choose_residuals(self):
        """Decides for each value of the forward step that the backward step needs whether to keep it."""
        results = [t for t in (*self.ct_out, *self.const_cts, *self.slice_cts) if t is not None]
        made = {id(o) for eq in self.draft.equations for o in eq.outputs} | {id(t) for t in self.draft.inputs}
        wanted = {}
        for t in (*(t for eq in needed(self.draft.equations, results) for t in eq.inputs), *results):
            if id(t) not in made and self._is_inner(t):
                wanted[id(t)] = t
        dear = {i: t for i, t in wanted.items() if not self._again(t)}
        cheap = [t for i, t in wanted.items() if i not in dear]
        roots, direct = dict(dear), dict(dear)
        for t in cheap:
            missing = {}
            self._roots(t, dear, missing)
            roots.update(missing)
            if missing:
                direct[id(t)] = t
        keep = roots if _size(roots) <= _size(direct) else direct
        self.kept = list(keep.values())

    def _is_inner(self, t):
        """Whether `t` is known inside a forward step only, and not read from a stack."""
        if id(t) in {id(c) for c in self.carry_in}:
            return False
        eq = self.forward_of.get(id(t))
        return eq is not None and eq.primitive is not at_step_p

    def _again(self, t):
        """Whether computing `t` again from its operands is cheap."""
        eq = self.forward_of[id(t)]
        if id(eq) not in self.plain:
            return False
        kind = eq.primitive.kind
        return kind in _AGAIN or not eq.inputs or kind is Kind.ELEMENTWISE and eq.primitive.cost <= elementwise.MEDIUM

    def _roots(self, t, kept, found):
        """The expensive values from which `t` is cheap to compute, besides those in `kept`."""
        if not self._is_inner(t) or id(t) in kept:
            return
        if not self._again(t):
            found[id(t)] = t
            return
        for i in self.forward_of[id(t)].inputs:
            self._roots(i, kept, found)

    def _forward_again(self):
        """The forward scan with all that is kept as further results: dicts from id of an inner tensor to its stack, carries' histories."""
        self._replayed(self.kept)
        extra = self.kept
        histories = (*self.histories, *(k for k in self.used_carries if k not in self.histories))
        body = Body(self.body.inputs, (*self.body.outputs, *extra), self.body.equations, self.body.recorded)
        params = dict(consts=self.consts, carries=self.carries, length=self.length, reverse=self.reverse)
        if extra or len(histories) > len(self.histories):
            results = bind(P.scan_p, self.inputs, {**params, "body": body, "histories": histories})
        else:
            results = self.outs
        ys = results[self.carries + self.n_ys :]
        self.history = dict(zip(histories, ys[len(extra) :], strict=True))
        return {id(t): y for t, y in zip(extra, ys, strict=False)}

    def _replayed(self, kept):
        """Collects the forward equations to run again, and which carries and stacks they and the backward step read."""
        self.repeat, self.used_carries = {}, []
        done, stop = set(), {id(t) for t in kept}
        places = {id(t): k for k, t in enumerate(self.carry_in)}

        def visit(t):
            if id(t) in done:
                return
            done.add(id(t))
            if id(t) in places:
                self.used_carries.append(places[id(t)])
            eq = self.forward_of.get(id(t))
            if eq is None or id(t) in stop:
                return
            self.repeat[id(eq)] = eq
            for i in eq.inputs:
                visit(i)

        made = {id(o) for eq in self.draft.equations for o in eq.outputs}
        results = [t for t in (*self.ct_out, *self.const_cts, *self.slice_cts) if t is not None]
        for t in (*(t for eq in needed(self.draft.equations, results) for t in eq.inputs), *results):
            if id(t) not in made:
                visit(t)

    # ---- assembling

    def _run(self, residuals):
        """Binds the backward scan and sums up the gradients for all inputs."""
        prelude = []
        outside = dict(zip((id(t) for t in self.stacked_in), self.inputs[self.consts + self.carries :], strict=True))
        self.stack = {}  # inner or carried tensor -> (its stack outside, how many places it is ahead)

        def read(t, value, shift):
            inside = self.draft.input(value.shape, value.dtype)
            self.xs_in.append(inside)
            self.xs_out.append(value)
            self.stack[id(t)] = (value, shift)
            prelude.append(Equation(at_step_p, (inside,), {"shift": shift}, (t,)))

        for t in self.kept:
            read(t, residuals[id(t)], 0)
        for k in self.used_carries:
            read(self.carry_in[k], self.history[k], self.before)
        for eq in self.body.equations:
            if id(eq) in self.repeat and eq.primitive is at_step_p:
                (x,) = eq.inputs
                if not any(x is known for known in self.xs_in):
                    self.xs_in.append(x)
                    self.xs_out.append(outside[id(x)])
                self.stack[id(eq.outputs[0])] = (outside[id(x)], eq.params["shift"])
        again = [eq for eq in self.body.equations if id(eq) in self.repeat]
        self.draft.equations[:0] = prelude + again
        self.draft.recorded[:0] = prelude + again

        self.ys = []  # results of the backward scan, without repetition
        totals = [None if g is None else self._total(g) for g in self.const_cts]
        accumulated = [k for k, (g, total) in enumerate(zip(self.const_cts, totals, strict=True)) if g is not None and total is None]
        slice_places = [None if g is None else self._result(g) for g in self.slice_cts]
        sums_in = [self.draft.input(self.const_in[k].shape, self.const_in[k].dtype) for k in accumulated]
        with self.draft:
            sums_out = [P.add(s, self.const_cts[k]) for s, k in zip(sums_in, accumulated, strict=True)]

        outputs = [*self.ct_out, *sums_out, *self.ys]
        carried = [*self.ct_in, *sums_in]
        pairs = self._constants(outputs, carried)
        first = [
            *(self._or_zeros(self.carry_cts[k], self.carry_in[k]) for k in self.moving),
            *(P.zeros_like(self.const_in[k]) for k in accumulated),
        ]
        pairs, xs_in, xs_out = hoisted(self.draft, outputs, pairs, self.xs_in, self.xs_out, self.length)
        body = Body([*(c for c, _ in pairs), *carried, *xs_in], outputs, self.draft.equations, self.draft.recorded)
        results = bind(
            P.scan_p,
            (*(t for _, t in pairs), *first, *xs_out),
            dict(body=body, consts=len(pairs), carries=len(first), length=self.length, reverse=not self.reverse, histories=()),
        )
        self.stacked_results = results[len(first) :]
        const_grads = [None if total is None else total() for total in totals]
        for k, r in zip(accumulated, results[len(self.moving) : len(first)], strict=True):
            const_grads[k] = r
        return (*const_grads, *self._carry_grads(results), *self._slice_grads(slice_places))

    def _constants(self, outputs, carried):
        """What the backward body takes from outside as it is: the forward body's constants, and what VJP rules brought in."""
        outside = {id(t): x for t, x in zip(self.const_in, self.inputs[: self.consts], strict=True)}
        return [(t, outside.get(id(t), x)) for t, x in self.draft.captured(outputs, [*self.xs_in, *carried])]

    def _carry_grads(self, results):
        grads = [None] * self.carries
        for k, g in zip(self.moving, results, strict=False):
            grads[k] = g
        for k, ct in zip(self.histories, self.history_cts, strict=True):
            if ct is not None and grads[k] is not None:
                place = self.length if self.reverse else 0
                first = P.slice(ct, (place, *(0 for _ in ct.shape[1:])), (place + 1, *ct.shape[1:]))
                grads[k] = P.add(grads[k], P.reshape(first, ct.shape[1:]))
        return grads

    def _slice_grads(self, places):
        grads = {}
        for eq, place in zip(self.slices, places, strict=True):
            if place is None:
                continue
            (x,), shift, g = eq.inputs, eq.params["shift"], self.stacked_results[place]
            over = x.shape[0] - self.length - shift
            if shift or over != 0:
                rest = [0] * (len(x.shape) - 1)
                g = P.pad(g, P.constant(0, g.dtype), [shift, *rest], [over, *rest])
            grads[id(x)] = P.add(grads[id(x)], g) if id(x) in grads else g
        return [grads.get(id(t)) for t in self.stacked_in]

    # ---- gradients of constants, formed after the loop

    def _result(self, t):
        """The position of `t` among the backward scan's ys."""
        for k, y in enumerate(self.ys):
            if y is t:
                return k
        self.ys.append(t)
        return len(self.ys) - 1

    def _stacked(self, t):
        """A function that gives the stack of all steps' `t`, of shape (length, *t.shape), after the loop; None where that does not pay."""
        if id(t) in self.stack:
            value, shift = self.stack[id(t)]

            def part():
                starts, rest = (shift, *(0 for _ in t.shape)), tuple(t.shape)
                return P.slice(value, starts, (shift + self.length, *rest))

            return part
        if not fits(self.length, t.shape) or id(t) in {id(c) for c in self.const_in}:
            return None
        place = self._result(t)
        return lambda: self.stacked_results[place]

    def _total(self, g):
        """A function that gives the sum over all steps of `g` after the loop; None where it is to be summed step by step."""
        eq = next((e for e in self.draft.equations if any(o is g for o in e.outputs)), None)
        if eq is None or eq.primitive.total is None:
            return None
        return eq.primitive.total(self._total, self._stacked, eq.inputs, eq.params, self._number)

    def _number(self, t):
        """The Python number that every element of `t` has, as far as its equation tells, else None."""
        eq = next((e for e in self.draft.equations if any(o is t for o in e.outputs)), None)
        return None if eq is None or eq.primitive.literal is None else eq.primitive.literal(**eq.params)


def _size(tensors):
    return sum(size_hint(t.shape) for t in tensors.values())
