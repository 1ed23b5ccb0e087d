"""Support for Keras's check of shapes."""

from keras_ocl.core.dim import Dim


def with_unknown(shape):
    """`shape` with None for unknown extents (Dims), as Keras knows it outside of traces; Keras would turn a Dim into an int."""
    if type(shape) is tuple and any(isinstance(n, Dim) for n in shape):
        return tuple(None if isinstance(n, Dim) else n for n in shape)
    return shape
