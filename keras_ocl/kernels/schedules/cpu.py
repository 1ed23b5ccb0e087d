"""The schedule of CPUs: a work-item computes whole tiles, with explicit vectors and loops inside."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from keras_ocl.core.dim import Extent, hint
from keras_ocl.core.factors import Shaped
from keras_ocl.kernels import row_sparse, sort, summation
from keras_ocl.kernels.attention import cpu as attention_cpu
from keras_ocl.kernels.attention import gradient_cpu as attention_gradient_cpu
from keras_ocl.kernels.attention import row_cpu as attention_row_cpu
from keras_ocl.kernels.attention.parts import FORWARD, Scheme
from keras_ocl.kernels.conv import elements as conv_elements
from keras_ocl.kernels.conv import few_cpu, filter_grad_cpu, filter_layout, forward_cpu, winograd_cpu
from keras_ocl.kernels.conv import pointwise as conv_pointwise
from keras_ocl.kernels.conv.problem import Problem
from keras_ocl.kernels.gemm import cpu as gemm_cpu
from keras_ocl.kernels.gemm import cpu_choice, split, strips
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise import cpu as pointwise_cpu
from keras_ocl.kernels.schedule import Schedule, Traits, register
from keras_ocl.kernels.schedules.tuning import CpuTuning, Fusion, Splitting
from keras_ocl.kernels.spec import Epilogue, KernelSpec


def _product(problem: Any, tile: Any) -> list[KernelSpec]:
    tile, packing = tile or cpu_choice.choose(problem), []
    steps = _split(problem, cpu_choice.groups(problem, tile)) if tile.splits else 0
    longest = tile.block * summation.PRODUCT  # most steps of k in packed blocks, whose sums are added one after the other
    if longest and hint(steps or problem.k) > longest:
        steps = longest
    if strips.suits(problem, tile):
        spec, problem = strips.pack(problem, tile)
        packing = [spec]
    return [*packing, *split.kernels(problem, tile, gemm_cpu.kernel, steps)]


def _split(problem: Any, groups: int) -> int:
    """The number of steps of k that one work-item sums, 0 for all of them."""
    units = problem.traits.compute_units
    if groups * 2 > units and problem.a.column_stride != 1:
        return _passes(problem)
    return split.steps(problem, groups, units, tuning_of(problem.traits).product.split)


def _passes(problem: Any) -> int:
    """Steps of k per part, 0 for one part, where both operands are strided along a long k (a gradient of weights).

    The rows of a part stay in the cache. With k = 32000 and 400 columns this takes two thirds of the time of one part.
    """
    k, tuning = hint(problem.k), tuning_of(problem.traits).product
    results = hint(problem.m) * hint(problem.n) * hint(1 if problem.batch is None else problem.batch)
    part = max(tuning.split_strided, -(-k * results // tuning.partial))
    return part if k >= 8 * part else 0


def _convolution(problem: Problem) -> list[KernelSpec]:
    if forward_cpu.own_tile(problem):
        return _direct_convolution(problem)
    plain = conv_pointwise.forward(problem)
    if plain:
        return plain
    if few_cpu.suits(problem):
        first, problem = filter_layout.arrange(problem, transposed=True)
        return [*first, few_cpu.forward(problem)]
    tile = winograd_cpu.choose_tile(problem)
    if not tile:
        return _direct_convolution(problem)
    first, problem = filter_layout.arrange(problem)
    return [*first, *winograd_cpu.forward(problem, tile)]


def _direct_convolution(problem: Problem) -> list[KernelSpec]:
    first, problem = filter_layout.arrange(problem, blocks=forward_cpu.filter_blocks(problem))
    return [*first, forward_cpu.forward(problem)]


def _filter_gradient(problem: Problem) -> list[KernelSpec]:
    if filter_grad_cpu.own_tile(problem):
        return filter_grad_cpu.filter_grad(problem)
    if not filter_grad_cpu.suits(problem):
        return conv_elements.filter_grad(problem, problem.traits.compute_units)
    return conv_pointwise.filter_grad(problem) or filter_grad_cpu.filter_grad(problem)


def _candidates(operation: str, problem: Any) -> Iterator[tuple[str, float, dict[str, Any]]]:
    found: dict[str, Any] = {}
    if operation == "product":
        found["product"] = cpu_choice.candidates
    elif operation == "convolution":
        found = {"convolution": forward_cpu.candidates, "winograd": winograd_cpu.candidates}
    elif filter_grad_cpu.suits(problem):
        found["filter_gradient"] = filter_grad_cpu.candidates
    for kind, of in found.items():
        for estimate, tile in of(problem):
            yield kind, estimate, vars(tile)


def _packs_input(problem: Problem) -> bool:
    """Whether the direct kernel computes the gradient, and packs each element about once, as vectors of channels."""
    own = filter_grad_cpu.own_tile(problem)
    return bool(own or not conv_pointwise.suits_gradient(problem)) and filter_grad_cpu.packs_once(problem)


def _attention(problem: Any, scheme: Scheme, sinks: Sequence[Epilogue]) -> KernelSpec:
    query, key = (problem.operands[name].shape for name in ("query", "key"))
    if scheme is FORWARD and not problem.causal and attention_row_cpu.suits(problem.traits, query, key, problem.value_depth):
        return attention_row_cpu.kernel(problem, sinks)
    return attention_cpu.kernel(problem, scheme, sinks)


def _attention_gradients(problem: Any, sinks: Sequence[Epilogue]) -> KernelSpec | None:
    enough = attention_gradient_cpu.enough(problem.traits, problem.batch, problem.key_heads)
    return attention_gradient_cpu.kernel(problem, sinks) if enough else None


def _attention_pays(traits: Traits, query: Shaped, key: Shaped, has_bias: bool) -> bool:
    """Whether attention kernels pay, as measured forward and with gradients.

    They do in float32, with enough heads for the kernel that computes all gradients and enough positions to fill the lanes. A bias's
    gradient needs the (time x source) matrix anyway. A single query pays if there are enough heads for the compute units.
    """
    if attention_row_cpu.suits(traits, query.shape, key.shape, query.shape[3]):
        return hint(query.shape[0]) * key.shape[2] >= min(traits.compute_units, tuning_of(traits).attention.row_heads)
    fits = query.dtype == "float32" and not has_bias and hint(query.shape[3]) <= tuning_of(traits).attention.depth
    long = min(hint(query.shape[1]), hint(key.shape[1])) >= traits.vector_width
    return fits and long and attention_gradient_cpu.enough(traits, query.shape[0], key.shape[2])


def _scatter_block(traits: Traits, rows: Extent, columns: Extent, lanes: int) -> tuple[int, int]:
    """(rows, columns) of a work-item's block: columns are cut first, in whole vectors, into a block per compute unit; then rows."""
    vectors = max(1, hint(columns) // lanes)
    across = min(vectors, traits.compute_units)
    width = -(-vectors // across) * lanes
    across = -(-hint(columns) // width)
    down = min(hint(rows), 1 if across >= traits.compute_units else 2 * -(-traits.compute_units // across))
    return max(1, -(-hint(rows) // max(1, down))), width


SCHEDULE = register(
    Schedule(
        name="cpu",
        pointwise=pointwise_cpu.write,
        team=pointwise_cpu.choose,
        product=_product,
        convolution=_convolution,
        candidates=_candidates,
        filter_gradient=_filter_gradient,
        attention=_attention,
        attention_gradients=_attention_gradients,
        attention_pays=_attention_pays,
        packs_right=cpu_choice.packs_computed,
        packs_input=_packs_input,
        sort=functools.partial(sort.by_merging, block=1024, piece=2048, gathered=4096),
        top_k=sort.by_insertion,
        scatter_block=_scatter_block,
        tuning=CpuTuning(),
        costs=tuple(
            f"product.{name}"
            for name in "item tile fetch fetch_near fetch_apart scalar keep copy copy_far turn whole read spilled latency".split()
        ),
        fusion=Fusion(),
        splitting=Splitting(few_rows=63),  # from 64 rows on, each unit has some, and whole rows stay in its cache
        launch=50_000,
        chained=500_000,
        compilation=130_000,
        gather=8,
        vectors=True,
        as_written=True,
        widest=16,
        group=(1, 1, 1),
        shared_row=math.inf,
        row_results=4,  # shorter rows have no vectors
        # Softmax of rows of 16 takes a quarter more time in one kernel, of 32 as much or more. 256 KiB are a second-level cache's.
        staged_rows=(48, 1 << 16),
        scan_steps=4096,
        scan_walks=64,
        scan_parts=64,
        fetched_rows=cpu_choice.FEW,  # each computed element is computed once
        plain_channels=48,  # with fewer the direct kernel is as fast
        plain_pixels=2048,  # over more pixels the direct kernel is faster
        distinct_rows=row_sparse.by_hashing,
        sparse_table=1 << 17,
        inside=("winograd",),
    )
)
