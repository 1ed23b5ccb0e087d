"""The schedule of the kernels from which persistent kernels of loops (compiler/launch/loops/persistent.py) are composed.

In a persistent kernel one work-group runs all steps of a loop for its rows of the batch. A matrix product uses the template for few rows:
groups lie along the columns in the first grid dimension and along the rows in the second. All other kernels have one work-item per element,
in memory order. Launched separately, such kernels are correct but slow.
"""

import math
from dataclasses import replace
from typing import Any

from keras_ocl.core.dim import Extent, ceil_div, hint, power_above, power_below
from keras_ocl.core.index import is_one
from keras_ocl.kernels.gemm import gpu_choice, reference, rows_gpu
from keras_ocl.kernels.pointwise import reference as pointwise_reference
from keras_ocl.kernels.schedule import Traits, register
from keras_ocl.kernels.schedules import gpu
from keras_ocl.kernels.schedules import reference as by_element
from keras_ocl.kernels.spec import KernelSpec

NAME = "rows"
ITEMS = 256  # work-items of a group; twice as many where weights exceed a unit's own cache, so that enough loads are in flight
_MOST = 8  # most rows of a group
_AHEAD = 12  # most steps of k that an item loads ahead: the shared cache has a long latency, and a group is alone on its unit
_ROUND = 2  # overhead of each block of such steps, in steps
_GUARDED = 1.25  # cost factor where the last block is not full, and its loads need conditions


def items(traits: Traits) -> int:
    """Number of work-items of a group."""
    return power_below(min(2 * ITEMS, traits.max_group))


def rows(batch: Extent, traits: Traits) -> int:
    """Batch rows per group: a power of two, at most 8, such that the groups are about as many as the units."""
    return min(_MOST, power_above(math.ceil(hint(batch) / gpu_choice.units(traits))))


def rounds(batch: Extent, traits: Traits) -> int:
    """Number of sequential waves of groups on one unit: ceil(groups / units)."""
    return math.ceil(ceil_div(hint(batch), rows(batch, traits)) / gpu_choice.units(traits))


def _product(problem: Any, tile: Any) -> list[KernelSpec]:
    p = problem
    if p.batch is not None or p.b.source or p.all_arguments:
        return [reference.kernel(p)]
    count, group = rows(p.m, p.traits), items(p.traits)
    along_k = is_one(p.b.row_stride) and not is_one(p.b.column_stride)
    across, length = (p.b.column_stride, p.k) if along_k else (p.b.row_stride, p.n)
    joined = along_k or is_one(p.b.column_stride)
    vector = next(v for v in (4, 2, 1) if v == 1 or (v * count <= 16 and joined and p.divides(v, length, across, p.b.offset)))
    wanted = hint(ceil_div(p.k if along_k else p.n, vector))
    most = 8 if along_k else group  # neighbouring lanes: 128 bytes of each column, or all columns at once
    beside = power_above(min(most, wanted, group))
    lanes = beside if along_k else group // beside
    walked = hint(ceil_div(p.k, lanes * (vector if along_k else 1)))
    ahead = _ahead(p.traits, vector, count, walked)
    return [rows_gpu.kernel(p, rows_gpu.Shape(lanes, group // lanes, count, along_k, vector, False, ahead))]


def _ahead(traits: Traits, vector: int, count: int, walked: int) -> int:
    """Steps of k that an item loads ahead, before it multiplies: few, full blocks of steps, in at most two thirds of its registers."""
    registers = min(traits.item_registers, gpu_choice.UNIT // items(traits))
    most = max(1, min(_AHEAD, registers // 3 // (vector + count)))
    return min(range(1, most + 1), key=lambda steps: ceil_div(walked, steps) * (steps + _ROUND) * (1 if walked % steps == 0 else _GUARDED))


SCHEDULE = register(
    replace(
        by_element.SCHEDULE,
        name=NAME,
        inner=True,
        product=_product,
        pointwise=pointwise_reference.write,
        fusion=gpu.SCHEDULE.fusion,
        tuning=gpu.SCHEDULE.tuning,
        nested_row=gpu.SCHEDULE.nested_row,
    )
)
