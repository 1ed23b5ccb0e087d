"""keras.ops.numpy, reductions: sums, products, extremes, means, variances and cumulative forms, NaN-ignoring ones too."""

from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.promotion import as_bool, axes_of, broadcast_to, floating, keep, scalar_like
from keras_ocl.ops.result_types import result_type
from keras_ocl.ops.slicing import index_dtype


def _reduce(primitive, x, axis, keepdims):
    axes = axes_of(axis, x.ndim)
    result = primitive(x, axes) if axes else x
    return P.reshape(result, keep(x.shape, axes)) if keepdims and axes else result


def _total_dtype(dtype):
    """What a sum or product of `dtype` is accumulated and returned in."""
    if dtype in ("bool", "int8", "int16"):
        return "int32"
    return "uint32" if dtype in ("uint8", "uint16") else dtype


def sum(x, axis=None, keepdims=False):
    """Sum along `axis`. Small integers and bool add up in 32 bits."""
    x = convert_to_tensor(x)
    return _reduce(P.reduce_sum, convert_to_tensor(x, _total_dtype(x.dtype)), axis, keepdims)


def prod(x, axis=None, keepdims=False, dtype=None):
    """Product along `axis`."""
    x = convert_to_tensor(x)
    x = convert_to_tensor(x, dtype or _total_dtype(x.dtype))
    return _reduce(_complex_product if dtypes.is_complex(x.dtype) else P.reduce_prod, x, axis, keepdims)


def _complex_product(x, axes):
    """Products of complex numbers, half with half until one is left."""
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    outer = tuple(x.shape[i] for i in kept)
    x = P.reshape(P.transpose(x, (*kept, *axes)), (*outer, product(x.shape[a] for a in axes)))
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        first, second, rest = (
            P.slice(x, (0,) * len(outer) + (low,), (*outer, high)) for low, high in ((0, half), (half, 2 * half), (2 * half, x.shape[-1]))
        )
        x = P.concat([P.mul(first, second), rest], len(outer))
    return P.reshape(x, outer) if x.shape[-1] else P.full(outer, 1, x.dtype)


def _extreme(op, x, axis, keepdims, initial, reduce, combine, of_bool):
    x = convert_to_tensor(x)
    axes = axes_of(axis, x.ndim)
    if initial is None and _any_zero(x.shape, axes):
        raise ValueError(f"{op}: a tensor of shape {tuple(x.shape)} has no elements along axes {axes}; use keras.ops.{op} with `initial`.")
    result = _reduce(of_bool if x.dtype == "bool" else reduce, x, axis, keepdims)
    if initial is not None:
        result = combine(result, broadcast_to(convert_to_tensor(initial, x.dtype), result.shape))
    return result


def _any_zero(shape, axes):
    """Whether a plain extent among `axes` is 0."""
    return any(shape[a] == 0 for a in axes)


def max(x, axis=None, keepdims=False, initial=None):
    """Greatest element along `axis`, and of `initial` if given."""
    return _extreme("max", x, axis, keepdims, initial, P.reduce_max, P.max, P.reduce_or)


def min(x, axis=None, keepdims=False, initial=None):
    """Least element along `axis`, and of `initial` if given."""
    return _extreme("min", x, axis, keepdims, initial, P.reduce_min, P.min, P.reduce_and)


def amax(x, axis=None, keepdims=False):
    """Greatest element along `axis`."""
    return max(x, axis, keepdims)


def amin(x, axis=None, keepdims=False):
    """Least element along `axis`."""
    return min(x, axis, keepdims)


def ptp(x, axis=None, keepdims=False):
    """Greatest less least element along `axis`."""
    x = convert_to_tensor(x)
    return P.sub(max(x, axis, keepdims), min(x, axis, keepdims))


def mean(x, axis=None, keepdims=False):
    """Mean along `axis`; of integers, floating. 16-bit floats are averaged in float32."""
    x = convert_to_tensor(x)
    compute = x.dtype if dtypes.is_complex(x.dtype) else result_type(x.dtype, "float32")
    result = x.dtype if dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype) else compute
    return convert_to_tensor(_mean(convert_to_tensor(x, compute), axis, keepdims), result)


def _mean(x, axis, keepdims):
    axes = axes_of(axis, x.ndim)
    total = _reduce(P.reduce_sum, x, axis, keepdims)
    return P.div(total, scalar_like(product(x.shape[a] for a in axes), total))


