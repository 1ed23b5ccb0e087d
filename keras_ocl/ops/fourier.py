"""keras.ops.math, Fourier transforms: of complex pairs, of real tensors, short-time."""

import numpy as np
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, maximum, power_above, product
from keras_ocl.ops import numpy as knp
from keras_ocl.ops.conversion import convert_to_tensor, from_host
from keras_ocl.ops.promotion import broadcast_to, floating, scalar_like


def windows(x, length, stride):
    """Overlapping parts of the last axis: (..., number of them, length)."""
    count = maximum((x.shape[-1] - length) // stride + 1, 0)
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


def _turned(turns, n, sign):
    """cos and sin of 2 pi `turns` / n: whole numbers between 0 and n, brought into [-n/2, n/2) for the sake of rounding."""
    over = P.gt(turns, scalar_like(n // 2, turns))
    turns = P.select(over, P.sub(turns, scalar_like(n, turns)), turns)
    angle = P.mul(turns, scalar_like(sign * 2 * np.pi / n, turns))
    return P.cos(angle), P.sin(angle)


def _twiddles(rows, columns, n, sign, dtype):
    """Matrices (rows, columns) of cos and sin of 2 pi j k / n, for rows * columns below 2^31. Products are exact, in integers."""
    j, k = P.iota((rows, columns), 0, "int32"), P.iota((rows, columns), 1, "int32")
    turns = P.mul(j, k)
    if rows * columns > n:
        turns = P.mod(turns, scalar_like(n, turns))
    return _turned(P.convert(turns, dtype), n, sign)


# Up to this length one product with the matrix of roots of unity does it; beyond the other, a prime factor is not worth a matrix.
_DIRECT = 64
_LARGE_PRIME = 256


def _transform(re, im, axis, sign):
    """The unnormalised discrete Fourier transform along an axis (sign -1 forward, 1 backward); `im` None for real input.

    Cooley and Tukey (1965): lengths with a factor near their square root split into two transforms. Short ones are a matrix product.
    Lengths with a large prime factor become a convolution (Bluestein, 1970). So any length n takes O(n log n).
    """
    axis = canonicalize_axis(axis, re.ndim)
    if axis != re.ndim - 1:
        re = knp.moveaxis(re, axis, -1)
        im = None if im is None else knp.moveaxis(im, axis, -1)
        re, im = _transform(re, im, -1, sign)
        return knp.moveaxis(re, -1, axis), knp.moveaxis(im, -1, axis)
    n = int(re.shape[-1])
    factor, greatest_prime = _factors(n)
    if greatest_prime > _LARGE_PRIME:
        return _chirp(re, im, n, sign)
    if n <= _DIRECT or factor == 1:
        return _product(re, im, *_twiddles(n, n, max(n, 1), sign, re.dtype))
    # x[j1 * b + j2], X[k1 + a * k2] with n = a * b.
    a, b = factor, n // factor
    outer = re.shape[:-1]

    def split(x):
        return None if x is None else knp.swapaxes(P.reshape(x, (*outer, a, b)), -1, -2)

    re, im = _transform(split(re), split(im), -1, sign)  # (..., j2, k1)
    re, im = _times(re, im, *_twiddles(b, a, n, sign, re.dtype))
    re, im = _transform(knp.swapaxes(re, -1, -2), knp.swapaxes(im, -1, -2), -1, sign)  # (..., k1, k2)
    return tuple(P.reshape(knp.swapaxes(x, -1, -2), (*outer, n)) for x in (re, im))


def _factors(n):
    """The divisor of n nearest below its square root, and its greatest prime factor (1 of 0 and 1)."""
    near = max((d for d in range(1, int(n**0.5) + 1) if n % d == 0), default=1)
    prime, rest, d = 1, n, 2
    while d * d <= rest:
        while rest % d == 0:
            prime, rest = d, rest // d
        d += 1
    return near, max(prime, rest) if n else 1


def _times(re, im, cosine, sine):
    """Complex product with factors that lack the outer axes; `im` None for real numbers."""
    cosine, sine = broadcast_to(cosine, re.shape), broadcast_to(sine, re.shape)
    if im is None:
        return P.mul(re, cosine), P.mul(re, sine)
    return P.sub(P.mul(re, cosine), P.mul(im, sine)), P.add(P.mul(re, sine), P.mul(im, cosine))


def _chirp(re, im, n, sign):
    """Bluestein's algorithm: as 2 j k = j^2 + k^2 - (k - j)^2, a convolution with a chirp, in transforms of a power of two."""
    m = power_above(2 * n - 1)
    k = P.iota((n,), 0, "int64")  # squares of what fits 32 bits need not
    turns = P.convert(P.mod(P.mul(k, k), scalar_like(2 * n, k)), re.dtype)
    cosine, sine = _turned(turns, 2 * n, sign)
    chirped = _times(re, im, cosine, sine)
    spectrum = _transform(*(_fit(x, m) for x in chirped), -1, -1)
    # The conjugate chirp at distances from 1 - n to n - 1, those below 0 at the end.
    around = [P.concat([_fit(x, m - n + 1), P.reverse(P.slice(x, (1,), (n,)), (0,))], 0) for x in (cosine, P.neg(sine))]
    kernel = _transform(*around, -1, -1)
    back = _transform(*_times(*spectrum, *kernel), -1, 1)
    re, im = (P.div(x[..., :n], scalar_like(m, x[..., :n])) for x in back)
    return _times(re, im, cosine, sine)


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
    if x.ndim < 1 or (x.shape[-1] if fft_length is None else fft_length) < 1:
        raise ValueError(f"rfft: a last axis or an fft_length of at least 1 is needed, got shape {tuple(x.shape)} and {fft_length}.")
    if fft_length is not None:
        x = _fit(x, fft_length)
    kept = x.shape[-1] // 2 + 1
    re, im = _transform(x, None, -1, -1)
    return re[..., :kept], im[..., :kept]


def irfft(x, fft_length=None):
    """The inverse of rfft: a real tensor whose last axis has `fft_length` elements (by default twice the frequencies less two)."""
    re, im = _pair(x)
    n = fft_length if fft_length is not None else 2 * (re.shape[-1] - 1)
    if n < 1:
        raise ValueError(f"irfft: an fft_length of at least 1 is needed, got {n} for frequencies of shape {tuple(re.shape)}.")
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
        # The periodic form: one sample more, the last dropped. A single sample keeps its value.
        taps = (np.hanning if window == "hann" else np.hamming)(sequence_length + 1)[:-1] if sequence_length > 1 else [1.0]
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
    frames = windows(x, fft_length, sequence_stride)
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
        end = result.shape[-1] - fft_length // 2
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
