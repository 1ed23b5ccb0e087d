"""keras.ops.numpy, statistics: quantiles, medians, histograms, counts, correlation, differences, integrals."""

import numpy as np
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.conversion import convert_to_tensor, from_host, read
from keras_ocl.ops.gradients import custom_gradient
from keras_ocl.ops.numpy.creation import linspace
from keras_ocl.ops.numpy.indexing import _bisect, needs_values, take_along_axis
from keras_ocl.ops.numpy.reduction import floating_dtype, mean
from keras_ocl.ops.promotion import axes_of, broadcast, broadcast_to, floating, keep, scalar_like
from keras_ocl.ops.result_types import result_type

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(x, q, axis=None, method="linear", keepdims=False):
    """Quantiles q (in [0, 1]; a vector of them gives a new first axis) along `axis`; NaN where there is a NaN."""
    return _quantile("quantile", x, q, axis, method, keepdims, False)


def nanquantile(x, q, axis=None, method="linear", keepdims=False):
    """Quantiles along `axis` of what is not NaN."""
    return _quantile("nanquantile", x, q, axis, method, keepdims, True)


def percentile(x, q, axis=None, method="linear", keepdims=False):
    """Percentiles q (in [0, 100]) along `axis`."""
    return _quantile("percentile", x, _hundredth(q), axis, method, keepdims, False)


def nanpercentile(x, q, axis=None, method="linear", keepdims=False):
    """Percentiles q along `axis` of what is not NaN."""
    return _quantile("nanpercentile", x, _hundredth(q), axis, method, keepdims, True)


def median(x, axis=None, keepdims=False):
    """Median along `axis`."""
    return _quantile("median", x, 0.5, axis, "linear", keepdims, False)


def nanmedian(x, axis=None, keepdims=False):
    """Median along `axis` of what is not NaN."""
    return _quantile("nanmedian", x, 0.5, axis, "linear", keepdims, True)


def _hundredth(q):
    if isinstance(q, (int, float)):
        return q / 100
    q = floating(q)
    return P.div(q, scalar_like(100, q))


def _quantile(op, x, q, axis, method, keepdims, skip_nan):
    if method not in _METHODS:
        raise ValueError(f"{op}: method must be one of {', '.join(_METHODS)}, got {method!r}.")
    if isinstance(q, (int, float)) and not 0 <= q <= 1:
        raise ValueError(f"{op}: quantiles lie between 0 and 1 (percentiles between 0 and 100), got {q}.")
    x = convert_to_tensor(x)
    dtype = floating_dtype(x.dtype)
    x = convert_to_tensor(x, result_type(dtype, "float32"))
    q = convert_to_tensor(q, x.dtype)
    if q.ndim > 1:
        raise ValueError(f"{op}: q must be a scalar or a vector, got shape {tuple(q.shape)}.")
    axes = axes_of(axis, x.ndim)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    rows = P.transpose(x, (*rest, *axes)) if axes != tuple(range(len(rest), x.ndim)) else x
    outer = tuple(x.shape[i] for i in rest)
    rows = P.reshape(rows, (*outer, product(x.shape[i] for i in axes)))
    result = _along_last(rows, P.reshape(q, (q.size,)), method, skip_nan)  # outer + (number of quantiles,)
    result = P.transpose(result, (len(outer), *range(len(outer))))
    final = keep(x.shape, axes) if keepdims else outer
    return convert_to_tensor(P.reshape(result, (*q.shape, *final)), dtype)


