"""Graph to executable: simplify, fuse, plan memory, emit OpenCL C, replay; eager code and jit use it."""

from keras_ocl import runtime
from keras_ocl.compiler import matrix_units
from keras_ocl.compiler.cache import evict, forget
from keras_ocl.compiler.convert import from_numpy, to_numpy

runtime.before_out_of_memory(evict)
runtime.examine_devices("matrix units", matrix_units.examine)

__all__ = ["forget", "from_numpy", "to_numpy"]
