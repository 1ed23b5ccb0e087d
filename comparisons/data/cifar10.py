"""CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 colour images, 32x32x3, 10 classes."""

from comparisons.data import Data, descriptors, preprocess, sources

CLASSES = 10
SHAPE = 32, 32, 3
PATTERN = "cifar10*.npz"


def raw(folder):
    """Return ((x, y), (x_test, y_test)) as uint8 (examples, 32, 32, 3) and (examples,), and a notice ("" for the real images)."""
    return sources.of_keras("cifar10", "CIFAR-10", folder, PATTERN, SHAPE, CLASSES, 50_000, 10_000)


def load(folder=None, scaled=True, one_hot=True, size=32, centered=False, whitened=False, gist=False, examples=None, test_examples=None):
    """Return CIFAR-10 as Data.

    Args:
        folder: has cifar10*.npz with x_train, y_train, x_test and y_test (a part of the images is enough); otherwise they are downloaded.
        scaled: float32 in 0-1 instead of the file's uint8 in 0-255.
        one_hot: labels as float32 (examples, 10) instead of int32 (examples,).
        size: pixels on a side, bilinearly resized where not 32.
        centered: the mean training image subtracted; needs `scaled`.
        whitened: global contrast normalisation, then ZCA whitening by the training images; needs `scaled`.
        gist: rows of 960 GIST features instead of images, each feature standardised by the training images.
        examples, test_examples: at most so many.
    """
    if (centered or whitened) and not scaled:
        raise ValueError("cifar10: centered and whitened images are floats, so scaled must be True")
    parts, notice = raw(folder)
    (x, y), (x_test, y_test) = sources.shorten(parts, examples, test_examples)
    if gist:
        x, x_test = preprocess.standardize(descriptors.gist(x), descriptors.gist(x_test))
    else:
        x, x_test = (preprocess.resize(part, size) for part in (x, x_test))
        if scaled:
            x, x_test = (part.astype("float32") / 255 for part in (x, x_test))
        if centered:
            x, x_test = preprocess.center(x, x_test)
        if whitened:
            x, x_test = preprocess.whiten(*(preprocess.normalize_contrast(part) for part in (x, x_test)))
    return Data(x, sources.labels(y, CLASSES, one_hot), x_test, sources.labels(y_test, CLASSES, one_hot), not notice, notice)