def _along_last(rows, q, method, skip_nan):
    """Quantiles of each row: between the two sorted neighbours of the fractional rank."""
    n = rows.shape[-1]
    outer = rows.shape[:-1]
    if n == 0:
        return P.full((*outer, q.shape[0]), float("nan"), rows.dtype)
    is_nan = P.is_nan(rows)
    ordered = P.sort((rows,), rows.ndim - 1, 1)[0]  # NaN last
    shape = (*outer, q.shape[0])
    q = P.broadcast(q, shape, (len(outer),))
    if skip_nan:
        count = P.reduce_sum(P.convert(P.not_(is_nan), rows.dtype), (rows.ndim - 1,))
        last = P.broadcast(P.sub(count, scalar_like(1, count)), shape, tuple(range(len(outer))))
    else:
        last = scalar_like(n - 1, q)
    zero = scalar_like(0, q)
    rank = P.max(P.mul(q, last), zero)
    low, high = P.floor(rank), P.min(P.ceil(rank), P.max(last, zero))
    fraction = P.sub(rank, low)
    if method == "nearest":
        low = high = P.round(rank)
    below = take_along_axis(ordered, P.convert(low, "int32"), -1)
    above = take_along_axis(ordered, P.convert(high, "int32"), -1)
    if method == "lower" or method == "nearest":
        result = below
    elif method == "higher":
        result = above
    elif method == "midpoint":
        result = P.mul(P.add(below, above), scalar_like(0.5, below))
    else:
        result = _between(below, above, fraction)
    if skip_nan:
        return result
    broken = P.broadcast(P.reduce_or(is_nan, (rows.ndim - 1,)), shape, tuple(range(len(outer))))
    return P.select(broken, scalar_like(float("nan"), result), result)


@custom_gradient
def _between(below, above, fraction):
    """What lies between two neighbours: equal ones (infinities too) need no interpolation, but share the gradient as others do."""
    equal = P.eq(below, above)

    def grad(upstream):
        part = P.mul(upstream, fraction)
        slope = P.select(equal, P.zeros_like(below), P.sub(above, below))
        return P.sub(upstream, part), part, P.mul(upstream, slope)

    return P.select(equal, below, P.add(below, P.mul(P.sub(above, below), fraction))), grad


def bincount(x, weights=None, minlength=0, sparse=False):
    """How often each value from 0 occurs in `x` (or the sum of `weights` there), for a vector or each row of a matrix.

    The greatest value is read back, so eager only, unless in a trace `minlength` says how many bins there are.
    """
    if sparse:
        raise ValueError("bincount: `sparse=True` is not supported with the ocl backend.")
    x = convert_to_tensor(x)
    if x.ndim not in (1, 2):
        raise ValueError(f"bincount: a vector or a matrix is needed, got shape {tuple(x.shape)}.")
    if not dtypes.is_integer(x.dtype) and x.dtype != "bool":
        raise TypeError(f"bincount: integers are counted, got dtype {x.dtype}; cast the tensor first.")
    dtype = "int32"
    if weights is not None:
        weights = convert_to_tensor(weights)
        if weights.shape != x.shape:
            raise ValueError(f"bincount: weights of shape {tuple(weights.shape)} do not fit x of shape {tuple(x.shape)}.")
        dtype = result_type(x.dtype, weights.dtype)
        weights = convert_to_tensor(weights, dtype)
    if dtypes.itemsize(x.dtype) < 4:
        x = P.convert(x, "int32")
    if x.is_symbolic() and minlength:
        bins = minlength
    else:
        needs_values("bincount without minlength")
        bins = max(int(read(P.reduce_max(x, tuple(range(x.ndim))))) + 1 if x.size else 0, int(minlength))
    check_indices("bincount", x, bins, wraps=False)
    ones = weights if weights is not None else P.full(x.shape, 1, dtype)
    if x.ndim == 1:
        return P.scatter_new((bins,), (x,), ones, (0,))
    rows = P.iota(x.shape, 0, x.dtype)
    return P.scatter_new((x.shape[0], bins), (rows, x), ones, (0, 1))


def histogram(x, bins=10, range=None):
    """Counts of the elements in `bins` equal bins (or between given edges), and the edges."""
    x = floating(x)
    x = P.reshape(x, (x.size,))
    if isinstance(bins, int):
        edges = _edges(x, bins, range)
    else:
        edges = convert_to_tensor(bins, x.dtype)
    count = edges.shape[0] - 1
    position = P.sub(_bisect(edges, x, edges.shape[0], P.le), P.full(x.shape, 1, "int32"))
    last = P.broadcast(P.slice(edges, (count,), (count + 1,)), x.shape, (0,))
    # The last bin is closed on the right; what lies outside is dropped by the scatter.
    position = P.select(P.eq(x, last), scalar_like(count - 1, position), position)
    outside = P.or_(P.lt(position, scalar_like(0, position)), P.is_nan(x))
    position = P.select(outside, scalar_like(count, position), position)
    return P.scatter_new((count,), (position,), P.full(x.shape, 1, "int32"), (0,)), edges


