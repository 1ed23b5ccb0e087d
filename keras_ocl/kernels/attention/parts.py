"""What attention's schedules share: the problem, the three schemes, and C texts of extents, rows and logits."""

from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels import elementwise, prelude
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.gemm.parts import scaled, summed
from keras_ocl.kernels.spec import Args

# The value of masked logits, as in other backends: far below all others, yet a row that is masked as a whole stays finite.
MASKED = -0.7 * 3.4028234663852886e38


@dataclass(frozen=True)
class Operand:
    """A row-major array in the buffer `handle`."""

    handle: object  # goes to Args.pointer
    dtype: str
    shape: tuple


@dataclass(frozen=True)
class Problem:
    """One attention, forward or backward.

    Shape:
        `operands` has those that the scheme needs: query, do (batch, time, heads, depth or value_depth); key, value (batch, source,
        key_heads, depth or value_depth); peak, rescale, delta (batch, time, heads); bias and mask, if any, of rank 4: (batch, heads,
        time, source), where any extent may be 1 (broadcast).
    """

    traits: object
    batch: int
    time: int
    source: int
    heads: int
    key_heads: int
    depth: int
    value_depth: int
    dtype: str
    scale: float
    causal: bool
    operands: dict
    all_arguments: bool = False

    @property
    def wide(self):
        """The accumulator's dtype."""
        return dtypes.accumulator(self.dtype)

    @property
    def lanes(self):
        """Lanes of the accumulator in one hardware vector."""
        return max(2, self.traits.vector_width * 4 // dtypes.itemsize(self.wide))

    @property
    def index(self):
        """C type of offsets: 64 bits only when an operand or a result needs them."""
        width = max(self.depth, self.value_depth, key=hint)
        sizes = [product(o.shape) for o in self.operands.values()]
        sizes += [product((self.batch, n, h, width)) for n, h in ((self.time, self.heads), (self.source, self.key_heads))]
        return index_type(*sizes)


@dataclass(frozen=True)
class Scheme:
    """One form of the kernels: whose positions a work-item or group owns, the operands of its one or two products, and its sums.

    kept, met: operands whose own, and whose other, rows are multiplied: logits first, then, for gradients, the products do v.
    """

    name: str
    own: str  # "query" or "key"
    kept: tuple
    met: tuple
    sums: tuple  # per result, (factor: "weights" or "slopes", operand whose other rows it multiplies)

    @property
    def others(self):
        """All operands whose rows at other positions are read."""
        return tuple(dict.fromkeys((*self.met, *(name for _, name in self.sums))))


FORWARD = Scheme("attention", "query", ("query",), ("key",), (("weights", "value"),))
QUERY_GRADIENT = Scheme("attention: query gradient", "query", ("query", "do"), ("key", "value"), (("slopes", "key"),))
KEY_VALUE_GRADIENT = Scheme(
    "attention: key and value gradients", "key", ("key", "value"), ("query", "do"), (("slopes", "query"), ("weights", "do"))
)


class Writer:
    """C names of a kernel's extents and operands, and C texts that all schedules use.

    The C variables `batch`, `head` and `key_head` are the indices of the current head; `own` and `other` are positions along time and
    source, or the reverse if the scheme owns keys.
    """

    def __init__(self, problem, scheme, sinks):
        self.p, self.scheme, self.sinks = problem, scheme, sinks
        self.args, self.helpers = Args(problem.all_arguments), set()
        self.i = problem.index
        self.register = dtypes.register_ctype(problem.wide)
        self.forward = scheme is FORWARD
        p = problem
        # Every extent is turned into text once, so that in eager code each is one argument.
        self.time, self.source = self.args.int(p.time), self.args.int(p.source)
        self.heads, self.key_heads = self.args.int(p.heads), self.args.int(p.key_heads)
        self.group = self.args.int(p.heads // p.key_heads)
        self.depth, self.value_depth = self.args.int(p.depth), self.args.int(p.value_depth)
        self.scale = self.args.scalar(float(p.scale), self.register)
        self.pointers = {name: self.args.pointer(o.handle, o.dtype) for name, o in p.operands.items()}
        self.strides = {name: self._strides(p.operands[name].shape) for name in ("bias", "mask") if name in p.operands}
        self.own, self.others = (self.time, self.source) if scheme.own == "query" else (self.source, self.time)

    def _strides(self, shape):
        """C texts of the strides along (batch, heads, time, source), 0 where the operand is broadcast."""
        strides, step = [], 1
        for n in reversed(shape):
            strides.append(0 if is_one(n) else step)
            step = step * n
        return [self.args.int(s, self.i) for s in reversed(strides)]

    # ---- where operands lie

    def head(self, dimension):
        """Statements that compute the head's indices from the global id in grid dimension `dimension`."""
        heads, name = (self.heads, "head") if self.scheme.own == "query" else (self.key_heads, "key_head")
        lines = f"const int z = {self.args.place('global', dimension)}, batch = z / {heads}, {name} = z % {heads};\n"
        return lines + (f"const int key_head = head / {self.group};\n" if name == "head" else "")

    def width(self, name):
        """C text of the length of a row of query, key, value or do."""
        return self.depth if name in ("query", "key") else self.value_depth

    def rows(self, name):
        """Statements that declare {name}_rows, the first row of this head, and {name}_row, the stride from row to row."""
        asking = name in ("query", "do")
        extent, heads, head = (self.time, self.heads, "head") if asking else (self.source, self.key_heads, "key_head")
        width = self.width(name)
        start = f"{self.pointers[name]} + (({self.i})batch * {extent} * {heads} + {head}) * {width}"
        return f"{self.pointer(name, f'{name}_rows', start)}const {self.i} {name}_row = ({self.i}){heads} * {width};\n"

    def pointer(self, name, variable, start):
        """Statement that declares `variable`, a pointer to elements of an operand, from `start` (C text) on."""
        return prelude.pointer(self.p.operands[name].dtype, variable, start)

    def statistic(self, name, row):
        """C text of the value of peak, rescale or delta at query position `row`."""
        return f"{self.pointers[name]}[(({self.i})batch * {self.time} + {row}) * {self.heads} + head]"

    def load(self, name, width, pointer, offset, aligned=False):
        """Expression that loads consecutive elements of an operand into accumulator registers (of a mask: into lanes of bool).

        aligned: as for prelude.load().
        """
        dtype = self.p.operands[name].dtype
        self.helpers |= prelude.helpers_for(dtype, width)
        text = prelude.load(dtype, width, pointer, offset, aligned=aligned)
        return text if dtype == "bool" or dtypes.register_ctype(dtype) == self.register else f"convert_{self.vector(width)}({text})"

    def place(self, name, own, other):
        """C text of the offset in bias or mask of the pair of positions (own, other)."""
        batch, head, time, source = self.strides[name]
        query, key = (own, other) if self.scheme.own == "query" else (other, own)
        cast = "" if self.i == "int" else f"({self.i})"
        first = scaled(f"{cast}batch", batch), scaled(f"{cast}head", head)
        return summed(*first, scaled(f"({self.i}){query}", time), scaled(f"({self.i}){key}", source))

    def own_stride(self, name):
        """C text of the stride of bias or mask along own positions."""
        return self.strides[name][2 if self.scheme.own == "query" else 3]

    # ---- arithmetic

    def vector(self, width):
        """C type of `width` lanes of the accumulator."""
        return prelude.vector_type(self.register, width)

    def op(self, name, width, *operands, dtype=None, out=None):
        """Expression of the elementwise op `name`, on the accumulator's dtype unless `dtype` is given."""
        dtype = dtype or self.p.wide
        given = ["bool", dtype, dtype] if name == "select" else [dtype] * len(operands)
        text, helpers = elementwise.emit(name, width, out or dtype, given, operands)
        self.helpers |= helpers
        return text

    def compare(self, name, width, a, b, dtype=None):
        """Expression of the comparison `name`: int lanes of 0 and -1."""
        return self.op(name, width, a, b, dtype=dtype, out="bool")

    def number(self, value, width):
        """Expression of `width` lanes of a number."""
        return elementwise.splat(elementwise.literal(value, self.p.wide), self.p.wide, width)

    @property
    def masked(self):
        """Whether logits may be masked."""
        return self.p.causal or "mask" in self.p.operands

    @property
    def any_row_may_be_masked(self):
        """Whether a row of logits may be masked, or -inf, as a whole."""
        return "mask" in self.p.operands or "bias" in self.p.operands

    def finish(self, k, coordinates, value, width=1):
        """Statements that hand `value`, of result `k`, to its sink."""
        return self.sinks[k].store(self.args, coordinates, value, width)

    def all_helpers(self):
        """Names of the prelude functions that the kernel calls, including its sinks'."""
        return frozenset(self.helpers).union(*(s.helpers for s in self.sinks))
