"""Descriptors of images: rows of features that the dense networks take instead of pixels."""

import numpy as np
from scipy import fft

ORIENTATIONS = 8, 8, 4  # of the Gabor filters, from the finest scale to the coarsest
GRID = 4
EDGE = 8  # pixels that an image is extended by on each side, so that filters do not wrap around
CHUNK = 128  # images filtered at a time
GIST = 3 * GRID * GRID * sum(ORIENTATIONS)

HOG_ORIENTATIONS, HOG_CELL, HUES = 9, 8, 10


def frequencies(size):
    """Return the horizontal and vertical frequencies, in cycles per `size` pixels, of a Fourier transform of that size."""
    cycles = fft.fftfreq(size, 1 / size).astype("float32")
    return cycles[None, :], cycles[:, None]


def gabor_filters(size):
    """Return the filters as float32 (20, size, size) over the frequencies of `frequencies`.

    A filter is a Gaussian around its scale's frequency and its orientation (Oliva & Torralba 2001, with the constants of the authors'
    program): 3 scales a factor of 1.85 apart, the finest at 0.3 cycles per pixel, of 8, 8 and 4 orientations.
    """
    across, down = frequencies(size)
    radius, angle = np.hypot(across, down), np.arctan2(down, across)
    filters = []
    for scale, count in enumerate(ORIENTATIONS):
        for orientation in range(count):
            turned = (angle + np.pi * orientation / count + np.pi) % (2 * np.pi) - np.pi
            center = 0.3 / 1.85**scale
            filters.append(np.exp(-3.5 * (radius / size / center - 1) ** 2 - 2 * np.pi * count**2 / 64 * turned**2))
    return np.asarray(filters, "float32")


def even_contrast(x, cycles=4):
    """Return images whose slow changes of brightness and contrast are evened out, as the descriptor's authors do first.

    x: float32 (examples, height, width, 3) in 0-255, height = width. The logarithm less its part below `cycles` cycles per image, divided
    by its local deviation.
    """
    size = x.shape[1]
    x = np.pad(np.log1p(x), ((0, 0), (EDGE, EDGE), (EDGE, EDGE), (0, 0)), "symmetric")
    across, down = frequencies(x.shape[1])
    slow = np.exp(-(across**2 + down**2) * np.log(2) / cycles**2)
    x = x - fft.ifft2(fft.fft2(x, axes=(1, 2)) * slow[..., None], axes=(1, 2)).real
    power = fft.ifft2(fft.fft2((x.mean(-1)) ** 2) * slow)
    x = x / (0.2 + np.sqrt(np.abs(power)))[..., None]
    return x[:, EDGE : EDGE + size, EDGE : EDGE + size]


def gist(x):
    """Return the GIST of images: float32 (examples, 960) = 3 colours x 20 filters x 4 x 4 mean magnitudes (Oliva & Torralba 2001).

    x: (examples, height, width, 3) in 0-255, height = width, a multiple of 4. Raises ValueError for another shape.
    """
    if x.ndim != 4 or x.shape[3] != 3 or x.shape[1] != x.shape[2] or x.shape[1] % GRID:
        raise ValueError(f"gist: the images have shape {x.shape[1:]}, but must be square, in 3 colours, with a side that {GRID} divides")
    size = x.shape[1]
    filters = gabor_filters(size + 2 * EDGE)
    features = np.empty((len(x), 3, len(filters), GRID, GRID), "float32")
    for begin in range(0, len(x), CHUNK):
        part = even_contrast(x[begin : begin + CHUNK].astype("float32")).transpose(0, 3, 1, 2)
        spectrum = fft.fft2(np.pad(part, ((0, 0), (0, 0), (EDGE, EDGE), (EDGE, EDGE)), "symmetric"))
        for number, each in enumerate(filters):
            magnitude = np.abs(fft.ifft2(spectrum * each, workers=-1))[..., EDGE : EDGE + size, EDGE : EDGE + size]
            cells = magnitude.reshape(*magnitude.shape[:2], GRID, size // GRID, GRID, size // GRID)
            features[begin : begin + CHUNK, :, number] = cells.mean((3, 5))
    return features.reshape(len(x), -1)


def hog_hue(x):
    """Return histograms of oriented gradients and of hues: float32 (examples, 154) for 32x32 images.

    x: uint8 (examples, height, width, 3). 9 orientations in each 8x8 cell, normalised in the cell (Dalal & Triggs 2005, scikit-image's),
    then the share of pixels in each of 10 ranges of hue. Raises ImportError without scikit-image.
    """
    try:
        from skimage.color import rgb2hsv
        from skimage.feature import hog
    except ImportError as error:
        raise ImportError("hog_hue needs scikit-image: pip install scikit-image") from error
    features = []
    for image in x:
        gradients = hog(image, HOG_ORIENTATIONS, (HOG_CELL, HOG_CELL), (1, 1), channel_axis=-1)
        hues, _ = np.histogram(rgb2hsv(image)[..., 0], HUES, (0, 1))
        features.append(np.concatenate([gradients, hues / hues.sum()]))
    return np.asarray(features, "float32")
