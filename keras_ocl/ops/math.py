"""keras.ops.math: segments, top-k, special functions, Fourier transforms."""

import numpy as np
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, product
from keras_ocl.ops import numpy as knp
from keras_ocl.ops.conversion import convert_to_tensor, from_host, read
from keras_ocl.ops.numpy_indexing import needs_values
from keras_ocl.ops.promotion import axes_of, broadcast_to, floating, promote, scalar_like


def _segments(op, data, segment_ids, num_segments, mode, empty):
    data, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
    if ids.ndim != 1 or data.ndim < 1 or data.shape[0] != ids.shape[0]:
        raise ValueError(f"{op}: segment_ids of shape {tuple(ids.shape)} must be a vector as long as data of shape {tuple(data.shape)}.")
    if num_segments is None:
        needs_values(f"{op} without num_segments")
        num_segments = int(read(P.reduce_max(ids, (0,)))) + 1
    if mode == "add":
        return P.scatter_new((num_segments, *data.shape[1:]), (ids,), data, (0,))
    start = P.full((num_segments, *data.shape[1:]), empty(data.dtype), data.dtype)
    return P.scatter(start, (ids,), data, (0,), mode)


def _lowest(dtype):
    return float("-inf") if dtypes.is_float(dtype) else 0 if dtype == "bool" else int(np.iinfo(dtypes.numpy_dtype(dtype)).min)


def _highest(dtype):
    return float("inf") if dtypes.is_float(dtype) else 1 if dtype == "bool" else int(np.iinfo(dtypes.numpy_dtype(dtype)).max)


def segment_sum(data, segment_ids, num_segments=None, sorted=False):
    """Sums of the slices of `data` with equal segment ids; ids out of range (-1) are left out."""
    return _segments("segment_sum", data, segment_ids, num_segments, "add", None)


def segment_max(data, segment_ids, num_segments=None, sorted=False):
    """Greatest elements of the slices of `data` with equal segment ids."""
    return _segments("segment_max", data, segment_ids, num_segments, "max", _lowest)


def segment_min(data, segment_ids, num_segments=None, sorted=False):
    """Least elements of the slices of `data` with equal segment ids."""
    return _segments("segment_min", data, segment_ids, num_segments, "min", _highest)


def segment_prod(data, segment_ids, num_segments=None, sorted=False):
    """Products of the slices of `data` with equal segment ids."""
    return _segments("segment_prod", data, segment_ids, num_segments, "mul", lambda dtype: 1)


def top_k(x, k, sorted=True):
    """The k greatest elements along the last axis and their int32 indices, greatest first."""
    x = convert_to_tensor(x)
    if x.ndim < 1 or k > x.shape[-1]:
        raise ValueError(f"top_k: k={k} of a tensor of shape {tuple(x.shape)}.")
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
    return P.rsqrt(floating(x))


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
    return _windows(x, sequence_length, sequence_stride)


def _windows(x, length, stride):
    count = (x.shape[-1] - length) // stride + 1
    rows, columns = P.iota((count, length), 0, "int32"), P.iota((count, length), 1, "int32")
    position = P.add(P.mul(rows, scalar_like(stride, rows)), columns)
    return knp.take(x, position, -1)


def _pair(x):
    """A checked (real, imaginary) pair of tensors."""
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise ValueError(f"Input `x` should be a tuple of two tensors - real and imaginary.Received: x={x}")
    real, imag = (convert_to_tensor(part) for part in x)
    if real.shape != imag.shape:
        raise ValueError(
            "Input `x` should be a tuple of two tensors - real and imaginary."
            "Both the real and imaginary parts should have the same shape. "
            f"Received: x[0].shape = {tuple(real.shape)}, x[1].shape = {tuple(imag.shape)}"
        )
    if not dtypes.is_float(real.dtype) or not dtypes.is_float(imag.dtype):
        raise ValueError(f"At least one tensor in input `x` is not of type float.Received: x={x}.")
    return real, imag


def _get_complex_tensor_from_tuple(x):
    """A (real, imaginary) pair as one complex tensor."""
    real, imag = _pair(x)
    return P.complex(convert_to_tensor(real, "float32"), convert_to_tensor(imag, "float32"))


def _twiddles(n, m, sign, dtype):
    """cos and sin of 2 pi j k / n for k < m: an n x m matrix each. The products are reduced exactly, in integers, first."""
    j, k = P.iota((n, m), 0, "int32"), P.iota((n, m), 1, "int32")
    turn = P.convert(P.mod(P.mul(j, k), scalar_like(n, j)), dtype)
    angle = P.mul(turn, scalar_like(sign * 2 * np.pi / n, turn))
    return P.cos(angle), P.sin(angle)


