"""Winograd's algorithms for GPUs (winograd.py): transform kernels, and batched matrix products between them.

Forward, and likewise the input's gradient: the filter is transformed to (planes, inputs, outputs), the input's patches to (planes, tiles,
inputs); their product is (planes, tiles, outputs), from which the last kernel computes the tiles and hands them to the sink. The filter's
gradient is the product of the patches with the transformed gradients of the tiles, summed over the tiles. A work-item of a transform has
one tile and channel; consecutive items have consecutive channels.

The tensors that the transforms write and the products read, 2.25 times the input and the result with tiles of 4 x 4 and 4 times with
2 x 2, have to cost less than the multiply-adds that are saved. Both are priced by a roofline, in multiply-adds of a unit
(gemm/gpu_choice.py): a kernel takes the time of its multiply-adds or of its bytes, whichever is longer, and at least that of a launch.
"""

from dataclasses import replace

from keras_ocl.core.dim import ceil_div, hint, product, size_hint
from keras_ocl.kernels import gemm
from keras_ocl.kernels.conv import winograd
from keras_ocl.kernels.conv.winograd import combine
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.gemm import gpu_choice
from keras_ocl.kernels.gemm.parts import Problem
from keras_ocl.kernels.matrix.units import methods
from keras_ocl.kernels.overrides import chosen
from keras_ocl.kernels.spec import Args, Buffer, Sink

_REGISTER = "typedef float vector;\n"


def _own(problem, kind):
    """The Transforms of the device's own choices of a kind, None where it has none."""

    def make(outputs):
        return {2: winograd.TWO, 4: winograd.FOUR}.get(outputs)

    def unfit(transforms):
        if transforms is None:
            return "outputs is neither 2 nor 4"
        if not winograd.applies(problem):
            return winograd.UNFIT
        return "" if _has_room(problem, transforms) else "its transformed tensors would take too much of the device's memory"

    return chosen(problem.traits, kind, lambda: problem.key, make, unfit)


def candidates(problem):
    """Yields (estimate, a dict of what a device may have of its own) of both sizes of tiles, where the algorithm applies."""
    if winograd.applies(problem):
        for k, transforms in enumerate((winograd.FOUR, winograd.TWO)):
            if _has_room(problem, transforms):
                yield k, {"outputs": 4 if transforms is winograd.FOUR else 2}


def choose(problem):
    """The Transforms for a forward convolution, the device's own first; None if the direct kernel should be as fast or memory is short."""
    if own := _own(problem, "winograd"):
        return own
    if not winograd.applies(problem) or _direct_in_fewer_bits(problem):
        return None
    geometry = problem.geometry
    inputs, outputs = map(hint, geometry.filter[2:])

    def launches(t, tiles):
        yield 0, (9 + t.planes) * inputs * outputs
        yield 0, size_hint(geometry.input) + t.planes * tiles * inputs
        yield _products_of(problem, t, tiles, outputs, inputs), t.planes * tiles * (inputs + outputs)
        yield 0, t.planes * tiles * outputs + size_hint(geometry.output)

    reads = size_hint(geometry.input), size_hint(geometry.filter)
    return _fastest(problem, launches, size_hint(geometry.output[:-1]), outputs, 9 * inputs, reads)


def choose_gradient(problem):
    """The Transforms for a filter's gradient, as in choose()."""
    if own := _own(problem, "winograd_gradient"):
        return own
    if not winograd.applies(problem) or _direct_in_fewer_bits(problem):
        return None
    geometry = problem.geometry
    inputs, outputs = map(hint, geometry.filter[2:])

    def launches(t, tiles):
        yield 0, size_hint(geometry.input) + t.planes * tiles * inputs
        yield 0, size_hint(geometry.output) + t.planes * tiles * outputs
        yield _products_of(problem, t, inputs, outputs, tiles), t.planes * tiles * (inputs + outputs)
        yield 0, (9 + t.planes) * inputs * outputs

    reads = size_hint(geometry.input), size_hint(geometry.output)
    return _fastest(problem, launches, 9 * inputs, outputs, size_hint(geometry.output[:-1]), reads)


