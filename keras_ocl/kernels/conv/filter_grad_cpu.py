"""Gradient of a convolution's filter for CPUs: register tiles of filter rows x vectors of output channels.

A filter row is one (tap, input channel). For every output pixel a tile loads the output gradient's vectors
once and broadcasts the input value of each of its rows against them. Where the taps along the innermost axis
are adjacent in memory, rows run over taps and channels together, so that few channels fill a tile too.
A work-item takes a chunk of the pixels, in bands that stay in the cache, and keeps its sums in scratch
memory; a second kernel adds the chunks in order. Chunks depend on extents and traits, never on the run.
"""

from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, product, size_hint
from keras_ocl.kernels import ordered_sum, prelude, summation
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.conv import parts_cpu
from keras_ocl.kernels.coordinates import decode
from keras_ocl.kernels.overrides import chosen
from keras_ocl.kernels.register_tile import RegisterTile
from keras_ocl.kernels.spec import Args, Buffer


@dataclass(frozen=True)
class Tile:
    """A register tile: `rows` of the filter by `vectors` of `width` output channels."""

    rows: int
    vectors: int
    width: int


def suits(problem):
    """Whether this kernel computes the gradient: there is no input dilation."""
    return all(d == 1 for d in problem.geometry.input_dilation)


def own_tile(problem):
    """The device's own Tile, None where it has none."""
    return chosen(problem.traits, "filter_gradient", lambda: problem.key, Tile, lambda tile: _unfit(problem, tile))


def _unfit(problem, tile):
    """Why a kernel of `problem` with `tile` would be wrong or would not fit a CPU's registers, as a clause; "" where it fits."""
    if not suits(problem):
        return "the kernel is for convolutions without input dilation"
    rows = _rows(problem)
    return problem.unfit(tile.rows, tile.vectors, tile.width) or (f"{tile.rows} rows are more than {rows}" if tile.rows > rows else "")


def _merged(problem):
    """Whether filter rows run over the taps along the innermost axis and the channels together."""
    return problem.geometry.groups == 1 and problem.merged_axes[-1].dilation == 1


def _rows(problem):
    """Number of filter rows over which a tile's rows run."""
    return problem.geometry.group_inputs * (problem.merged_axes[-1].taps if _merged(problem) else 1)


def filter_grad(problem):
    """The two KernelSpecs of a filter gradient without input dilation."""
    builder = _FilterGrad(problem)
    described = (f"{problem.name} sum", builder.partial, builder.chunks, problem.geometry.filter, problem.accumulator, problem.sink)
    return [builder.spec(), ordered_sum.in_vectors(*described, problem.lanes, builder.tuning.sum_elements)]


