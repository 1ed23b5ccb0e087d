"""Graph to executable: simplify, fuse, plan memory, emit OpenCL C, replay; eager code and jit use it."""

from keras_ocl.compiler.convert import from_numpy, to_numpy
from keras_ocl.compiler.eager import clear

__all__ = ["clear", "from_numpy", "to_numpy"]
