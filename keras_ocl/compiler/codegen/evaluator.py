"""Evaluation: from "node at an index" to a register, as the primitives' pointwise rules say; what analysis and code generation share.

`Evaluator.value(node, index)` walks from a result back to what is in memory and composes views by substituting index expressions (as
tinygrad's rangeify does). A value belongs to the outermost block of the loop nest where its operands are known, which hoists loop-invariant
code. Pointwise rules call the methods of this class alone, so that they serve both of its subclasses: Analysis (analysis.py), which finds
out about a kernel's loops and memory, and Generator (values.py), which then writes its text.
"""

from keras_ocl.compiler.codegen.nests import MASKED, Block
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import Affine, Var, at_least, is_one, linear
from keras_ocl.core.primitive import Kind


class Evaluator:
    """Evaluates nodes.

    Args:
        materialised: set of nodes that are in memory.
        own: nodes that are in memory for other kernels but computed by this one.
        nests: dict from an identity to a Nest; the index space's is "root".
        for_any: whether the kernel is for any extents (in eager code).

    Attributes:
        top: the kernel's Block; `block` is the one that is being evaluated in.
        vector: the Var that runs over lanes, in a vectorised loop, else None.
        aligned: vector loops over the root nest begin at multiples of this many elements (0: not known).
        staged: dict from a node of which the kernel keeps a row in scratch memory to the number of leading axes that count rows.
        writers: dict from such a node to the Nest of the reduction that computes and stores it; the loops after it load it.
        anchor: the node whose values a kernel template's accumulator holds; `anchor_identity` says whether only the accumulator's own
            element was asked for.
    """

    def __init__(self, materialised, own, nests, for_any=False):
        self.materialised, self.own, self.nests, self._for_any = materialised, own, nests, for_any
        self.top = self.block = Block()
        self.vector, self.aligned = None, 0
        self.anchor = self.anchor_index = self._anchor_register = None
        self.anchor_identity = True
        self.staged, self.writers = {}, {}
        self._memo = {}
        self._index = ()  # the index at which the enclosing node is evaluated
        self._beyond = Var("0", 1, self.top)  # marks indices that are out of bounds in some lanes, whose values a mask discards
        self._unsure = {}  # Var along an axis that may have no elements -> whether it is 0 in that case

    # ---- nodes

    def value(self, node, index):
        """Register holding `node` at `index`; a node without elements gives 0, which no result uses."""
        if 0 in node.shape and not self.in_memory(node):
            return self.constant(0, node.dtype)
        index = tuple(Affine.of(i) for i in index)
        self._enter(node)
        lanes = self.vector if any(self.lanes(i) for i in index) else None
        identity = (node, tuple(i.key for i in index), lanes)
        found = self._memo.get(identity)
        if found is not None and self._visible(found[0].block):
            return found[0]
        if node is self.anchor:
            if any(i.key != a.key for i, a in zip(index, self.anchor_index, strict=True)):
                self.anchor_identity = False
            register = self._anchor_register
        elif self.in_memory(node):
            register = self.load(node, index)
        elif node in self.staged and not self._computes(node, index):
            register = self.load_staged(node, index)
        else:
            saved, self._index = self._index, index
            register = node.primitive.pointwise(self, node, index)
            self._index = saved
            if node in self.staged:
                self.store_staged(node, index, register)
        self._memo[identity] = (register, index)  # the index keeps its Vars, whose ids are in the key, alive
        return register

    def _enter(self, node):
        """Called for each node that is evaluated."""

    def _computes(self, node, index):
        """Whether the kernel computes the staged `node` at `index`, rather than loading it."""
        return self.writers.get(node) in self._nests(node, index)

    def _nests(self, node, index):
        """The set of Nests whose loops run along a row of the staged `node`."""
        return {v.nest for v in self.in_row(node, index).terms}

    def in_row(self, node, index):
        """The offset of an element in its row of a staged `node`."""
        rows = self.staged[node]
        return linear(index[rows:], node.shape[rows:])

    def in_memory(self, node):
        """Whether this kernel reads `node` from memory, rather than computing it."""
        return node is not self.anchor and (node.primitive is None or (node in self.materialised and node not in self.own))

    def value_flat(self, node, offset):
        """Register holding `node` at a row-major offset: reshapes and elementwise operations need no divisions to find the index."""
        if node is self.anchor:
            return self.value(node, self._unflattened(offset, node.shape))
        if self.in_memory(node) and node.part is None:
            return self.load(node, None, offset)
        if 0 in node.shape or self.in_memory(node):
            return self.value(node, ())
        if node in self.staged:
            return self.value(node, self._unflattened(offset, node.shape))
        if node.kind is Kind.VIEW and node.primitive.flat:
            return self.value_flat(node.inputs[0], offset)
        if node.kind is Kind.VIEW and not node.inputs[0].shape:
            return self.value(node.inputs[0], ())
        if node.kind is Kind.ELEMENTWISE and all(i.shape == node.shape for i in node.inputs):
            identity = (node, offset.key, self.vector if self.lanes(offset) else None)
            found = self._memo.get(identity)
            if found is None or not self._visible(found[0].block):
                saved, self._index = self._index, (offset,)
                found = self.op(node.name, node.dtype, *[self.value_flat(i, offset) for i in node.inputs]), offset
                self._index = saved
                self._memo[identity] = found
            return found[0]
        return self.value(node, self._unflattened(offset, node.shape))

    def _unflattened(self, offset, shape):
        index = []
        for n in reversed(shape[1:]):
            offset, rest = self.divmod(offset, n)
            index.append(rest)
        return (offset, *reversed(index)) if shape else ()

    def bind_anchor(self, node, index, register):
        """Values of `node` come from the kernel template's accumulator."""
        self.anchor, self.anchor_index, self._anchor_register = node, tuple(Affine.of(i) for i in index), register

    def both(self, a, b):
        """The mask where the masks `a` and `b` both hold; None stands for a mask that always holds."""
        if a is None or b is None:
            return a if b is None else b
        return self.op("and", "bool", a, b)

    def select(self, mask, a, b):
        """The Register with `a` where the mask holds (None: always), else `b`."""
        return a if mask is None else self.op("select", a.dtype, mask, a, b)

    def known(self, extent):
        """Whether the kernel's text may depend on `extent`."""
        return not isinstance(extent, Dim) and not self._for_any

    # ---- blocks

    def _deepest(self, blocks):
        best = self.top
        for b in blocks:
            if b is not None and b.depth > best.depth:
                best = b
        return best

    def _visible(self, block):
        b = self.block
        while b is not None:
            if b is block:
                return True
            b = b.parent
        return False

    def group_vars(self, nest, group, name, block):
        """Vars of the dimensions of a group; only the last one's name is printed."""
        return [Var(name, nest.extents[i], block, nest, i) for i in group]

    # ---- index expressions

    def lanes(self, affine):
        """Whether the index expression varies along the vector loop."""
        return self.vector is not None and any(v is self.vector or v.nest is self.vector.nest and self._same_group(v) for v in affine.terms)

    def _same_group(self, var):
        group = self.vector.nest.groups[-1] if self.vector.nest is not None else [self.vector.position]
        return var.position in group

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
        from_low, to_high = not at_least(least, low), not at_least(high - 1, greatest)
        return self._mask(affine, low, high, from_low, to_high) if from_low or to_high else None

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
        if self._varies(mask, affine, fallback):
            return affine + Affine.of(self._beyond)
        if self.in_step(affine, fallback):
            # An offset instead of another index, so that lanes stay consecutive.
            name, block = self._int(affine, lambda t: f"{mask.text} ? 0 : {self.int(fallback)} - ({t})", True, [mask.block])
            return affine + Affine.of(Var(name, 1, block))
        name, block = self._int(affine, lambda t: f"{mask.text} ? {t} : {self.int(fallback)}", False, [mask.block])
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
        if self._is_vector(affine):
            return affine + Affine.of(self._beyond)
        i = self.ctype
        name, block = self._int(affine, lambda t: f"max(({i})0, min(({i})({t}), ({i})({self.int(extent - 1)})))")
        return Affine.of(Var(name, extent, block))

    def as_index(self, register, extent):
        """An integer register (0 <= value < extent) as an index. Lanes cannot index, so this ends vectorisation."""
        return Affine.of(Var(register.text, extent, register.block)) if register.affine is None else register.affine

    def clip_index(self, register, extent):
        """Integer register clipped to 0 <= value < extent, as int32 (int64 where needed)."""
        if register.affine is not None:
            low, high = register.affine.bounds()
            if at_least(low, 0) and at_least(extent - 1, high):
                return register
        return self._clipped(register, extent)


def _divides(n, c):
    rest = c % n
    return rest == 0 and not isinstance(rest, Dim)
