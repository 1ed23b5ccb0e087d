"""The gradient of while: its steps once more, forwards, and then backwards.

How many steps there are is known only when they are done, so they come in blocks of a fixed number, and memory for the values that blocks
begin with is limited: the first blocks keep theirs. Where there were more, the loop runs once more and keeps those of each second, third,
... block; what others begin with is computed again from the one before. Backwards too it is one loop, each step of which does that or goes
back a block, by the gradient of scan. See Griewank & Walther, "Evaluating Derivatives", 2nd ed., chapter 12.
"""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.autodiff import GradientTape, differentiable
from keras_ocl.core.body import needed
from keras_ocl.core.dim import size_hint
from keras_ocl.primitives.batching import batch_equations

_BLOCK = 8  # steps: more are more in vain behind the last one, fewer are more stacks written
_SLOTS = 128  # blocks whose beginnings are kept at most,
_BYTES = 2**26  # in so much memory at most


def while_vjp(cts, outs, *inputs, body, consts):
    """Gradients for the inputs of a while."""
    return _Backward(cts, inputs, body, consts).gradients()


class _Backward:
    """The state is what a while carries: whether it goes on, and the loop variables."""

    def __init__(self, cts, inputs, body, consts):
        self.constants, self.first = inputs[:consts], list(inputs[consts:])
        self.body, self.equations = body, needed(body.recorded, body.outputs)
        self.moving = [k for k, t in enumerate(self.first) if differentiable(t.dtype)]
        places = {id(t): k for k, t in reversed([*enumerate(self.constants)]) if differentiable(t.dtype)}
        self.sources = [*places.values()]  # one place of each constant: its gradient is by all of them
        self.cts = [P.zeros_like(self.first[k]) if cts[k] is None else cts[k] for k in self.moving]
        size = sum(size_hint(t.shape) * dtypes.itemsize(t.dtype) for t in self.first)
        self.slots = max(1, min(_SLOTS, _BYTES // size))

    def gradients(self):
        count, kept = self._counted()
        spacing = P.max(P.div(P.add(count, _number(self.slots - 1)), _number(self.slots)), _number(1))
        kept = self._kept_again(count, kept, spacing)
        return self._backwards(count, kept, spacing)

    def _step(self, variables):
        """The state after a step from these loop variables."""
        values = [*self.constants, P.constant(True, "bool"), *variables]
        known = {id(t): (x, False) for t, x in zip(self.body.inputs, values, strict=True)}
        batch_equations(self.equations, known, None)
        # What no tape saw, the findings of index checks, is of no consequence here.
        return [known.get(id(t), (x, False))[0] for t, x in zip(self.body.outputs, values[len(self.constants) :], strict=True)]

    def _block(self, state):
        """The state after as many steps of a block as there are.

        Behind the last step it is done again, in vain: a step from its results might give infinities, and 0 times infinity is NaN.
        """
        n = len(state) - 1

        def step(_, carries, __):
            going, now, before = carries[0], carries[1 : 1 + n], carries[1 + n :]
            begin = _chosen(going, now, [P.stop_gradient(x) for x in before])
            again, *new = self._step(begin)
            return [P.and_(going, again), *_chosen(going, new, now), *begin], []

        return P.scan(step, [*state, *state[1:]], [], _BLOCK)[0][: 1 + n]

    # ---- forwards

    def _counted(self):
        """(number of blocks, stacks with the states that the first ones began with). A last place is for what is not kept."""

        def step(values):
            count, (kept, now) = values[0], self._halves(values[1:])
            kept = _put(kept, now, P.min(count, _number(self.slots)))
            return [P.add(count, _number(1)), *kept, *self._block(now)]

        stacks = [P.full((self.slots + 1, *t.shape), 0, t.dtype) for t in self.first]
        count, *rest = P.while_loop(lambda values: values[1 + len(stacks)], step, [_number(0), *stacks, *self.first])
        return count, rest[: len(stacks)]

    def _kept_again(self, count, kept, spacing):
        """The stacks; where there were more blocks than they hold, with the states of each `spacing`-th block."""

        def going(values):
            return P.and_(P.lt(values[0], count), P.gt(count, _number(self.slots)))

        def step(values):
            done, (kept, now) = values[0], self._halves(values[1:])
            # What lies between two that are kept is overwritten by the second.
            kept = _put(kept, now, P.div(P.add(done, P.sub(spacing, _number(1))), spacing))
            return [P.add(done, _number(1)), *kept, *self._block(now)]

        return P.while_loop(going, step, [_number(0), *kept, *self.first])[1 : 1 + len(self.first)]

    def _halves(self, values):
        return values[: len(self.first)], values[len(self.first) :]

    # ---- backwards

    def _backwards(self, count, kept, spacing):
        """The gradients. `place` is of the block to go back next, and the present state comes `ahead` blocks after one that is kept."""
        n, m = len(self.first), len(self.moving)

        def start(place):
            return _taken(kept, P.div(P.max(place, _number(0)), spacing))

        def step(values):
            (place, ahead), now, cts, sums = values[:2], values[2 : 2 + n], values[2 + n : 2 + n + m], values[2 + n + m :]
            new, grads = self._differentiated(now, cts)
            there = P.eq(ahead, P.rem(place, spacing))
            before = P.select(there, P.sub(place, _number(1)), place)
            return [
                before,
                P.select(there, _number(0), P.add(ahead, _number(1))),
                *_chosen(there, start(before), new),
                *_chosen(there, grads[len(sums) :], cts),
                *_chosen(there, [P.add(s, g) for s, g in zip(sums, grads, strict=False)], sums),
            ]

        last, sums = P.sub(count, _number(1)), [P.zeros_like(self.constants[k]) for k in self.sources]
        values = P.while_loop(lambda values: P.ge(values[0], _number(0)), step, [last, _number(0), *start(last), *self.cts, *sums])
        grads = [None] * (len(self.constants) + n)
        for k, g in zip((*(len(self.constants) + k for k in self.moving), *self.sources), values[2 + n :], strict=True):
            grads[k] = g
        return tuple(grads)

    def _differentiated(self, now, cts):
        """(the state after a block from `now`; the gradients for the constants, and for the part of the state, that have some)."""
        sources = [*(self.constants[k] for k in self.sources), *(now[k] for k in self.moving)]
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            new = self._block(now)
        return new, tape.gradient([new[k] for k in self.moving], sources, cts, unconnected_gradients="zero")


def _number(n):
    return P.constant(n, "int32")


def _put(stacks, values, place):
    """The stacks with `values` at a place."""
    parts = (P.reshape(x, (1, *x.shape)) for x in values)
    return [P.dynamic_update_slice(s, x, (place, *(_number(0) for _ in x.shape[1:]))) for s, x in zip(stacks, parts, strict=True)]


def _taken(stacks, place):
    """What is at a place of each stack."""
    return [P.reshape(P.dynamic_slice(s, (place, *(_number(0) for _ in s.shape[1:])), (1, *s.shape[1:])), s.shape[1:]) for s in stacks]


def _chosen(flag, on_true, on_false):
    return [P.select(P.broadcast(flag, a.shape, ()), a, b) for a, b in zip(on_true, on_false, strict=True)]
