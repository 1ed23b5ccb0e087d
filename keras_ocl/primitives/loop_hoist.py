"""What a scan's body computes without its carries, moved out of the loop.

Values of constants alone are computed once before it. Products of a step's slice with constants become one product over all steps:
the input projections of recurrent cells (Appleyard et al., "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016).
"""

from keras_ocl import primitives as P
from keras_ocl.core.body import needed
from keras_ocl.core.dim import hint, key, size_hint
from keras_ocl.core.primitive import Equation, Kind, bind
from keras_ocl.primitives.batching import spread
from keras_ocl.primitives.loop_steps import at_step_p

_LIMIT = 2**28  # most elements of a tensor that is kept for all steps


def fits(length, shape):
    """Whether keeping a tensor of `shape` for all steps is worth its memory."""
    return hint(length) * size_hint(shape) <= _LIMIT


def hoisted(draft, outputs, constants, stacked, xs, length):
    """Moves work out of the draft of a scan's body, whose `outputs` stay as they are.

    Args:
        constants: pairs (Tensor in the body, Tensor outside).
        stacked, xs: the stacked inputs, inside and outside.
    Returns:
        (constants, stacked, xs), now with the moved values in addition.
    """
    work = _Hoist(draft, outputs, constants, stacked, xs, length)
    work.run()
    return work.constants, work.stacked, work.xs


class _Hoist:
    def __init__(self, draft, outputs, constants, stacked, xs, length):
        self.draft, self.outputs, self.length = draft, outputs, length
        self.constants, self.stacked, self.xs = list(constants), list(stacked), list(xs)
        self.outside = {id(t): value for t, value in constants}
        self.whole = {}  # slice of a step -> the same for all steps, outside
        self.producer = {}

    def run(self):
        equations = needed(self.draft.equations, self.outputs)
        plain = {id(eq) for eq in self.draft.recorded}  # others are parts of an operation with a gradient of its own
        invariant, heavy, slices = set(self.outside), set(), set()
        sources = {id(s): x for s, x in zip(self.stacked, self.xs, strict=True)}
        moved = {}  # id of an output -> equation that takes the place of its own, or None
        for eq in equations:
            for o in eq.outputs:
                self.producer[id(o)] = eq
            kind, places = eq.primitive.kind, [id(t) for t in eq.inputs]
            if kind is Kind.STEP_SLICE:
                if eq.params["shift"] == 0 and id(eq.inputs[0]) in sources and key(eq.inputs[0].shape[0]) == key(self.length):
                    slices.add(id(eq.outputs[0]))
                    self.whole[id(eq.outputs[0])] = sources[id(eq.inputs[0])]
                continue
            if eq.primitive.multiple_results or id(eq) not in plain or not places and kind is not Kind.SOURCE:
                pass
            elif all(i in invariant for i in places):
                result = id(eq.outputs[0])
                invariant.add(result)
                if any(i in self.outside for i in places) or any(i in heavy for i in places):
                    if kind is not Kind.VIEW or any(i in heavy for i in places):
                        heavy.add(result)
                continue
            elif any(i in slices for i in places) and all(i in slices or i in invariant for i in places):
                if kind in (Kind.ELEMENTWISE, Kind.VIEW):
                    slices.add(id(eq.outputs[0]))
                elif kind is Kind.CONTRACTION and places[0] in slices and places[1] in invariant:
                    if fits(self.length, eq.outputs[0].shape):
                        moved[id(eq.outputs[0])] = self._product(eq)
                        continue
            better = eq.primitive.invariant_operand and id(eq) in plain and eq.primitive.invariant_operand(eq.inputs, eq.params)
            if better and places[better[0]] in invariant and places[better[0]] not in heavy:
                moved[id(eq.outputs[0])] = self._transposed(eq, *better)
                for t in eq.inputs:
                    if t is not eq.inputs[better[0]]:
                        self._move_constant(t, heavy, moved)
                continue
            for t in eq.inputs:
                self._move_constant(t, heavy, moved)
        for t in self.outputs:
            self._move_constant(t, heavy, moved)
        for equations in (self.draft.equations, self.draft.recorded):
            equations[:] = [e for e in (moved.get(id(eq.outputs[0]), eq) if eq.outputs else eq for eq in equations) if e is not None]

    def _move_constant(self, t, heavy, moved):
        if id(t) in heavy and id(t) not in moved and id(t) not in self.outside:
            moved[id(t)] = None
            self.constants.append((t, self._constant(t)))

    def _constant(self, t):
        """The value outside of an invariant tensor."""
        found = self.outside.get(id(t))
        if found is None:
            eq = self.producer[id(t)]
            found = self.outside[id(t)] = bind(eq.primitive, [self._constant(i) for i in eq.inputs], eq.params)
        return found

    def _all_steps(self, t):
        """The stack of a tensor of slices and invariants, of shape (length, *t.shape)."""
        found = self.whole.get(id(t))
        if found is not None:
            return found
        eq = self.producer.get(id(t))
        if id(t) in self.outside or not any(self._varies(i) for i in eq.inputs):
            found = spread(self._constant(t), False, self.length)
        else:
            found = self._over_all_steps(eq)
        self.whole[id(t)] = found
        return found

    def _over_all_steps(self, eq):
        """What an equation gives for all steps at once, by its primitive's batching rule."""
        batched = tuple(self._varies(t) for t in eq.inputs)
        inputs = [self._all_steps(t) if varies else self._constant(t) for t, varies in zip(eq.inputs, batched, strict=True)]
        return eq.primitive.batch(inputs, batched, self.length, **eq.params)

    def _varies(self, t):
        if id(t) in self.whole:
            return True
        eq = self.producer.get(id(t))
        return id(t) not in self.outside and eq is not None and any(self._varies(i) for i in eq.inputs)

    def _transposed(self, eq, position, perm, params):
        """The equation with the operand at `position` transposed once for all steps, with `params`, its parameters for that."""
        value = P.transpose(self._constant(eq.inputs[position]), perm)
        inside = self.draft.input(value.shape, value.dtype)
        self.constants.append((inside, value))
        inputs = (*eq.inputs[:position], inside, *eq.inputs[position + 1 :])
        return Equation(eq.primitive, inputs, params, eq.outputs, eq.origin, eq.tag)

    def _product(self, eq):
        """The equation that reads a step's part of a product over all steps."""
        value = self._over_all_steps(eq)
        inside = self.draft.input(value.shape, value.dtype)
        self.stacked.append(inside)
        self.xs.append(value)
        return Equation(at_step_p, (inside,), {"shift": 0}, eq.outputs, eq.origin)
