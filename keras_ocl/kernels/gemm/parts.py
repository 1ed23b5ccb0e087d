"""What the matrix product's schedules share: operands, the problem, and small C texts."""

import math
import re
from dataclasses import dataclass, field, replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, present, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.overrides import extent_of, shown


@dataclass(frozen=True)
class Operand:
    """A matrix, or a batch of them, read from a buffer: strides and offset in elements.

    `a` has rows m and columns k, `b` rows k and columns n; a transpose is swapped strides, a broadcast batch has `batch_stride` 0.
    With a `source` the kernel computes the elements in a prologue, where it would load them: `source.load(args, row, column, extents,
    width, wide)`, given the C texts of an index in a row-major matrix of `extents` and whether indices take 64 bits, returns (statements,
    C text of a register of `width` elements along the row), `source.in_lanes(extents)` whether `width` may be more than 1, and
    `source.read` is how many bytes of memory an element takes. Strides then tell where the elements would lie: in such a matrix, or
    transposed in one. CPU kernels accept a source for `b`: products of few rows compute it where they load it, others where they pack it
    (cpu_choice.packs_computed). GPU kernels accept sources for both.
    """

    handle: object  # goes to Args.pointer
    dtype: str
    row_stride: int
    column_stride: int
    batch_stride: int = 0
    offset: int = 0
    source: object = None

    @property
    def read(self):
        """Bytes of memory that an element takes."""
        return self.source.read if self.source else dtypes.itemsize(self.dtype)

    @property
    def turned(self):
        """Whether adjacent elements lie along a column."""
        return is_one(self.row_stride) and not is_one(self.column_stride)

    def transposed(self):
        """The same memory with rows and columns exchanged."""
        return replace(self, row_stride=self.column_stride, column_stride=self.row_stride)


