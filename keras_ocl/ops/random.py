"""keras.random: counter-based generation. A seed gives the same bits, integers and uniforms on every device.

The generator is Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011);
element i of a draw encrypts counter i under the draw's key. The other distributions agree between devices to rounding.
Reals are made in float32, or in float64 when that is asked for, and then rounded to the dtype asked for.
"""

import math

from keras.src.backend.common.backend_utils import canonicalize_axis
from keras.src.backend.config import floatx
from keras.src.random.seed_generator import SeedGenerator, draw_seed, make_default_seed

from keras_ocl import primitives as p
from keras_ocl.compiler.jit import fused
from keras_ocl.core import dtypes
from keras_ocl.ops import naming
from keras_ocl.ops.conversion import cast, convert_to_tensor
from keras_ocl.ops.numpy.indexing import take
from keras_ocl.ops.promotion import broadcast_shapes, broadcast_to, scalar_like

__all__ = [
    "SeedGenerator", "beta", "binomial", "categorical", "draw_seed", "dropout", "gamma", "make_default_seed",
    "normal", "randint", "shuffle", "truncated_normal", "uniform",
]  # fmt: skip

_TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def _key(seed):
    return convert_to_tensor(draw_seed(seed), dtype="uint32")


def _real(op, dtype):
    """(dtype of the result, dtype of the computation)."""
    dtype = dtypes.canonical(dtype or floatx())
    if not dtypes.is_float(dtype):
        raise ValueError(f"{op}: dtype {dtype} is not a floating point dtype; draw floats and cast them, or use keras.random.randint.")
    return dtype, "float64" if dtype == "float64" else "float32"


def _extents(op, shape):
    """A shape argument as a tuple of extents (kept as they are: a Dim stays one)."""
    try:
        shape = tuple(n if isinstance(n, int) else n.__index__() for n in shape)
    except (TypeError, AttributeError):
        raise TypeError(f"{op}: `shape` must be a sequence of integers, got {shape!r:.80}.") from None
    if any(n < 0 for n in shape):
        raise ValueError(f"{op}: `shape` must not have negative extents, got {shape}.")
    return shape


def _parameter(op, name, value, shape, dtype):
    """A distribution's parameter (number or tensor) as a tensor that broadcasts to `shape`."""
    value = convert_to_tensor(value, dtype if isinstance(value, (int, float)) else None)
    if dtypes.is_complex(value.dtype):
        raise TypeError(f"{op}: `{name}` has dtype {value.dtype}; parameters are real numbers.")
    if broadcast_shapes(op, value.shape, shape) != shape:
        raise ValueError(f"{op}: `{name}` of shape {tuple(value.shape)} does not broadcast to the result's shape {shape}.")
    return convert_to_tensor(value, dtype)


def _full(value, like, dtype=None):
    return p.full(like.shape, value, dtype or like.dtype)


def _unit(key, shape, dtype):
    """Uniform on [0, 1): 24 bits of the mantissa (53 in float64)."""
    high = p.random_bits(key, shape)
    if dtype == "float64":
        low = p.random_bits(key, shape, 1)
        high = p.mul(p.convert(p.shift_right(high, _full(5, high)), dtype), _full(2.0**26, high, dtype))
        value = p.add(high, p.convert(p.shift_right(low, _full(6, low)), dtype))
        return p.mul(value, _full(2.0**-53, value))
    value = p.convert(p.shift_right(high, _full(8, high)), dtype)
    return p.mul(value, _full(2.0**-24, value))


@fused
def _uniform(key, low, high, *, shape, dtype):
    low, high = broadcast_to(low, shape), broadcast_to(high, shape)
    unit = _unit(key, shape, low.dtype)
    value = p.convert(p.add(low, p.mul(unit, p.sub(high, low))), dtype)
    # Rounding may reach the excluded upper bound, or pass it.
    low, high = p.convert(low, dtype), p.convert(high, dtype)
    return p.select(p.and_(p.ge(value, high), p.lt(low, high)), p.nextafter(high, low), value)


def uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
    """Reals from [minval, maxval), which may be tensors that broadcast to `shape`."""
    dtype, work = _real("uniform", dtype)
    shape = _extents("uniform", shape)
    low, high = _parameter("uniform", "minval", minval, shape, work), _parameter("uniform", "maxval", maxval, shape, work)
    return _uniform(_key(seed), low, high, shape=shape, dtype=dtype)


def _standard_normal(key, shape, dtype, low=-1.0, high=1.0):
    """Inverse-CDF normal, restricted to where the error function lies in (low, high)."""
    unit = _unit(key, shape, dtype)
    tiny = 2.0**-53 if dtype == "float64" else 2.0**-24
    centred = p.add(p.mul(unit, _full((high - low) * (1 - tiny), unit)), _full(low + (high - low) * tiny / 2, unit))
    return p.mul(p.erf_inv(centred), _full(math.sqrt(2.0), unit))


@fused
def _normal(key, mean, stddev, *, shape, dtype, truncated):
    if truncated:
        reach = math.erf(2.0 / math.sqrt(2.0))
        z = _standard_normal(key, shape, mean.dtype, -reach, reach)
        z = p.min(p.max(z, _full(-2.0, z)), _full(2.0, z))
    else:
        z = _standard_normal(key, shape, mean.dtype)
    return p.convert(p.add(p.mul(z, broadcast_to(stddev, shape)), broadcast_to(mean, shape)), dtype)


def normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    """Normal variates; `mean` and `stddev` may be tensors that broadcast to `shape`."""
    return _gaussian("normal", shape, mean, stddev, dtype, seed, False)


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    """Normal variates within two standard deviations of the mean."""
    return _gaussian("truncated_normal", shape, mean, stddev, dtype, seed, True)


def _gaussian(op, shape, mean, stddev, dtype, seed, truncated):
    dtype, work = _real(op, dtype)
    shape = _extents(op, shape)
    mean, stddev = _parameter(op, "mean", mean, shape, work), _parameter(op, "stddev", stddev, shape, work)
    return _normal(_key(seed), mean, stddev, shape=shape, dtype=dtype, truncated=truncated)


@fused
def _randint(key, low, high, *, shape, dtype):
    """64 bits times the range, divided by 2^64 (Lemire, "Fast random integer generation in an interval", 2019, without its rejection):
    no value's probability is off by more than 2^-64."""
    low, high = broadcast_to(low, shape), broadcast_to(high, shape)
    wide = "uint64"
    extent = p.select(p.lt(low, high), p.sub(p.convert(high, wide), p.convert(low, wide)), _full(0, low, wide))
    shift, mask = _full(32, extent), _full(2**32 - 1, extent)
    r1, r0 = p.convert(p.random_bits(key, shape), wide), p.convert(p.random_bits(key, shape, 1), wide)
    n1, n0 = p.shift_right(extent, shift), p.and_(extent, mask)
    middle, other = p.mul(r1, n0), p.mul(r0, n1)
    carry = p.add(p.add(p.and_(middle, mask), p.and_(other, mask)), p.shift_right(p.mul(r0, n0), shift))
    offset = p.add(p.add(p.mul(r1, n1), p.shift_right(carry, shift)), p.add(p.shift_right(middle, shift), p.shift_right(other, shift)))
    return p.convert(p.add(p.convert(low, wide), offset), dtype)