def _edges(x, bins, range):
    if range is not None:
        low, high = (float(v) for v in range)
        if low == high:
            low, high = low - 0.5, high + 0.5
        return from_host(np.linspace(low, high, bins + 1), x.dtype)
    if not x.size:
        return from_host(np.linspace(0.0, 1.0, bins + 1), x.dtype)
    low, high = P.reduce_min(x, (0,)), P.reduce_max(x, (0,))
    flat = P.eq(low, high)
    half = P.constant(0.5, x.dtype)
    low, high = P.select(flat, P.sub(low, half), low), P.select(flat, P.add(high, half), high)
    return linspace(low, high, bins + 1, dtype=x.dtype)


def corrcoef(x):
    """Pearson correlation coefficients of the rows of a matrix."""
    x = convert_to_tensor(x)
    dtype = floating_dtype(x.dtype)
    x = convert_to_tensor(x, result_type(dtype, "float32"))
    if x.ndim == 1:
        x = P.reshape(x, (1, *x.shape))
    if x.ndim != 2:
        raise ValueError(f"corrcoef: a vector or a matrix is needed, got shape {tuple(x.shape)}.")
    x = P.sub(x, broadcast_to(mean(x, 1, True), x.shape))
    adjoint, size = (P.conj(x), P.abs(x)) if dtypes.is_complex(x.dtype) else (x, x)
    covariance = P.dot_general(x, adjoint, ((1,), (1,)), ((), ()))
    scale = P.convert(P.sqrt(P.reduce_sum(P.mul(size, size), (1,))), x.dtype)
    n = x.shape[0]
    result = P.div(P.div(covariance, P.broadcast(scale, (n, n), (0,))), P.broadcast(scale, (n, n), (1,)))
    if not dtypes.is_complex(x.dtype):
        result = P.max(P.min(result, scalar_like(1, result)), scalar_like(-1, result))
    return convert_to_tensor(P.reshape(result, ()) if n == 1 else result, dtype)


def diff(a, n=1, axis=-1):
    """The n-th difference of neighbours along an axis."""
    x = convert_to_tensor(a)
    axis = canonicalize_axis(axis, x.ndim)
    for _ in range(n):
        low, high = _neighbours(x, axis)
        x = P.ne(low, high) if x.dtype == "bool" else P.sub(high, low)
    return x


def _neighbours(x, axis):
    """All but the last, and all but the first, along an axis."""
    extent = x.shape[axis]
    least = 1 if extent > 0 else 0
    starts = tuple(least if i == axis else 0 for i in range(x.ndim))
    limits = tuple(extent - least if i == axis else m for i, m in enumerate(x.shape))
    return P.slice(x, (0,) * x.ndim, limits), P.slice(x, starts, x.shape)


def trapezoid(y, x=None, dx=1.0, axis=-1):
    """The integral of samples `y` along an axis by the trapezoidal rule, at positions `x` or `dx` apart."""
    y = convert_to_tensor(y)
    dtype = floating_dtype(y.dtype)
    y = convert_to_tensor(y, result_type(dtype, "float32"))
    axis = canonicalize_axis(axis, y.ndim)
    low, high = _neighbours(y, axis)
    area = P.mul(P.add(low, high), scalar_like(0.5, low))
    if x is None:
        step = convert_to_tensor(dx, y.dtype)
    else:
        x = convert_to_tensor(x, y.dtype)
        step = diff(x, 1, axis if x.ndim > 1 else 0)
        if step.ndim == 1 and y.ndim > 1:
            step = P.reshape(step, tuple(step.shape[0] if i == axis else 1 for i in range(y.ndim)))
    return convert_to_tensor(P.reduce_sum(P.mul(*broadcast("trapezoid", area, step)), (axis,)), dtype)
