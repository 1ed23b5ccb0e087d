"""Keras's check of shapes."""

from keras_ocl.core.dim import Dim


def with_unknown(shape):
    """`shape` with None in the place of unknown extents, as Keras has it before a function is traced: it would make plain ints of them."""
    if type(shape) is tuple and any(isinstance(n, Dim) for n in shape):
        return tuple(None if isinstance(n, Dim) else n for n in shape)
    return shape
