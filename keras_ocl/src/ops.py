"""The operations: those of `keras.ops` that Keras keeps in its core here, the others in modules, as in `keras.ops`."""

# ruff: noqa: F401, F403
from keras_ocl.ops import core, image, linalg, math, nn, numpy
from keras_ocl.ops.core import *