def randint(shape, minval, maxval, dtype="int32", seed=None):
    """Integers from minval up to, not including, maxval; an empty range of tensors gives minval, of numbers ValueError."""
    dtype = dtypes.canonical(dtype)
    if not dtypes.is_integer(dtype):
        raise ValueError(f"randint: dtype {dtype} is not an integer dtype; use keras.random.uniform for floats.")
    shape = _extents("randint", shape)
    if isinstance(minval, (int, float)) and isinstance(maxval, (int, float)) and not minval < maxval:
        raise ValueError(f"randint: `maxval` must be greater than `minval`. Received: minval={minval}, maxval={maxval}")
    wide = "uint64" if dtype == "uint64" else "int64"
    low, high = _bound("minval", minval, shape, wide), _bound("maxval", maxval, shape, wide)
    return _randint(_key(seed), low, high, shape=shape, dtype=dtype)


def _bound(name, value, shape, wide):
    if isinstance(value, int):
        least, greatest = (0, 2**64) if wide == "uint64" else (-(2**63), 2**63)
        if not least <= value <= greatest:
            raise ValueError(f"randint: `{name}` {value} is out of the range of {wide}.")
        # The bound that is one above the greatest number, 2^64 or 2^63, is not representable: the greatest number is never drawn then.
        return convert_to_tensor(min(value, greatest - 1), wide)
    return _parameter("randint", name, value, shape, wide)


@fused
def _categorical(key, logits, *, shape, dtype):
    """The Gumbel-max method. Small exponentials, which decide, come from 32 bits: classes of a probability of 1e-9 are drawn."""
    batch, classes = logits.shape
    cube = (batch, *shape, classes)
    bits = p.random_bits(key, cube)
    unit = p.mul(p.add(p.convert(bits, logits.dtype), _full(0.5, bits, logits.dtype)), _full(2.0**-32, bits, logits.dtype))
    unit = p.min(unit, _full(1 - 2.0**-24, unit))
    gumbel = p.neg(p.log(p.neg(p.log1p(p.neg(unit)))))
    return p.convert(p.argmax(p.add(gumbel, p.broadcast(logits, cube, (0, 2))), 2), dtype)


def categorical(logits, num_samples, dtype="int32", seed=None):
    """(batch, num_samples) classes drawn with the probabilities softmax(logits) of (batch, classes)."""
    logits = convert_to_tensor(logits)
    if logits.ndim != 2:
        raise ValueError(f"categorical: `logits` must be of shape (batch, classes), got shape {tuple(logits.shape)}.")
    if logits.shape[1] == 0 and logits.shape[0] != 0:
        raise ValueError(f"categorical: `logits` of shape {tuple(logits.shape)} have no classes to draw from.")
    if dtypes.is_complex(logits.dtype):
        raise TypeError(f"categorical: `logits` have dtype {logits.dtype}; they must be real.")
    logits = convert_to_tensor(logits, "float64" if logits.dtype == "float64" else "float32")
    samples = _extents("categorical", (num_samples,))
    return _categorical(_key(seed), logits, shape=samples, dtype=dtypes.canonical(dtype))


def dropout(inputs, rate, noise_shape=None, seed=None):
    """`inputs` with a share `rate` of them 0, the others divided by 1 - rate; along axes of extent 1 in `noise_shape`, all or none."""
    inputs = convert_to_tensor(inputs)
    if not (dtypes.is_float(inputs.dtype) or dtypes.is_complex(inputs.dtype)):
        raise ValueError(f"dropout: inputs of dtype {inputs.dtype} cannot be scaled; cast them to a floating point dtype.")
    noise_shape = _noise_shape(noise_shape, inputs.shape)
    if not isinstance(rate, (int, float)):
        rate = _parameter("dropout", "rate", rate, tuple(inputs.shape), "float32")
        keep = p.ge(_unit(_key(seed), noise_shape, "float32"), broadcast_to(rate, noise_shape))
        kept = p.sub(scalar_like(1.0, rate), rate)
        scale = broadcast_to(cast(p.div(scalar_like(1.0, kept), kept), inputs.dtype), inputs.shape)
    else:
        if not 0 <= rate <= 1:
            raise ValueError(f"dropout: `rate` must be between 0 and 1, got {rate}.")
        if rate == 1:
            return p.zeros_like(inputs)
        # An integer comparison decides: an element is kept when its bits lie below keep * 2^32.
        bits = p.random_bits(_key(seed), noise_shape)
        keep = p.lt(bits, _full(min(2**32 - 1, round((1.0 - rate) * 2**32)), bits))
        scale = _full(1.0 / (1.0 - rate), inputs)
    return p.select(broadcast_to(keep, inputs.shape), p.mul(inputs, scale), p.zeros_like(inputs))


