"""The schedule of GPUs: a work-item computes an element or a small register tile; groups share local memory."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, ceil_div, hint, size_hint
from keras_ocl.core.factors import Shaped
from keras_ocl.kernels import cumulative_gpu, row_sparse, scatter, scatter_sorted, sort, sort_local
from keras_ocl.kernels.attention import gpu as attention_gpu
from keras_ocl.kernels.attention import gpu_choice as attention_choice
from keras_ocl.kernels.attention import matrix_gpu as attention_matrix_gpu
from keras_ocl.kernels.conv import elements as conv_elements
from keras_ocl.kernels.conv import gpu as conv_gpu
from keras_ocl.kernels.conv import pointwise as conv_pointwise
from keras_ocl.kernels.conv import winograd_gpu
from keras_ocl.kernels.conv.problem import Problem
from keras_ocl.kernels.gemm import gpu as gemm_gpu
from keras_ocl.kernels.gemm import gpu_choice, rows_gpu, split
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise import gpu as pointwise_gpu
from keras_ocl.kernels.pointwise import team
from keras_ocl.kernels.schedule import Schedule, Traits, register
from keras_ocl.kernels.schedules.tuning import Fusion, GpuTuning, Splitting
from keras_ocl.kernels.spec import Handle, KernelSpec

_TUNING = GpuTuning()


def _product(problem: Any, tile: Any) -> list[KernelSpec]:
    kept_out = "few_rows" in problem.traits.quarantine
    few = None if tile or problem.longest or kept_out else gpu_choice.few(problem)
    if few:
        shape, steps = few
        return split.kernels(problem, shape, rows_gpu.kernel, steps)
    tile, steps = gpu_choice.choose(problem, tile)
    return split.kernels(problem, tile, gemm_gpu.kernel, steps)


def _by_element(problem: Problem) -> bool:
    return problem.geometry.groups > 1 and hint(problem.geometry.group_outputs) < problem.tuning.convolution_channels


def _convolution(problem: Problem) -> list[KernelSpec]:
    if conv_gpu.own_tile(problem, "convolution"):
        return conv_gpu.forward(problem)
    if _by_element(problem):
        return conv_elements.forward(problem)
    plain = conv_pointwise.forward(problem)
    if plain:
        return plain
    transforms = winograd_gpu.choose(problem)
    return winograd_gpu.forward(problem, transforms) if transforms else conv_gpu.forward(problem)


def _filter_gradient(problem: Problem) -> list[KernelSpec]:
    if conv_gpu.own_tile(problem, "filter_gradient"):
        return conv_gpu.filter_grad(problem)
    if _by_element(problem):
        return conv_elements.filter_grad(problem, problem.traits.compute_units, teams=True)
    plain = conv_pointwise.filter_grad(problem)
    if plain:
        return plain
    transforms = winograd_gpu.choose_gradient(problem)
    return winograd_gpu.filter_grad(problem, transforms) if transforms else conv_gpu.filter_grad(problem)


def _candidates(operation: str, problem: Any) -> Iterator[tuple[str, float, dict[str, Any]]]:
    if operation == "product":
        found = {"few_rows": gpu_choice.few_candidates(problem), operation: gpu_choice.candidates(problem)}
    else:
        transforms = {"convolution": "winograd", "filter_gradient": "winograd_gradient"}[operation]
        found = {operation: conv_gpu.candidates(problem, operation), transforms: winograd_gpu.candidates(problem)}
    for kind, tiles in found.items():
        for estimate, fields in tiles:
            yield kind, estimate, fields


def _attention(problem: Any, scheme: Any, sinks: Any) -> KernelSpec:
    tile = attention_choice.choose(problem, scheme)
    by_unit = isinstance(tile, attention_choice.UnitTile)
    return (attention_matrix_gpu if by_unit else attention_gpu).kernel(problem, scheme, sinks, tile)


def _attention_pays(traits: Traits, query: Shaped, key: Shaped, has_bias: bool) -> bool:
    """Whether the attention kernel's slower multiply-adds take less time than the launches that it saves.

    Only with float32 sums, with enough positions for a group's rows and, unless a matrix unit multiplies, few enough for its loop over
    them. A bias's gradient needs the (time x source) matrix anyway.
    """
    batch, time, heads, depth = map(hint, query.shape)
    source, tuning = hint(key.shape[1]), tuning_of(traits)
    if dtypes.accumulator(query.dtype) != "float32" or has_bias or tuning.attention_least > min(time, source):
        return False
    if attention_choice.by_unit(traits, query, key):
        return True
    multiplied = 2 * batch * heads * time * source * depth / gpu_choice.units(traits)
    return max(time, source) <= tuning.attention_most and multiplied <= tuning.attention_launches * tuning.launch


def _served(problem: Problem, gradient: bool) -> int:
    """Of products in tiles a block's results, of single elements one; transformed operands are not computed."""
    if problem.all_arguments:
        return 0
    if not conv_gpu.own_tile(problem, "filter_gradient" if gradient else "convolution"):
        if _by_element(problem):
            return 1
        plain = conv_pointwise.suits_gradient(problem) if gradient else conv_pointwise.suits(problem)
        if not plain and (winograd_gpu.choose_gradient if gradient else winograd_gpu.choose)(problem):
            return 0
    return tuning_of(problem.traits).product_block


