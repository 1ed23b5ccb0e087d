"""Matrix products whose sums over k are cut into parts, where work-items would be too few: one kernel sums the parts, one adds them."""

from dataclasses import replace

from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels import ordered_sum
from keras_ocl.kernels.gemm.parts import summed
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, Buffer, KernelSpec, Sink

_SUM = "sum of a split matrix product"


def steps(problem, groups, wanted, least):
    """How many steps of k one work-item sums: 0 for all, less when the result has too few tiles (`groups`) to keep `wanted` items busy.

    A function of hints and traits only, so that results do not change from run to run or with the batch size at hand.
    """
    k = hint(problem.k)
    if groups * 2 > wanted or k < 2 * least:
        return 0
    return max(least, -(-k // (wanted // groups) // 32) * 32)


def kernels(problem, tile, kernel, split):
    """KernelSpecs of `problem`, by `kernel(problem, tile)`, with `split` steps of k per part (0: all of them)."""
    if not split:
        return [kernel(problem, tile)]
    count = ceil_div(problem.k, split)
    batch = 1 if problem.batch is None else problem.batch
    total = product((batch, problem.m, problem.n))
    parts = Buffer(count * total, problem.accumulator)
    partial = Sink(parts, (count if problem.batch is None else count * batch, problem.m, problem.n), problem.accumulator)
    first = kernel(replace(problem, sink=partial, split=split), tile)
    if schedule_of(problem.traits).vectors:
        return [first, _sum_in_vectors(problem, parts, count, total)]
    shape = (problem.m, problem.n) if problem.batch is None else (batch, problem.m, problem.n)
    return [first, ordered_sum.kernel(_SUM, parts, count, shape, problem.accumulator, problem.sink, problem.all_arguments)]


def _sum_in_vectors(problem, parts, count, total):
    """The second kernel of a split product where a work-item is a row: adds the parts in order and hands the sums to the sink."""
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

    width = problem.lanes
    body = (
        f"const {i} z = get_global_id(2), row = get_global_id(1);\n{i} column = 0;\n"
        f"for (; column + {width} <= {n}; column += {width}) {{\n{add(width)}}}\n"
        f"for (; column < {n}; ++column) {{\n{add(1)}}}\n"
    )
    grid = (1, problem.m, 1 if batch is None else batch)
    return KernelSpec(_SUM, args.args, body, grid, (1, 1, 1), frozenset(problem.sink.helpers), title="matrix product: the sum of its parts")
