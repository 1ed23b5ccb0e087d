"""What is done to images before they reach a network: contrast, whitening, widths and sizes."""

import numpy as np
from scipy import ndimage

WHITENING = 0.1  # added to the variances: the filter bias of Goodfellow et al. 2013 for images of unit contrast
CHUNK = 1024  # images resized at a time


def normalize_contrast(x, least=1e-8):
    """Return images of zero mean and unit standard deviation each: global contrast normalisation (Coates et al. 2011).

    x: floats (examples, ...). An image whose standard deviation is below `least` is only centred.
    """
    axes = tuple(range(1, x.ndim))
    x = x - x.mean(axes, keepdims=True)
    deviation = x.std(axes, keepdims=True)
    return x / np.where(deviation < least, 1, deviation).astype(x.dtype)


def center(x, *others):
    """Return [x, *others] less the mean training image, that of `x` (examples, ...)."""
    mean = x.mean(0, dtype="float64").astype(x.dtype)
    return [part - mean for part in (x, *others)]


def standardize(x, *others):
    """Return [x, *others] with each feature shifted and scaled to mean 0 and standard deviation 1 in `x` (examples, features)."""
    mean, deviation = x.mean(0), x.std(0)
    return [(part - mean) / np.where(deviation < 1e-8, 1, deviation).astype(x.dtype) for part in (x, *others)]


def whiten(x, *others, bias=WHITENING):
    """Return [x, *others] whitened by ZCA (Bell & Sejnowski 1997) as it is learnt from `x`, floats (examples, ...).

    An image less the mean one is multiplied with V (S + bias)^-1/2 V', where V S V' is the covariance of the training images. With fewer
    images than pixels V comes from their inner products, which gives the directions that vary; the others are scaled by bias^-1/2 alike.
    """
    flat = x.reshape(len(x), -1)
    mean = flat.mean(0, dtype="float64").astype(x.dtype)
    flat = flat - mean
    examples, pixels = flat.shape
    if examples < pixels:
        variances, vectors = np.linalg.eigh(flat @ flat.T / examples)
        kept = variances > variances[-1] * 1e-6
        variances = variances[kept]
        directions = flat.T @ (vectors[:, kept] / np.sqrt(variances * examples))
    else:
        variances, directions = np.linalg.eigh(flat.T @ flat / examples)
        variances = np.maximum(variances, 0)
    scales = 1 / np.sqrt(variances + bias) - 1 / np.sqrt(bias)

    def apply(part):
        part = part.reshape(len(part), -1) - mean
        return part @ directions * scales.astype(x.dtype) @ directions.T + part / np.sqrt(bias, dtype=x.dtype)

    return [apply(part).reshape(part.shape) for part in (x, *others)]


def interpolation(size, wanted):
    """Return the matrix (wanted, size) that resizes a line of `size` pixels to `wanted` linearly; the pixels' edges stay edges."""
    return ndimage.zoom(np.eye(size, dtype="float32"), (wanted / size, 1), order=1, mode="nearest", grid_mode=True)


def resize(x, size):
    """Return images (examples, height, width, channels) resized bilinearly to (size, size), of the same dtype."""
    if x.shape[1:3] == (size, size):
        return x
    down, across = (interpolation(extent, size) for extent in x.shape[1:3])
    result = np.empty((len(x), size, size, x.shape[3]), x.dtype)
    for begin in range(0, len(x), CHUNK):
        part = np.einsum("ih,nhwc,jw->nijc", down, x[begin : begin + CHUNK], across, optimize=True)
        result[begin : begin + CHUNK] = part.round() if np.issubdtype(x.dtype, np.integer) else part
    return result


def normalize_width(x, width):
    """Return digits (examples, height, columns, 1) of which each one's inked columns are stretched to exactly `width` columns.

    Ciresan et al. 2012: the same digit at several widths. The height stays. A digit without ink is stretched as it is. x: floats.
    """
    inked = (x > 0).any((1, 3))
    first = inked.argmax(1)
    last = x.shape[2] - inked[:, ::-1].argmax(1)
    result = np.empty((*x.shape[:2], width, 1), x.dtype)
    for begin, end in sorted(set(zip(first.tolist(), last.tolist(), strict=True))):
        rows = (first == begin) & (last == end)
        result[rows, ..., 0] = x[rows, :, begin:end, 0] @ interpolation(end - begin, width).T
    return result
