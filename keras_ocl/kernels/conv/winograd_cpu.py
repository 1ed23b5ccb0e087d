"""Winograd's F(2x2, 3x3) for CPUs (winograd.py): 3x3 convolutions of stride 1 with 16 products where the direct algorithm takes 36.

One work-item takes a few blocks of tiles from the input to the sink; the transformed patches stay in its local memory.
"""

import itertools
from dataclasses import dataclass, replace

from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels.conv import winograd
from keras_ocl.kernels.conv.parts_cpu import cycles, load_vector, loose_types, register_tiles, store_vector
from keras_ocl.kernels.conv.winograd import TWO, combine
from keras_ocl.kernels.overrides import chosen, not_counts
from keras_ocl.kernels.register_tile import RegisterTile
from keras_ocl.kernels.spec import Args, Buffer


@dataclass(frozen=True)
class Tile:
    """A work-item's `blocks` times `rows` image tiles; a register tile is `rows` image tiles by `vectors` of `width` output channels."""

    blocks: int
    rows: int
    vectors: int
    width: int


def _suitable_width(problem):
    """The vector width in lanes, None if the algorithm does not apply or does not pay."""
    if not winograd.applies(problem):
        return None
    geometry, width, tuning = problem.geometry, problem.lanes, problem.tuning.winograd
    inputs, outputs = geometry.filter[2:]
    if inputs % width or outputs % width or min(inputs, outputs) < tuning.channels:
        return None
    hints = [hint(e) for e in geometry.output[:-1]]
    few = 2.0 * product(hints) * product(geometry.filter) < tuning.flops or min(hints[1:]) < 4
    return None if few else width


def _own_tile(problem):
    """The device's own Tile, None where it has none; a convolution and its transpose share it."""
    return chosen(problem.traits, "winograd", lambda: replace(problem, transposed=False).key, Tile, lambda tile: _unfit(problem, tile))


def _unfit(problem, tile):
    """Why a kernel of `problem` with `tile` would be wrong or would not fit the device, as a clause; "" where it fits."""
    if clause := _unfit_channels(problem, tile) or not_counts(blocks=tile.blocks):
        return clause
    size = 64 * tile.rows * (tile.blocks * problem.geometry.filter[2] + tile.vectors * tile.width)
    most = problem.traits.local_memory
    return f"its {size} bytes of local memory are more than {most}" if size > most else ""


def _unfit_channels(problem, tile):
    """Why Winograd's algorithm does not apply, or a register tile does not divide the channels, as a clause; "" where it fits."""
    if not winograd.applies(problem):
        return winograd.UNFIT
    if clause := problem.unfit(tile.rows, tile.vectors, tile.width):
        return clause
    inputs, outputs = problem.geometry.filter[2:]
    span = tile.vectors * tile.width
    uneven = tile.width == 1 or inputs % tile.width or outputs % span
    return f"{inputs} and {outputs} channels are no whole vectors of {tile.width} and tiles of {span}" if uneven else ""


