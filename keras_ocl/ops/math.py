"""keras.ops.math, complete: segments, top-k, special functions; the Fourier transforms live in a file of their own."""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops import naming
from keras_ocl.ops import numpy as knp
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.conversion import convert_to_tensor, read
from keras_ocl.ops.fourier import (  # noqa: F401
    _get_complex_tensor_from_tuple,
    fft,
    fft2,
    ifft2,
    irfft,
    istft,
    rfft,
    stft,
    windows,
)
from keras_ocl.ops.numpy.indexing import needs_values
from keras_ocl.ops.promotion import axes_of, broadcast_to, floating, keep, promote, scalar_like


def _segments(op, data, segment_ids, num_segments, mode, empty):
    data, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
    if ids.ndim != 1 or data.ndim < 1 or data.shape[0] != ids.shape[0]:
        raise ValueError(f"{op}: segment_ids of shape {tuple(ids.shape)} must be a vector as long as data of shape {tuple(data.shape)}.")
    if not dtypes.is_integer(ids.dtype):
        raise TypeError(f"{op}: segment_ids have dtype {ids.dtype}; they must be integers.")
    if mode in ("add", "mul") and data.dtype == "bool":
        raise TypeError(f"{op}: bool data cannot be combined; cast them to an integer dtype first.")
    if num_segments is None:
        needs_values(f"{op} without num_segments")
        num_segments = max(int(read(P.reduce_max(ids, (0,)))) + 1, 0) if ids.size else 0
    elif num_segments < 0:
        raise ValueError(f"{op}: num_segments must not be negative, got {num_segments}.")
    check_indices(op, ids, num_segments, wraps=False)
    if mode == "add":
        return P.scatter_new((num_segments, *data.shape[1:]), (ids,), data, (0,))
    start = P.full((num_segments, *data.shape[1:]), empty(data.dtype), data.dtype)
    return P.scatter(start, (ids,), data, (0,), mode)


def segment_sum(data, segment_ids, num_segments=None, sorted=False):
    """Sums of the slices of `data` with equal segment ids. Slices with ids out of range are left out, in all four."""
    return _segments("segment_sum", data, segment_ids, num_segments, "add", None)


def segment_max(data, segment_ids, num_segments=None, sorted=False):
    """Greatest elements of the slices of `data` with equal segment ids."""
    return _segments("segment_max", data, segment_ids, num_segments, "max", dtypes.least)


def segment_min(data, segment_ids, num_segments=None, sorted=False):
    """Least elements of the slices of `data` with equal segment ids."""
    return _segments("segment_min", data, segment_ids, num_segments, "min", dtypes.greatest)


def segment_prod(data, segment_ids, num_segments=None, sorted=False):
    """Products of the slices of `data` with equal segment ids."""
    return _segments("segment_prod", data, segment_ids, num_segments, "mul", lambda dtype: 1)


def top_k(x, k, sorted=True):
    """The k greatest elements along the last axis and their int32 indices, greatest first."""
    x = convert_to_tensor(x)
    if x.ndim < 1 or k > x.shape[-1]:
        raise ValueError(f"top_k: k={k} is more than the last extent of a tensor of shape {tuple(x.shape)}.")
    if x.dtype == "bool":
        values, indices = P.top_k(P.convert(x, "int32"), k)
        return P.convert(values, "bool"), indices
    return P.top_k(x, k)


def in_top_k(targets, predictions, k):
    """Whether each target class is among the k highest predictions of its row."""
    targets, predictions = convert_to_tensor(targets), convert_to_tensor(predictions)
    at_target = knp.take_along_axis(predictions, knp.expand_dims(targets, -1), -1)
    if dtypes.is_float(predictions.dtype):
        at_target = knp.where(P.is_nan(at_target), -float("inf"), at_target)  # NaN is no high prediction
    better = P.convert(knp.greater(predictions, at_target), "int32")
    rank = P.reduce_sum(better, (better.ndim - 1,))
    return P.lt(rank, scalar_like(k, rank))


def logsumexp(x, axis=None, keepdims=False):
    """log(sum(exp(x))) along `axis` without overflow."""
    x = floating(x)
    axes = axes_of(axis, x.ndim)
    if not axes:
        return x
    if any(x.shape[a] == 0 for a in axes):
        return P.full(keep(x.shape, axes) if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes), float("-inf"), x.dtype)
    greatest = knp.max(x, axes, keepdims=True)
    greatest = P.stop_gradient(P.select(P.is_finite(greatest), greatest, scalar_like(0, greatest)))
    total = knp.sum(P.exp(P.sub(x, broadcast_to(greatest, x.shape))), axes, keepdims=True)
    result = P.add(P.log(total), greatest)
    return result if keepdims else P.reshape(result, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def cdist(x, y):
    """Euclidean distances between the rows of x and those of y."""
    x, y = promote(x, y, extra=(float,))
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError("`cdist` inputs must have rank >= 2")
    if x.shape[-1] != y.shape[-1]:
        raise ValueError("Last dimension of inputs to `cdist` must match")
    difference = knp.subtract(knp.expand_dims(x, -2), knp.expand_dims(y, -3))
    return P.sqrt(P.reduce_sum(P.mul(difference, difference), (difference.ndim - 1,)))


def rsqrt(x):
    """1 / sqrt(x)."""
    x = floating(x)
    return knp.reciprocal(knp.sqrt(x)) if dtypes.is_complex(x.dtype) else P.rsqrt(x)


def erf(x):
    """The error function."""
    return P.erf(floating(x))


def erfc(x):
    """1 - erf(x), accurate for large x."""
    return P.erfc(floating(x))


def erfinv(x):
    """The inverse of the error function."""
    return P.erf_inv(floating(x))


def logdet(x):
    """log |det x| of square matrices."""
    return knp.slogdet(x)[1]


def extract_sequences(x, sequence_length, sequence_stride):
    """Overlapping windows of the last axis: (..., number of windows, sequence_length)."""
    x = convert_to_tensor(x)
    if x.ndim < 1 or sequence_length < 1 or sequence_stride < 1:
        raise ValueError(
            f"extract_sequences: sequence_length {sequence_length} and sequence_stride {sequence_stride} must be positive and x, of shape"
            f" {tuple(x.shape)}, of rank 1 or more."
        )
    return windows(x, sequence_length, sequence_stride)


globals().update(naming.named_operations(globals()))
