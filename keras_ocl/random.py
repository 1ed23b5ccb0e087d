"""keras.random: counter-based generation. A seed gives the same bits and uniforms on every device.

The generator is Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011);
element i of a draw encrypts counter i under the draw's key.
"""

import math

from keras.src.backend.config import floatx
from keras.src.random.seed_generator import SeedGenerator, draw_seed, make_default_seed

from keras_ocl import primitives as p
from keras_ocl.compiler.jit import fused
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.ops.core import cast, convert_to_tensor

__all__ = [
    "SeedGenerator", "beta", "binomial", "categorical", "draw_seed", "dropout", "gamma", "make_default_seed",
    "normal", "randint", "shuffle", "truncated_normal", "uniform",
]  # fmt: skip

_ATTEMPTS = 12  # proposals a gamma draw may take; each is accepted with probability above 0.95


def _key(seed):
    return convert_to_tensor(draw_seed(seed), dtype="uint32")


def _dtype(dtype):
    return dtypes.canonical(dtype or floatx())


def _work_dtype(dtype):
    """Random reals are made in float32, or float64 when that is asked for."""
    return "float64" if dtype == "float64" else "float32"


def _shape(shape):
    return tuple(shape)


def _unit(key, shape, dtype, offset=0):
    """Uniform on [0, 1): 24 bits of the mantissa (53 in float64)."""
    high = p.random_bits(key, shape, offset=offset)
    if dtype == "float64":
        low = p.random_bits(p.not_(key), shape, offset=offset)
        high = p.mul(p.convert(p.shift_right(high, _full(5, high)), dtype), _full(2.0**26, high, dtype))
        value = p.add(high, p.convert(p.shift_right(low, _full(6, low)), dtype))
        return p.mul(value, _full(2.0**-53, value))
    value = p.convert(p.shift_right(high, _full(8, high)), dtype)
    return p.mul(value, _full(2.0**-24, value))


def _full(value, like, dtype=None):
    return p.full(like.shape, value, dtype or like.dtype)


def _like(value, shape, dtype):
    """A parameter (number or tensor) as a tensor of `shape`."""
    from keras_ocl.ops.numpy import broadcast_to

    return broadcast_to(convert_to_tensor(value, dtype=dtype), shape)


def _parameter(value, dtype):
    """A distribution's parameter (number or tensor) as a tensor."""
    return convert_to_tensor(value, dtype=dtype)


def _spread(x, shape):
    from keras_ocl.ops.promotion import broadcast_to

    return broadcast_to(x, shape)


@fused
def _uniform(key, low, high, *, shape, dtype):
    work = _work_dtype(dtype)
    low, high = _spread(low, shape), _spread(high, shape)
    unit = _unit(key, shape, work)
    value = p.add(low, p.mul(unit, p.sub(high, low)))
    # Rounding may reach the excluded upper bound.
    value = p.select(p.and_(p.ge(value, high), p.lt(low, high)), low, value)
    return p.convert(value, dtype)


def uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
    dtype = _dtype(dtype)
    work = _work_dtype(dtype)
    return _uniform(_key(seed), _parameter(minval, work), _parameter(maxval, work), shape=tuple(shape), dtype=dtype)


def _standard_normal(key, shape, dtype, low=-1.0, high=1.0, offset=0):
    """Inverse-CDF normal, restricted to where the error function lies in (low, high)."""
    unit = _unit(key, shape, dtype, offset)
    tiny = 2.0**-53 if dtype == "float64" else 2.0**-24
    centred = p.add(p.mul(unit, _full((high - low) * (1 - tiny), unit)), _full(low + (high - low) * tiny / 2, unit))
    return p.mul(p.erf_inv(centred), _full(math.sqrt(2.0), unit))


@fused
def _normal(key, mean, stddev, *, shape, dtype, truncated):
    work = _work_dtype(dtype)
    if truncated:
        reach = math.erf(2.0 / math.sqrt(2.0))
        z = _standard_normal(key, shape, work, -reach, reach)
        z = p.min(p.max(z, _full(-2.0, z)), _full(2.0, z))
    else:
        z = _standard_normal(key, shape, work)
    return p.convert(p.add(p.mul(z, _spread(stddev, shape)), _spread(mean, shape)), dtype)


def normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    return _gaussian(shape, mean, stddev, dtype, seed, False)


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    return _gaussian(shape, mean, stddev, dtype, seed, True)


def _gaussian(shape, mean, stddev, dtype, seed, truncated):
    dtype = _dtype(dtype)
    work = _work_dtype(dtype)
    return _normal(_key(seed), _parameter(mean, work), _parameter(stddev, work), shape=tuple(shape), dtype=dtype, truncated=truncated)


def randint(shape, minval, maxval, dtype="int32", seed=None):
    dtype = dtypes.canonical(dtype)
    shape = _shape(shape)
    low, high = _like(minval, shape, "int64"), _like(maxval, shape, "int64")
    key = _key(seed)
    bits = p.convert(p.random_bits(key, shape), "int64")
    # Multiply-shift (Lemire 2019) maps 32 bits to the range without a division; the bias is below 2^-32 of the range.
    offset = p.shift_right(p.mul(bits, p.sub(high, low)), _full(32, bits))
    return p.convert(p.add(low, offset), dtype)


def categorical(logits, num_samples, dtype="int32", seed=None):
    logits = convert_to_tensor(logits)
    if not dtypes.is_float(logits.dtype):
        logits = cast(logits, floatx())
    work = _work_dtype(logits.dtype)
    batch, classes = logits.shape
    shape = (batch, num_samples, classes)
    unit = _unit(_key(seed), shape, work)
    tiny = _full(1e-38 if work == "float32" else 1e-300, unit)
    gumbel = p.neg(p.log(p.neg(p.log(p.max(unit, tiny)))))
    scores = p.add(gumbel, p.broadcast(p.convert(logits, work), shape, (0, 2)))
    return p.convert(p.argmax(scores, 2), dtypes.canonical(dtype))


def dropout(inputs, rate, noise_shape=None, seed=None):
    inputs = convert_to_tensor(inputs)
    key = _key(seed)
    if noise_shape is None:
        noise_shape = inputs.shape
    else:
        noise_shape = tuple(n if s is None else s for s, n in zip(noise_shape, inputs.shape, strict=True))
    if isinstance(rate, (int, float)):
        if rate >= 1:
            return p.full(inputs.shape, 0, inputs.dtype)
        # An integer comparison decides: an element is kept when its bits lie below keep * 2^32.
        bits = p.random_bits(key, noise_shape)
        keep = p.lt(bits, _full(min(2**32 - 1, round((1.0 - rate) * 2**32)), bits))
        scale = p.full(inputs.shape, 1.0 / (1.0 - rate), inputs.dtype)
    else:
        rate = cast(rate, "float32")
        unit = _unit(key, noise_shape, "float32")
        keep = p.ge(unit, _like(rate, noise_shape, "float32"))
        scale = cast(
            p.div(p.full(inputs.shape, 1.0, "float32"), p.sub(p.full(inputs.shape, 1.0, "float32"), _like(rate, inputs.shape, "float32"))),
            inputs.dtype,
        )
    if tuple(noise_shape) != tuple(inputs.shape):
        keep = _like(keep, inputs.shape, "bool")
    return p.select(keep, p.mul(inputs, scale), p.full(inputs.shape, 0, inputs.dtype))


def shuffle(x, axis=0, seed=None):
    from keras_ocl.ops.numpy import take

    x = convert_to_tensor(x)
    n = x.shape[axis]
    key = _key(seed)
    bits = p.random_bits(key, (n,))
    more = p.random_bits(p.not_(key), (n,))
    # Two words a key: ties, which would keep their order, have probability below n^2 / 2^64.
    _, _, order = p.sort((bits, more, p.iota((n,), 0, "int32")), 0, keys=2)
    return take(x, order, axis=axis)


