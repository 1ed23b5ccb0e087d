"""The filter's gradient by Winograd's algorithm for CPUs: the transpose of winograd_cpu's F(2x2, 3x3).

For every tile of 2x2 outputs, the input's patch and the output's gradient are transformed to 4x4 matrices. Their
products, summed over the tiles, are 16 matrices (input channels x output channels), and a transform of those sums is
the gradient. A work-item computes one row of the 4x4 (a quarter of the products) over a chunk of the tiles; a second
kernel adds the chunks in order and transforms the sums.
"""

from dataclasses import dataclass

from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels.conv.parts_cpu import chunk_of, load_vector, loose_types, store_vector
from keras_ocl.kernels.conv.winograd import TWO, combine
from keras_ocl.kernels.conv.winograd_cpu import channels, suitable_width, unfit_channels
from keras_ocl.kernels.overrides import chosen, not_counts
from keras_ocl.kernels.register_tile import RegisterTile
from keras_ocl.kernels.spec import Args, Buffer


@dataclass(frozen=True)
class Tile:
    """`depth` image tiles summed at a time; a register tile of `rows` input channels by `vectors` of `width` output channels."""

    depth: int
    rows: int
    vectors: int
    width: int
    chunks: int


def _unfit(problem, tile):
    """Why a kernel of `problem` with `tile` would be wrong or would not fit the device, as a clause; "" where it fits."""
    if clause := unfit_channels(problem, tile) or not_counts(depth=tile.depth, chunks=tile.chunks):
        return clause
    inputs, outputs = problem.geometry.filter[2:]
    if inputs % tile.rows:
        return f"{tile.rows} rows do not divide {inputs} input channels"
    if tile.chunks > _blocks(problem, tile.depth):
        return f"its {tile.chunks} chunks are more than the {_blocks(problem, tile.depth)} blocks of tiles"
    size, most = 16 * tile.depth * (inputs + outputs), problem.traits.local_memory
    return f"its {size} bytes of local memory are more than {most}" if size > most else ""


