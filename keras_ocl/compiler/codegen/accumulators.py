"""Folds: the accumulators of reductions in generated code."""

from keras_ocl.compiler.codegen.nests import Register
from keras_ocl.core import dtypes
from keras_ocl.core.index import linear
from keras_ocl.kernels import elementwise, prelude, summation

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


class Fold:
    """Accumulation by an associative operation, in a vector register ("lanes") and a scalar one.

    Attributes:
        bounded: whether long sums are cut into blocks with accumulators of their own, by begin_block() and end_block() around some of the
            steps, to bound the rounding error (kernels/summation.py).
    """

    vectorises = True

    def __init__(self, gen, kind, dtype):
        self.gen, self.op, self.dtype = gen, _COMBINE[kind], dtype
        self.start = elementwise.literal(dtypes.neutral(kind, dtype), dtype)
        self.bounded = kind == "sum" and summation.bounded(dtype)
        self._around = []  # accumulators of the enclosing blocks

    def begin(self, width):
        """Declare the accumulator of a reduction whose results have `width` lanes, in the generator's present block."""
        self.width, self.parent = width, self.gen.block
        self.scalar = self._declare(width)
        self.lanes = None

    def begin_block(self):
        """From here on, steps in the generator's present block have accumulators of their own."""
        self._around.append((self.parent, self.scalar, self.lanes))
        self.parent, self.scalar, self.lanes = self.gen.block, None, None

    def end_block(self):
        """Add the block's accumulators to those of the enclosing block."""
        inside = [r for r in (self.scalar, self.lanes) if r is not None]
        lanes = self.lanes
        self.parent, self.scalar, self.lanes = self._around.pop()
        for register in inside:
            target = self._accumulator(register is lanes, register.width)
            self.gen.emit(f"{target.text} = {self.combined(target.text, register.text, target.width)};")

    def _accumulator(self, lanes, width):
        """The vector accumulator (`lanes`) or the other one, declared if it is not yet."""
        if lanes:
            self.lanes = self.lanes or self._declare(width)
            return self.lanes
        self.scalar = self.scalar or self._declare(self.width)
        return self.scalar

    def _declare(self, width):
        name = self.gen.name("a")
        ctype = prelude.register_type(self.dtype, width)
        start = self.start if width == 1 else f"({ctype})({self.start})"
        self.parent.lines.append(f"{ctype} {name} = {start};")
        return Register(name, self.dtype, width, self.parent)

    def step(self, register, _):
        """Accumulate a Register, in the vector accumulator where the reduction's own loop is vectorised."""
        gen = self.gen
        target = self._accumulator(register.width > self.width or (gen.vector is not None and self.width == 1), gen.width)
        value = gen.widen(register, target.width)
        if target is self.lanes and gen.partial:
            lanes = ", ".join("-1" if k < gen.partial else "0" for k in range(target.width))
            mask = Register(f"({prelude.register_type('bool', target.width)})({lanes})", "bool", target.width, gen.top)
            value = gen.op("select", self.dtype, mask, value, Register(self.start, self.dtype, 1, gen.top))
        gen.emit(f"{target.text} = {self.combined(target.text, value.text, target.width)};")

    @property
    def ctype(self):
        """The C type of a scalar accumulator."""
        return prelude.register_type(self.dtype, 1)

    def combined(self, a, b, width=1):
        """C expression of the operation on two registers of `width` lanes."""
        text, helpers = elementwise.emit(self.op, width, self.dtype, [self.dtype] * 2, [a, b])
        self.gen.helpers |= helpers
        return text

    def finish(self):
        """The Register with the reduction's result, the vector accumulator's lanes folded in halves."""
        gen = self.gen
        if self.lanes is None:
            return self._frozen(self.scalar)
        part = self.lanes
        while part.width > 1:
            half = part.width // 2
            low, high = (Register(f"{part.text}.{s}", self.dtype, half, self.parent) for s in (("lo", "hi") if half > 1 else ("s0", "s1")))
            part = gen.op(self.op, self.dtype, low, high)
        return gen.op(self.op, self.dtype, self._frozen(self.scalar), part)

    def _frozen(self, register):
        return Register(register.text, self.dtype, register.width, self.parent)


class Folds:
    """Several Folds whose elements one loop computes."""

    vectorises = True

    def __init__(self, folds):
        self.folds, self.bounded = folds, folds[0].bounded

    def begin(self, width):
        """Declare the accumulators, of `width` lanes each."""
        for fold in self.folds:
            fold.begin(width)

    def begin_block(self):
        """From here on, steps in the generator's present block have accumulators of their own."""
        for fold in self.folds:
            fold.begin_block()

    def end_block(self):
        """Add the block's accumulators to those of the enclosing block."""
        for fold in self.folds:
            fold.end_block()

    def step(self, registers, indices):
        """Accumulate a Register for each of the Folds."""
        for fold, register in zip(self.folds, registers, strict=True):
            fold.step(register, indices)


class ArgFold:
    """Accumulation of the first extreme value and its position (argmax, argmin); NaN counts as the extreme, as in NumPy."""

    vectorises = bounded = False

    def __init__(self, gen, kind, dtype, extents):
        self.gen, self.kind, self.dtype, self.extents = gen, kind, dtype, extents

    def begin(self, width):
        """Declare the best value, its position and whether there is one, of `width` lanes each."""
        gen = self.gen
        self.width, self.parent = width, gen.block
        self.best, self.position, self.seen = gen.name("a"), gen.name("a"), gen.name("a")
        ctype = prelude.register_type(self.dtype, width)
        start = elementwise.literal(dtypes.neutral(self.kind, self.dtype), self.dtype)
        itype = prelude.vector_type("int", width)
        self.parent.lines.append(f"{ctype} {self.best} = ({ctype})({start});")
        self.parent.lines.append(f"{itype} {self.position} = ({itype})(0);")
        self.parent.lines.append(f"{itype} {self.seen} = ({itype})(0);")

    def step(self, register, indices):
        """Accumulate a Register, whose place along the reduced axes is `indices`."""
        gen, w = self.gen, self.width
        value = gen.widen(register, w)
        best = Register(self.best, self.dtype, w, gen.block)
        better = gen.op("gt" if self.kind == "max" else "lt", "bool", value, best)
        seen = Register(self.seen, "bool", w, gen.block)
        first = gen.op("not", "bool", seen)
        better = gen.op("or", "bool", better, first)
        if dtypes.is_float(self.dtype):
            nan = gen.op("and", "bool", gen.op("ne", "bool", value, value), gen.op("eq", "bool", best, best))
            better = gen.op("or", "bool", better, nan)
            better = gen.op("and", "bool", better, gen.op("or", "bool", gen.op("eq", "bool", best, best), first))
        place = gen.widen(gen.number(linear(indices, self.extents), "int32"), w)
        position = Register(self.position, "int32", w, gen.block)
        chosen = gen.op("select", self.dtype, better, value, best)
        at = gen.op("select", "int32", better, place, position)
        gen.emit(f"{self.best} = {chosen.text}; {self.position} = {at.text}; {self.seen} = {'-1' if w == 1 else f'(int{w})(-1)'};")

    def finish(self):
        """The Registers with the extreme value and with its row-major position, an int32."""
        return Register(self.best, self.dtype, self.width, self.parent), Register(self.position, "int32", self.width, self.parent)
