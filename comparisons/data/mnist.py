"""MNIST (LeCun et al. 1998): 60,000 and 10,000 handwritten digits, 28x28 grey values, 10 classes."""

from comparisons.data import Data, preprocess, sources

CLASSES = 10
SHAPE = 28, 28, 1
PATTERN = "mnist*.npz"


def raw(folder):
    """Return ((x, y), (x_test, y_test)) as uint8 (examples, 28, 28, 1) and (examples,), and a notice ("" for the real digits)."""
    return sources.of_keras("mnist", "MNIST", folder, PATTERN, SHAPE, CLASSES, 60_000, 10_000)


def load(folder=None, flat=False, scaled=True, one_hot=True, width=None, contrast=False, examples=None, test_examples=None):
    """Return MNIST as Data.

    Args:
        folder: has mnist*.npz with x_train, y_train, x_test and y_test; otherwise the digits are downloaded.
        flat: rows of 784 instead of images (28, 28, 1).
        scaled: float32 in 0-1 instead of the file's uint8 in 0-255.
        one_hot: labels as float32 (examples, 10) instead of int32 (examples,).
        width: digits normalised to so many columns, see preprocess.normalize_width.
        contrast: global contrast normalisation, see preprocess.normalize_contrast.
        examples, test_examples: at most so many.
    """
    parts, notice = raw(folder)
    ready = []
    for x, y in sources.shorten(parts, examples, test_examples):
        if scaled:
            x = x.astype("float32") / 255
        if width is not None:
            x = preprocess.normalize_width(x, width)
        if contrast:
            x = preprocess.normalize_contrast(x)
        ready += [x.reshape(len(x), -1) if flat else x, sources.labels(y, CLASSES, one_hot)]
    return Data(*ready, real=not notice, notice=notice)
