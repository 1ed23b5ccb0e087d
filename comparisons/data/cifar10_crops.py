"""CIFAR-10 as the network of the profiling study sees it: distorted 24x24 crops to train, centre crops to test, each standardised.

The distortions are those of TensorFlow's tutorial: a random crop, a flip, brightness, contrast, then each image standardised. NumPy makes
them before training, so that every backend sees the same numbers.
"""

import numpy as np

from comparisons.data import Data, cifar10
from comparisons.data.lazy import Lazy

SIZE = 24
BRIGHTNESS = 63.0
CONTRAST = 0.2, 1.8
CHUNK = 4096  # images distorted at a time


def standardize(x):
    """Return images (n, height, width, channels) of mean 0 and deviation 1 each; a deviation below 1/sqrt(pixels) counts as that."""
    x = x.astype("float32")
    pixels = np.prod(x.shape[1:])
    x = x - x.mean((1, 2, 3), keepdims=True)
    return x / np.maximum(x.std((1, 2, 3), keepdims=True), np.float32(1 / np.sqrt(pixels)))


def centre(images):
    """Return the standardised middle 24x24 pixels of uint8 images (n, height, width, channels), as float32."""
    top, left = ((extent - SIZE) // 2 for extent in images.shape[1:3])
    return standardize(images[:, top : top + SIZE, left : left + SIZE])


def distort(images, generator):
    """Return distorted, standardised 24x24 crops, float32 (n, 24, 24, channels), of uint8 images (n, height, width, channels).

    The place of the crop and the flip are uniform; uniform within ±63 is added; contrast, the distance of each channel from its mean, is
    multiplied by a factor uniform in 0.2-1.8.
    """
    count, height, width, _ = images.shape
    top = generator.integers(0, height - SIZE + 1, count)
    left = generator.integers(0, width - SIZE + 1, count)
    flipped = generator.random(count) < 0.5
    brightness = generator.uniform(-BRIGHTNESS, BRIGHTNESS, (count, 1, 1, 1)).astype("float32")
    contrast = generator.uniform(*CONTRAST, (count, 1, 1, 1)).astype("float32")
    along = np.arange(SIZE)
    rows = top[:, None] + along
    columns = left[:, None] + np.where(flipped[:, None], along[::-1], along)
    x = images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]].astype("float32") + brightness
    mean = x.mean((1, 2), keepdims=True)
    return standardize((x - mean) * contrast + mean)


def load(folder=None, passes=8, seed=0):
    """Return crops of CIFAR-10 as Data: x float32 (passes * images, 24, 24, 3), class numbers as int32; x and y are Lazy.

    x holds every training image `passes` times, distorted differently each time. `folder` as in comparisons.data.cifar10.
    """
    parts, notice = cifar10.raw(folder)
    (images, labels), (test_images, test_labels) = parts
    total = passes * len(images)

    def rows(wanted):
        return np.arange(total if wanted is None else min(wanted, total)) % len(images)

    def distorted(wanted):
        chosen = rows(wanted)
        x = np.empty((len(chosen), SIZE, SIZE, images.shape[3]), "float32")
        for begin in range(0, len(chosen), CHUNK):
            whole = np.arange(begin, begin + CHUNK) % len(images)  # so that an example does not depend on how many are wanted
            x[begin : begin + CHUNK] = distort(images[whole], np.random.default_rng([seed, begin]))[: len(chosen) - begin]
        return x

    labels, test_labels = labels.astype("int32"), test_labels.astype("int32")
    y = Lazy(lambda wanted: labels[rows(wanted)])
    return Data(Lazy(distorted), y, centre(test_images), test_labels, not notice, notice)
