"""Direct convolution for CPUs: one work-item computes tiles of output pixels x vectors of output channels.

A tile's accumulators live in registers. For every tap and input channel the filter's vectors are loaded
once and each pixel's input value is broadcast against them. The pixels of a tile are adjacent along one
axis (a row, or the batch where rows are short). Taps outside the input along the other axes are skipped;
along the tile's axis a specialised body computes only the pixels inside, so that borders cost little.
With an input dilation, the pixels of a tile are of one phase: all use the same taps.
"""

from dataclasses import dataclass, replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint, product, size_hint
from keras_ocl.kernels import prelude
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.conv import parts_cpu
from keras_ocl.kernels.coordinates import decode
from keras_ocl.kernels.overrides import chosen
from keras_ocl.kernels.register_tile import RegisterTile
from keras_ocl.kernels.spec import Args


@dataclass(frozen=True)
class Tile:
    """A register tile: `pixels` along axis number `axis`, by `vectors` of `width` output channels."""

    axis: int
    pixels: int
    vectors: int
    width: int


def own_tile(problem):
    """The device's own Tile, None where it has none. The transpose of a convolution has the same kernel, and so the same tile."""
    return chosen(problem.traits, "convolution", lambda: replace(problem, transposed=False).key, Tile, lambda tile: _unfit(problem, tile))


def _unfit(problem, tile):
    """Why a kernel of `problem` with `tile` would be wrong or would not fit a CPU's registers, as a clause; "" where it fits."""
    last = len(problem.merged_axes) - 1
    if type(tile.axis) is not int or tile.axis not in (0, last):
        return f"axis = {tile.axis!r} is neither 0 nor {last}"
    if clause := problem.unfit(tile.pixels, tile.vectors, tile.width):
        return clause
    extent = hint(problem.merged_axes[tile.axis].per_phase)
    return f"its {tile.pixels} pixels are more than the {extent} of its axis" if tile.pixels > extent else ""


def choose_tile(problem):
    """The device's own Tile, else the one with the least estimated time, by hints."""
    return own_tile(problem) or parts_cpu.cheapest(candidates(problem))


def candidates(problem):
    """Yields (estimate, Tile) of the register tiles of a direct convolution; estimates are cycles per pixel, tap and input channel."""
    axes, channels = problem.merged_axes, problem.channels
    width = min(problem.lanes, parts_cpu.padded_width(channels))
    limit = problem.registers(width)

    def most(vectors):
        return (limit - 2 - vectors) // vectors if vectors > 1 else limit - 8

    for number, axis in enumerate(axes):
        if (axis.period > 1 and number == 0) or number not in (0, len(axes) - 1) or hint(axis.output) == 0:
            continue
        extent = hint(axis.per_phase)
        # Tiles along rows merge taps and touch adjacent cache lines: tiles along the batch must be clearly cheaper.
        handicap = 1.15 if number == 0 and len(axes) > 1 else 1.0
        for vectors, blocks, rows in parts_cpu.register_tiles(channels, width, most):
            for pixels in rows:
                yield parts_cpu.cycles(extent, pixels, blocks) / extent * handicap, Tile(number, pixels, vectors, width)


def forward(problem):
    """The KernelSpec of a direct convolution, for a Problem that is not transposed."""
    return DirectConvolution(problem).spec()


def filter_blocks(problem):
    """The blocks in which the filter should be packed, as filter_layout.arrange takes them; None if packing does not pay."""
    if problem.geometry.groups > 1:
        return None
    tile, tuning = choose_tile(problem), problem.tuning.convolution
    blocks = parts_cpu.blocks_of(problem.channels, tile.width, tile.vectors)
    size = product(problem.geometry.filter[:-1]) * tile.vectors * tile.width * dtypes.itemsize(problem.dtype)
    tiles = size_hint(a.output for a in problem.merged_axes) // tile.pixels
    if sum(block.count for block in blocks) < 2 or size < tuning.packed_block or tiles < tuning.packed_tiles:
        return None
    return [(sum(block.lanes), block.count) for block in blocks]