def _noise_shape(noise_shape, shape):
    if noise_shape is None:
        return shape
    if len(noise_shape) != len(shape):
        raise ValueError(f"dropout: `noise_shape` {tuple(noise_shape)} must have an entry for each axis of inputs of shape {tuple(shape)}.")
    noise_shape = tuple(n if s is None else s for s, n in zip(noise_shape, shape, strict=True))
    if any(s not in (1, n) for s, n in zip(noise_shape, shape, strict=True)):
        raise ValueError(f"dropout: `noise_shape` {noise_shape} does not broadcast to the inputs' shape {tuple(shape)}.")
    return noise_shape


def shuffle(x, axis=0, seed=None):
    """The slices of `x` along `axis` in random order."""
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    n = x.shape[axis]
    key = _key(seed)
    # Two words per slice: ties, which would keep their order, have probability below n^2 / 2^64.
    _, _, order = p.sort((p.random_bits(key, (n,)), p.random_bits(key, (n,), 1), p.iota((n,), 0, "int32")), 0, keys=2)
    return take(x, order, axis=axis) if n != 0 else x


@fused
def _gamma(key, alpha, *, shape, dtype):
    draw = p.convert(p.exp(p.random_gamma(key, broadcast_to(alpha, shape))), dtype)
    return p.max(draw, _full(_TINY.get(dtype, 0.0), draw))


def gamma(shape, alpha, dtype=None, seed=None):
    """Gamma variates of shape parameter `alpha` and scale 1, always above 0; NaN where `alpha` is not positive."""
    dtype, work = _real("gamma", dtype)
    shape = _extents("gamma", shape)
    alpha = _parameter("gamma", "alpha", alpha, shape, work)
    return _gamma(_key(seed), alpha, shape=shape, dtype=dtype)


@fused
def _beta(key, alpha, beta, *, shape, dtype):
    """a / (a + b) of gamma variates a and b, from their logarithms: both may be too small for their dtype."""
    a, b = p.random_gamma(key, broadcast_to(alpha, shape)), p.random_gamma(p.not_(key), broadcast_to(beta, shape))
    return p.convert(p.logistic(p.sub(a, b)), dtype)


def beta(shape, alpha, beta, dtype=None, seed=None):
    """Beta variates; NaN where `alpha` or `beta` is not positive."""
    dtype, work = _real("beta", dtype)
    shape = _extents("beta", shape)
    alpha, beta = _parameter("beta", "alpha", alpha, shape, work), _parameter("beta", "beta", beta, shape, work)
    return _beta(_key(seed), alpha, beta, shape=shape, dtype=dtype)


@fused
def _binomial(key, counts, probabilities, *, shape, dtype):
    return p.convert(p.random_binomial(key, broadcast_to(counts, shape), broadcast_to(probabilities, shape)), dtype)


def binomial(shape, counts, probabilities, dtype=None, seed=None):
    """The number of successes in `counts` trials; NaN where `counts` is negative or the probability is not in [0, 1]."""
    dtype, work = _real("binomial", dtype)
    shape = _extents("binomial", shape)
    counts = _parameter("binomial", "counts", counts, shape, work)
    probabilities = _parameter("binomial", "probabilities", probabilities, shape, work)
    return _binomial(_key(seed), counts, probabilities, shape=shape, dtype=dtype)


globals().update(naming.named_operations(globals(), pure=False))
