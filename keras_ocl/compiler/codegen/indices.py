"""Index expressions: their C text, quotients and remainders, masks of bounds, and indices read from memory."""

import functools

from keras_ocl.compiler.codegen.nests import MASKED, Register
from keras_ocl.compiler.codegen.writer import Writer
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import Affine, Var, at_least, is_one


class Indices(Writer):
    """Prints index expressions. The dry run records each, for `nests.analyse`; the real run prints them for merged loops and vectors.

    Args:
        analysis: dict of Nests from a dry run, or None for the dry run itself.

    Attributes:
        vector: the Var that runs over lanes, in a vectorised loop, else None.
        aligned: vector loops over the root nest begin at multiples of this many elements (0: not known).
        whole: whether vectors in memory begin at multiples of their own size.
    """

    def __init__(self, args, width, analysis):
        super().__init__(args, width)
        self.dry = analysis is None
        self.nests = {} if self.dry else analysis
        self.vector = None
        self.aligned = 0
        self.whole = False
        self._beyond = Var("0", 1, self.top)  # marks indices that are out of bounds in some lanes, whose values a mask discards
        self._unsure = {}  # Var along an axis that may have no elements -> whether it is 0 in that case

    def lanes(self, affine):
        """Whether the index expression varies along the vector loop."""
        return self.vector is not None and any(v is self.vector or v.nest is self.vector.nest and self._same_group(v) for v in affine.terms)

    def _same_group(self, var):
        group = self.vector.nest.groups[-1] if self.vector.nest is not None else [self.vector.position]
        return var.position in group

    def lane_stride(self, affine):
        """Coefficient of the vector loop's variable (the last dimension of the merged group)."""
        for v, c in affine.terms.items():
            if v is self.vector or (v.nest is not None and v.nest is self.vector.nest and v.position == self.vector.nest.groups[-1][-1]):
                return c
        return 0

    def text(self, affine, load=False):
        """C text of an index expression."""
        if self.dry:
            self._record(affine, load)
        parts = []
        for v, c in affine.terms.items():
            if v.nest is not None and not self.dry:
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

    def _record(self, affine, load):
        nests = {v.nest for v in affine.terms if v.nest is not None}
        for nest in nests:
            coefficients = [0] * len(nest.extents)
            for v, c in affine.terms.items():
                if v.nest is nest:
                    coefficients[v.position] = c
            nest.uses.append(coefficients)
            nest.loads.append(load if load is not MASKED or nest is self.nests.get("root") else False)

    def _int(self, affine, expression_of, lanes=False):
        """Define a C integer computed from `affine`; `expression_of(text)` gives its C expression. `lanes`: the first lane's will do."""
        blocks = [v.block for v in affine.terms]
        block = self._deepest(blocks)
        name = self.name("i")
        block.lines.append(f"const {self.ctype} {name} = {expression_of(self.text(affine, lanes))};")
        return name, block

    def in_step(self, affine, *edges):
        """Whether the lanes of a vector see consecutive values of `affine`, and none of `edges` falls inside a vector."""
        root = self.nests.get("root")
        if not self.aligned or root is None or not root.extents:
            return False
        found = False
        for v, c in affine.terms.items():
            if v.nest is root and v.position == len(root.extents) - 1 and is_one(c):
                found = True
            elif isinstance(c, Dim) or c % self.aligned:
                return False
        return found and all(not isinstance(e, Dim) and e % self.aligned == 0 for e in (affine.constant, *edges))

    def divmod(self, affine, n):
        """(affine // n, affine % n) for affine >= 0."""
        affine = Affine.of(affine)
        if is_one(n):
            return affine, Affine()
        exact, rest = Affine(), Affine()
        for v, c in affine.terms.items():
            if _divides(n, c):
                exact = exact + Affine({v: c // n})
            else:
                rest = rest + Affine({v: c})
        whole, left = affine.constant // n, affine.constant % n
        exact, rest = exact + whole, rest + left
        low, high = rest.bounds()
        if not at_least(low, 0):  # C divides towards zero, and only the whole expression is known not to be negative
            exact, rest = Affine(), affine
            low, high = rest.bounds()
        if at_least(low, 0) and at_least(n - 1, high):
            return exact, rest
        q, qb = self._int(rest, lambda t: f"({t}) / {self.int(n)}")
        quotient = Var(q, high // n + 1, qb)
        r, rb = self._int(rest + Affine({quotient: -n}), lambda t: t)
        remainder = Var(r, n, rb)
        if (sure := self._sure(rest)) is not None:
            self._unsure[quotient] = self._unsure[remainder] = sure
        return exact + Affine.of(quotient), Affine.of(remainder)

    def inside(self, affine, low, high):
        """Mask of low <= affine < high, or None when that always holds."""
        affine = Affine.of(affine)
        least, greatest = affine.bounds()
        tests = []
        if not at_least(least, low):
            tests.append(lambda t: f"{t} >= {self.int(low)}")
        if not at_least(high - 1, greatest):
            tests.append(lambda t: f"{t} < {self.int(high)}")
        if not tests:
            return None
        if self.dry and "root" in self.nests:
            self.nests["root"].masked = True
        step = self.in_step(affine, low, high)
        if not step and not self.dry and self.lanes(affine):
            place = self.number(affine, "int64" if self.wide else "int32")
            sides = [("ge", low, not at_least(least, low)), ("lt", high, not at_least(high - 1, greatest))]
            masks = [self.op(op, "bool", place, Register(self.int(edge), place.dtype, 1, self.top)) for op, edge, open_ in sides if open_]
            return functools.reduce(self.both, masks)
        name, block = self._int(affine, lambda t: t, step or self._runs_along_lanes(affine))
        return self.define("bool", 1, "-(" + " && ".join(t(name) for t in tests) + ")", [block])

    def _runs_along_lanes(self, affine):
        """MASKED where an index varies along the loop that may become lanes, as the index then enters a mask of lanes; else False."""
        root = self.nests.get("root")
        along = root is not None and any(v.nest is root and v.position == len(root.extents) - 1 for v in affine.terms)
        return MASKED if along else False

    def safe(self, affine, mask, extent, fallback=0):
        """`affine` where the mask holds, else `fallback`, so that a load stays within `extent`; for an extent of 0 see `bounded`."""
        affine = Affine.of(affine)
        if mask is None:
            return affine
        if mask.width > 1 or (self.dry and self._runs_along_lanes(affine) and not self.in_step(affine, fallback)):
            return affine + Affine.of(self._beyond)
        block = self._deepest([mask.block, *(v.block for v in affine.terms)])
        name = self.name("i")
        if self.in_step(affine, fallback):
            # An offset instead of another index, so that lanes stay consecutive.
            block.lines.append(f"const {self.ctype} {name} = {mask.text} ? 0 : {self.int(fallback)} - ({self.text(affine, True)});")
            return affine + Affine.of(Var(name, 1, block))
        block.lines.append(f"const {self.ctype} {name} = {mask.text} ? {self.text(affine)} : {self.int(fallback)};")
        chosen, sure = Var(name, affine.bounds()[1] + 1, block), self._sure(affine)
        if sure is not None or isinstance(extent, Dim):
            self._unsure[chosen] = sure is not False
        return Affine.of(chosen)

    def _sure(self, affine):
        """None where no variable of the index runs along an axis that may be empty; else whether it is in bounds, or 0, even then."""
        unsure = [v for v in affine.terms if v in self._unsure]
        if not unsure:
            return None
        in_place = affine.constant == 0 and not isinstance(affine.constant, Dim)
        return in_place and all(self._unsure[v] and at_least(affine.terms[v], 0) for v in unsure)

    def bounded(self, affine, extent):
        """The index of a load, clamped to at least 0 and less than `extent` where that is in doubt.

        Loads from a part that may be empty, such as a piece of a concatenation, are masked away if it is empty; but an empty part has no
        valid index, and the one that stands in for it, once reversed or shifted, may lie outside of the buffer.
        """
        if self._sure(affine) is not False:
            return affine
        if self.lanes(affine) or (self.dry and self._runs_along_lanes(affine)):
            return affine + Affine.of(self._beyond)
        i, top = self.ctype, self.int(extent - 1)
        name, block = self._int(affine, lambda t: f"max(({i})0, min(({i})({t}), ({i})({top})))")
        return Affine.of(Var(name, extent, block))

    def as_index(self, register, extent):
        """An integer register (0 <= value < extent) as an index. Lanes cannot index, so this ends vectorisation."""
        if register.affine is not None:
            return register.affine
        if self.dry:
            b = register.block
            while b is not None:
                if b.var is not None and b.var.position == len(b.var.nest.extents) - 1:
                    b.var.nest.vectorisable = False
                b = b.parent
        return Affine.of(Var(register.text, extent, register.block))

    def clip_index(self, register, extent):
        """Integer register clipped to 0 <= value < extent, as int32 (int64 where needed)."""
        if register.affine is not None:
            low, high = register.affine.bounds()
            if at_least(low, 0) and at_least(extent - 1, high):
                return register
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
        if not self.dry and self.lanes(affine):
            w = self.width
            steps = ", ".join(str(k) for k in range(w))
            stride = self.int(self.lane_stride(affine))
            text = f"({self.ctype}{w})({self.text(affine, True)}) + ({self.ctype}{w})({steps}) * ({self.ctype}{w})({stride})"
            r = self.define(integer, w, text, blocks)
        else:
            r = self.define(integer, 1, self.text(affine, True), blocks)
        r = r if dtype == integer else self.op("convert", dtype, r)
        if dtypes.is_integer(dtype):
            r.affine = affine
        return r


def _divides(n, c):
    rest = c % n
    return rest == 0 and not isinstance(rest, Dim)
