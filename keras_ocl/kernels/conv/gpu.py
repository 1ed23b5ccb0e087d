"""Convolution for GPUs as an implicit matrix product with tiles in local memory (kernels/contraction.py).

A convolution is the product of (pixels x rows) by (rows x output channels), a row being one (tap, input
channel); its filter's gradient is (rows x pixels) by (pixels x output channels). Neither the rows of the
pixels nor a transposed filter is ever stored: the tiles are gathered as they are loaded. Works for every
geometry; groups are the third dimension of the grid.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels import ordered_sum, prelude
from keras_ocl.kernels.contraction import Contraction, Loader, Strided, Tile
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.conv.elements import filter_offset
from keras_ocl.kernels.conv.geometry import outside, position
from keras_ocl.kernels.coordinates import decode
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, Buffer, KernelSpec


def choose_tile(traits, results, channels):
    """The Tile for a product of `results` rows and `channels` columns (hints), by the device's limits."""
    tuning = schedule_of(traits).tuning
    side = tuning.convolution_side
    side = side if traits.max_group >= side**2 else side // 2
    block = 4 if channels > 2 * side and results > 2 * side else 2
    return Tile(side, side, block, block, tuning.depth)


class _Patches(Loader):
    """The input of a convolution as (pixels x rows); `transposed` as the transposed matrix is loaded, (rows x pixels)."""

    def __init__(self, product, pointer, first, limit, transposed=False):
        super().__init__(first, limit, along_k=not transposed)
        self.p, self.pointer, self.transposed = product, pointer, transposed

    def _pixel(self, name):
        """Statements that take the pixel `name` apart: q0, q1, ..."""
        return decode(name, self.p.geometry.output[:-1], "q", self.p.args)

    def _row(self, name):
        """Statements that take the row `name` apart: the taps k0, k1, ... and `inner`, the channel of the group."""
        g, inputs = self.p.geometry, self.p.inputs
        return f"const int tap = {name} / {inputs}, inner = {name} % {inputs};\n" + decode("tap", g.filter[: g.rank], "k", self.p.args)

    @property
    def _kept(self):
        """Names of what is known of a tile's row (a pixel, or where it is transposed a row) before the loop over k."""
        rank = self.p.geometry.rank
        return [*(f"k{i}" for i in range(rank)), "inner"] if self.transposed else [f"q{i}" for i in range(rank + 1)]

    def prepare(self, count):
        return "int " + ", ".join(f"{name}_of[{count}]" for name in self._kept) + ";\n"

    def row(self, x):
        apart = self._row("at") if self.transposed else self._pixel("at")
        return apart + "".join(f"{name}_of[{x}] = {name};\n" for name in self._kept)

    def step(self):
        return self._pixel("k") if self.transposed else self._row("k")

    def element(self, x):
        p, args = self.p, self.p.args
        text = "".join(f"const int {name} = {name}_of[{x}];\n" for name in self._kept)
        line = f"(long)q0 * {args.int(p.axes[0].input_step, 'long')} + group * {p.inputs} + inner"
        conditions = []
        for i, axis in enumerate(p.axes[1:], 1):
            text += f"const int t{i} = {position(axis, f'q{i}', f'k{i - 1}', args)}, i{i} = t{i} / {args.int(axis.spread)};\n"
            conditions.append(f"!({outside(axis, f't{i}', f'i{i}', args)})")
            line += f" + (long)i{i} * {args.int(axis.input_step, 'long')}"
        return text, " && ".join(conditions), prelude.load(p.dtype, 1, self.pointer, f"({line})")


