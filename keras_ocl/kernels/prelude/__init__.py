"""The head of every kernel: typed loads and stores, and the OpenCL C functions that kernels call."""

from keras_ocl.kernels.prelude.access import helper_source, helpers_for, load, pieces, register_type, runs, store
from keras_ocl.kernels.prelude.library import vector_type

__all__ = ["helper_source", "helpers_for", "load", "pieces", "register_type", "runs", "store", "vector_type"]