def _direct_in_fewer_bits(problem):
    """Whether the device's matrix units save as much as the algorithm does, in the fewer bits that the problem's precision allows.

    Products of transformed operands stay float32: the transforms would amplify the rounding of others.
    """
    traits, precision = problem.traits, problem.precision
    ways = methods(traits.matrix_units, "float32", "float32", precision) if precision != "float32" else ()
    return any(way.rate(traits) >= winograd.FOUR.saving for way in ways)


def _products_of(problem, transforms, m, n, k):
    """Cost of all planes' products, in multiply-adds, with the sums of parts where k is split (for accuracy, or for parallelism)."""
    planes = Problem(problem.traits, transforms.planes, m, n, k, None, None, "float32", None, longest=transforms.terms)
    _, steps = gpu_choice.choose(planes, dtype="float32")
    parts = -(-k // steps) if steps else 0
    return transforms.planes * m * n * (k / gpu_choice.gain(planes, "float32") + parts * problem.tuning.product_part)


def _fastest(problem, launches, m, n, k, reads):
    """The Transforms that take the least time, None if the direct kernel does, which is a product of m x k by k x n.

    reads: elements of its operands in memory.
    launches(transforms, tiles) yields (multiply-adds, elements of memory read and written) of each kernel.
    """
    geometry, traits, tuning = problem.geometry, problem.traits, problem.tuning
    units = gpu_choice.units(traits)

    def time(multiplied, elements):
        return max(max(multiplied, 4 * elements * traits.byte) / units, tuning.launch)

    read, written = (size_hint(shape) for shape in (geometry.input, geometry.output))
    # Products of transformed operands stay float32, whatever the precision asked for: the transforms would amplify the rounding of others.
    direct = Problem(traits, None, m, n, k, None, None, "float32", None, precision=problem.precision, read=reads)
    gain = gpu_choice.gain(direct, "float32")
    multiplied = 9 * hint(geometry.filter[2]) * written / gain
    best, least = None, time(multiplied / tuning.winograd_direct, read + written)
    for transforms in (winograd.FOUR, winograd.TWO):
        tiles = hint(_tiles(problem, transforms))
        cost = sum(time(*launch) for launch in launches(transforms, tiles))
        if cost < least and _has_room(problem, transforms):
            best, least = transforms, cost
    return best


def _has_room(problem, transforms):
    """Whether the transformed patches and products take a small share of the device's memory."""
    scratch = 4 * transforms.planes * hint(_tiles(problem, transforms)) * sum(map(hint, problem.geometry.filter[2:]))
    return scratch <= problem.traits.global_memory // problem.tuning.winograd_share


def forward(problem, transforms):
    """The KernelSpecs of the convolution."""
    inputs, outputs = problem.geometry.filter[2:]
    planes, tiles = transforms.planes, _tiles(problem, transforms)
    filters, patches, products = (Buffer(planes * n, "float32") for n in (inputs * outputs, tiles * inputs, tiles * outputs))
    steps = (1, inputs) if problem.transposed else (outputs, 1)
    a = gemm.Operand(patches, "float32", inputs, 1, batch_stride=tiles * inputs)
    b = gemm.Operand(filters, "float32", *steps, batch_stride=inputs * outputs)
    return [
        _filter(problem, transforms, filters),
        _patches(problem, transforms, patches),
        *_products(problem, transforms, tiles, outputs, inputs, a, b, Sink(products, (planes, tiles, outputs), "float32")),
        _results(problem, transforms, products),
    ]


def filter_grad(problem, transforms):
    """The KernelSpecs of the filter's gradient."""
    inputs, outputs = problem.geometry.filter[2:]
    planes, tiles = transforms.planes, _tiles(problem, transforms)
    patches, gradients, sums = (Buffer(planes * n, "float32") for n in (tiles * inputs, tiles * outputs, inputs * outputs))
    a = gemm.Operand(patches, "float32", 1, inputs, batch_stride=tiles * inputs)
    b = gemm.Operand(gradients, "float32", outputs, 1, batch_stride=tiles * outputs)
    return [
        _patches(problem, transforms, patches),
        _gradients(problem, transforms, gradients),
        *_products(problem, transforms, inputs, outputs, tiles, a, b, Sink(sums, (planes, inputs, outputs), "float32")),
        _total(problem, transforms, sums),
    ]


def _tiles(problem, transforms):
    """Number of tiles of the output: images x rows of tiles x columns of tiles."""
    batch, high, wide = problem.geometry.output[:3]
    return batch * ceil_div(high, transforms.outputs) * ceil_div(wide, transforms.outputs)


def _products(problem, transforms, m, n, k, a, b, sink):
    """The KernelSpecs of the products of all planes."""
    planes = transforms.planes
    specs = gemm.plan(problem.traits, batch=planes, m=m, n=n, k=k, a=a, b=b, dtype="float32", sink=sink, longest=transforms.terms)
    return [replace(specs[0], operations=2 * planes * m * n * k), *(replace(spec, operations=planes * m * n) for spec in specs[1:])]


def _places(side, form):
    """[(row, column, register name from `form`)] of a square of registers."""
    return [(i, j, form.format(i, j)) for i in range(side) for j in range(side)]


def _head(args, problem, transforms, index):
    """Statements that define an item's `tile`, its image `n`, the position (`y`, `z`) of its first output, and its channel `c`."""
    m, (_, high, wide) = transforms.outputs, problem.geometry.output[:3]
    down, across = args.int(ceil_div(high, m)), args.int(ceil_div(wide, m))
    return (
        f"{_REGISTER}const int c = {args.place('global', 0)};\nconst {index} tile = {args.place('global', 1)};\n"
        f"const int n = tile / ({across} * {down}), y = tile / {across} % {down} * {m}, z = tile % {across} * {m};\n"
    )


def _loaded(args, pointer, shape, side, low, index):
    """Statements that load side x side pixels of a tensor of `shape`, from (y, z) - low on, into d0_0, d0_1, ...; zeros outside."""
    high, wide, channels = (args.int(extent) for extent in shape[1:])
    text = f"const int top = y - {args.int(low[0])}, left = z - {args.int(low[1])};\n"
    text += f"const {index} corner = ((({index})n * {high} + top) * {wide} + left) * {channels} + c;\n"
    for i in range(side):
        text += f"const int in{i} = top + {i} >= 0 && top + {i} < {high}, at{i} = left + {i} >= 0 && left + {i} < {wide};\n"
    for i, j, name in _places(side, "d{}_{}"):
        text += f"const vector {name} = in{i} && at{j} ? {pointer}[corner + ({index})({i} * {wide} + {j}) * {channels}] : 0;\n"
    return text


def _stored(args, pointer, planes, rows, columns, index):
    """Statements that store registers t0_0, t0_1, ..., one per plane, at (row `tile`, column c) of the planes of a buffer."""
    side, rows, columns = round(planes**0.5), args.int(rows, index), args.int(columns, index)
    text = f"__global float* to = {pointer} + (tile * {columns} + c);\n"
    return text + "".join(f"to[({index}){i * side + j} * {rows} * {columns}] = {name};\n" for i, j, name in _places(side, "t{}_{}"))


def _spread(problem, transforms, source, shape, side, low, rows, target, title):
    """The KernelSpec that transforms, for each tile, side x side pixels of a tensor of `shape` by `rows`, into planes."""
    args, tiles = Args(all_arguments=True), _tiles(problem, transforms)  # memory-bound: layers of all sizes share the kernel
    pointer, out = args.pointer(source, "float32"), args.pointer(target, "float32", out=True)
    index = index_type(product(shape), target.elements)
    text = _head(args, problem, transforms, index) + _loaded(args, pointer, shape, side, low, index)
    text += combine("d{}_{}", "const vector t{}_{}", rows, side)
    text += _stored(args, out, transforms.planes, tiles, shape[-1], index)
    operations = 2 * side * (side + transforms.side) * transforms.side * tiles * shape[-1]
    name = f"convolution {title} transform"
    return args.kernel(name, text, (shape[-1], tiles), None, title=_title(transforms, title), operations=operations)


def _title(transforms, what):
    return f"convolution by Winograd, tiles of {transforms.outputs} x {transforms.outputs} pixels: the transform of {what}"


def _patches(problem, transforms, target):
    """The KernelSpec that transforms the input's patches to (planes, tiles, inputs)."""
    shape, low = problem.geometry.input, [padding[0] for padding in problem.geometry.padding]
    return _spread(problem, transforms, problem.x, shape, transforms.side, low, transforms.patch, target, "patches")


def _gradients(problem, transforms, target):
    """The KernelSpec that transforms the gradients of the tiles to (planes, tiles, outputs)."""
    shape, side = problem.geometry.output, transforms.outputs
    return _spread(problem, transforms, problem.dy, shape, side, (0, 0), transforms.gradient, target, "gradients")


def _filter(problem, transforms, target):
    """The KernelSpec that transforms the filter to planes, each with the filter's channel order; taps flipped if it is transposed."""
    args, count, transposed = Args(all_arguments=True), product(problem.geometry.filter[2:]), problem.transposed
    source, out, elements = args.pointer(problem.w, "float32"), args.pointer(target, "float32", out=True), args.int(count)
    text = f"{_REGISTER}const int at = {args.place('global', 0)};\n"
    for i, j, name in _places(3, "d{}_{}"):
        tap = i * 3 + j
        text += f"const vector {name} = {source}[{8 - tap if transposed else tap} * {elements} + at];\n"
    text += combine("d{}_{}", "const vector t{}_{}", transforms.filter, 3)
    for i, j, name in _places(transforms.side, "t{}_{}"):
        text += f"{out}[{i * transforms.side + j} * {elements} + at] = {name};\n"
    title = _title(transforms, "the flipped filter" if transposed else "the filter")
    operations = 6 * (3 + transforms.side) * transforms.side * count
    return args.kernel("convolution filter transform", text, (count,), None, title=title, operations=operations)


def _results(problem, transforms, products):
    """The KernelSpec that transforms the products (planes, tiles, outputs) back and hands the outputs to the sink."""
    args, sink, geometry = Args(), problem.sink, problem.geometry
    tiles, side, outputs = _tiles(problem, transforms), transforms.side, geometry.filter[3]
    source, index = args.pointer(products, "float32"), index_type(products.elements)
    rows, columns = args.int(tiles, index), args.int(outputs, index)
    text = _head(args, problem, transforms, index) + f"__global const float* from = {source} + (tile * {columns} + c);\n"
    for i, j, element in _places(side, "d{}_{}"):
        text += f"const vector {element} = from[({index}){i * side + j} * {rows} * {columns}];\n"
    text += combine("d{}_{}", "const vector t{}_{}", transforms.result, side)
    high, wide = args.int(geometry.output[1]), args.int(geometry.output[2])
    for i, j, value in _places(transforms.outputs, "t{}_{}"):
        text += f"if (y + {i} < {high} && z + {j} < {wide}) {{\n{sink.store(args, ['n', f'(y + {i})', f'(z + {j})', 'c'], value, 1)}}}\n"
    operations = 2 * side * (side + transforms.outputs) * transforms.outputs * tiles * outputs
    helpers, title = frozenset(sink.helpers), _title(transforms, "products")
    return args.kernel(problem.name, text, (outputs, tiles), None, helpers, title=title, operations=operations)


def _total(problem, transforms, sums):
    """The KernelSpec that transforms the sums of products (planes, inputs, outputs) back and hands the filter's gradient to the sink."""
    args, (inputs, outputs), side, sink = Args(), problem.geometry.filter[2:], transforms.side, problem.sink
    source, count, across = args.pointer(sums, "float32"), args.int(inputs * outputs), args.int(outputs)
    text = f"{_REGISTER}const int column = {args.place('global', 0)}, row = {args.place('global', 1)};\n"
    for i, j, element in _places(side, "d{}_{}"):
        text += f"const vector {element} = {source}[{i * side + j} * {count} + row * {across} + column];\n"
    text += combine("d{}_{}", "const vector t{}_{}", transforms.total, side)
    for i, j, value in _places(3, "t{}_{}"):
        text += f"{{\n{sink.store(args, [str(i), str(j), 'row', 'column'], value, 1)}}}\n"
    helpers, title = frozenset(sink.helpers), _title(transforms, "sums of products")
    operations = 6 * side * (side + 3) * inputs * outputs
    return args.kernel(problem.name, text, (outputs, inputs), None, helpers, title=title, operations=operations)
