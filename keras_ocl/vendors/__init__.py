"""Estimates for kernels on GPUs that are not present: vendors' compilers, memory access patterns, and an estimate of time."""

from keras_ocl.vendors.access import Access, accesses
from keras_ocl.vendors.compilers import Rejected, Resources, compile_program
from keras_ocl.vendors.interpreter import Unknown
from keras_ocl.vendors.roofline import Estimate, estimate

__all__ = ["Access", "Estimate", "Rejected", "Resources", "Unknown", "accesses", "compile_program", "estimate"]