def _repeats_pay(traits: Traits, uses: Sequence[tuple[tuple[Extent, Extent], Extent, Extent]], price: float, read: int) -> bool:
    """Whether computing an operand again for each block of results, and its further loads, takes less than half a launch's time."""
    tuning = tuning_of(traits)
    each = price + tuning.product_fetch * read / 4
    loaded = sum(size_hint(extents) * ceil_div(hint(times), tuning.product_block) * hint(again) for extents, times, again in uses)
    return loaded * each / gpu_choice.units(traits) <= tuning.launch / 2


def _scatter_block(traits: Traits, rows: Extent, columns: Extent, lanes: int) -> tuple[int, int]:
    """(rows, columns) of a work-item's block: one column, and so many rows that about 33,000 work-items remain at most."""
    ranges = max(1, min(hint(rows), tuning_of(traits).scatter_items // max(1, hint(columns))))
    return -(-hint(rows) // ranges), 1


def _sort(problem: sort.Problem, results: Sequence[Handle]) -> list[KernelSpec]:
    # Keys that do not fit an element of local memory are looked up in global memory, by the general merge sort.
    return sort_local.by_merging(problem, results) or sort.by_merging(problem, results, gathered=1, block=64, piece=8)


def _scatter_sorted(problem: scatter.Problem) -> list[KernelSpec] | None:
    rows, columns, count = (hint(n) for n in (problem.rows, problem.columns, problem.count))
    tuning = tuning_of(problem.traits)
    walked = min(rows * columns, tuning.scatter_items) * count
    if walked < tuning.scatter_walked or 2 * rows >= 2**32:
        return None
    return scatter_sorted.kernels(problem, tuning.scatter_chunk, min(tuning.pointwise_group, problem.traits.max_group))


def _distinct_rows(problem: scatter.Problem, rows: Handle) -> list[KernelSpec]:
    return row_sparse.by_sorting(problem, rows, min(tuning_of(problem.traits).pointwise_group, problem.traits.max_group))


SCHEDULE = register(
    Schedule(
        name="gpu",
        pointwise=pointwise_gpu.write,
        team=team.choose,
        product=_product,
        convolution=_convolution,
        candidates=_candidates,
        filter_gradient=_filter_gradient,
        attention=_attention,
        attention_pays=_attention_pays,
        repeats_pay=_repeats_pay,
        served=_served,
        sort=_sort,
        top_k=sort_local.greatest,
        scan=cumulative_gpu.kernels,
        scatter_block=_scatter_block,
        scatter_sorted=_scatter_sorted,
        tuning=_TUNING,
        costs=("product_fetch", "product_turn", "product_start", "product_store", "product_hiding", "product_part"),
        fusion=Fusion(terms=4),  # such a product saves a launch, and is bound by its result's bytes in either way
        # One group's items are too few to hide memory latency: a reduction slower than two launches is split until the units are full.
        splitting=Splitting(long=1 << 14, high=512, worth=1 << 14, few=2048, part=4096, parts=512, steps=64, first=True, rows=1 << 30),
        launch=1_000_000,
        persistent=True,
        group_chained=1 << 18,  # 1,024 operations of each item of a group: a few cycles each, in less than half the time of a launch
        joined=2 * _TUNING.unit_items,  # with more work-items per unit, a kernel's own work hides the cost of its launch
        filled=_TUNING.unit_items,
        moved=1 << 17,  # a unit moves 50 to 130 KB in the time of a launch
        byte=16,  # a byte crosses the memory bus twice, written and read; some twenty operations take as long as a byte
        kept=32,
        gather=0,
        vectors=False,
        as_written=False,
        widest=16,
        fetched_rows=64,  # a group's tile has all of them: each computed element is computed once
        group=None,
        open_group=_TUNING.pointwise_group,
        shared_row=8192,  # a group's items pass over a row of so many elements in the time of two launches
        row_results=64,
        nested_row=64,
        scan_steps=4096,
        scan_walks=64,
        scan_parts=64,
        plain_channels=0,
        plain_pixels=math.inf,
        distinct_rows=_distinct_rows,
        sparse_table=1 << 22,
        inside=("transposes", "few_rows", "winograd"),
    )
)
