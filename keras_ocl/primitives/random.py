"""Random bits: counter-based, so that a key gives the same bits on every device."""

from keras_ocl.core.dim import product
from keras_ocl.core.index import linear
from keras_ocl.core.primitive import Primitive


def _shape(key, *, shape, offset):
    if key.dtype != "uint32" or tuple(key.shape) != (2,):
        raise TypeError(f"random_bits: the key has shape {tuple(key.shape)} and dtype {key.dtype}; it must be uint32 of shape (2,).")
    return shape, "uint32"


def _pointwise(gen, node, index):
    (key,) = node.inputs
    return gen.random_bits(gen.value(key, (0,)), gen.value(key, (1,)), linear(index, node.shape) + node.params["offset"])


_random_bits = Primitive("random_bits", _shape, None, _pointwise)


def random_bits(key, shape, offset=0):
    """uint32 random bits of `shape` from `key` (uint32 of shape (2,)): element i (row-major) is Threefry of the counter offset + i.

    ValueError when the counters do not fit in 32 bits.
    """
    shape = tuple(shape)
    if offset < 0 or offset + product(shape) > 2**32:
        raise ValueError(f"random_bits: {offset} + {int(product(shape))} counters do not fit in 32 bits; use another key.")
    return _random_bits(key, shape=shape, offset=offset)
