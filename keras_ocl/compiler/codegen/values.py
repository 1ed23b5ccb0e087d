"""Values: from "node at an index" to registers."""

from keras_ocl.compiler.codegen.loops import Loops
from keras_ocl.compiler.codegen.nests import Place
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.index import Affine, is_one, linear
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels import prelude
from keras_ocl.kernels.spec import Buffer


class Generator(Loops):
    """Evaluates nodes; see the package's docstring.

    Args:
        args: kernels.spec.Args that collects the kernel's parameters.
        materialised: set of nodes that are in memory.
        width: vector lanes.
        analysis: dict of Nests from a dry run, or None for the dry run itself.
        alias: dict from node to the node whose buffer it shares.
        own: nodes that are in memory for other kernels but computed by this one.

    Attributes:
        reads: dict from a node that was loaded to the list of its index tuples (None: a flat offset), for the in-place check.
        anchor: the node whose values a kernel template's accumulator holds; `anchor_identity` says whether only the accumulator's own
            element was asked for.
    """

    def __init__(self, args, materialised, width, analysis=None, alias=None, own=()):
        super().__init__(args, width, analysis)
        self.materialised, self.own, self.alias = materialised, own, alias or {}
        self.reads = {}
        self.anchor = self.anchor_index = self._anchor_register = None
        self.anchor_identity = True
        self._memo = {}

    def value(self, node, index):
        """Register holding `node` at `index`; a node without elements gives 0, which no result uses."""
        if 0 in node.shape and not self.in_memory(node):
            return self.constant(0, node.dtype)
        index = tuple(Affine.of(i) for i in index)
        if self.dry and dtypes.is_complex(node.dtype):  # a complex register is an OpenCL vector already
            for nest in self.nests.values():
                nest.vectorisable = False
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
        else:
            saved, self._index = self._index, index
            register = node.primitive.pointwise(self, node, index)
            self._index = saved
        self._memo[identity] = (register, index)  # the index keeps its Vars, whose ids are in the key, alive
        return register

    def in_memory(self, node):
        """Whether this kernel reads `node` from memory, rather than computing it."""
        return node is not self.anchor and (node.primitive is None or (node in self.materialised and node not in self.own))

    def value_flat(self, node, offset):
        """Register holding `node` at a row-major offset: reshapes and elementwise operations need no divisions to find the index."""
        if node is self.anchor:
            return self.value(node, self._unflattened(offset, node.shape))
        if self.in_memory(node):
            return self.load(node, None, offset)
        if 0 in node.shape:
            return self.value(node, ())
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

    def load(self, node, index, offset=None):
        """A register with the stored value at an index, or at a row-major offset."""
        self.reads.setdefault(node, []).append(index)
        pointer = self.args.pointer(self.alias.get(node, node), node.dtype)
        if offset is None:
            offset = linear([self.bounded(i, n) for i, n in zip(index, node.shape, strict=True)], node.shape)
        else:
            offset = self.bounded(offset, product(node.shape))
        blocks = [v.block for v in offset.terms]
        self.visit(node, node.dtype, offset)
        self.helpers |= prelude.helpers_for(node.dtype, 1)
        if self.tile is not None:
            register = prelude.register_type(node.dtype, 1)
            fetch = lambda place: prelude.load(node.dtype, 1, pointer, self.text(place, True))  # noqa: E731
            kept = self.tile.keep(self, node.dtype, register, pointer, offset, fetch)
            if kept is not None:
                return self.define(node.dtype, 1, kept, blocks)
        if self.dry or not self.lanes(offset):
            return self.define(node.dtype, 1, prelude.load(node.dtype, 1, pointer, self.text(offset, True)), blocks)
        w, count, stride, beyond = self.width, self.partial, self.lane_stride(offset), self._beyond in offset.terms
        if is_one(stride):
            self.helpers |= prelude.helpers_for(node.dtype, w, count)
            if not beyond:
                return self.define(node.dtype, w, prelude.load(node.dtype, w, pointer, self.text(offset, True), count, self.whole), blocks)
        base, step = self.define("int32", 1, self.text(offset, True), blocks, self.ctype), self.int(stride)
        places = [f"{base.text} + {k} * {step}" for k in range(count or w)]
        if beyond:  # an address in another row does no harm, one before the tensor's start or past its end does
            size = self.int(product(node.shape))
            places = [f"clamp({place}, ({self.ctype})0, ({self.ctype})({size} - 1))" for place in places]
        lanes = ", ".join([prelude.load(node.dtype, 1, pointer, place) for place in places] + ["0"] * (w - len(places)))
        text = f"({prelude.register_type(node.dtype, w)})({lanes})"
        if beyond and is_one(stride):
            whole = prelude.load(node.dtype, w, pointer, base.text, count)
            text = f"{base.text} >= 0 && {base.text} + {count or w} <= {size} ? {whole} : {text}"
        return self.define(node.dtype, w, text, [base.block])

    def visit(self, place, dtype, offset):
        """In a dry run, note that the kernel accesses the memory of `place`, a node or Buffer, at `offset`."""
        if self.dry and "root" in self.nests:
            self.nests["root"].places.append(Place(place if isinstance(place, Buffer) else place.buffer, dtype, offset))

    def load_nibble(self, node, offset, dtype):
        """A register with the 4-bit number (0 to 15) at a row-major offset of `node`, whose bytes in memory hold two each."""
        self.reads.setdefault(node, []).append(None)
        self.visit(node, node.dtype, None)
        pointer, blocks = self.args.pointer(self.alias.get(node, node), node.dtype), [v.block for v in offset.terms]
        if self.dry or not self.lanes(offset):
            at = self.define("int32", 1, self.text(offset, True), blocks, self.ctype)
            return self.define(dtype, 1, f"({pointer}[{at.text} >> 1] >> (({at.text} & 1) << 2)) & 15", [at.block])
        w, half, register = self.width, self.width // 2, dtypes.register_ctype(dtype)
        if self.in_step(offset) and not self.partial:
            pair, byte = f"ushort{half}", f"as_uchar{half}(vload{half}(0, {pointer} + (({self.text(offset, True)}) >> 1)))"
            pairs = self.define("uint16", half, f"convert_{pair}({byte})", blocks, pair)
            # A pair's lower half is its first lane, as on all little-endian devices.
            text = f"as_{register}{w}(({pairs.text} | ({pairs.text} << ({pair})(4))) & ({pair})(0x0f0f))"
            return self.define(dtype, w, text, [pairs.block])
        base, step = self.define("int32", 1, self.text(offset, True), blocks, self.ctype), self.int(self.lane_stride(offset))
        places = [f"({base.text} + {k} * {step})" for k in range(self.partial or w)]
        lanes = [f"({pointer}[{place} >> 1] >> (({place} & 1) << 2)) & 15" for place in places] + ["0"] * (w - len(places))
        return self.define(dtype, w, f"({register}{w})({', '.join(lanes)})", [base.block])

    def random(self, helper, dtype, key, counter, *parameters, word=()):
        """A random number from the prelude's function `helper`: of `key` (two registers), `counter` (an index), `parameters` and `word`."""
        low = self.number(counter, "uint32")
        width = max(low.width, *(r.width for r in parameters)) if parameters else low.width
        name = f"{helper}_{width}"
        self.helpers |= {name}
        lanes = [self.widen(r, width) for r in (low, *parameters)]
        arguments = ", ".join([*(r.text for r in (*key, *lanes)), *(f"{w}u" for w in word)])
        return self.define(dtype, width, f"{name}({arguments})", [r.block for r in (*key, *lanes)])