def _variance(x, axis, keepdims):
    """Variance of a tensor of a computing dtype: the mean squared distance from the mean, in two passes."""
    x = P.sub(x, broadcast_to(_mean(x, axis, True), x.shape))
    if dtypes.is_complex(x.dtype):
        re, im = P.real(x), P.imag(x)
        return _mean(P.add(P.mul(re, re), P.mul(im, im)), axis, keepdims)
    return _mean(P.mul(x, x), axis, keepdims)


def _spread(x):
    """`x` in its computing dtype and the result's dtype, for var and std."""
    x = convert_to_tensor(x)
    if dtypes.is_complex(x.dtype):
        return x, dtypes.part(x.dtype)
    return convert_to_tensor(x, result_type(x.dtype, "float32")), floating_dtype(x.dtype)


def floating_dtype(dtype):
    """The floating dtype that statistics of `dtype` have."""
    return dtype if dtypes.is_float(dtype) else result_type(dtype, float)


def var(x, axis=None, keepdims=False):
    """Variance along `axis`."""
    x, dtype = _spread(x)
    return convert_to_tensor(_variance(x, axis, keepdims), dtype)


def std(x, axis=None, keepdims=False):
    """Standard deviation along `axis`."""
    x, dtype = _spread(x)
    return convert_to_tensor(P.sqrt(_variance(x, axis, keepdims)), dtype)


def average(x, axis=None, weights=None):
    """Mean along `axis` weighted by `weights` (of x's shape, or along the one axis)."""
    x = convert_to_tensor(x)
    if weights is None:
        return mean(floating(x), axis)
    weights = convert_to_tensor(weights)
    if isinstance(axis, (list, tuple)) and len(axis) == 1:
        (axis,) = axis
    dtype = result_type(x.dtype, weights.dtype, float)
    x, weights = convert_to_tensor(x, dtype), convert_to_tensor(weights, dtype)
    if weights.shape != x.shape:
        if weights.ndim != 1 or axis is None or isinstance(axis, (list, tuple)):
            raise ValueError(f"average: weights of shape {tuple(weights.shape)} do not fit shape {tuple(x.shape)}, axis {axis}.")
        at = canonicalize_axis(axis, x.ndim)
        if weights.shape[0] != x.shape[at]:
            raise ValueError(f"average: {weights.shape[0]} weights for an axis of extent {x.shape[at]}.")
        weights = P.broadcast(weights, x.shape, (at,))
    return P.div(_reduce(P.reduce_sum, P.mul(x, weights), axis, False), _reduce(P.reduce_sum, weights, axis, False))


def count_nonzero(x, axis=None):
    """Number of elements that are not zero along `axis`, int32."""
    return _reduce(P.reduce_sum, P.convert(as_bool(x), "int32"), axis, False)


def _argument(primitive, x, axis, keepdims):
    x = convert_to_tensor(x)
    shape = x.shape
    if x.dtype == "bool":
        x = P.convert(x, "int32")
    if axis is None:
        result = primitive(P.reshape(x, (x.size,)), 0, index_dtype(x.size))
        return P.reshape(result, (1,) * len(shape)) if keepdims else result
    axis = canonicalize_axis(axis, x.ndim)
    result = primitive(x, axis, index_dtype(x.shape[axis]))
    return P.reshape(result, keep(shape, (axis,))) if keepdims else result


def argmax(x, axis=None, keepdims=False):
    """Position of the first greatest element along `axis`, int32; int64 where the axis has 2**31 elements or more."""
    return _argument(P.argmax, x, axis, keepdims)


def argmin(x, axis=None, keepdims=False):
    """Position of the first least element along `axis`, int32; int64 where the axis has 2**31 elements or more."""
    return _argument(P.argmin, x, axis, keepdims)


def _cumulative(primitive, x, axis, dtype):
    x = convert_to_tensor(x)
    dtype = dtype or x.dtype
    x = convert_to_tensor(as_bool(x), "int32") if dtype == "bool" else convert_to_tensor(x, dtype)
    if axis is None:
        return primitive(P.reshape(x, (x.size,)), 0)
    return primitive(x, canonicalize_axis(axis, x.ndim))


def cumsum(x, axis=None, dtype=None):
    """Running sums along `axis` (of all elements without one)."""
    return _cumulative(P.cumsum, x, axis, dtype)


