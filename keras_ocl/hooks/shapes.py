"""Keras's check of shapes."""

from keras_ocl.core.dim import Dim


def has_unknown(shape):
    """Whether `shape` is one of ours with unknown extents: Keras takes it as it is, for a plain int would not be the extent any more."""
    return type(shape) is tuple and any(isinstance(n, Dim) for n in shape)