# Factors up to this are transformed by one product with the matrix of roots of unity.
_DIRECT = 64


def _transform(re, im, axis, sign):
    """The unnormalised discrete Fourier transform along an axis (sign -1 forward, 1 backward); `im` None for real input.

    Cooley and Tukey (1965): lengths with a factor near their square root split into two transforms; others are a matrix product.
    """
    axis = canonicalize_axis(axis, re.ndim)
    if axis != re.ndim - 1:
        re = knp.moveaxis(re, axis, -1)
        im = None if im is None else knp.moveaxis(im, axis, -1)
        re, im = _transform(re, im, -1, sign)
        return knp.moveaxis(re, -1, axis), knp.moveaxis(im, -1, axis)
    n = re.shape[-1]
    factor = _factor(int(n))
    if n <= _DIRECT or factor == 1:
        return _product(re, im, *_twiddles(n, n, sign, re.dtype))
    # x[j1 * b + j2], X[k1 + a * k2] with n = a * b.
    a, b = factor, n // factor
    outer = re.shape[:-1]

    def split(x):
        return None if x is None else knp.swapaxes(P.reshape(x, (*outer, a, b)), -1, -2)

    re, im = _transform(split(re), split(im), -1, sign)  # (..., j2, k1)
    j, k = P.iota((b, a), 0, "int32"), P.iota((b, a), 1, "int32")
    turn = P.convert(P.mul(j, k), re.dtype)
    angle = P.mul(turn, scalar_like(sign * 2 * np.pi / n, turn))
    cosine, sine = broadcast_to(P.cos(angle), re.shape), broadcast_to(P.sin(angle), re.shape)
    re, im = P.sub(P.mul(re, cosine), P.mul(im, sine)), P.add(P.mul(re, sine), P.mul(im, cosine))
    re, im = _transform(knp.swapaxes(re, -1, -2), knp.swapaxes(im, -1, -2), -1, sign)  # (..., k1, k2)
    return tuple(P.reshape(knp.swapaxes(x, -1, -2), (*outer, n)) for x in (re, im))


def _factor(n):
    """The divisor of n nearest below its square root."""
    return max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)


def _product(re, im, cosine, sine):
    if im is None:
        return knp.matmul(re, cosine), knp.matmul(re, sine)
    real = P.sub(knp.matmul(re, cosine), knp.matmul(im, sine))
    return real, P.add(knp.matmul(re, sine), knp.matmul(im, cosine))


def fft(x):
    """The discrete Fourier transform along the last axis of a (real, imaginary) pair; a pair."""
    re, im = _pair(x)
    return _transform(re, im, -1, -1)


def fft2(x):
    """The discrete Fourier transform along the last two axes of a pair; a pair."""
    re, im = _pair(x)
    return _transform(*_transform(re, im, -1, -1), -2, -1)


def ifft2(x):
    """The inverse of fft2."""
    re, im = _pair(x)
    return _scaled(_transform(*_transform(re, im, -1, 1), -2, 1), re.shape[-1] * re.shape[-2])


def _scaled(pair, n):
    return tuple(P.div(x, scalar_like(n, x)) for x in pair)


def _fit(x, length):
    """The last axis cut or padded with zeros to `length`."""
    n = x.shape[-1]
    if length == n:
        return x
    if length < n:
        return x[..., :length]
    return P.pad(x, P.constant(0, x.dtype), (0,) * x.ndim, (0,) * (x.ndim - 1) + (length - n,))


def rfft(x, fft_length=None):
    """The transform of a real tensor along the last axis: the length // 2 + 1 frequencies that are not redundant, as a pair."""
    x = floating(x)
    if fft_length is not None:
        x = _fit(x, fft_length)
    kept = x.shape[-1] // 2 + 1
    re, im = _transform(x, None, -1, -1)
    return re[..., :kept], im[..., :kept]


