"""Random numbers: counter-based, so that a key gives the same bits on every device.

Element i (row-major) of a draw encrypts the counter i. Draws by rejection take as many words of that counter as they need; they agree
between devices to rounding, which may once in a million elements accept another proposal. Draws have no gradient.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.index import linear
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives.elementwise import joint_shape


def _check(name, key, shape):
    if key.dtype != "uint32" or tuple(key.shape) != (2,):
        raise TypeError(f"{name}: the key has shape {tuple(key.shape)} and dtype {key.dtype}; it must be uint32 of shape (2,).")
    if product(shape) > 2**32:
        raise ValueError(f"{name}: the counters of shape {tuple(shape)} do not fit in 32 bits; make several draws with keys of their own.")


def _words(gen, key):
    return gen.value(key, (0,)), gen.value(key, (1,))


def _bits_shape(key, *, shape, word):
    _check("random_bits", key, shape)
    return shape, "uint32"


def _bits_pointwise(gen, node, index):
    return gen.random("random_bits", "uint32", _words(gen, node.inputs[0]), linear(index, node.shape), word=(node.params["word"],))


_random_bits = Primitive("random_bits", _bits_shape, None, _bits_pointwise, cost=60, dynamic_extents=("shape",))


def random_bits(key, shape, word=0):
    """uint32 random bits of `shape` from `key` (uint32 of shape (2,)): element i (row-major) is Threefry of the counter (i, word)."""
    return _random_bits(key, shape=tuple(shape), word=word)


def _draw_shape(name):
    def rule(key, *parameters):
        shape = joint_shape(name, parameters)
        _check(name, key, shape)
        if any(x.dtype not in ("float32", "float64") or x.dtype != parameters[0].dtype for x in parameters):
            given = ", ".join(x.dtype for x in parameters)
            raise TypeError(f"{name}: parameters have dtypes {given}; convert them to float32 or float64.")
        return shape, parameters[0].dtype

    return rule


def _draw_pointwise(helper):
    def rule(gen, node, index):
        key, *parameters = node.inputs
        values = [gen.value(x, index) for x in parameters]
        name = f"{helper}_{dtypes.register_ctype(node.dtype)}"
        return gen.random(name, node.dtype, _words(gen, key), linear(index, node.shape), *values)

    return rule


_random_gamma = Primitive("random_gamma", _draw_shape("random_gamma"), None, _draw_pointwise("log_gamma_draw"), cost=500)
_random_binomial = Primitive("random_binomial", _draw_shape("random_binomial"), None, _draw_pointwise("binomial_draw"), cost=1000)


def random_gamma(key, alpha):
    """The logarithm of a gamma variate of scale 1 for each shape parameter in `alpha` (float32 or float64); NaN unless alpha > 0."""
    return _random_gamma(key, alpha)


def random_binomial(key, count, probability):
    """The successes in `count` trials, elementwise, in the parameters' dtype (float32 or float64); NaN where one is out of range."""
    return _random_binomial(key, count, probability)
