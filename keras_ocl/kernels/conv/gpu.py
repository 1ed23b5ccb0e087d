"""Convolution for GPUs as an implicit matrix product with tiles in local memory.

A convolution is the product of (pixels x rows) by (rows x output channels), a row being one (tap, input
channel); its filter's gradient is (rows x pixels) by (pixels x output channels). Neither the rows of the
pixels nor a transposed filter is ever stored: the tiles are gathered as they are loaded. Each item of a work-group
keeps a block of results in registers. Works for every geometry; groups are the third dimension of the grid.
"""

from dataclasses import dataclass

from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels import prelude
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.conv.elements import filter_offset, sum_chunks
from keras_ocl.kernels.conv.geometry import decode, outside, position
from keras_ocl.kernels.spec import Args, Buffer, KernelSpec

DEPTH = 16  # terms of the sum in local memory at a time


@dataclass(frozen=True)
class Tile:
    """`side` x `side` items of `block` x `block` results each."""

    side: int
    block: int

    @property
    def extent(self):
        return self.side * self.block


def choose_tile(traits, results, channels):
    """The tile for a product of `results` rows and `channels` columns (hints), by the device's limits."""
    side = 16 if traits.max_group >= 256 else 8
    return Tile(side, 4 if channels > 2 * side and results > 2 * side else 2)


def forward(traits, geometry, x, w, dtype, sink, name, transposed=False):
    """The KernelSpec of a convolution; `transposed` as for elements.filter_offset()."""
    kernel = _Product(traits, geometry, dtype, hint(product(geometry.output[:-1])))
    args, tile, rank = kernel.args, kernel.tile, geometry.rank
    xp, wp = args.pointer(x, dtype), args.pointer(w, dtype)
    pixels, rows, taps = product(geometry.output[:-1]), kernel.rows, product(geometry.filter[:rank])
    inputs, outputs = args.int(geometry.group_inputs), args.int(geometry.group_outputs)
    loads = kernel.loads
    text = kernel.head()
    # The pixels that this item gathers stay the same for all rows.
    places = "".join(f"int o{i}[{loads}]; " for i in range(rank + 1))
    text += f"{places}int inside[{loads}];\n"
    text += f"for (int i = 0; i < {loads}; ++i) {{\n"
    text += f"const int pixel = get_group_id(1) * {tile.extent} + fetch_row + i * {kernel.stride};\n"
    text += f"inside[i] = pixel < {args.int(pixels)};\n" + decode("pixel", geometry.output[:-1], "q", args)
    text += "".join(f"o{i}[i] = q{i};\n" for i in range(rank + 1)) + "}\n"
    text += f"for (int depth = 0; depth < {args.int(rows)}; depth += {DEPTH}) {{\n"
    text += f"{{\nconst int row = depth + fetch_depth;\nconst int tap = row / {inputs}; const int c = row % {inputs};\n"
    text += decode("tap", geometry.filter[:rank], "k", args)
    text += f"for (int i = 0; i < {loads}; ++i) {{\n{kernel.scalar} value = 0;\n"
    text += kernel.gather(xp, [f"o{i}[i]" for i in range(rank + 1)], f"inside[i] && row < {args.int(rows)}", f"group * {inputs} + c")
    text += f"{kernel.a}[fetch_depth * {tile.extent + 1} + fetch_row + i * {kernel.stride}] = value;\n}}\n}}\n"
    place = (f"row / {inputs}", args.int(taps), f"group * {outputs} + column", f"row % {inputs}")
    offset = filter_offset(args, geometry, *place, transposed)
    text += kernel.load_columns(f"row < {args.int(rows)}", prelude.load(dtype, 1, wp, f"({offset})"))
    text += kernel.multiply() + "}\n"
    body = f"const int pixel = result;\nif (pixel < {args.int(pixels)}) {{\n" + decode("pixel", geometry.output[:-1], "q", args)
    coordinates = [f"q{i}" for i in range(rank + 1)] + [f"(group * {outputs} + column)"]
    text += kernel.results(body + sink.store(args, coordinates, "value", 1) + "}\n")
    grid = kernel.grid(pixels, geometry.groups)
    return KernelSpec(name, args.args, text, grid, (tile.side, tile.side, 1), frozenset(sink.helpers))