def _border_tiles(axis, pixels):
    """Yields (input position of the first pixel, number of pixels) of every tile and tap that crosses the border of `axis`."""
    advance, reach = axis.advance, axis.advance * (pixels - 1)
    for phase in range(axis.period):
        size = ceil_div(axis.output - phase, axis.period)
        for tap in range(axis.taps):
            t = phase * axis.stride + tap * axis.dilation - axis.low
            if t % axis.spread:
                continue
            t //= axis.spread
            inside = max(0, ceil_div(-t, advance * pixels)) * pixels  # first pixel of the first tile that begins inside
            beyond = max(inside, ((axis.input - 1 - reach - t) // (advance * pixels) + 1) * pixels)  # that of the first that ends outside
            for start in (*range(0, min(inside, size), pixels), *range(min(beyond, size // pixels * pixels), size, pixels)):
                yield t + start * advance, min(pixels, size - start)


class DirectConvolution:
    """Builds the kernel of one Problem; spec() returns it."""

    def __init__(self, problem):
        self.problem, self.geometry, self.dtype = problem, problem.geometry, problem.dtype
        self.axes, self.lanewise, self.tuning = problem.merged_axes, problem.lanewise, problem.tuning.convolution
        self.tile = self._choose_tile()
        self.args = Args()
        self.x, self.w = self.args.pointer(problem.x, self.dtype), self.args.pointer(problem.w, self.dtype)
        self.scalar, self.vector = problem.register(), problem.register(self.tile.width)
        self.along = self.axes[self.tile.axis]
        merge = self.geometry.groups == 1 and self.along.spread == 1 and self.along.dilation == 1
        self.merge_taps = merge and self.tile.axis == len(self.axes) - 1 and self.along.taps > 1
        self.segments = ceil_div(self.along.per_phase, self.tile.pixels) * self.along.period
        # The last tile of an unknown extent is shifted back to be whole, so that its borders do not depend on the extent.
        self.moves = isinstance(self.along.output, Dim) and self.along.period == 1
        self.stored = "moved" if self.moves else "0"  # the tile's first pixel that the previous tile did not store
        # A last tile shifted by at least `skipped` pixels skips the first `skipped`, stored before. Not along the batch: it seldom varies.
        self.skipped = self.tile.pixels // 2 if self.moves and self.tile.axis else 0
        self.ranges, self.masked = self._pixel_ranges()

    def _choose_tile(self):
        return choose_tile(self.problem)

    def _blocks(self, channels):
        return parts_cpu.blocks_of(channels, self.tile.width, self.tile.vectors)

    def spec(self):
        """The KernelSpec."""
        args, tile, geometry = self.args, self.tile, self.geometry
        counts = [self.segments if i == tile.axis else a.output for i, a in enumerate(self.axes)]
        units = product(counts)
        channels, groups = self.problem.channels, self.problem.groups
        blocks = self._blocks(channels)
        taps = product(geometry.filter[: geometry.rank])
        unit_flops = 2.0 * tile.pixels * taps * geometry.group_inputs * geometry.output[-1]
        # An item reads a block of a large filter once for all its tiles: it gets as many tiles as leave enough items.
        large = product(geometry.filter) * dtypes.itemsize(self.dtype) > self.tuning.cached_filter
        most = hint(units) // (8 * self.problem.units)
        per_item = max(1, most if large else min(int(self.tuning.item_flops / max(unit_flops, 1.0)), most))
        row = hint(self.segments)
        per_item = per_item // row * row if per_item > row else per_item
        # If tiles are few, blocks of channels go to separate work-items too.
        slots = sum(block.count for block in blocks) * groups
        spread_blocks = slots > 1 and hint(units) < 8 * self.problem.units

        text = parts_cpu.loose_types(self.dtype) + f"const int first = {self.args.place('global', 0)} * {per_item};\n"
        text += f"const int last = min(first + {per_item}, {args.int(units)});\n"
        if spread_blocks:
            text += f"const int slot = {self.args.place('global', 1)};\n"
        done = 0
        for block in blocks:
            size, count = tile.vectors * tile.width, block.count
            if spread_blocks:
                text += f"if (slot >= {done * groups} && slot < {(done + count) * groups}) {{\n"
                text += f"const int block = slot - {done * groups};\n"
            else:
                text += f"for (int block = 0; block < {count * groups}; ++block) {{\n"
            text += f"const int group = block / {count};\n"
            text += f"const int channel = group * {channels} + {done * size} + block % {count} * {size};\n"
            text += f"for (int unit = first; unit < last; ++unit) {{\n{self._unit(counts, block)}}}\n}}\n"
            done += count
        helpers = parts_cpu.load_helpers(self.dtype, tile.width) | self.problem.sink.helpers
        grid = (ceil_div(units, per_item), slots) if spread_blocks else (ceil_div(units, per_item),)
        title = f"convolution: {tile.pixels} pixels x {tile.vectors} vectors of channels per tile"
        return args.kernel(self.problem.name, text, grid, (1,) * len(grid), helpers, title=title)

    def _pixel_ranges(self):
        """(the ranges [first, last) of a tile's pixels inside the input that get a body, whether others need a masked body)."""
        axis, pixels = self.along, self.tile.pixels
        if axis.inside and not isinstance(axis.output, Dim) and axis.output % pixels == 0:
            return [], False
        unknown = any(isinstance(e, Dim) for e in (axis.input, axis.output, axis.low))
        flops = 2.0 * product(hint(e) for e in self.geometry.output) * product(self.geometry.filter[:-1])
        most, found = self.tuning.large_bodies if flops > self.tuning.large_flops else self.tuning.bodies, []
        for at, size in self._tiles_at_ends() if unknown else _border_tiles(axis, pixels):
            first = min(max(0, ceil_div(-at, axis.advance)), size)
            last = min(max(0, ceil_div(hint(axis.input) - at, axis.advance)), size)
            if first < last and (first, last) != (0, pixels) and (first, last) not in found:
                found.append((first, last))
                if len(found) > most:
                    return [], True
        return found, unknown

    def _tiles_at_ends(self):
        """Like _border_tiles(), by hints: for every tap the first tile of an unknown extent, and the last, shifted-back one."""
        axis, pixels = self.along, self.tile.pixels
        last = hint(axis.output) - pixels
        if not self.moves or axis.spread > 1 or last < 0:
            return []
        starts = [start * axis.stride - hint(axis.low) for start in (0, last)]
        return [(start + tap * axis.dilation, pixels) for start in starts for tap in range(axis.taps)]

    def _unit(self, counts, block):
        """C text of one tile: decode its position, accumulate over the taps, store."""
        args, tile, axis = self.args, self.tile, self.along
        text = decode("unit", counts, "u", args, rest="v")
        at = f"u{tile.axis}"
        if axis.period > 1:
            per = ceil_div(axis.per_phase, tile.pixels)
            text += f"const int phase = {at} / {args.int(per)}; const int start = {at} % {args.int(per)} * {tile.pixels};\n"
            text += f"const int size = ({args.int(axis.output)} - phase + {axis.period - 1}) / {axis.period};\n"
        else:
            text += f"const int size = {args.int(axis.output)};\n"
            if self.moves:
                text += f"const int moved = size < {tile.pixels} ? 0 : max(0, ({at} + 1) * {tile.pixels} - size);\n"
                text += f"const int least = moved >= {self.skipped} ? {self.skipped} : 0;\n" if self.skipped else ""
            text += f"const int start = {at} * {tile.pixels}{' - moved' if self.moves else ''};\n"
        text += f"const int count = min({tile.pixels}, size - start);\n"
        text += self._sums(block).begin()
        text += self._taps(0, block, "0", "0")
        first = f"phase + start * {axis.period}" if axis.period > 1 else "start"
        text += f"const int base = {first};\n"
        return text + self._store(block)

    def _sums(self, block):
        """The RegisterTile of pixels by vectors of output channels."""
        return RegisterTile(self.tile.pixels, block.vectors, self.vector)

    def _taps(self, number, block, offset, tap):
        """C text of the loops over the taps of axis `number` and those after it; the tile's axis comes innermost."""
        order = [i for i in range(len(self.axes)) if i != self.tile.axis]
        if number == len(order):
            return self._along(block, offset, tap)
        args, i = self.args, order[number]
        axis = self.axes[i]
        step = args.int(axis.input_step, "long")
        if axis.plain:
            return self._taps(number + 1, block, f"{offset} + (long)u{i} * {step}", tap)
        text, taps = "", args.int(axis.taps)
        position = conv_geometry.position(axis, f"u{i}", f"k{i}", args)
        text += f"for (int k{i} = 0; k{i} < {taps}; ++k{i}) {{\n"
        if axis.spread > 1:
            text += f"const int t{i} = {position};\nif (t{i} % {axis.spread}) continue;\nconst int i{i} = t{i} / {axis.spread};\n"
        else:
            text += f"const int i{i} = {position};\n"
        if not axis.inside:
            text += f"if (i{i} < 0 || i{i} >= {args.int(axis.input)}) continue;\n"
        inner = self._taps(number + 1, block, f"{offset} + (long)i{i} * {step}", f"({tap} * {taps} + k{i})")
        return text + inner + "}\n"

    def _filter_index(self, outer):
        """C text of the flat tap index, from that of the other axes (`outer`) and tap k of the tile's axis."""
        axis = self.along
        if axis.taps == 1:
            return outer
        return f"({outer} * {self.args.int(axis.taps)} + k)"  # such an axis is the innermost

    def _filter_row(self, block):
        """Elements of the filter from one input channel to the next, in its block of channels if packed."""
        return sum(block.lanes) if self.problem.packed else self.geometry.output[-1]

    def _filter_place(self, tap, row):
        """C text of the offset of a tap's first filter element for the current block of channels."""
        block = f"(long)channel * {self.args.int(product(self.geometry.filter[:-1]))}" if self.problem.packed else "channel"
        return f"(long){tap} * {self.args.int(self.geometry.group_inputs * row)} + {block}"

    def _along(self, block, offset, tap):
        """C text of the taps along the tile's axis, each with the body for the pixels that it has inside the input."""
        args, axis, tile = self.args, self.along, self.tile
        step, advance, pixels = args.int(axis.input_step), axis.advance, tile.pixels
        taps, low = args.int(axis.taps), args.int(axis.low)
        always, several = axis.inside and not self.ranges and not self.masked, axis.taps > 1
        position = f"{'phase' if axis.period > 1 else 'start'} * {args.int(axis.stride)}"
        if several or low != "0":
            position += f" - {low}"
        text, span = "{\n", "1"
        if self.merge_taps:
            whole, span = "1", "span"
            if not always:
                end = f"{position} + {(pixels - 1) * advance} + {taps} - 1 < {args.int(axis.input)}"
                whole = f"{position} >= 0 && {end} && count == {pixels}"
            text += f"const int span = {whole} ? {taps} : 1;\n"
        if several:
            text += f"for (int k = 0; k < {taps}; k += {span}) {{\n"
            position += f" + k * {args.int(axis.dilation)}"
        if axis.spread > 1:
            text += f"const int t = {position};\nif (t % {axis.spread}{') continue;' if several else ' == 0) {'}\n"
            moved = f" + start * {advance}" if axis.period > 1 else ""
            position = f"t / {axis.spread}{moved}"
        text += f"const int at = {position};\n"
        group = "" if self.lanewise or self.geometry.groups == 1 else f" + group * {self.geometry.group_inputs}"
        text += prelude.pointer(self.dtype, "xp", f"{self.x} + ({offset} + (long)at * {step}{group})")
        place = self._filter_place(self._filter_index(tap), self._filter_row(block))
        text += prelude.pointer(self.dtype, "wp", f"{self.w} + {place}")
        loop = args.int(self.geometry.group_inputs)
        length = f"{span} * {loop}" if self.merge_taps else loop
        if always:
            text += self._body(block, 0, pixels, length)
        else:
            text += self._bounded(block, length, loop)
        return text + ("}\n}\n" if several or axis.spread > 1 else "}\n")

    def _bounded(self, block, length, loop):
        """C text that chooses a body by the range of pixels inside the input."""
        axis, pixels = self.along, self.tile.pixels
        limit = self.args.int(axis.input)
        advance, least = axis.advance, "least" if self.skipped else "0"
        low = f"max({least}, -at)" if advance == 1 else f"max({least}, ({advance - 1} - at) / {advance})"
        high = f"min(count, {limit} - at)" if advance == 1 else f"min(count, at < {limit} ? ({limit} - at + {advance - 1}) / {advance} : 0)"
        text = f"const int from = {low}; const int to = {high};\n"
        text += f"if (from == 0 && to == {pixels}) {{\n{self._body(block, 0, pixels, length)}}}\n"
        ranges = [(start, end, loop) for start, end in self.ranges]
        if self.skipped:
            ends = {end for start, end in self.ranges if not start and end > self.skipped}
            ranges += [(self.skipped, pixels, length), *((self.skipped, end, loop) for end in sorted(ends))]
        for start, end, length in ranges:
            text += f"else if (from == {start} && to == {end}) {{\n{self._body(block, start, end, length)}}}\n"
        if self.masked:
            text += f"else if (from < to) {{\n{self._body(block, 0, pixels, loop, masked=True)}}}\n"
        return text

    def _offsets(self, masked):
        """(offsets of the tile's pixels from xp, C text that defines them); if `masked`, they are clamped to the input."""
        axis, pixels = self.along, range(self.tile.pixels)
        if not masked:
            return [self.args.int(r * axis.advance * axis.input_step) if r else "0" for r in pixels], ""
        text, limit = "", f"{self.args.int(axis.input)} - 1 - at"
        for r in pixels:
            text += f"const int m{r} = {r} >= from && {r} < to;\n"
            text += f"const int q{r} = clamp({r * axis.advance}, -at, {limit}) * {self.args.int(axis.input_step)};\n"
        return [f"q{r}" for r in pixels], text

    def _body(self, block, start, end, length, masked=False):
        """C text of the loop over input channels: load the filter's vectors, multiply them with each pixel's value."""
        row = self.args.int(self._filter_row(block))
        offsets, text = self._offsets(masked)

        def value(r):
            text = prelude.load(self.dtype, 1, "xp", f"{offsets[r]} + c")
            return f"m{r} ? {text} : 0" if masked else text

        def gathered(r, v):
            text = parts_cpu.group_lanes(self.problem, block.width, block.lanes[v], f"{offsets[r]} + ", v * block.width, "c")
            return f"(m{r} ? {text} : ({self.vector})(0))" if masked else text

        sums, right, rows = self._sums(block), block.load(self.dtype, "wp"), range(start, end)
        step = sums.step(gathered if self.lanewise else value, right, rows, self.lanewise)
        return f"{text}for (int c = 0; c < {length}; ++c) {{\n{step}wp += {row};\n}}\n"

    def _coordinates(self, pixel):
        """C expressions of the coordinates of the tile's pixel number `pixel`, without the channel."""
        result = []
        for i, axis in enumerate(self.axes):
            place = f"(base + {pixel} * {axis.period})" if i == self.tile.axis else f"u{i}"
            result += conv_geometry.part_coordinates(axis, place, self.args)
        return result

    def _results(self, block):
        """C text of an array with the sums, pixel by pixel."""
        text = f"{self.vector} results[{self.tile.pixels * block.vectors}];\n"
        return text + self._sums(block).each(lambda r, v, name: f"results[{r * block.vectors + v}] = {name};\n")

    def _store(self, block):
        """C text that hands the accumulators to the sink: unrolled, or in a loop if the epilogue is long or sums have many terms."""
        tile, args, vectors = self.tile, self.args, block.vectors

        def store(pixel, vector, value):
            place = [*self._coordinates(pixel), f"(channel + {vector * block.width})"]
            return parts_cpu.sink_lanes(self.problem.sink, args, place, value, block.width, block.lanes[vector])

        sample = store("0", vectors - 1, f"s0_{vectors - 1}")
        terms = product(self.geometry.filter[:-1])
        if terms <= self.tuning.unrolled_terms and len(sample) <= self.tuning.unrolled_store:
            text = ""
            for r in range(tile.pixels):
                inside = f"{r} >= {self.stored} && {r} < count" if self.moves else f"{r} < count"
                text += f"if ({inside}) {{\n" + "".join(store(str(r), v, f"s{r}_{v}") for v in range(vectors)) + "}\n"
            return text
        text = self._results(block)
        text += f"for (int pixel = {self.stored}; pixel < count; ++pixel) {{\n"
        for v in range(vectors):
            text += f"{{ const {self.vector} result = results[pixel * {vectors} + {v}];\n{store('pixel', v, 'result')}}}\n"
        return text + "}\n"
