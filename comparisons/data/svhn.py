"""SVHN's cropped digits (Netzer et al. 2011): 73,257 and 26,032 colour images of house numbers, 32x32x3, 10 classes."""

import numpy as np

from comparisons.data import Data, descriptors, preprocess, sources

CLASSES = 10
SHAPE = 32, 32, 3
SIZES = 73_257, 26_032
FILES = "svhn*.npz", "train_32x32.mat"


def read_mat(path):
    """Return (x, y) of one of the data set's own files: uint8 (examples, 32, 32, 3), labels 0-9 (the file says 10 for the digit 0)."""
    from scipy.io import loadmat

    content = loadmat(path, variable_names=["X", "y"])
    return np.moveaxis(content["X"], -1, 0), np.ravel(content["y"]) % 10


def raw(folder, limits):
    """Return ((x, y), (x_test, y_test)) with at most `limits` examples each, and a notice ("" for the real digits).

    Raises FileNotFoundError where train_32x32.mat lies without test_32x32.mat.
    """
    path = sources.find(folder, *FILES)
    if path is None:
        counts = [min(limit or size, size) for limit, size in zip(limits, SIZES, strict=True)]
        return sources.images(SHAPE, CLASSES, *counts), sources.notice("SVHN", " or ".join(FILES))
    if path.suffix == ".mat":
        parts = [read_mat(path.with_name(f"{part}_32x32.mat")) for part in ("train", "test")]
    else:
        x, y, x_test, y_test = sources.arrays(path, "x_train", "y_train", "x_test", "y_test")
        parts = (x, y), (x_test, y_test)
    return sources.shorten(parts, *limits), ""


def load(folder=None, scaled=True, one_hot=True, hog_hue=False, examples=None, test_examples=None):
    """Return SVHN as Data.

    Args:
        folder: has train_32x32.mat and test_32x32.mat, or svhn*.npz with x_train, y_train, x_test and y_test; otherwise a stand-in.
        scaled: float32 in 0-1 instead of uint8 in 0-255.
        one_hot: labels as float32 (examples, 10) instead of int32 (examples,).
        hog_hue: rows of 154 features (descriptors.hog_hue), standardised by the training images, instead of images.
        examples, test_examples: at most so many.
    """
    ((x, y), (x_test, y_test)), notice = raw(folder, (examples, test_examples))
    if hog_hue:
        x, x_test = preprocess.standardize(*map(descriptors.hog_hue, (x, x_test)))
    elif scaled:
        x, x_test = (part.astype("float32") / 255 for part in (x, x_test))
    return Data(x, sources.labels(y, CLASSES, one_hot), x_test, sources.labels(y_test, CLASSES, one_hot), not notice, notice)
