"""Matrix product (general, batched): chooses schedule, tile and split of k, and assembles the kernels.

`plan` is what lowering calls; it is given Operands, and Buffers among its kernels' arguments are scratch memory.
"""

from dataclasses import replace

from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels.gemm import cpu, cpu_choice, gpu, strips
from keras_ocl.kernels.gemm.parts import Operand, Problem, accumulator, summed
from keras_ocl.kernels.spec import Args, Buffer, KernelSpec, Sink

_PASS = 1024  # steps of k whose rows of both operands fit a core's cache
_PARTIAL = 2**21  # elements of partial sums that are worth writing

__all__ = ["Operand", "accumulator", "plan"]


def plan(traits, *, batch, m, n, k, a, b, dtype, sink, all_arguments=False, tile=None):
    """Kernels, in order of launch, that compute a product and hand it to `sink`.

    Shape:
        a (batch, m, k), b (batch, k, n), result (batch, m, n), given to the sink with lanes along n; without the
        batch dimension everywhere when `batch` is None. Extents may be Dims. An empty result gives no kernels,
        k = 0 a result of zeros.

    dtypes:
        `dtype` decides the accumulator (`accumulator(dtype)`), whose registers the sink gets; the operands' own
        dtypes are how they are stored. TypeError for complex numbers.

    `tile` overrides the choice of tile, for tuning.
    """
    if 0 in (m, n) or (batch is not None and batch == 0):
        return []
    problem = Problem(traits, batch, m, n, k, a, b, accumulator(dtype), sink, all_arguments)
    kernel, choice = (gpu.kernel, gpu) if traits.schedule == "gpu" else (cpu.kernel, cpu_choice)
    tile = tile or choice.choose(problem)
    split, packing = _split(problem, choice.groups(problem, tile)) if tile.splits else 0, []
    if traits.schedule == "cpu" and strips.suits(problem, tile):
        spec, problem = strips.pack(problem, tile)
        packing = [spec]
    if not split:
        return [*packing, kernel(problem, tile)]
    count = ceil_div(k, split)
    total = product((1 if batch is None else batch, m, n))
    parts = Buffer(count * total, problem.accumulator)
    partial = Sink(parts, (count if batch is None else count * batch, m, n), problem.accumulator)
    return [*packing, kernel(replace(problem, sink=partial, split=split), tile), _sum(problem, parts, count, total)]


def _split(problem, groups):
    """How many steps of k one work-item sums: 0 for all, less when the result has too few tiles to fill the device.

    A function of hints and traits only, so that results do not change from run to run or with the batch size at hand.
    """
    traits, k = problem.traits, hint(problem.k)
    gpu = traits.schedule == "gpu"
    wanted = traits.compute_units * (2 if gpu else 1)
    least = 128 if gpu else 4096
    if not gpu and groups * 2 > wanted and problem.a.column_stride != 1:
        return _passes(problem, k)
    if groups * 2 > wanted or k < 2 * least:
        return 0
    return max(least, -(-k // (wanted // groups) // 32) * 32)


def _passes(problem, k):
    """The split of a long k along which both operands are strided (a gradient of weights): parts whose rows stay in the cache.

    With 32000 steps and 400 columns that takes two thirds of the time.
    """
    results = hint(problem.m) * hint(problem.n) * hint(1 if problem.batch is None else problem.batch)
    part = max(_PASS, -(-k * results // _PARTIAL))
    return part if k >= 8 * part else 0


def _sum(problem, parts, count, total):
    """The second kernel of a split product: adds the parts in order and hands the sums to the sink."""
    args = Args(problem.all_arguments)
    i, batch = problem.index, problem.batch
    pointer = args.pointer(parts, problem.accumulator)
    m, n, count, total = (args.int(e, i) for e in (problem.m, problem.n, count, total))
    plane = "0" if batch is None else f"z * {m} * {n}"
    coordinates = ("row", "column") if batch is None else ("z", "row", "column")

    def add(width):
        load = f"x[s * {total}]" if width == 1 else f"vload{width}(0, x + s * {total})"
        return (
            f"__global const {problem.register}* x = {summed(pointer, plane, f'row * {n}', 'column')};\n"
            f"{problem.vector(width)} value = ({problem.vector(width)})(0);\n"
            f"for ({i} s = 0; s < {count}; ++s) value += {load};\n"
            f"{problem.sink.store(args, coordinates, 'value', width)}"
        )

    head = f"const {i} z = get_global_id(2), row = get_global_id(1);\n"
    if problem.traits.schedule == "gpu":
        body = f"{head}const {i} column = get_global_id(0);\n{add(1)}"
        grid, group = (problem.n, problem.m), None
    else:
        width = problem.lanes
        body = (
            f"{head}{i} column = 0;\n"
            f"for (; column + {width} <= {n}; column += {width}) {{\n{add(width)}}}\n"
            f"for (; column < {n}; ++column) {{\n{add(1)}}}\n"
        )
        grid, group = (1, problem.m), (1, 1, 1)
    return KernelSpec(
        name="sum of a split matrix product",
        args=args.args,
        body=body,
        grid=(*grid, 1 if batch is None else batch),
        group=group,
        helpers=frozenset(problem.sink.helpers),
    )
