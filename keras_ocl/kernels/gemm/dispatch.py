"""Matrix product (general, batched), written as the device's schedule says.

Lowering calls `plan` with Operands; Buffers among its kernels' arguments are scratch memory that the caller provides.
"""

from keras_ocl.core import dtypes
from keras_ocl.kernels.gemm.parts import Operand, Problem
from keras_ocl.kernels.schedule import schedule_of

__all__ = ["Operand", "plan"]


def plan(traits, *, batch, m, n, k, a, b, dtype, sink, all_arguments=False, tile=None, longest=0, repeated=False, precision="float32"):
    """KernelSpecs, in order of launch, that compute a product and hand it to `sink`.

    Shape:
        a (batch, m, k), b (batch, k, n), result (batch, m, n), given to the sink with lanes along n; without the
        batch dimension everywhere when `batch` is None. Extents may be Dims. An empty result gives no kernels,
        k = 0 a result of zeros.

    dtypes:
        `dtype` decides the accumulator (dtypes.accumulator), whose registers the sink gets; the operands' own
        dtypes are those of their memory. TypeError for complex numbers.

    `tile` overrides the choice of tile, for tuning. `longest` is the most steps of k that the GPU schedule sums at once, 0 for any number.
    `repeated`: whether the product runs in each step of a loop. `precision`: what float32 operands may be taken as (core/precision.py).
    """
    if dtypes.is_complex(dtype):
        raise TypeError(f"matrix product: dtype {dtype} has no kernel; multiply real and imaginary parts separately")
    if 0 in (m, n) or (batch is not None and batch == 0):
        return []
    accumulator, further = dtypes.accumulator(dtype), dict(longest=longest, repeated=repeated, precision=precision)
    problem = Problem(traits, batch, m, n, k, a, b, accumulator, sink, all_arguments, **further)
    return schedule_of(traits).product(problem, tile)