def choose_tile(problem):
    """The Tile for a gradient, the device's own first; None if the direct kernel is better."""
    if own := chosen(problem.traits, "winograd_gradient", lambda: problem.key, Tile, lambda tile: _unfit(problem, tile)):
        return own
    width, tuning, geometry = suitable_width(problem), problem.tuning.winograd, problem.geometry
    if width is None:
        return None
    inputs, outputs = geometry.filter[2:]
    vectors = 2 if outputs // width % 2 == 0 else 1
    rows = next(r for r in ((8, 4) if vectors == 2 else (16, 8, 4)) if inputs % r == 0)
    both = inputs + outputs
    depth = min(tuning.most_tiles, tuning.gradient_cached // (4 * both), problem.traits.local_memory // (16 * both))
    if depth < tuning.least_tiles:
        return None
    # A chunk's sums are written and read again, so chunks must be few: at least two blocks of tiles each.
    chunks = min(2 * problem.units, _blocks(problem, depth) // 2)
    return Tile(depth, rows, vectors, width, chunks) if chunks >= 1 else None


def _blocks(problem, depth):
    """Number of blocks of `depth` image tiles, by hints."""
    batch, high, wide = (hint(e) for e in problem.geometry.output[:-1])
    return -(-batch * -(-high // 2) * -(-wide // 2) // depth)


def filter_grad(problem, tile):
    """The KernelSpecs of the filter's gradient."""
    partial = Buffer(tile.chunks * 16 * product(problem.geometry.filter[2:]), problem.dtype)
    return [_accumulate(problem, tile, partial), _transform(problem, tile, partial)]


def _accumulate(problem, tile, partial):
    """The KernelSpec that computes the sums of products: (chunks, 16, input channels, output channels)."""
    args, geometry, dtype = Args(), problem.geometry, problem.dtype
    source, gradient, out = args.pointer(problem.x, dtype), args.pointer(problem.dy, dtype), args.pointer(partial, dtype, out=True)
    inputs, outputs = geometry.filter[2:]
    depth, width = tile.depth, tile.width
    patches, gradients = args.local("float", 4 * depth * inputs), args.local("float", 4 * depth * outputs)
    batch, high, wide = geometry.output[:3]
    down, across = ceil_div(high, 2), ceil_div(wide, 2)
    total = batch * down * across
    blocks = ceil_div(total, depth)
    text = loose_types(dtype) + f"typedef {problem.register(width)} vector;\ntypedef loose_float{width} loose;\n"
    text += f"const int chunk = {args.place('global', 0)}; const int row = {args.place('global', 1)};\n"
    text += chunk_of(args, ceil_div(blocks, tile.chunks), blocks)
    text += "for (int block = begin; block < end; ++block) {\n"
    text += f"for (int t = 0; t < {depth}; ++t) {{\nconst int tile = block * {depth} + t;\nconst int real = tile < {args.int(total)};\n"
    text += f"const int n = tile / {args.int(down * across)};\n"
    text += f"const int y = tile / {args.int(across)} % {args.int(down)} * 2; const int z = tile % {args.int(across)} * 2;\n"
    text += _patch_row(args, geometry, source, patches, tile) + _gradient_row(args, geometry, gradient, gradients, tile)
    text += "}\n" + _products(patches, gradients, out, dtype, inputs, outputs, tile) + "}\n"
    return args.kernel(
        problem.name,
        text,
        (tile.chunks, 4),
        (1, 1),
        title="convolution by Winograd, gradient of the filter: a chunk of tiles per work-item",
    )


def _patch_row(args, geometry, source, patches, tile):
    """C text for row `row` of a tile's transformed patch: the sum or difference of two of its rows, then the transform of the columns."""
    inputs, width = geometry.filter[2], tile.width
    high, wide = args.int(geometry.input[1]), args.int(geometry.input[2])
    text = "const int first = (row == 3 ? 1 : row) + y, second = (row == 2 ? 1 : row == 3 ? 3 : 2) + y;\n"
    for name in ("first", "second"):
        text += f"const int {name}_y = {name} - {args.int(geometry.padding[0][0])};\n"
        text += f"const int {name}_inside = real && {name}_y >= 0 && {name}_y < {high};\n"
    text += f"const int left = z - {args.int(geometry.padding[1][0])};\nconst float sign = row == 1 ? 1.0f : -1.0f;\n"
    text += f"for (int c = 0; c < {inputs}; c += {width}) {{\nvector d[4];\n"
    for name in ("first", "second"):
        line = f"{source} + (((long)n * {high} + {name}_y) * {wide} + left) * {inputs} + c"
        text += f"__global const float* {name}_line = {line};\n"
    text += f"for (int j = 0; j < 4; ++j) {{\nconst int inside = left + j >= 0 && left + j < {wide};\n"
    for name in ("first", "second"):
        text += f"const vector {name}_d = inside && {name}_inside ? *(__global const loose*)({name}_line + j * {inputs}) : (vector)(0);\n"
    text += "d[j] = first_d + sign * second_d;\n}\n"
    for j, value in enumerate(row.format("d[0]", "d[1]", "d[2]", "d[3]") for row in TWO.patch):
        text += f"*(__local loose*)({patches} + {j * tile.depth * inputs} + t * {inputs} + c) = {value};\n"
    return text + "}\n"


def _gradient_row(args, geometry, gradient, gradients, tile):
    """C text for row `row` of a tile's transformed gradient: one of its two rows, their sum or difference, then that of the columns."""
    outputs, width = geometry.filter[3], tile.width
    high, wide = args.int(geometry.output[1]), args.int(geometry.output[2])
    text = f"const int upper = real && row < 3; const int lower = real && row > 0 && y + 1 < {high};\n"
    text += "const float factor = row == 1 ? 1.0f : -1.0f;\n"
    text += f"for (int k = 0; k < {outputs}; k += {width}) {{\nvector d[2];\n"
    text += f"__global const float* line = {gradient} + (((long)n * {high} + y) * {wide} + z) * {outputs} + k;\n"
    text += f"for (int j = 0; j < 2; ++j) {{\nconst int inside = z + j < {wide};\n"
    text += f"const vector top = inside && upper ? *(__global const loose*)(line + j * {outputs}) : (vector)(0);\n"
    text += f"const vector bottom = inside && lower ? *(__global const loose*)(line + ({wide} + j) * {outputs}) : (vector)(0);\n"
    text += "d[j] = top + factor * bottom;\n}\n"
    for j, value in enumerate(row.format("d[0]", "d[1]") for row in TWO.gradient):
        text += f"*(__local loose*)({gradients} + {j * tile.depth * outputs} + t * {outputs} + k) = {value};\n"
    return text + "}\n"


def _products(patches, gradients, out, dtype, inputs, outputs, tile):
    """C text that adds the products of the block's four pairs of matrices to the chunk's sums."""
    rows, vectors, width, depth = tile.rows, tile.vectors, tile.width, tile.depth
    text = f"for (int e = 0; e < 4; ++e)\nfor (int c = 0; c < {inputs}; c += {rows})\n"
    text += f"for (int k = 0; k < {outputs}; k += {vectors * width}) {{\n"
    text += f"__global float* sums = {out} + ((chunk * 16 + row * 4 + e) * {inputs} + c) * {outputs} + k;\n"
    text += f"__local const float* xp = {patches} + e * {depth * inputs} + c;\n"
    text += f"__local const float* dp = {gradients} + e * {depth * outputs} + k;\n"
    sums = RegisterTile(rows, vectors, "vector")
    text += sums.begin() + "if (block > begin) {\n"
    text += sums.each(lambda r, v, name: f"{name} = {load_vector(dtype, width, 'sums', str(r * outputs + v * width))};\n")
    right = [f"*(__local const loose*)(dp + {v * width})" for v in range(vectors)]
    step = sums.step(lambda r: f"xp[{r}]", right)
    text += f"}}\nfor (int t = 0; t < {depth}; ++t) {{\n{step}xp += {inputs}; dp += {outputs};\n}}\n"
    text += sums.each(lambda r, v, name: store_vector(dtype, width, "sums", str(r * outputs + v * width), name))
    return text + "}\n"


def _transform(problem, tile, partial):
    """The KernelSpec that adds the chunks in order and transforms each 4x4 to the 3x3 gradient."""
    args, dtype, sink = Args(all_arguments=True), problem.dtype, problem.sink  # memory-bound, as in filter_layout
    source = args.pointer(partial, dtype)
    inputs, outputs = problem.geometry.filter[2:]
    width, per_item = tile.width, max(1, 1024 // outputs)
    text = loose_types(dtype) + f"typedef {problem.register(width)} vector;\n"
    text += channels(args, inputs, outputs, per_item, width) + "vector m[4][4];\n"
    text += f"for (int e = 0; e < 16; ++e) {{\n__global const float* from = {source} + (e * inputs + c) * outputs + k;\n"
    text += f"vector total = {load_vector(dtype, width, 'from', '0')};\n"
    text += f"for (int chunk = 1; chunk < {args.int(tile.chunks)}; ++chunk) {{\nfrom += 16 * inputs * outputs;\n"
    text += f"total += {load_vector(dtype, width, 'from', '0')};\n}}\nm[e / 4][e % 4] = total;\n}}\nvector results[3][3];\n"
    text += combine("m[{}][{}]", "results[{}][{}]", TWO.total, 4)
    text += "for (int e = 0; e < 9; ++e) {\nconst int row = e / 3; const int column = e % 3;\nconst vector result = results[row][column];\n"
    text += "{ " + sink.store(args, ["row", "column", "c", "k"], "result", width) + " }\n}\n}\n"
    grid = (-(-inputs // per_item),)
    return args.kernel(
        f"{problem.name} sum",
        text,
        grid,
        (1,),
        frozenset(sink.helpers),
        title="convolution by Winograd, gradient of the filter: the sum of its parts",
    )