def filter_grad(traits, geometry, x, dy, dtype, sink, name):
    """The two KernelSpecs of a filter gradient: sums over chunks of pixels, then the chunks in order."""
    kernel = _Product(traits, geometry, dtype, hint(product(geometry.filter[:-1])))
    args, tile, rank = kernel.args, kernel.tile, geometry.rank
    xp, dp = args.pointer(x, dtype), args.pointer(dy, dtype)
    kept = "float64" if dtype == "float64" else "float32"
    pixels, rows = product(geometry.output[:-1]), kernel.rows
    tiles = -(-hint(rows) // tile.extent) * -(-hint(geometry.group_outputs) // tile.extent) * geometry.groups
    chunks = max(1, min(4 * traits.compute_units // tiles, hint(pixels) // (4 * DEPTH)))
    size = ceil_div(pixels, chunks)
    partial = Buffer(product(geometry.filter) * chunks, kept)
    inputs, outputs, loads = args.int(geometry.group_inputs), args.int(geometry.group_outputs), tile.extent // DEPTH
    text = kernel.head(chunks)
    # The filter rows that this item gathers stay the same for all pixels.
    text += "".join(f"int f{i}[{loads}]; " for i in range(rank)) + f"int inner[{loads}]; int inside[{loads}];\n"
    text += f"for (int i = 0; i < {loads}; ++i) {{\n"
    text += f"const int row = get_group_id(1) * {tile.extent} + fetch_depth + i * {DEPTH};\n"
    text += f"inside[i] = row < {args.int(rows)};\ninner[i] = row % {inputs};\nconst int tap = row / {inputs};\n"
    text += decode("tap", geometry.filter[:rank], "q", args) + "".join(f"f{i}[i] = q{i};\n" for i in range(rank)) + "}\n"
    text += f"const int end = min((chunk + 1) * {args.int(size)}, {args.int(pixels)});\n"
    text += f"for (int depth = chunk * {args.int(size)}; depth < end; depth += {DEPTH}) {{\n"
    # Neighbouring items take neighbouring channels here, so a pixel belongs to a row of items.
    text += f"for (int p = fetch_row; p < {DEPTH}; p += {kernel.stride}) {{\nconst int pixel = depth + p;\n"
    text += decode("pixel", geometry.output[:-1], "o", args)
    text += f"for (int i = 0; i < {loads}; ++i) {{\n{kernel.scalar} value = 0;\n"
    for i in range(rank):
        text += f"const int k{i} = f{i}[i];\n"
    text += kernel.gather(xp, [f"o{i}" for i in range(rank + 1)], "inside[i] && pixel < end", f"group * {inputs} + inner[i]")
    text += f"{kernel.a}[p * {tile.extent + 1} + fetch_depth + i * {DEPTH}] = value;\n}}\n}}\n"
    place = f"((long)row * {args.int(geometry.output[-1])} + group * {outputs} + column)"
    text += kernel.load_columns("row < end", prelude.load(dtype, 1, dp, place))
    text += kernel.multiply() + "}\n"
    out = args.pointer(partial, kept, out=True)
    offset = f"((long)chunk * {args.int(rows)} + result) * {args.int(geometry.output[-1])} + group * {outputs} + column"
    text += kernel.results(f"if (result < {args.int(rows)}) {out}[{offset}] = value;\n")
    grid = kernel.grid(rows, geometry.groups * chunks)
    first = KernelSpec(name, args.args, text, grid, (tile.side, tile.side, 1))
    return [first, sum_chunks(geometry, partial, chunks, kept, sink)]


class _Product:
    """The text that both products share: local tiles, their loads, the multiplication, the results."""

    def __init__(self, traits, geometry, dtype, results):
        self.geometry, self.dtype = geometry, dtype
        self.args = Args()
        self.axes = conv_geometry.axes(geometry, merge=False)
        self.tile = choose_tile(traits, results, hint(geometry.group_outputs))
        self.items = self.tile.side * self.tile.side
        self.stride = self.items // DEPTH  # rows of DEPTH elements that one round of loads covers
        self.loads = self.tile.extent // self.stride
        self.rows = product(geometry.filter[:-1])
        self.scalar = prelude.register_type(dtype, 1)
        # One more than the extent: items that write a column of the tile hit different banks.
        self.a = self.args.local(self.scalar, DEPTH * (self.tile.extent + 1))
        self.b = self.args.local(self.scalar, DEPTH * (self.tile.extent + 1))

    def head(self, chunks=1):
        """Who this item is: its place in the work-group, its group of channels and chunk."""
        block = self.tile.block
        text = "const int across = get_local_id(0); const int down = get_local_id(1);\n"
        text += f"const int item = down * {self.tile.side} + across;\n"
        text += f"const int fetch_depth = item % {DEPTH}; const int fetch_row = item / {DEPTH};\n"
        text += f"const int group = get_group_id(2) / {chunks}; const int chunk = get_group_id(2) % {chunks};\n"
        return text + f"{self.scalar} sums[{block}][{block}];\n" + self._blocks("sums[i][j] = 0;")

    def _blocks(self, statement):
        block = self.tile.block
        loops = "".join(f"#pragma unroll\nfor (int {n} = 0; {n} < {block}; ++{n})\n" for n in "ij")
        return f"{loops}{statement}\n"

    def gather(self, pointer, outputs, condition, channel):
        """C statements that set `value` to the input of a pixel (`outputs`, batch first) at the taps k0, k1, ..."""
        args = self.args
        line = f"(long){outputs[0]} * {args.int(self.axes[0].input_step, 'long')} + {channel}"
        text, conditions = "", [condition]
        for i, axis in enumerate(self.axes[1:], 1):
            text += f"const int t{i} = {position(axis, outputs[i], f'k{i - 1}', args)}; const int i{i} = t{i} / {args.int(axis.spread)};\n"
            conditions.append(f"!({outside(axis, f't{i}', f'i{i}', args)})")
            line += f" + (long)i{i} * {args.int(axis.input_step, 'long')}"
        return text + f"if ({' && '.join(conditions)}) value = {prelude.load(self.dtype, 1, pointer, f'({line})')};\n"

    def load_columns(self, condition, value):
        """Loads the tile of (DEPTH x channels): `value` is its C text at `row` and `column`."""
        extent, outputs = self.tile.extent, self.args.int(self.geometry.group_outputs)
        text = f"for (int e = item; e < {DEPTH * extent}; e += {self.items}) {{\n"
        text += f"const int row = depth + e / {extent}; const int column = get_group_id(0) * {extent} + e % {extent};\n"
        text += f"{self.b}[e / {extent} * {extent + 1} + e % {extent}] = {condition} && column < {outputs} ? {value} : 0;\n}}\n"
        return text

    def multiply(self):
        """The product of the two tiles in local memory, added to the item's sums."""
        side, block, extent = self.tile.side, self.tile.block, self.tile.extent
        text = "barrier(CLK_LOCAL_MEM_FENCE);\n"
        text += f"for (int d = 0; d < {DEPTH}; ++d) {{\n{self.scalar} left[{block}], right[{block}];\n"
        text += f"for (int i = 0; i < {block}; ++i) left[i] = {self.a}[d * {extent + 1} + down + i * {side}];\n"
        text += f"for (int j = 0; j < {block}; ++j) right[j] = {self.b}[d * {extent + 1} + across + j * {side}];\n"
        return text + self._blocks("sums[i][j] = mad(left[i], right[j], sums[i][j]);") + "}\nbarrier(CLK_LOCAL_MEM_FENCE);\n"

    def results(self, body):
        """Runs `body` for each of the item's sums, as `value` at row `result` and channel `column` of the group."""
        side, extent = self.tile.side, self.tile.extent
        inner = f"const int result = get_group_id(1) * {extent} + down + i * {side};\n"
        inner += f"const int column = get_group_id(0) * {extent} + across + j * {side};\n"
        inner += f"const {self.scalar} value = sums[i][j];\n"
        return self._blocks(f"{{\n{inner}if (column < {self.args.int(self.geometry.group_outputs)}) {{\n{body}}}\n}}")

    def grid(self, results, depth):
        """The global size for so many rows of results and work-groups along the third dimension."""
        side, extent = self.tile.side, self.tile.extent
        return ceil_div(self.geometry.group_outputs, extent) * side, ceil_div(results, extent) * side, depth