class _Product:
    """What both products share: the group at work, its extents, the contraction."""

    def __init__(self, traits, geometry, dtype, results, chunks=1):
        self.geometry, self.dtype, self.args = geometry, dtype, Args()
        self.axes = conv_geometry.axes(geometry, merge=False)
        self.tile = choose_tile(traits, results, hint(geometry.group_outputs))
        self.inputs, self.outputs = self.args.int(geometry.group_inputs), self.args.int(geometry.group_outputs)
        self.contraction = Contraction(self.args, self.tile, prelude.register_type(dtype, 1), "fma({}, {}, {})".format)
        self.chunks = chunks

    def head(self):
        """Statements that say who this item is: its place in the work-group, its group of channels and chunk."""
        t = self.tile
        return (
            f"{self.contraction.head()}"
            f"const int group = get_group_id(2) / {self.chunks}, chunk = get_group_id(2) % {self.chunks};\n"
            f"const int i_first = get_group_id(1) * {t.height}, j_first = get_group_id(0) * {t.width};\n"
            f"{self.contraction.results()}"
        )

    def columns(self, pointer, offset):
        """The Loader of the operand (steps x output channels of the group); `offset(step, channel)`: C text of an element's offset."""

        def load(where):
            return prelude.load(self.dtype, 1, pointer, f"({where})")

        return Strided("j_first", self.outputs, False, load, lambda at, k: offset(k, f"(group * {self.outputs} + {at})"))

    def grid(self, results):
        """The global size for so many rows of results."""
        t, g = self.tile, self.geometry
        return ceil_div(g.group_outputs, t.width) * t.across, ceil_div(results, t.height) * t.down, g.groups * self.chunks

    @property
    def shape(self):
        """What a work-group computes, for the kernel's title."""
        return f"{self.tile.height} rows x {self.tile.width} channels per work-group"

    @property
    def group(self):
        return self.tile.across, self.tile.down, 1


def forward(traits, geometry, x, w, dtype, sink, name, transposed=False):
    """The KernelSpec of a convolution; `transposed` as for conv.elements.filter_offset()."""
    p = _Product(traits, geometry, dtype, hint(product(geometry.output[:-1])))
    args, rank = p.args, geometry.rank
    xp, wp = args.pointer(x, dtype), args.pointer(w, dtype)
    pixels, taps = product(geometry.output[:-1]), args.int(product(geometry.filter[:rank]))
    pixels_text, rows = args.int(pixels), args.int(product(geometry.filter[:-1]))

    def offset(row, channel):
        return filter_offset(args, geometry, f"{row} / {p.inputs}", taps, channel, f"{row} % {p.inputs}", transposed)

    body = decode("row", geometry.output[:-1], "q", args)
    body += sink.store(args, [f"q{i}" for i in range(rank + 1)] + [f"(group * {p.outputs} + column)"], "value", 1)
    text = p.head()
    text += p.contraction.walk("0", rows, _Patches(p, xp, "i_first", pixels_text), p.columns(wp, offset))
    text += p.contraction.each("i_first", pixels_text, "j_first", p.outputs, body)
    return KernelSpec(name, args.args, text, p.grid(pixels), p.group, frozenset(sink.helpers), title=f"convolution: {p.shape}")


def filter_grad(traits, geometry, x, dy, dtype, sink, name):
    """The two KernelSpecs of a filter gradient: sums over chunks of pixels, then the chunks in order."""
    pixels, rows = product(geometry.output[:-1]), product(geometry.filter[:-1])
    tile = choose_tile(traits, hint(rows), hint(geometry.group_outputs))
    tiles = -(-hint(rows) // tile.height) * -(-hint(geometry.group_outputs) // tile.width) * geometry.groups
    chunks = max(1, min(4 * traits.compute_units // tiles, hint(pixels) // (4 * tile.depth)))
    p = _Product(traits, geometry, dtype, hint(rows), chunks)
    args, kept = p.args, dtypes.accumulator(dtype)
    xp, dp = args.pointer(x, dtype), args.pointer(dy, dtype)
    partial = Buffer(product(geometry.filter) * chunks, kept)
    out = args.pointer(partial, kept, out=True)
    size, rows_text, channels = args.int(ceil_div(pixels, chunks)), args.int(rows), args.int(geometry.output[-1])

    def offset(pixel, channel):
        return f"(long){pixel} * {channels} + {channel}"

    text = p.head()
    text += f"const int end = min((chunk + 1) * {size}, {args.int(pixels)});\n"
    a = _Patches(p, xp, "i_first", rows_text, transposed=True)
    text += p.contraction.walk(f"chunk * {size}", "end", a, p.columns(dp, offset))
    place = f"((long)chunk * {rows_text} + row) * {channels} + group * {p.outputs} + column"
    text += p.contraction.each("i_first", rows_text, "j_first", p.outputs, f"{out}[{place}] = value;\n")
    first = KernelSpec(name, args.args, text, p.grid(rows), p.group, title=f"convolution, gradient of the filter: {p.shape}")
    return [first, ordered_sum.kernel("convolution filter gradient sum", partial, chunks, geometry.filter, kept, sink)]