def choose_tile(problem):
    """The Tile for a convolution, the device's own first; None if the direct kernel is better."""
    if own := _own_tile(problem):
        return own
    width, tuning, geometry = _suitable_width(problem), problem.tuning.winograd, problem.geometry
    if width is None:
        return None
    inputs, outputs = geometry.filter[2:]
    hints = [hint(e) for e in geometry.output[:-1]]
    vectors = 2 if outputs // width % 2 == 0 else 1
    rows = min(12, (problem.registers(width) - 4) // vectors)
    tiles = hints[0] * -(-hints[1] // 2) * -(-hints[2] // 2)
    room = min(tuning.local, problem.traits.local_memory) // 4 // (16 * rows) - vectors * width
    blocks = min(2, room // inputs, tiles // (rows * tuning.items * problem.units))
    return Tile(blocks, rows, vectors, width) if blocks >= 1 else None


def candidates(problem):
    """Yields (estimate, Tile) of all that fit; estimates are cycles per product of a tile's elements, of full register tiles."""
    if not winograd.applies(problem):
        return
    width, registers = problem.lanes, problem.registers(problem.lanes)
    for vectors, blocks, most in register_tiles(problem.channels, width, lambda vectors: (registers - 1 - vectors) // vectors):
        for rows, count in itertools.product(most, (1, 2, 3, 4)):
            tile = Tile(count, rows, vectors, width)
            if not _unfit(problem, tile):
                yield cycles(rows, rows, blocks) / rows, tile


def forward(problem, tile):
    """The KernelSpecs of the convolution, for a Problem that is not transposed."""
    transformed = Buffer(16 * product(problem.geometry.filter[2:]), problem.dtype)
    return [_transform_filter(problem, tile, transformed), _convolve(problem, tile, transformed)]


def channels(args, inputs, outputs, per_item, width):
    """C text that opens the loops over a work-item's `per_item` input channels and over vectors of the output channels."""
    text = f"const int inputs = {args.int(inputs)}, outputs = {args.int(outputs)}, share = {args.int(per_item)};\n"
    text += f"const int first = {args.place('global', 0)} * share;\nfor (int c = first; c < min(first + share, inputs); ++c)\n"
    return text + f"for (int k = 0; k < outputs; k += {width}) {{\n"


def _transform_filter(problem, tile, transformed):
    """The KernelSpec that transforms the filter: (3, 3, inputs, outputs) to (16, inputs, outputs)."""
    args, dtype = Args(all_arguments=True), problem.dtype  # memory-bound, as in filter_layout
    source, target = args.pointer(problem.w, dtype), args.pointer(transformed, dtype, out=True)
    inputs, outputs = problem.geometry.filter[2:]
    per_item = max(1, 2048 // outputs)
    text = loose_types(dtype) + f"typedef {problem.register(tile.width)} vector;\n"
    text += channels(args, inputs, outputs, per_item, tile.width)
    for i in range(3):
        for j in range(3):
            text += f"const vector g{i}_{j} = {load_vector(dtype, tile.width, source, f'({i * 3 + j} * inputs + c) * outputs + k')};\n"
    text += combine("g{}_{}", "const vector u{}_{}", TWO.filter, 3)
    for i in range(4):
        for j in range(4):
            text += store_vector(dtype, tile.width, target, f"({i * 4 + j} * inputs + c) * outputs + k", f"u{i}_{j}")
    return args.kernel(
        "convolution filter transform",
        text + "}\n",
        (-(-inputs // per_item),),
        (1,),
        title="convolution by Winograd: the filter's transform",
    )


def _convolve(problem, tile, transformed):
    """The KernelSpec that convolves the input with the transformed filter and hands the outputs to the sink."""
    args, geometry, dtype = Args(), problem.geometry, problem.dtype
    source, filters = args.pointer(problem.x, dtype), args.pointer(transformed, dtype)
    inputs, outputs = geometry.filter[2:]
    rows, width, span = tile.rows, tile.width, tile.vectors * tile.width
    patches = args.local("float", 16 * tile.blocks * rows * inputs)
    products = args.local("float", 16 * rows * span)
    batch, high, wide = geometry.output[:3]
    down, across = ceil_div(high, 2), ceil_div(wide, 2)
    total = batch * down * across
    height, breadth = args.int(geometry.input[1]), args.int(geometry.input[2])
    text = loose_types(dtype) + f"typedef {problem.register(width)} vector;\ntypedef loose_float{width} loose;\n"
    text += f"const int first = {args.place('global', 0)} * {tile.blocks * rows};\n"

    # The transformed patches of the item's tiles, in local memory as (16, tiles, inputs).
    text += f"for (int t = 0; t < {tile.blocks * rows}; ++t) {{\n"
    text += f"const int tile = min(first + t, {args.int(total)} - 1);\n"
    text += f"const int n = tile / {args.int(down * across)};\n"
    text += f"const int y = tile / {args.int(across)} % {args.int(down)} * 2 - {args.int(geometry.padding[0][0])};\n"
    text += f"const int z = tile % {args.int(across)} * 2 - {args.int(geometry.padding[1][0])};\n"
    text += f"for (int c = 0; c < {inputs}; c += {width}) {{\nvector d[4][4];\n"
    text += f"for (int i = 0; i < 4; ++i) {{\nconst int inside = y + i >= 0 && y + i < {height};\n"
    text += f"__global const float* line = {source} + (((long)n * {height} + y + i) * {breadth} + z) * {inputs} + c;\n"
    text += f"for (int j = 0; j < 4; ++j) d[i][j] = inside && z + j >= 0 && z + j < {breadth} ? "
    text += f"*(__global const loose*)(line + j * {inputs}) : (vector)(0);\n}}\n"
    text += combine("d[{}][{}]", "const vector v{}_{}", TWO.patch, 4)
    for i in range(4):
        for j in range(4):
            text += f"*(__local loose*)({patches} + {(i * 4 + j) * tile.blocks * rows * inputs} + t * {inputs} + c) = v{i}_{j};\n"
    text += "}\n}\n"

    # For each block of channels and of tiles: 16 matrix products, then the transform back.
    text += f"for (int channel = 0; channel < {outputs}; channel += {span})\n"
    text += f"for (int block = 0; block < {tile.blocks}; ++block) {{\nfor (int e = 0; e < 16; ++e) {{\n"
    sums = RegisterTile(rows, tile.vectors, "vector")
    text += sums.begin()
    text += f"__global const float* up = {filters} + e * {inputs * outputs} + channel;\n"
    text += f"__local const float* vp = {patches} + (e * {tile.blocks} + block) * {rows * inputs};\n"
    right = [load_vector(dtype, width, "up", str(v * width)) for v in range(tile.vectors)]
    step = sums.step(lambda r: f"vp[{r * inputs} + c]", right)
    text += f"for (int c = 0; c < {inputs}; ++c) {{\n{step}up += {outputs};\n}}\n"
    text += sums.each(lambda r, v, name: f"*(__local loose*)({products} + e * {rows * span} + {r * span + v * width}) = {name};\n")
    text += f"}}\nfor (int t = 0; t < {rows}; ++t) {{\nconst int tile = first + block * {rows} + t;\n"
    text += f"if (tile >= {args.int(total)}) break;\n"
    text += f"const int n = tile / {args.int(down * across)};\n"
    text += f"const int y = tile / {args.int(across)} % {args.int(down)} * 2;\nconst int z = tile % {args.int(across)} * 2;\n"
    text += f"for (int v = 0; v < {span}; v += {width}) {{\nvector results[2][2];\n"
    for i in range(4):
        for j in range(4):
            place = f"{products} + {(i * 4 + j) * rows * span} + t * {span} + v"
            text += f"const vector m{i}_{j} = *(__local const loose*)({place});\n"
    text += combine("m{}_{}", "results[{}][{}]", TWO.result, 4)
    text += "for (int e = 0; e < 4; ++e) {\nconst int row = y + e / 2; const int column = z + e % 2;\n"
    text += f"if (row < {args.int(high)} && column < {args.int(wide)}) {{\nconst vector result = results[e / 2][e % 2];\n"
    text += problem.sink.store(args, ["n", "row", "column", "(channel + v)"], "result", width)
    text += "}\n}\n}\n}\n}\n"
    grid = (ceil_div(total, tile.blocks * rows),)
    helpers, title = frozenset(problem.sink.helpers), "convolution by Winograd: tiles of 2 x 2 pixels"
    return args.kernel(problem.name, text, grid, (1,), helpers, title=title)