def irfft(x, fft_length=None):
    """The inverse of rfft: a real tensor whose last axis has `fft_length` elements (by default twice the frequencies less two)."""
    re, im = _pair(x)
    n = fft_length if fft_length is not None else 2 * (re.shape[-1] - 1)
    kept = n // 2 + 1
    re, im = _fit(re, kept), _fit(im, kept)
    # The other half of the spectrum is the conjugate in reverse; the constant and the highest even frequency have no imaginary part.
    position = P.iota((kept,), 0, "int32")
    lone = P.eq(position, scalar_like(0, position))
    if n % 2 == 0:
        lone = P.or_(lone, P.eq(position, scalar_like(n // 2, position)))
    im = P.select(broadcast_to(lone, im.shape), scalar_like(0, im), im)
    mirrored = slice(kept - 2 if n % 2 == 0 else kept - 1, 0, -1)
    re = knp.concatenate([re, re[..., mirrored]], -1)
    im = knp.concatenate([im, P.neg(im[..., mirrored])], -1)
    return _scaled(_transform(re, im, -1, 1), n)[0]


def _stft_window(window, sequence_length, fft_length, dtype):
    """The window padded on both sides to fft_length; ones for None."""
    if window is None:
        return P.full((fft_length,), 1, dtype)
    if isinstance(window, str):
        if window not in ("hann", "hamming"):
            raise ValueError(f'If a string is passed to `window`, it must be one of `"hann"`, `"hamming"`. Received: window={window}')
        # The periodic form: one sample more, the last dropped.
        taps = np.hanning(sequence_length + 1)[:-1] if window == "hann" else np.hamming(sequence_length + 1)[:-1]
        window = from_host(taps, dtype)
    window = convert_to_tensor(window, dtype)
    if window.ndim != 1 or window.shape[0] != sequence_length:
        raise ValueError(f"The shape of `window` must be equal to [sequence_length].Received: window shape={tuple(window.shape)}")
    left = (fft_length - sequence_length) // 2
    return P.pad(window, P.constant(0, dtype), (left,), (fft_length - sequence_length - left,))


def stft(x, sequence_length, sequence_stride, fft_length, window="hann", center=True):
    """Short-time Fourier transform of the last axis: a pair of shape (..., number of windows, fft_length // 2 + 1)."""
    x = convert_to_tensor(x)
    if x.dtype not in ("float32", "float64"):
        raise TypeError(f"Invalid input type. Expected `float32` or `float64`. Received: input type={x.dtype}")
    if fft_length < sequence_length:
        raise ValueError(
            "`fft_length` must equal or larger than `sequence_length`. "
            f"Received: sequence_length={sequence_length}, fft_length={fft_length}"
        )
    taps = _stft_window(window, sequence_length, fft_length, x.dtype)
    if center:
        half = fft_length // 2
        x = knp.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    frames = _windows(x, fft_length, sequence_stride)
    return rfft(P.mul(frames, broadcast_to(taps, frames.shape)))


def istft(x, sequence_length, sequence_stride, fft_length, length=None, window="hann", center=True):
    """The inverse of stft: windows weighted and summed where they overlap (Griffin and Lim, 1984).

    The weights are those of the steady state, as TensorFlow's, so samples that fewer windows cover are scaled down.
    """
    re, im = _pair(x)
    if re.ndim < 2:
        raise ValueError(f"Input `x` must have at least 2 dimensions. Received shape: {tuple(re.shape)}")
    frames = irfft((re, im), fft_length)
    if window is not None:
        taps = _stft_window(window, sequence_length, fft_length, frames.dtype)
        periods = ceil_div(fft_length, sequence_stride)
        spare = periods * sequence_stride - fft_length
        squares = P.pad(P.mul(taps, taps), P.constant(0, taps.dtype), (0,), (spare,))
        total = P.reduce_sum(P.reshape(squares, (periods, sequence_stride)), (0,))
        taps = P.div(taps, knp.tile(total, periods)[:fft_length])
        frames = P.mul(frames, broadcast_to(taps, frames.shape))
    result = _overlap_add(frames, sequence_stride)
    start = fft_length // 2 if center else 0
    if length is not None:
        end = start + length
    elif center:
        end = -(fft_length // 2)
    else:
        end = fft_length + sequence_stride * (re.shape[-2] - 1)
    return result[..., start:end]


def _overlap_add(frames, stride):
    """Frames (..., count, length) summed where they overlap, `stride` apart."""
    count, length = frames.shape[-2:]
    outer = frames.shape[:-2]
    batch = product(outer)
    size = stride * (count - 1) + length
    rows, columns = P.iota((count, length), 0, "int32"), P.iota((count, length), 1, "int32")
    position = P.add(P.mul(rows, scalar_like(stride, rows)), columns)
    flat = knp.moveaxis(P.reshape(frames, (batch, count, length)), 0, -1)
    result = P.scatter_new((size, batch), (position,), flat, (0,))
    return P.reshape(P.transpose(result, (1, 0)), (*outer, size))