def gamma(shape, alpha, dtype=None, seed=None):
    """Marsaglia & Tsang, "A simple method for generating gamma variables" (2000), with a fixed number of proposals."""
    dtype = _dtype(dtype)
    work = _work_dtype(dtype)
    shape = _shape(shape)
    return p.convert(_gamma(_key(seed), shape, _like(alpha, shape, work), work), dtype)


def _gamma(key, shape, alpha, work):
    one, third = _full(1.0, alpha), _full(1.0 / 3.0, alpha)
    small = p.lt(alpha, one)
    boosted = p.select(small, p.add(alpha, one), alpha)
    d = p.sub(boosted, third)
    c = p.div(third, p.sqrt(d))
    count = product(shape)
    sample = d  # the mode, should every proposal be refused
    done = p.lt(one, one)
    for attempt in range(_ATTEMPTS):
        x = _standard_normal(key, shape, work, offset=2 * attempt * count)
        u = _unit(key, shape, work, offset=(2 * attempt + 1) * count)
        v = p.add(one, p.mul(c, x))
        v = p.mul(p.mul(v, v), v)
        positive = p.gt(v, _full(0.0, v))
        safe = p.select(positive, v, one)
        bound = p.add(p.mul(_full(0.5, x), p.mul(x, x)), p.mul(d, p.add(p.sub(one, safe), p.log(safe))))
        accept = p.and_(positive, p.lt(p.log(p.max(u, _full(1e-38, u))), bound))
        take_it = p.and_(accept, p.not_(done))
        sample = p.select(take_it, p.mul(d, safe), sample)
        done = p.or_(done, accept)
    u = p.max(_unit(key, shape, work, offset=2 * _ATTEMPTS * count), _full(1e-38, alpha))
    return p.select(small, p.mul(sample, p.pow(u, p.div(one, alpha))), sample)


def beta(shape, alpha, beta, dtype=None, seed=None):
    dtype = _dtype(dtype)
    work = _work_dtype(dtype)
    shape = _shape(shape)
    key = _key(seed)
    a = _gamma(key, shape, _like(alpha, shape, work), work)
    b = _gamma(p.not_(key), shape, _like(beta, shape, work), work)
    return p.convert(p.div(a, p.add(a, b)), dtype)


def binomial(shape, counts, probabilities, dtype=None, seed=None):
    """Number of successes in `counts` trials: the order statistics of uniforms, halved by beta draws
    (Devroye, "Non-Uniform Random Variate Generation", 1986, X.4.2), then at most 16 explicit trials."""
    dtype = _dtype(dtype)
    shape = _shape(shape)
    key = _key(seed)
    n = _like(counts, shape, "float32")
    prob = _like(probabilities, shape, "float32")
    zero, one = _full(0.0, n), _full(1.0, n)
    successes = zero
    for level in range(20):  # halves counts below 2^24 to at most 16
        large = p.gt(n, _full(16.0, n))
        a = p.add(p.floor(p.mul(n, _full(0.5, n))), one)
        b = p.add(p.sub(n, a), one)
        level_key = p.add(key, _full(7919 * (level + 1), key))
        ga = _gamma(level_key, shape, p.select(large, a, one), "float32")
        gb = _gamma(p.not_(level_key), shape, p.select(large, b, one), "float32")
        median = p.div(ga, p.add(ga, gb))
        below = p.le(median, prob)
        rest = p.select(below, p.div(p.sub(prob, median), p.sub(one, median)), p.div(prob, median))
        successes = p.select(p.and_(large, below), p.add(successes, a), successes)
        prob = p.select(large, p.min(p.max(rest, zero), one), prob)
        n = p.select(large, p.select(below, p.sub(n, a), p.sub(a, one)), n)
    count = product(shape)
    for trial in range(16):
        u = _unit(key, shape, "float32", offset=trial * count)
        hit = p.and_(p.lt(u, prob), p.lt(_full(float(trial), n), n))
        successes = p.add(successes, p.select(hit, one, zero))
    return p.convert(successes, dtype)
