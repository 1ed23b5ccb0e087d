"""Gradient of a convolution's filter for CPUs: register tiles of filter rows x vectors of output channels.

A filter row is one (tap, input channel). For every output pixel a tile loads the output gradient's vectors once and broadcasts the
input value of each of its rows against them. A work-item takes a chunk of the pixels, in bands. It packs the band's input, with its
zero padding, into blocks of channels, and the gradients of a tile's channels into a panel: what a tile reads then lies close together
and stays in the cache (the packing of Goto and van de Geijn 2008), while pixels of many channels would share a few sets of it. Tables
hold where each pixel and each row lies in the packed input. A work-item keeps its sums in scratch memory; a second kernel adds the
chunks in order. Chunks depend on extents and traits, never on the run.
"""

from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, product, size_hint
from keras_ocl.kernels import ordered_sum, prelude, summation
from keras_ocl.kernels.conv import parts_cpu
from keras_ocl.kernels.coordinates import decode, index_type
from keras_ocl.kernels.overrides import chosen
from keras_ocl.kernels.register_tile import RegisterTile
from keras_ocl.kernels.spec import Args, Buffer

_BLOCK = 8  # most input channels of a block: a tile has about as many rows
_SHARES = 4  # work-items per core: each one's sums are written and read again
_OFFSETS = 6  # most rows of a tile: a register of addresses is taken by each


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` of the filter by `vectors` of `width` output channels."""

    rows: int
    vectors: int
    width: int


def suits(problem):
    """Whether this kernel computes the gradient: there is no input dilation."""
    return all(d == 1 for d in problem.geometry.input_dilation)


def packs_once(problem):
    """Whether this kernel packs each element of the input about once, in vectors of channels, so can compute it in a prologue."""
    g = problem.geometry
    alone = g.group_inputs == g.group_outputs == 1 or not problem.lanewise
    return suits(problem) and alone and _FilterGrad(problem).whole_items


def own_tile(problem):
    """The device's own Tile, None where it has none."""
    return chosen(problem.traits, "filter_gradient", lambda: problem.key, Tile, lambda tile: _unfit(problem, tile))


def _unfit(problem, tile):
    """Why a kernel of `problem` with `tile` would be wrong or would not fit a CPU's registers, as a clause; "" where it fits."""
    if not suits(problem):
        return "the kernel is for convolutions without input dilation"
    rows = _rows(problem)
    return problem.unfit(tile.rows, tile.vectors, tile.width) or (f"{tile.rows} rows are more than {rows}" if tile.rows > rows else "")


def _rows(problem):
    """Number of filter rows of a group."""
    return product(problem.geometry.filter[:-1])


def candidates(problem):
    """Yields (estimate, Tile) of the register tiles of a filter's gradient; estimates are cycles for one pixel of the whole filter."""
    channels, extent = problem.channels, _rows(problem)
    width = min(problem.lanes, parts_cpu.padded_width(channels))
    # Tiles that leave few registers free spill on Intel's runtime.
    limit = problem.registers(problem.lanes) * 5 // 8
    for vectors, blocks, choice in parts_cpu.register_tiles(channels, width, lambda vectors: min(extent, limit // vectors, _OFFSETS)):
        for rows in choice:
            # An additional body costs compile time. Eight sums in turn keep the units busy only if nothing ever delays one.
            bodies = 0.04 if extent % rows else 0.0
            cycles = parts_cpu.cycles(extent, rows, blocks, problem.lanewise, latency=4.5)
            yield cycles * (1 + bodies) + 1e-3 * (rows + vectors), Tile(rows, vectors, width)


def filter_grad(problem):
    """The two KernelSpecs of a filter gradient without input dilation."""
    builder = _FilterGrad(problem)
    described = (f"{problem.name} sum", builder.partial, builder.chunks, problem.geometry.filter, problem.accumulator, problem.sink)
    return [builder.spec(), ordered_sum.in_vectors(*described, problem.lanes, builder.tuning.sum_elements)]


class _FilterGrad:
    def __init__(self, problem):
        self.problem, self.geometry, self.dtype, self.accumulator = problem, problem.geometry, problem.dtype, problem.accumulator
        self.axes, self.lanewise, self.tuning = problem.merged_axes, problem.lanewise, problem.tuning.convolution
        self.channels, self.groups, self.inputs = problem.channels, problem.groups, problem.geometry.group_inputs
        self.inner = self.axes[-1]
        self.tile = own_tile(problem) or parts_cpu.cheapest(candidates(problem))
        self.depth = min(_BLOCK, self.inputs)
        self.blocks = parts_cpu.blocks_of(self.channels, self.tile.width, self.tile.vectors)
        self.slots = sum(block.count for block in self.blocks)
        self.outer_taps = product(a.taps for a in self.axes[:-1])
        # The taps of a dilated filter may lie too far apart for one packed input.
        self.whole_items = all(a.dilation == 1 for a in self.axes[:-1])
        self.bands = self._choose_bands()
        # A chunk's sums are written and read again. Where too few chunks are worth that for all cores, taps and channels are items, too.
        counts, most = size_hint(self._band_counts()), max(1, self.tuning.partial // size_hint(self.geometry.filter))
        whole, parallel = min(_SHARES * problem.units, counts, most), self.outer_taps * self.groups * self.slots
        self.whole_items &= whole >= 2 * problem.units
        self.rows = _rows(problem) if self.whole_items else self.inner.taps * self.inputs
        self.chunks = max(1, whole if self.whole_items else min(whole, ceil_div(_SHARES * problem.units, parallel)))
        self.partial = Buffer(self.chunks * product(self.geometry.filter), self.accumulator)
        self.args = Args()
        self.scalar, self.vector = problem.register(), problem.register(self.tile.width)

    # ---- bands

    def _choose_bands(self):
        """Outputs of one band along each axis: filled from the innermost axis, as many as the caches and a sum's length allow."""
        size, panel = dtypes.itemsize(self.accumulator), self.tile.vectors * self.tile.width
        unit = panel if self.lanewise else 1  # each lane may read inputs of its own
        room = min(summation.TILE, self.tuning.panel // ((panel + self.depth * unit) * size))
        while True:
            left, bands = max(32, room), []
            for axis in reversed(self.axes):
                extent = max(1, hint(axis.output))
                bands.insert(0, -(-extent // -(-extent // left)))
                left = max(1, left // extent)
            packed = product(self._window(i, n) for i, n in enumerate(bands)) * self.inputs * unit * size
            if packed <= self.tuning.band or room <= 32:
                return bands
            room = room * 3 // 4

    def _band_counts(self):
        return [ceil_div(a.output, b) for a, b in zip(self.axes, self.bands, strict=True)]

    def _spans(self, i):
        """Whether the packed input holds what all taps along axis `i` read; else one position for each output."""
        return self.axes[i].taps > 1 and (self.whole_items or i == len(self.axes) - 1)

    def _window(self, i, outputs):
        """Positions along axis `i` of the packed input of so many outputs: a number, or the C text of a number."""
        axis = self.axes[i]
        if not self._spans(i):
            return outputs
        last = (axis.taps - 1) * axis.dilation + 1
        return (outputs - 1) * axis.stride + last if isinstance(outputs, int) else f"(({outputs} - 1) * {axis.stride} + {last})"

    @property
    def _pitches(self):
        """Elements of a block between positions of the packed input along each axis, then those of the whole block."""
        sizes = [self.depth]
        for i in reversed(range(len(self.axes))):
            sizes.insert(0, sizes[0] * self._window(i, self.bands[i]))
        return sizes[1:], sizes[0]

    # ---- the kernel

    def spec(self):
        args = self.args
        self.x = None if "x" in self.problem.sources else args.pointer(self.problem.x, self.dtype)
        self.dy = args.pointer(self.problem.dy, self.dtype)
        self.out = args.pointer(self.partial, self.accumulator, out=True)
        counts = self._band_counts()
        total = product(counts)
        per_chunk, pairs = ceil_div(total, self.chunks), self.outer_taps * self.groups
        pixels = product(self.bands)
        each = self.tile.vectors if self.lanewise else 1
        size = ceil_div(self.inputs, self.depth) * self._pitches[1] * each
        text = parts_cpu.loose_types(self.dtype) + f"const int chunk = {args.place('global', 0)};\n"
        text += f"{self.vector} panel[{pixels * self.tile.vectors}];\nint places[{pixels}], offsets[{self.rows}];\n"
        text += f"{self.vector if self.lanewise else self.scalar} window[{size}];\n"
        text += self._offsets() + parts_cpu.chunk_of(args, per_chunk, total)
        text += "for (int band = begin; band < end; ++band) {\n" + self._band(counts)
        if self.whole_items:
            text += f"for (int group = 0; group < {self.groups}; ++group) {{\n"
        else:
            text += f"{{\nconst int taps = {args.place('global', 1)} % {self.outer_taps}; const int slot = {args.place('global', 2)};\n"
            text += f"const int group = {args.place('global', 1)} / {self.outer_taps};\n" + self._taps("taps", range(len(self.axes) - 1))
        text += self._places() + ("" if self.lanewise else self._pack_input(None))
        done = 0
        for block in self.blocks:
            first, done = done, done + block.count
            text += (
                f"for (int slot = {first}; slot < {done}; ++slot) {{\n"
                if self.whole_items
                else f"if (slot >= {first} && slot < {done}) {{\n"
            )
            text += f"const int channel = group * {self.channels} + slot * {self.tile.vectors * self.tile.width};\n"
            text += (self._pack_input(block) if self.lanewise else "") + self._pack_gradient(block)
            text += self._tiles(block) + "}\n"
        text += "}\n}\n"
        grid = (self.chunks, 1, 1) if self.whole_items else (self.chunks, pairs, self.slots)
        title = "convolution, gradient of the filter: a chunk of pixels per work-item"
        helpers = parts_cpu.load_helpers(self.dtype, max(_BLOCK, self.tile.width))  # a pixel's channels are loaded by blocks
        return args.kernel(self.problem.name, text, grid, (1, 1, 1), helpers, title=title)

    def _taps(self, taps, axes):
        """C text of the tap k along each of `axes`, from the C text of the number of all their taps."""
        text, rest = "", taps
        for i in reversed(axes):
            text += f"const int k{i} = {rest} % {self.axes[i].taps}; const int r{i} = {rest} / {self.axes[i].taps};\n"
            rest = f"r{i}"
        return text

    def _offsets(self):
        """C text that fills offsets[] with the place of each filter row's input in the packed input, from the place of a pixel."""
        pitches, size = self._pitches
        axes = [i for i in range(len(self.axes)) if self._spans(i)]
        text = f"for (int row = 0; row < {self.rows}; ++row) {{\nconst int c = row % {self.inputs}; const int tap = row / {self.inputs};\n"
        text += self._taps("tap", axes)
        place = [f"k{i} * {self.axes[i].dilation * pitches[i]}" for i in axes]
        return text + f"offsets[row] = {' + '.join([*place, f'c / {self.depth} * {size} + c % {self.depth}'])};\n}}\n"

    def _band(self, counts):
        """C text of the band's first output s along each axis, and of the number m of its outputs."""
        args = self.args
        text = decode("band", counts, "b", args, rest="d")
        for i, axis in enumerate(self.axes):
            size = self.bands[i]
            text += f"const int s{i} = b{i} * {size}; const int m{i} = max(0, min({size}, {args.int(axis.output)} - s{i}));\n"
        return text

    def _lines(self, numbers, body):
        """C text of a loop over the lines of a box of `numbers` positions along the outer axes: `line`, its places t0, t1 and so on."""
        text = f"for (int line = 0; line < {' * '.join(numbers) or '1'}; ++line) {{\n"
        rest = "line"
        for i in range(len(numbers) - 1, 0, -1):
            text += f"const int t{i} = {rest} % {numbers[i]}; const int q{i} = {rest} / {numbers[i]};\n"
            rest = f"q{i}"
        if numbers:
            text += f"const int t0 = {rest};\n"
        return text + body + "}\n"

    def _places(self):
        """C text that fills places[] with the place of each output in a block of the packed input."""
        pitches, last = self._pitches[0], len(self.axes) - 1
        *place, inner = [f"t{i} * {pitches[i] * (a.stride if self._spans(i) else 1)}" for i, a in enumerate(self.axes)]
        body = f"const int from = {' + '.join(place) or '0'};\n"
        body += f"for (int t{last} = 0; t{last} < m{last}; ++t{last}) places[line * m{last} + t{last}] = from + {inner};\n"
        return self._lines([f"m{i}" for i in range(last)], body)

    def _pack_input(self, block):
        """C text that packs the band's input, zeros outside of it. block: that of the lanes which read inputs of their own, else None."""
        args, last = self.args, len(self.axes) - 1
        pitches, size = self._pitches
        numbers = [self._window(i, f"m{i}") for i in range(len(self.axes))]
        places, inside = [], []  # along each axis: the position, and whether it is inside
        for i, axis in enumerate(self.axes):
            step = 1 if self._spans(i) else axis.stride
            tap = f" + k{i} * {axis.dilation}" if not self._spans(i) and axis.taps > 1 else ""
            places.append(f"const int u{i} = s{i} * {axis.stride} + t{i} * {step}{tap} - {args.int(axis.low)};\n")
            inside.append("1" if axis.inside else f"u{i} >= 0 && u{i} < {args.int(axis.input)}")
        line = "".join(places[:last]) + f"const int within = {' && '.join(inside[:last]) or '1'};\n"
        line += f"const int to = {' + '.join(f't{i} * {pitches[i]}' for i in range(last)) or '0'};\n"
        line += f"for (int t{last} = 0; t{last} < {numbers[last]}; ++t{last}) {{\n{places[last]}"
        line += f"const int inside = within && {inside[last]};\n"
        if "x" in self.problem.sources:
            numbered = [f"u{i} * {args.int(product(b.input for b in self.axes[i + 1 :]), self.index)}" for i in range(last)]
            line += f"const {self.index} from = {' + '.join([*numbered, f'u{last}'])};\n"
        else:
            steps = [f"(long)u{i} * {args.int(a.input_step, 'long')}" for i, a in enumerate(self.axes)]
            line += prelude.pointer(self.dtype, "from", f"{self.x} + ({' + '.join(steps)}{self._group})")
        line += f"const int at = to + t{last} * {pitches[last]};\n"
        full, left = divmod(self.inputs, self.depth)
        for count, first, end in ((self.depth, 0, full), (left, full, full + 1)):
            if count:
                line += f"for (int block = {first}; block < {end}; ++block) {{\n{self._pack_pixel(block, count, size)}}}\n"
        return self._lines(numbers[:last], line + "}\n")

    def _pack_pixel(self, block, count, size):
        """C text that packs `count` channels of one pixel."""
        first = f"block * {self.depth}"
        if self.lanewise:
            text = ""
            for c in range(count):
                for v, lanes in enumerate(block.lanes):
                    to = f"window[(block * {size} + at + {c}) * {block.vectors} + {v}]"
                    if "x" in self.problem.sources:
                        text += self._computed(block.width, lanes, f"channel + {v * block.width}", to)
                        continue
                    value = parts_cpu.group_lanes(self.problem, block.width, lanes, "", v * block.width, f"({first} + {c})", "from")
                    text += f"{to} = inside ? {value} : ({self.vector})(0);\n"
            return text
        text = ""
        for at, lanes in prelude.runs(count):
            kind = self.problem.register(lanes)
            to = f"*({'loose_' if lanes > 1 else ''}{kind}*)(window + block * {size} + at + {at})"
            if "x" in self.problem.sources:
                text += self._computed(lanes, lanes, f"{first} + {at}{self._group}", to)
                continue
            value = f"inside ? {parts_cpu.load_vector(self.dtype, lanes, 'from', f'{first} + {at}')} : ({kind})(0)"
            text += f"{to} = {value};\n"
        return text

    def _computed(self, width, count, channel, to):
        """C text that stores the first `count` lanes of a pixel's channels from `channel` on, computed in the prologue, others 0."""
        text, extents = "", (product(a.input for a in self.axes), self.geometry.input[-1])
        for at, lanes in prelude.runs(count):
            column = f"{channel} + {at}" if at else channel
            statements, value = self.problem.sources["x"].load(self.args, "from", column, extents, lanes, self.index == "long")
            part = "computed" if count == width == lanes else f"computed.s{'0123456789abcdef'[at : at + lanes]}"
            text += f"{{\n{statements}{part} = {value};\n}}\n"
        kind = self.problem.register(width)
        return f"{{\n{kind} computed = ({kind})(0);\nif (inside) {{\n{text}}}\n{to} = computed;\n}}\n"

    @property
    def _group(self):
        """C text to add to a channel's number in its group."""
        return "" if self.lanewise or self.geometry.groups == 1 else f" + group * {self.inputs}"

    @property
    def index(self):
        """C type of the indices of a computed input: 64 bits where it may have so many elements."""
        return index_type(product(self.geometry.input))

    def _pack_gradient(self, block):
        """C text that packs the gradients of the block's channels."""
        args, last = self.args, len(self.axes) - 1
        place = [f"(long)(s{i} + t{i}) * {args.int(a.output_step, 'long')}" for i, a in enumerate(self.axes)]
        body = f"for (int t{last} = 0; t{last} < m{last}; ++t{last}) {{\n"
        body += prelude.pointer(self.dtype, "from", f"{self.dy} + ({' + '.join(place)} + channel)")
        body += f"const int to = (line * m{last} + t{last}) * {block.vectors};\n"
        body += "".join(f"panel[to + {v}] = {value};\n" for v, value in enumerate(block.load(self.dtype, "from")))
        return self._lines([f"m{i}" for i in range(last)], body + "}\n")

    def _tiles(self, block):
        """C text of the loops over the tiles of the item's filter rows."""
        full = self.rows // self.tile.rows * self.tile.rows
        text = ""
        for count, start, stop in ((self.tile.rows, 0, full), (self.rows - full, full, self.rows)):
            if start < stop:
                text += f"for (int row = {start}; row < {stop}; row += {count}) {{\n" + self._tile(count, block) + "}\n"
        return text

    def _tile(self, rows, block):
        """C text of one tile over one band: loop over the pixels, add the sums to those of the bands before."""
        args, last, accumulator = self.args, len(self.axes) - 1, dtypes.storage_ctype(self.accumulator)
        outputs, each = args.int(self.geometry.output[-1]), block.vectors if self.lanewise else 1
        index = f"chunk * {args.int(_rows(self.problem))} + row" + ("" if self.whole_items else f" + taps * {self.rows}")
        text = f"__global {accumulator}* sums = {self.out} + (long)({index}) * {outputs} + channel;\n"
        text += "".join(f"const int o{r} = offsets[row + {r}]{f' * {each}' if each > 1 else ''};\n" for r in range(rows))
        tile = RegisterTile(rows, block.vectors, self.vector)
        kind = self.vector if self.lanewise else self.scalar
        text += tile.begin() + f"const {self.vector}* dp = panel;\n"
        right = [f"dp[{v}]" for v in range(block.vectors)]

        def left(r, v=0):
            return f"xp[o{r} + {v}]" if v else f"xp[o{r}]"

        pixels = " * ".join(f"m{i}" for i in range(last + 1))
        # A loop nest over lines and pixels would be slow to compile (quirk slow_loop_nests). A branch at the end of a line would part the
        # loads from the sums, and more values would be alive between them than there are registers.
        text += f"const int pixels = {pixels};\nfor (int pixel = 0; pixel < pixels; ++pixel, dp += {block.vectors}) {{\n"
        text += f"const {kind}* xp = window + places[pixel] * {each};\n{tile.step(left, right, None, self.lanewise)}}}\n"
        text += "if (band > begin) {\n"  # a band's sums begin at 0, so that no sum has too many terms

        def lanes(a, v):
            return self.accumulator, block.width, block.lanes[v], "sums", f"{a} * {outputs} + {v * block.width}"

        def add(a, v, name):
            return f"{name} += {parts_cpu.load_lanes(*lanes(a, v))};\n"

        return f"{text}{tile.each(add)}}}\n" + tile.each(lambda a, v, name: parts_cpu.store_lanes(*lanes(a, v), name))