class _FilterGrad:
    def __init__(self, problem):
        self.problem, self.geometry, self.dtype, self.accumulator = problem, problem.geometry, problem.dtype, problem.accumulator
        self.axes, self.lanewise, self.tuning = problem.merged_axes, problem.lanewise, problem.tuning.convolution
        self.channels, self.groups = problem.channels, problem.groups
        self.inner, geometry = self.axes[-1], self.geometry
        self.merged, self.rows = _merged(problem), _rows(problem)
        self.row_taps = 1 if self.merged else self.inner.taps
        self.tile = own_tile(problem) or self._choose_tile()
        self.bands = self._choose_bands()
        self.blocks = parts_cpu.blocks_of(self.channels, self.tile.width, self.tile.vectors)
        self.slots = sum(block.count for block in self.blocks)
        self.outer_taps = product(a.taps for a in self.axes[:-1])
        # Data that fits the last-level cache is read again by items with other taps and channels; larger data is
        # read from memory once, by items that compute all taps and channels of a band.
        elements = product(geometry.input) + product(geometry.output)
        self.whole_items = hint(elements) * dtypes.itemsize(self.dtype) > self.tuning.cached
        parallel = 1 if self.whole_items else self.outer_taps * self.groups * self.slots
        wanted = ceil_div(8 * problem.units, parallel)
        self.chunks = max(1, min(wanted, size_hint(self._band_counts())))
        self.partial = Buffer(self.chunks * product(geometry.filter), self.accumulator)
        self.args = Args()
        self.x, self.dy = self.args.pointer(problem.x, self.dtype), self.args.pointer(problem.dy, self.dtype)
        self.out = self.args.pointer(self.partial, self.accumulator, out=True)
        self.scalar, self.vector = problem.register(), problem.register(self.tile.width)

    def _choose_tile(self):
        """The tile with the least estimated time for one pixel of the whole filter."""
        width = min(self.problem.lanes, parts_cpu.padded_width(self.channels))
        # Tiles that leave few registers free spill on Intel's runtime.
        limit = self.problem.registers(self.problem.lanes) * 5 // 8
        tiles = parts_cpu.register_tiles(self.channels, width, lambda vectors: min(self.rows, limit // vectors))
        estimated = ((self._cost(rows, blocks), rows, vectors) for vectors, blocks, most in tiles for rows in most)
        return Tile(*parts_cpu.cheapest(estimated), width)

    def _cost(self, rows, blocks):
        # Each additional body costs compile time; a tile that crosses taps also costs time at the borders.
        crosses = self._crosses(rows) and not self.inner.inside
        border = 0.04 + 2.0 / max(2, hint(self.inner.output)) if crosses else 0.0
        bodies = 0.04 if self.rows > rows and self.rows % rows else 0.0
        return parts_cpu.cycles(self.rows, rows, blocks, self.lanewise) * (1 + border + bodies)

    def _crosses(self, rows):
        """Whether a tile of `rows` rows may hold rows of two taps."""
        return self.merged and self.inner.taps > 1 and self.geometry.group_inputs % rows != 0

    def _choose_bands(self):
        """Outputs of one band along each axis: filled from the innermost axis, as many as the cache and a sum's length allow."""
        pixel = self.geometry.output[-1] + self.geometry.input[-1] * product(min(a.stride, 2) for a in self.axes)
        room = max(32, min(summation.TILE, self.tuning.band // (pixel * dtypes.itemsize(self.dtype))))
        sizes = []
        for axis in reversed(self.axes):
            extent = max(1, hint(axis.output))
            parts = max(1, -(-extent // room))
            whole = parts == 1 and len(sizes) < len(self.axes) - 1
            sizes.insert(0, axis.output if whole else -(-extent // parts))
            room = max(1, room // extent)
        return sizes

    def _band_counts(self):
        return [ceil_div(a.output, b) for a, b in zip(self.axes, self.bands, strict=True)]

    def spec(self):
        args = self.args
        counts = self._band_counts()
        total = product(counts)
        per_chunk, pairs = ceil_div(total, self.chunks), self.outer_taps * self.groups
        text = parts_cpu.loose_types(self.dtype) + f"const int chunk = {self.args.place('global', 0)};\n"
        text += parts_cpu.chunk_of(args, per_chunk, total)
        text += "for (int band = begin; band < end; ++band) {\n" + self._band(counts)
        if self.whole_items:
            text += f"for (int outer = 0; outer < {args.int(pairs)}; ++outer) {{\n"
        else:
            text += f"{{\nconst int outer = {self.args.place('global', 1)}; const int slot = {self.args.place('global', 2)};\n"
        text += self._outer_taps()
        done = 0
        for block in self.blocks:
            first, done = done, done + block.count
            if self.whole_items:
                text += f"for (int slot = {first}; slot < {done}; ++slot) {{\n"
            else:
                text += f"if (slot >= {first} && slot < {done}) {{\n"
            text += f"const int channel = group * {self.channels} + slot * {self.tile.vectors * self.tile.width};\n"
            text += self._tiles(block) + "}\n"
        text += "}\n}\n"
        grid = (self.chunks, 1, 1) if self.whole_items else (self.chunks, pairs, self.slots)
        title = "convolution, gradient of the filter: a chunk of pixels per work-item"
        return args.kernel(self.problem.name, text, grid, (1, 1, 1), parts_cpu.load_helpers(self.dtype, self.tile.width), title=title)

    def _outer_taps(self):
        """C text of the group, the taps along the outer axes, and the range [lo, hi) of outputs whose taps are inside the input."""
        args, text, rest = self.args, "", "outer"
        for i in range(len(self.axes) - 2, -1, -1):
            taps = args.int(self.axes[i].taps)
            text += f"const int k{i} = {rest} % {taps}; const int r{i} = {rest} / {taps};\n"
            rest = f"r{i}"
        text += f"const int group = {rest};\nconst int taps = outer % {args.int(self.outer_taps)};\n"
        for i, axis in enumerate(self.axes[:-1]):
            low, high = self._valid(axis, f"k{i}", f"k{i}")
            text += f"const int lo{i} = max(s{i}, {low}); const int hi{i} = min(e{i}, {high});\n"
        return text

    def _band(self, counts):
        """C text of the band's range [s, e) of outputs along each axis."""
        args = self.args
        text = decode("band", counts, "b", args, rest="d")
        for i, axis in enumerate(self.axes):
            size = args.int(self.bands[i])
            text += f"const int s{i} = b{i} * {size}; const int e{i} = min(s{i} + {size}, {args.int(axis.output)});\n"
        return text

    def _valid(self, axis, first, last):
        """(C text of the first output whose tap `first` is not before the input, C text of the end of those whose tap `last` is inside)."""
        args, stride = self.args, axis.stride
        if axis.inside:
            return "0", args.int(axis.output)
        low, dilation = args.int(axis.low), args.int(axis.dilation)
        before = f"max(0, {low} - {first} * {dilation})"
        after = f"max(0, {args.int(axis.input)} + {low} - {last} * {dilation})"
        if stride == 1:
            return before, after
        return f"({before} + {stride - 1}) / {stride}", f"({after} + {stride - 1}) / {stride}"

    def _tiles(self, block):
        """C text of the loops over the tiles of the item's filter rows."""
        full, left = divmod(self.rows, self.tile.rows)
        text = f"for (int tap = 0; tap < {self.row_taps}; ++tap) {{\n"
        if full:
            text += f"for (int row = 0; row < {full * self.tile.rows}; row += {self.tile.rows}) {{\n"
            text += self._tile(self.tile.rows, block) + "}\n"
        if left:
            text += f"{{\nconst int row = {full * self.tile.rows};\n" + self._tile(left, block) + "}\n"
        return text + "}\n"

    def _tile(self, rows, block):
        """C text of one tile over one band: loop over the pixels, add the sums to those of the bands before."""
        args, axis, inner = self.args, self.inner, len(self.axes) - 1
        outputs, inputs = args.int(self.geometry.output[-1]), self.geometry.input[-1]
        accumulator = dtypes.storage_ctype(self.accumulator)
        index = f"((chunk * {args.int(self.outer_taps)} + taps) * {self.row_taps} + tap) * {args.int(self.rows)} + row"
        text = f"__global {accumulator}* sums = {self.out} + (long)({index}) * {outputs} + channel;\n"
        tile = RegisterTile(rows, block.vectors, self.vector)
        text += tile.begin()
        crosses = self._crosses(rows) and not axis.inside
        channels = args.int(self.geometry.group_inputs)
        first = f"row / {channels}" if self.merged else "tap"
        final = f"(row + {rows - 1}) / {channels}" if self.merged else "tap"
        if axis.taps == 1:
            first = final = "0"
        text += f"const int first_tap = {first}; const int last_tap = {final};\n"
        low, high = self._valid(axis, "first_tap", "last_tap")
        text += f"const int lo = max(s{inner}, {low}); const int hi = min(e{inner}, {high});\n"
        if crosses:
            low, high = self._valid(axis, "last_tap", "first_tap")
            text += f"const int some = max(s{inner}, {low}); const int none = min(e{inner}, {high});\n"
            text += "const int from = lo < hi ? lo : none; const int to = lo < hi ? hi : none;\n"
        else:
            text += "const int from = lo; const int to = hi;\n"
        x_line, dy_line = [], []
        for i, other in enumerate(self.axes[:-1]):
            place = f"lo{i}" if other.plain else f"({conv_geometry.position(other, f'lo{i}', f'k{i}', args)})"
            x_line.append(f"(long){place} * {args.int(other.input_step, 'long')}")
            dy_line.append(f"(long)lo{i} * {args.int(other.output_step, 'long')}")
        column = "" if self.merged else f" + tap * {args.int(axis.dilation * inputs)}"
        group = "" if self.lanewise or self.geometry.groups == 1 else f" + group * {channels}"
        row = "0" if self.lanewise else "row"
        x_line.append(f"({row}{column}{group} - {args.int(axis.low * inputs)})")
        dy_line.append("channel")
        text += prelude.pointer(self.dtype, "x_line", f"{self.x} + ({' + '.join(x_line)})")
        text += prelude.pointer(self.dtype, "dy_line", f"{self.dy} + ({' + '.join(dy_line)})")
        step = args.int(axis.stride * inputs)
        main = {"xp": f"xl + (long)from * {step}", "dp": f"dl + (long)from * {outputs}"}
        values = [self._value(a, "xp") for a in range(rows)]
        pixel = self._pixel(rows, block, values) + f"xp += {step}; dp += {outputs};\n"
        text += self._walk("max(0, to - from)", main, pixel)
        if crosses:
            text += self._border(rows, block, step, outputs)
        text += "if (band > begin) {\n"  # a band's sums begin at 0, so that no sum has too many terms

        def add(a, v, name):
            return f"{name} += {parts_cpu.load_lanes(*lanes(a, v))};\n"

        def lanes(a, v):
            return self.accumulator, block.width, block.lanes[v], "sums", f"{a} * {outputs} + {v * block.width}"

        return f"{text}{tile.each(add)}}}\n" + tile.each(lambda a, v, name: parts_cpu.store_lanes(*lanes(a, v), name))

    def _walk(self, width, start, pixel):
        """C text of one loop over `width` pixels of every line of the band; `pixel` is the C text for one pixel.

        `start`: {pointer that `pixel` advances: its value at the start of each line, from the line's pointers xl and dl}.

        A loop nest over lines and pixels would be equivalent, but slow to compile (quirk slow_loop_nests).
        """
        args, outer = self.args, range(len(self.axes) - 1)
        text = f"{{\nconst int width = {width};\nint left = width;\n"
        lines = {"xl": "x_line", "dl": "dy_line", **start}
        text += "".join(prelude.pointer(self.dtype, name, place) for name, place in lines.items())
        text += "".join(f"const int lines{i} = max(0, hi{i} - lo{i});\nint left{i} = lines{i};\n" for i in outer)
        text += f"const int steps = {' * '.join(['width', *(f'lines{i}' for i in outer)])};\n"
        text += f"for (int step = 0; step < steps; ++step) {{\n{pixel}"
        if outer:
            advance = [(args.int(a.stride * a.input_step, "long"), args.int(a.output_step, "long")) for a in self.axes[:-1]]
            turn = ""
            for i in outer:
                more = f"xl += {advance[i][0]}; dl += {advance[i][1]};\n"
                if i:
                    back = f"xl -= lines{i} * {advance[i][0]}; dl -= lines{i} * {advance[i][1]};"
                    more += f"if (--left{i} == 0) {{\nleft{i} = lines{i}; {back}\n{turn}}}\n"
                turn = more
            restart = "".join(f"{name} = {place};\n" for name, place in start.items())
            text += f"if (--left == 0) {{\nleft = width;\n{turn}{restart}}}\n"
        return text + "}\n}\n"

    def _border(self, rows, block, step, outputs):
        """C text for the pixels for which some rows of the tile lie outside the input and count as zero."""
        line = self.args.int(self.inner.input * self.geometry.input[-1])
        low = self.args.int(self.inner.low * self.geometry.input[-1])
        text = "const int o = some + (width - left) + (width - left < before ? 0 : to - from);\n"
        text += f"const int place = row + o * {step} - {low};\n"
        text += prelude.pointer(self.dtype, "xp", f"xl + (long)o * {step}") + prelude.pointer(self.dtype, "dp", f"dl + (long)o * {outputs}")
        text += f"{self.scalar} column[{rows}];\n#pragma nounroll\nfor (int a = 0; a < {rows}; ++a)\n"
        text += f"column[a] = place + a >= 0 && place + a < {line} ? {prelude.load(self.dtype, 1, 'xp', 'a')} : 0;\n"
        text += self._pixel(rows, block, [f"column[{a}]" for a in range(rows)])
        if len(self.axes) == 1:
            text += "--left;\n"
        return "const int before = max(0, from - some);\n" + self._walk("before + max(0, none - to)", {}, text)

    def _value(self, row, pointer):
        """Expression of the input value of row `row` of the tile (None if each lane reads its own group's)."""
        return None if self.lanewise else prelude.load(self.dtype, 1, pointer, str(row))

    def _pixel(self, rows, block, values):
        """C text for one output pixel: its gradient's vectors times the rows' input values."""
        tile, right = RegisterTile(rows, block.vectors, self.vector), block.load(self.dtype, "dp")

        def gathered(a, v):
            return parts_cpu.group_lanes(self.problem, block.width, block.lanes[v], "", v * block.width, f"row + {a}")

        return tile.step(gathered if self.lanewise else values.__getitem__, right, None, self.lanewise)