@dataclass
class Problem:
    """One product (batch, m, k) x (batch, k, n), and the number of steps of k that one work-item sums (`split`, 0 for all).

    repeated: whether it runs in each step of a loop, whose kernels are not joined with those beside them.
    longest: most steps of k of one sum before it is added to others, 0 or infinity for no limit.
    precision: what float32 operands may be taken as (core/precision.py).
    read: (elements of the left operand, of the right one) in memory, None where the extents tell; the patches of images overlap.
    strips: whether `a` was packed by strips.py: the rows of a tile are adjacent, and start at the tile's first row times the row stride.
    """

    traits: object
    batch: object
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    accumulator: str
    sink: object
    all_arguments: bool = False
    split: int = 0
    longest: float = 0
    strips: bool = False
    repeated: bool = False
    precision: str = "float32"
    read: tuple | None = None
    helpers: set = field(default_factory=set)

    def literal(self, extent):
        """Whether this extent may be a literal in the source text."""
        return not self.all_arguments and not isinstance(extent, Dim)

    def divides(self, number, *extents):
        """Whether extents or strides are known to be multiples of `number`, even if they are printed as arguments."""
        return all((self.all_arguments or not isinstance(e, Dim)) and present(e) % number == 0 for e in extents)

    @property
    def key(self):
        """The text by which a device's own choices know problems like this: extents by their hints, those that may vary with a star."""
        batch = [] if self.batch is None else [("batch", shown(self.batch))]
        extents = [*batch, ("m", shown(self.m)), ("n", shown(self.n)), ("k", shown(self.k))]
        operands = [("a", self._layout(self.a)), ("b", self._layout(self.b))]
        further = [("uniform", self.sink.uniform), ("longest", 0 if self.longest == math.inf else int(self.longest))]
        marks = [name for name, is_so in (("eager", self.all_arguments), ("repeated", self.repeated)) if is_so]
        named = [f"{name}={value}" for name, value in (*extents, *operands, *((name, value) for name, value in further if value))]
        precision = [f"precision={self.precision}"] if self.precision != "float32" else []
        return " ".join([self.accumulator, *named, *marks, *precision])

    @classmethod
    def of_key(cls, key, traits, a, b, sink):
        """The Problem with this key, whose operands lie at the handles `a` and `b` and are not computed; `sink.uniform` becomes the key's.

        ValueError for a key of another form, or with an operand that is computed.
        """
        accumulator, *words = key.split(" ")
        named = dict(word.split("=", 1) for word in words if "=" in word)
        marks = {"eager": "all_arguments", "repeated": "repeated"}
        sink.uniform = int(named.pop("uniform", 0))
        try:
            further = {marks[word]: True for word in words if "=" not in word}
            batch = extent_of(named.pop("batch")) if "batch" in named else None
            m, n, k = (extent_of(named.pop(name)) for name in ("m", "n", "k"))
            operands = [_laid(named.pop(name), handle) for name, handle in (("a", a), ("b", b))]
            longest, precision = int(named.pop("longest", 0)), named.pop("precision", "float32")
            if named:
                raise KeyError(min(named))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{key!r} is not the key of a product whose operands lie in memory") from None
        return cls(traits, batch, m, n, k, *operands, accumulator, sink, longest=longest, precision=precision, **further)

    def _layout(self, operand):
        """Text of an operand's dtype and strides, for `key`."""
        if operand.source:
            return f"{operand.dtype}(computed{', turned' if operand.turned else ''})"
        batch = [] if self.batch is None else [operand.batch_stride]
        return f"{operand.dtype}({','.join(map(shown, (*batch, operand.row_stride, operand.column_stride)))})"

    @property
    def lanes(self):
        """Lanes of the accumulator in one hardware vector."""
        return max(2, self.traits.vector_width * 4 // dtypes.itemsize(self.accumulator))

    @property
    def index(self):
        """C type of indices: 64 bits only when an operand or the result needs them."""
        batch = 1 if self.batch is None else self.batch
        spans = [
            (batch - 1) * o.batch_stride + (rows - 1) * o.row_stride + (columns - 1) * o.column_stride + o.offset
            for o, rows, columns in ((self.a, self.m, self.k), (self.b, self.k, self.n))
        ]
        spans.append(product((batch, self.m, self.n)))
        return index_type(*spans)

    @property
    def register(self):
        return dtypes.register_ctype(self.accumulator)

    def vector(self, width):
        return prelude.vector_type(self.register, width)

    def load(self, operand, width, pointer, offset, aligned=False):
        """Expression that loads `width` consecutive elements into accumulator registers; `aligned` as for prelude.load()."""
        self.helpers |= prelude.helpers_for(operand.dtype, width)
        return self._accumulated(operand, width, prelude.load(operand.dtype, width, pointer, offset, aligned=aligned))

    def shape(self, operand):
        """(rows, columns) of the row-major matrix as which `a` or `b` lies in memory."""
        rows, columns = (self.k, self.n) if operand is self.b else (self.m, self.k)
        return (columns, rows) if operand.turned else (rows, columns)

    def computed(self, args, operand, row, column, width, stored=False):
        """(statements, expression) like load(), for an operand with a source, of elements that would be adjacent in memory.

        stored: the expression is of their bits in memory.
        """
        place = (column, row) if operand.turned else (row, column)
        statements, text = operand.source.load(args, *place, self.shape(operand), width, self.index == "long")
        if stored:
            text, helpers = prelude.stored(operand.dtype, width, text)
            self.helpers |= helpers
            return statements, text
        return statements, self._accumulated(operand, width, text)

    def _accumulated(self, operand, width, text):
        """`text`, a register of the operand's elements, converted to the accumulator's type."""
        return text if dtypes.register_ctype(operand.dtype) == self.register else f"convert_{self.vector(width)}({text})"

    def fma(self, x, y, z):
        """Expression `x * y + z` in the accumulator's type."""
        return f"fma({x}, {y}, {z})" if dtypes.is_float(self.accumulator) else f"{x} * {y} + {z}"


def _laid(text, handle):
    """The Operand at `handle` with the layout that Problem.key describes; ValueError where it is computed."""
    found = re.fullmatch(r"(\w+)\(([\d*,]+)\)", text)
    if not found:
        raise ValueError(text)
    *batch, row, column = map(extent_of, found[2].split(","))
    return Operand(handle, found[1], row, column, *batch)


class Names:
    """The texts of a kernel's extents, strides and operand pointers, and the first lines of its body.

    Every extent is turned into text once, so that in eager code each is one argument. slice: steps of k of a slice of the group, 0 where
    there are none.
    """

    def __init__(self, problem, args, slice=0):
        p = problem
        self.index = p.index

        def text(extent):
            return args.int(extent, p.index)

        self.m, self.n, self.k = text(p.m), text(p.n), text(p.k)
        self.total = self.k  # all steps of k; `k` is the number that this work-item sums
        self.a_pointer = None if p.a.source else args.pointer(p.a.handle, p.a.dtype)
        self.b_pointer = None if p.b.source else args.pointer(p.b.handle, p.b.dtype)
        self.a_row, self.a_column = text(p.a.row_stride), text(p.a.column_stride)
        self.b_row, self.b_column = text(p.b.row_stride), text(p.b.column_stride)
        self.lines = [f"const {p.index} z = {args.place('group' if slice else 'global', 2)};\n"]
        self.coordinates, self.k_start = () if p.batch is None else ("z",), "0"
        z = "z"
        starts = ["0", "0"]
        if p.split:
            depth = args.int(p.split, p.index)
            splits = text(-((0 - p.k) // p.split))
            z = f"(z / {splits})"
            self.lines.append(f"const {p.index} k_first = z % {splits} * {depth};\n")
            self.lines.append(f"const {p.index} k_size = min(({p.index}){depth}, ({p.index}){self.k} - k_first);\n")
            starts, self.k_start = [scaled("k_first", self.a_column), scaled("k_first", self.b_row)], "k_first"
            self.coordinates = (f"(z % {splits} * {text(1 if p.batch is None else p.batch)} + {z})",)
            self.k = "k_size"
        if slice:
            self.lines.append(f"const int slice = {args.place('local', 2)};\nconst {p.index} k_first = slice * {slice};\n")
            self.lines.append(f"const {p.index} k_size = min(({p.index}){slice}, ({p.index}){self.k} - k_first);\n")
            starts, self.k_start = [scaled("k_first", self.a_column), scaled("k_first", self.b_row)], "k_first"
            self.k = "k_size"
        for name, pointer, operand, start in (("a", self.a_pointer, p.a, starts[0]), ("b", self.b_pointer, p.b, starts[1])):
            if operand.source:
                continue
            batch = "0" if p.batch is None else scaled(z, text(operand.batch_stride))
            where = summed(pointer, text(operand.offset), batch, start)
            self.lines.append(prelude.pointer(operand.dtype, name, where))


def scaled(index, stride):
    """C text of `index * stride` without needless factors of 0 and 1."""
    if stride == "0" or index == "0":
        return "0"
    return index if stride == "1" else f"{index} * {stride}"


def summed(*terms):
    """C text of a sum without needless zeros."""
    return " + ".join(t for t in terms if t != "0") or "0"
