"""Analysis: what a kernel's text depends on, found by evaluating its nodes without writing any.

It walks one naive loop nest, with a loop for each dimension and one element at a time, and notes every index expression and every access to
memory. From these `nests.analyse` learns which dimensions of a nest may be merged into one loop and whether the innermost loop may be
vectorised.
"""

from keras_ocl.compiler.codegen.evaluator import Evaluator
from keras_ocl.compiler.codegen.nests import MASKED, Block, Nest, Place, Register
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product, size_hint
from keras_ocl.core.index import Affine, Var, is_one, linear
from keras_ocl.kernels.spec import Buffer


class Analysis(Evaluator):
    """Evaluates nodes to registers without text.

    Attributes:
        reads: dict from a node that was loaded to the list of its index tuples (None: a flat offset), for the in-place check.
        cost: elements that reductions combine per element of the result.
        chunks: dict from a partial reduction to (dimension of its nest, elements of it that a part has).
    """

    ctype = "int"

    def __init__(self, materialised, own=(), aligned=0, for_any=False):
        super().__init__(materialised, own, {}, for_any)
        self.aligned = aligned
        self.reads, self.cost, self.chunks = {}, 0.0, {}

    def nest(self, identity, extents):
        """The Nest with this hashable identity."""
        return self.nests.setdefault(identity, Nest(extents))

    def open_loop(self, nest, dimension):
        """Open a loop over a dimension of `nest` until close_loop(); returns its Var."""
        self.block = Block(self.block)
        (variable,) = self.group_vars(nest, [dimension], "", self.block)
        self.block.var = variable
        return variable

    def close_loop(self):
        """Close the innermost open loop."""
        self.block.parent.lines.append(self.block)
        self.block = self.block.parent

    def visit(self, place, dtype, offset):
        """Note that the kernel accesses the memory of `place`, a node or Buffer, at `offset`."""
        if "root" in self.nests:
            self.nests["root"].places.append(Place(place if isinstance(place, Buffer) else place.buffer, dtype, offset))

    def note(self, affine, load=False):
        """Note that the text has an index expression; `load` as in Nest.loads."""
        for nest in {v.nest for v in affine.terms if v.nest is not None}:
            coefficients = [0] * len(nest.extents)
            for v, c in affine.terms.items():
                if v.nest is nest:
                    coefficients[v.position] = c
            nest.uses.append(coefficients)
            nest.loads.append(load if load is not MASKED or nest is self.nests.get("root") else False)

    def _enter(self, node):
        if dtypes.is_complex(node.dtype):  # a complex register is an OpenCL vector already
            for nest in self.nests.values():
                nest.vectorisable = False

    def _register(self, dtype, blocks, affine=None):
        return Register("", dtype, 1, self._deepest(blocks), affine)

    def _int(self, affine, expression_of, load=False, blocks=()):
        self.note(affine, load)
        return "", self._deepest([*blocks, *(v.block for v in affine.terms)])

    def constant(self, value, dtype):
        """A Register that holds a Python number or a Dim."""
        return self._register(dtype, ())

    def step(self, extent):
        """The number of the present step of the loop around the kernel, an index below `extent`."""
        return Affine.of(Var("", extent, self.top))

    def op(self, name, out_dtype, *registers):
        """Apply an elementwise operation."""
        return self._register(out_dtype, [r.block for r in registers])

    def number(self, affine, dtype):
        """An index as a number of `dtype`."""
        affine = Affine.of(affine)
        self.note(affine, True)
        return self._register(dtype, [v.block for v in affine.terms], affine if dtypes.is_integer(dtype) else None)

    def random(self, helper, dtype, key, counter, *parameters, word=()):
        """A random number; see Generator.random."""
        return self._register(dtype, [r.block for r in (*key, self.number(counter, "uint32"), *parameters)])

    def load(self, node, index, offset=None):
        """A register with the stored value at an index, or at a row-major offset."""
        self.reads.setdefault(node, []).append(index)
        if offset is None:
            offset = node.offset([self.bounded(i, n) for i, n in zip(index, node.shape, strict=True)])
        else:
            offset = self.bounded(offset, product(node.shape))
        self.visit(node, node.dtype, offset)
        self.note(offset, True)
        return self._register(node.dtype, [v.block for v in offset.terms])

    def _computes(self, node, index):
        """As if each reduction computed what it reads: which of them ends first, and so is the writer, shows only later."""
        found = self._nests(node, index) - {self.nests["root"]}
        for nest in found:
            nest.staged.add(node)
        return bool(found)

    def load_staged(self, node, index):
        """A register with an element of a staged node."""
        self.store_staged(node, index, None)
        return self._register(node.dtype, [v.block for v in linear(index, node.shape).terms])

    def store_staged(self, node, index, register):
        """Note that an element of a staged node is accessed: in its row, or in its whole buffer if it is a result."""
        self.note(linear(index, node.shape) if node in self.own else self.in_row(node, index), True)

    def load_nibble(self, node, offset, dtype):
        """A register with a 4-bit number; see Generator.load_nibble."""
        self.reads.setdefault(node, []).append(None)
        self.visit(node, node.dtype, None)
        self.note(offset, True)
        return self._register(dtype, [v.block for v in offset.terms])

    def _mask(self, affine, low, high, from_low, to_high):
        if "root" in self.nests:
            self.nests["root"].masked = True
        return self._register("bool", [self._int(affine, None, self.in_step(affine, low, high) or self._runs_along_lanes(affine))[1]])

    def _varies(self, mask, affine, fallback):
        return self._runs_along_lanes(affine) and not self.in_step(affine, fallback)

    def _is_vector(self, affine):
        return self._runs_along_lanes(affine)

    def as_index(self, register, extent):
        """An integer register as an index; the loops around it do not become lanes."""
        block = register.block if register.affine is None else None
        while block is not None:
            if block.var is not None and block.var.position == len(block.var.nest.extents) - 1:
                block.var.nest.vectorisable = False
            block = block.parent
        return super().as_index(register, extent)

    def _clipped(self, register, extent):
        return self._register("int32", [register.block])

    def reduce(self, node, kind, dtype, extents, body):
        """A reduction over `extents` of body(indices), in registers of `dtype`."""
        parent = self._nested(node, extents, body, vectorises=True)
        return self._register(dtype, [parent])

    def reduce_arg(self, node, kind, dtype, extents, body):
        """(extreme, its position) of a reduction over `extents` of body(indices)."""

        def position(indices):
            body(indices)
            self.number(linear(indices, extents), "int32")

        parent = self._nested(node, extents, position, vectorises=False)
        return self._register(dtype, [parent]), self._register("int32", [parent])

    def reduce_part(self, node, dimension, part, chunk, extent):
        """From here on, the reduction `node` runs through part number `part` of a dimension; see Loops.reduce_part."""
        self.note(part)
        self.chunks[node] = dimension, chunk

    def _nested(self, node, extents, body, vectorises):
        """Evaluate body(indices) in loops over `extents`, in the outermost block that knows the node's index; returns that block."""
        real = [i for i, n in enumerate(extents) if not is_one(n)]
        nest = self.nest((node, vectorises), [extents[i] for i in real])
        saved, parent = self.block, self._deepest([v.block for i in self._index for v in i.terms])
        self.cost += size_hint(extents)
        if vectorises:
            nest.levels.append(parent.depth if parent.var is None or parent.var.nest is self.nests.get("root") else None)
        if node in self.chunks and real:
            dimension, chunk = self.chunks[node]
            nest.breaks.add(real.index(dimension))
            nest.chunks[real.index(dimension)] = chunk
        self.block, indices = parent, [Affine()] * len(extents)
        for dimension, i in enumerate(real):
            indices[i] = Affine.of(self.open_loop(nest, dimension))
        body(tuple(indices))
        for _ in real:
            self.close_loop()
        for staged in nest.staged:
            self.writers.setdefault(staged, nest)
        self.block = saved
        return parent
