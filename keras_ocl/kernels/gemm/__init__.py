"""Matrix products."""

from keras_ocl.kernels.gemm.dispatch import Operand, accumulator, plan

__all__ = ["Operand", "accumulator", "plan"]
