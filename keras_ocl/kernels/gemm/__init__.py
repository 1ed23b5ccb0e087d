"""Matrix products."""

from keras_ocl.kernels.gemm.dispatch import Operand, plan

__all__ = ["Operand", "plan"]
