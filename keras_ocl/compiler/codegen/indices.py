"""Index expressions: their C text, quotients and remainders, masks of bounds, and indices read from memory."""

import functools

from keras_ocl.compiler.codegen.nests import Register
from keras_ocl.compiler.codegen.writer import Writer
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import Affine, Var, is_one


class Indices(Writer):
    """Prints index expressions, for merged loops and vectors.

    Attributes:
        whole: whether vectors in memory begin at multiples of their own size.
    """

    def __init__(self, args, materialised, width, nests, own=()):
        super().__init__(args, materialised, width, nests, own)
        self.whole = False

    def lane_stride(self, affine):
        """Coefficient of the vector loop's variable (the last dimension of the merged group)."""
        for v, c in affine.terms.items():
            if v is self.vector or (v.nest is not None and v.nest is self.vector.nest and v.position == self.vector.nest.groups[-1][-1]):
                return c
        return 0

    def text(self, affine):
        """C text of an index expression."""
        parts = []
        for v, c in affine.terms.items():
            if v.nest is not None:
                group = next(g for g in v.nest.groups if v.position in g)
                if v.position != group[-1]:
                    continue  # printed with the merged loop's variable
            if is_one(c):
                parts.append(v.name)
            else:
                parts.append(f"{v.name} * {self.int(c)}")
        if affine.constant != 0 or isinstance(affine.constant, Dim) or not parts:
            parts.append(self.int(affine.constant))
        return " + ".join(parts)

    def _int(self, affine, expression_of, load=False, blocks=()):
        """Define a C integer computed from `affine`; `expression_of(text)` gives its C expression."""
        block, name = self._deepest([*blocks, *(v.block for v in affine.terms)]), self.name("i")
        block.lines.append(f"const {self.ctype} {name} = {expression_of(self.text(affine))};")
        return name, block

    def step(self, extent):
        """The number of the present step of the loop around the kernel, an index below `extent`."""
        return Affine.of(Var(self.args.step(), extent, self.top))

    def _mask(self, affine, low, high, from_low, to_high):
        """The mask of `inside`; from_low, to_high: whether each side has to be tested."""
        if not self.in_step(affine, low, high) and self.lanes(affine):
            place = self.number(affine, "int64" if self.wide else "int32")
            sides = [("ge", low, from_low), ("lt", high, to_high)]
            masks = [self.op(op, "bool", place, Register(self.int(edge), place.dtype, 1, self.top)) for op, edge, open_ in sides if open_]
            return functools.reduce(self.both, masks)
        name, block = self._int(affine, lambda t: t)
        tests = [f"{name} >= {self.int(low)}"] if from_low else []
        tests += [f"{name} < {self.int(high)}"] if to_high else []
        return self.define("bool", 1, "-(" + " && ".join(tests) + ")", [block])

    def _varies(self, mask, affine, fallback):
        """Whether an index that `safe` makes has another value in each lane."""
        return mask.width > 1

    def _is_vector(self, affine):
        """Whether an index that `bounded` makes has another value in each lane."""
        return self.lanes(affine)

    def _clipped(self, register, extent):
        dtype = "int64" if self.wide else "int32"
        own = register.dtype
        if own != dtype and own in ("int64", "uint32", "uint64"):  # what does not fit in `dtype` is clipped before it is converted
            top = self.define(own, 1, f"({dtypes.register_ctype(own)})({self.int(extent - 1)})", [])
            register = self.op("min", own, register, top)
            register = self.op("max", own, register, self.constant(0, own))
        r = register if own == dtype else self.op("convert", dtype, register)
        top = self.define(dtype, 1, self.int(extent - 1), [])
        return self.op("max", dtype, self.op("min", dtype, r, top), self.constant(0, dtype))

    def number(self, affine, dtype):
        """An index as a number of `dtype`; along the vector loop, one value per lane."""
        affine = Affine.of(affine)
        blocks = [v.block for v in affine.terms]
        integer = "int64" if self.wide else "int32"
        if self.lanes(affine):
            w = self.width
            steps = ", ".join(str(k) for k in range(w))
            stride = self.int(self.lane_stride(affine))
            text = f"({self.ctype}{w})({self.text(affine)}) + ({self.ctype}{w})({steps}) * ({self.ctype}{w})({stride})"
            r = self.define(integer, w, text, blocks)
        else:
            r = self.define(integer, 1, self.text(affine), blocks)
        r = r if dtype == integer else self.op("convert", dtype, r)
        if dtypes.is_integer(dtype):
            r.affine = affine
        return r
