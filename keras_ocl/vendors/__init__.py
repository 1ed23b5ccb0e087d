"""What kernels become on GPUs that are not there: the vendors' own compilers, and an estimate of time."""

from keras_ocl.vendors.compilers import Rejected, Resources, compile_program
from keras_ocl.vendors.roofline import Estimate, estimate

__all__ = ["Estimate", "Rejected", "Resources", "compile_program", "estimate"]
