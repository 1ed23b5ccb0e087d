"""Typed loads and stores, and the OpenCL C helper functions that kernels call, which precede every kernel's text."""

from keras_ocl.kernels.prelude.access import helpers_for, load, load_stored, pieces, pointer, register_type, runs, store, stored
from keras_ocl.kernels.prelude.library import vector_type

__all__ = ["helpers_for", "load", "load_stored", "pieces", "pointer", "register_type", "runs", "store", "stored", "vector_type"]
