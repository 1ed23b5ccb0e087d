"""Random numbers: counter-based, so that a key gives the same bits on every device.

Element i (row-major) of a draw encrypts the counter i. Draws by rejection take as many words of that counter as they need; devices
agree on them up to rounding, which may make them accept another proposal for one element in a million. Draws have no gradient.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.core.index import linear
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives.batching import same_parameters
from keras_ocl.primitives.elementwise import joint_shape


def _check(name, key, shape):
    """The key is uint32 of shape (..., 2): one for each index along the draw's first axes."""
    examples = tuple(key.shape[:-1])
    if key.dtype != "uint32" or tuple(key.shape[-1:]) != (2,) or tuple(shape[: len(examples)]) != examples:
        raise TypeError(f"{name}: the key has shape {tuple(key.shape)} and dtype {key.dtype}; it must be uint32 of shape (2,).")
    if product(shape) > 2**32:
        raise ValueError(f"{name}: the counters of shape {tuple(shape)} do not fit in 32 bits; make several draws with keys of their own.")


def _draw(gen, helper, node, key, index, *values, **options):
    """What `helper` draws at an index: for each of several keys the counter begins at 0."""
    first = len(key.shape) - 1
    words = [gen.value(key, (*index[:first], k)) for k in range(2)]
    return gen.random(helper, node.dtype, words, linear(index[first:], node.shape[first:]), *values, **options)


def _bits_shape(key, *, shape, word):
    _check("random_bits", key, shape)
    return shape, "uint32"


def _bits_pointwise(gen, node, index):
    return _draw(gen, "random_bits", node, node.inputs[0], index, word=(node.params["word"],))


def _bits_batch(inputs, batched, size, *, shape, word):
    return _random_bits(*inputs, shape=(size, *shape), word=word)


_random_bits = Primitive("random_bits", _bits_shape, None, _bits_pointwise, cost=60, dynamic_extents=("shape",), batch=_bits_batch)


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
        return _draw(gen, name, node, key, index, *values)

    return rule


def _variates(name, helper, cost):
    rules = {"cost": cost, "batch": same_parameters(lambda: primitive)}
    primitive = Primitive(name, _draw_shape(name), None, _draw_pointwise(helper), **rules)
    return primitive


_random_gamma = _variates("random_gamma", "log_gamma_draw", 500)
_random_binomial = _variates("random_binomial", "binomial_draw", 1000)


def random_gamma(key, alpha):
    """The logarithm of a gamma variate of scale 1 for each shape parameter in `alpha` (float32 or float64); NaN unless alpha > 0."""
    return _random_gamma(key, alpha)


def random_binomial(key, count, probability):
    """The successes in `count` trials, elementwise, in the parameters' dtype (float32 or float64); NaN where one is out of range."""
    return _random_binomial(key, count, probability)
