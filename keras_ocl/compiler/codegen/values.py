"""Values in memory and random numbers: the text that loads them."""

from keras_ocl.compiler.codegen.loops import Loops
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.index import is_one
from keras_ocl.kernels import prelude


class Generator(Loops):
    """Writes the text of nodes' values; see the package's docstring.

    Args:
        args, materialised, width, nests, own: as for Writer.
        alias: dict from node to the node whose buffer it shares.

    Attributes:
        store_result: function of (node, register, index, width) that writes the statements that store a result, for staged ones.
    """

    def __init__(self, args, materialised, width, nests, alias=None, own=()):
        super().__init__(args, materialised, width, nests, own)
        self.alias, self.store_result = alias or {}, None

    def load(self, node, index, offset=None):
        """A register with the stored value at an index, or at a row-major offset."""
        pointer = self.args.pointer(self.alias.get(node, node), node.dtype)
        if offset is None:
            offset = node.offset([self.bounded(i, n) for i, n in zip(index, node.shape, strict=True)])
        else:
            offset = self.bounded(offset, product(node.shape))
        blocks = [v.block for v in offset.terms]
        self.helpers |= prelude.helpers_for(node.dtype, 1)
        if self.tile is not None:
            register = prelude.register_type(node.dtype, 1)
            fetch = lambda place: prelude.load(node.dtype, 1, pointer, self.text(place))  # noqa: E731
            kept = self.tile.keep(self, node.dtype, register, pointer, offset, fetch)
            if kept is not None:
                return self.define(node.dtype, 1, kept, blocks)
        if not self.lanes(offset):
            return self.define(node.dtype, 1, prelude.load(node.dtype, 1, pointer, self.text(offset)), blocks)
        w, count, stride, beyond = self.width, self.partial, self.lane_stride(offset), self._beyond in offset.terms
        if is_one(stride):
            self.helpers |= prelude.helpers_for(node.dtype, w, count)
            if not beyond:
                return self.define(node.dtype, w, prelude.load(node.dtype, w, pointer, self.text(offset), count, self.whole), blocks)
        base, step = self.define("int32", 1, self.text(offset), blocks, self.ctype), self.int(stride)
        places = [f"{base.text} + {k} * {step}" for k in range(count or w)]
        if beyond:  # an address in another row does no harm, one before the tensor's start or past its end does
            size = self.int(product((node if node.part is None else node.part.concat).shape))
            places = [f"clamp({place}, ({self.ctype})0, ({self.ctype})({size} - 1))" for place in places]
        lanes = ", ".join([prelude.load(node.dtype, 1, pointer, place) for place in places] + ["0"] * (w - len(places)))
        text = f"({prelude.register_type(node.dtype, w)})({lanes})"
        if beyond and is_one(stride):
            whole = prelude.load(node.dtype, w, pointer, base.text, count)
            text = f"{base.text} >= 0 && {base.text} + {count or w} <= {size} ? {whole} : {text}"
        return self.define(node.dtype, w, text, [base.block])

    def load_staged(self, node, index):
        """A register with an element of a staged node, which an earlier loop of the same work-item has stored."""
        if node in self.own:
            return self.load(node, index)
        offset = self.in_row(node, index)
        width, count, dtype, pointer = self._staged(node, offset)
        text = prelude.load(dtype, width, pointer, self.text(offset), count)
        return self.define(node.dtype, width, text, [v.block for v in offset.terms])

    def store_staged(self, node, index, register):
        """Write the statement that stores a register as an element of a staged node: where the result lies, or else in a row of scratch."""
        offset = self.in_row(node, index)
        if node in self.own:
            self.store_result(node, register, index, self.width if self.lanes(offset) else 1)
            return
        width, count, dtype, pointer = self._staged(node, offset)
        self.emit(prelude.store(dtype, width, pointer, self.text(offset), self.widen(register, width).text, count))

    def _staged(self, node, offset):
        """(lanes, valid lanes of a partial vector or 0, the dtype in memory, C text of the row's pointer) of a staged node."""
        width, count = (self.width, self.partial) if self.lanes(offset) else (1, 0)
        dtype = "float32" if dtypes.register_ctype(node.dtype) == "float" else node.dtype  # as precise as a register
        self.helpers |= prelude.helpers_for(dtype, width, count)
        return width, count, dtype, self.team.row(self, node, product(node.shape[self.staged[node] :]), dtype)

    def load_nibble(self, node, offset, dtype):
        """A register with the 4-bit number (0 to 15) at a row-major offset of `node`, whose bytes in memory hold two each."""
        pointer, blocks = self.args.pointer(self.alias.get(node, node), node.dtype), [v.block for v in offset.terms]
        if not self.lanes(offset):
            at = self.define("int32", 1, self.text(offset), blocks, self.ctype)
            return self.define(dtype, 1, f"({pointer}[{at.text} >> 1] >> (({at.text} & 1) << 2)) & 15", [at.block])
        w, half, register = self.width, self.width // 2, dtypes.register_ctype(dtype)
        if self.in_step(offset) and not self.partial:
            pair, byte = f"ushort{half}", f"as_uchar{half}(vload{half}(0, {pointer} + (({self.text(offset)}) >> 1)))"
            pairs = self.define("uint16", half, f"convert_{pair}({byte})", blocks, pair)
            # A pair's lower half is its first lane, as on all little-endian devices.
            text = f"as_{register}{w}(({pairs.text} | ({pairs.text} << ({pair})(4))) & ({pair})(0x0f0f))"
            return self.define(dtype, w, text, [pairs.block])
        base, step = self.define("int32", 1, self.text(offset), blocks, self.ctype), self.int(self.lane_stride(offset))
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