def cumprod(x, axis=None, dtype=None):
    """Running products along `axis` (of all elements without one)."""
    return _cumulative(P.cumprod, x, axis, dtype)


def _without_nan(x, value):
    """`x` with `value` in place of NaN."""
    x = convert_to_tensor(x)
    return P.select(P.is_nan(x), scalar_like(value, x), x) if dtypes.is_float(x.dtype) else x


def nansum(x, axis=None, keepdims=False):
    """Sum along `axis`, NaN counted as 0."""
    return sum(_without_nan(x, 0), axis, keepdims)


def nanprod(x, axis=None, keepdims=False):
    """Product along `axis`, NaN counted as 1."""
    return prod(_without_nan(x, 1), axis, keepdims)


def nancumsum(x, axis=None, dtype=None):
    """Running sums along `axis`, NaN counted as 0."""
    return cumsum(_without_nan(x, 0), axis, dtype)


def nancumprod(x, axis=None, dtype=None):
    """Running products along `axis`, NaN counted as 1."""
    return cumprod(_without_nan(x, 1), axis, dtype)


def _nan_extreme(extreme, x, axis, keepdims, worst):
    x = convert_to_tensor(x)
    if not dtypes.is_float(x.dtype):
        return extreme(x, axis, keepdims)
    all_nan = _reduce(P.reduce_and, P.is_nan(x), axis, keepdims)
    result = extreme(_without_nan(x, worst), axis, keepdims)
    return P.select(all_nan, scalar_like(float("nan"), result), result)


def nanmax(x, axis=None, keepdims=False):
    """Greatest element along `axis` but for NaN; NaN where there is no other."""
    return _nan_extreme(max, x, axis, keepdims, float("-inf"))


def nanmin(x, axis=None, keepdims=False):
    """Least element along `axis` but for NaN; NaN where there is no other."""
    return _nan_extreme(min, x, axis, keepdims, float("inf"))


def _nan_argument(argument, x, axis, keepdims, worst):
    x = convert_to_tensor(x)
    if not dtypes.is_float(x.dtype):
        return argument(x, axis, keepdims)
    all_nan = _reduce(P.reduce_and, P.is_nan(x), axis, keepdims)
    result = argument(_without_nan(x, worst), axis, keepdims)
    return P.select(all_nan, scalar_like(-1, result), result)


def nanargmax(x, axis=None, keepdims=False):
    """Position of the greatest element but for NaN, int32; -1 where there is no other."""
    return _nan_argument(argmax, x, axis, keepdims, float("-inf"))


def nanargmin(x, axis=None, keepdims=False):
    """Position of the least element but for NaN, int32; -1 where there is no other."""
    return _nan_argument(argmin, x, axis, keepdims, float("inf"))


def _nan_mean(x, axis, keepdims):
    """Mean of what is not NaN, for a tensor of a computing dtype."""
    count = _reduce(P.reduce_sum, P.convert(P.not_(P.is_nan(x)), x.dtype), axis, keepdims)
    return P.div(_reduce(P.reduce_sum, _without_nan(x, 0), axis, keepdims), count)


def nanmean(x, axis=None, keepdims=False):
    """Mean along `axis` of what is not NaN."""
    x, dtype = _spread(x)
    return convert_to_tensor(_nan_mean(x, axis, keepdims), dtype)


def _nan_variance(x, axis, keepdims):
    holes = P.is_nan(x)
    distance = P.sub(_without_nan(x, 0), broadcast_to(_nan_mean(x, axis, True), x.shape))
    distance = P.select(holes, scalar_like(0, x), distance)  # no NaN in what is multiplied: gradients multiply by it too
    count = _reduce(P.reduce_sum, P.convert(P.not_(holes), x.dtype), axis, keepdims)
    return P.div(_reduce(P.reduce_sum, P.mul(distance, distance), axis, keepdims), count)


def nanvar(x, axis=None, keepdims=False):
    """Variance along `axis` of what is not NaN."""
    x, dtype = _spread(x)
    return convert_to_tensor(_nan_variance(x, axis, keepdims), dtype)


def nanstd(x, axis=None, keepdims=False):
    """Standard deviation along `axis` of what is not NaN."""
    x, dtype = _spread(x)
    return convert_to_tensor(P.sqrt(_nan_variance(x, axis, keepdims)), dtype)
