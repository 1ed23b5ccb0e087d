"""The reference schedule: one work-item per element, without tiles, vectors or local memory.

It is slow, and simple enough to be trusted: doubtful kernels of other schedules are compared with it.
"""

import math
from typing import Any

from keras_ocl.core.dim import Extent
from keras_ocl.kernels import row_sparse, sort
from keras_ocl.kernels.attention import reference as attention_reference
from keras_ocl.kernels.conv import elements as conv_elements
from keras_ocl.kernels.gemm import reference as gemm_reference
from keras_ocl.kernels.pointwise import reference as pointwise_reference
from keras_ocl.kernels.schedule import Schedule, Traits, register
from keras_ocl.kernels.schedules.tuning import Fusion, Splitting
from keras_ocl.kernels.spec import KernelSpec


def _product(problem: Any, tile: Any) -> list[KernelSpec]:
    return [gemm_reference.kernel(problem)]


def _scatter_block(traits: Traits, rows: Extent, columns: Extent, lanes: int) -> tuple[int, int]:
    return 1, 1


SCHEDULE = register(
    Schedule(
        name="reference",
        pointwise=pointwise_reference.write,
        product=_product,
        convolution=conv_elements.forward,
        filter_gradient=conv_elements.filter_grad,
        attention=attention_reference.kernel,
        sort=sort.by_counting,
        top_k=sort.by_insertion,
        scatter_block=_scatter_block,
        tuning=None,
        fusion=Fusion(),
        splitting=Splitting(),  # one sum of a million elements in float32 would lose digits
        launch=1_000_000,
        gather=0,
        vectors=False,
        as_written=True,
        widest=1,
        group=None,
        shared_row=0,
        scan_steps=math.inf,
        scan_walks=0,
        scan_parts=1,
        plain_channels=0,
        plain_pixels=0,
        distinct_rows=row_sparse.by_hashing,
        sparse_table=math.inf,
    )
)
