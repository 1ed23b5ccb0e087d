"""Split-k matrix products, for results with too few tiles: one kernel computes partial sums over parts of k, another adds them in order."""

from dataclasses import replace

from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels import ordered_sum
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Buffer, Sink

_SUM = "sum of a split matrix product"


def steps(problem, groups, wanted, least):
    """Number of steps of k that one work-item sums: 0 for all; fewer if the result's tiles (`groups`) are too few for `wanted` work-items.

    It depends on hints and traits only, so that results do not change from run to run or with the batch size at hand.
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
    shape = (problem.m, problem.n) if problem.batch is None else (batch, problem.m, problem.n)
    described = (_SUM, parts, count, shape, problem.accumulator, problem.sink)
    if schedule_of(problem.traits).vectors:
        return [first, ordered_sum.in_vectors(*described, problem.lanes, all_arguments=problem.all_arguments)]
    return [first, ordered_sum.kernel(*described, problem.all_arguments)]
