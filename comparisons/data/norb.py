"""Jittered-cluttered NORB (LeCun et al. 2004): stereo pairs of toys before clutter, 108x108x2 grey values, 6 classes.

The study trains on 58,320 pairs, two of the ten training files, and tests on 58,320.
"""

import gzip

import numpy as np

from comparisons.data import Data, preprocess, sources

CLASSES = 6
SIDE = 108
EXAMPLES = 58_320
FILES = {"train": "*norb*training*dat.mat*", "test": "*norb*testing*dat.mat*"}
ARCHIVE = "norb*.npz"
TYPES = {0x1E3D4C55: "uint8", 0x1E3D4C54: "<i4"}  # the first number of a file says what it holds


def read_matrix(path, limit=None):
    """Return the array of a file in the data set's own binary format, packed by gzip or not; at most `limit` along its first axis.

    The file has a number for its type, the number of axes, the axes' lengths (three at least), then the values; all little-endian.
    Raises ValueError for a file that is of another kind.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        kind, axes = np.frombuffer(file.read(8), "<i4")
        if int(kind) not in TYPES:
            raise ValueError(f"{path} is no NORB matrix of bytes or integers: its first number is {int(kind):#x}")
        shape = np.frombuffer(file.read(4 * max(axes, 3)), "<i4")[:axes]
        shape = (min(int(shape[0]), limit or EXAMPLES), *map(int, shape[1:]))
        dtype = np.dtype(TYPES[int(kind)])
        return np.frombuffer(file.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def read(folder, part, size, limit):
    """Return (x, y) of a part: uint8 (examples, size, size, 2) and labels, from as many of its files as `limit` takes."""
    x, y, lacking = [], [], min(limit or EXAMPLES, EXAMPLES)
    for path in sorted(folder.glob(FILES[part])):
        if lacking <= 0:
            break
        pairs = read_matrix(path, lacking)
        x.append(preprocess.resize(np.moveaxis(pairs, 1, -1), size))
        y.append(read_matrix(path.with_name(path.name.replace("dat", "cat")), lacking))
        lacking -= len(pairs)
    if not x:
        raise FileNotFoundError(f"{folder} holds no {FILES[part]}: NORB needs files for training and for testing")
    return np.concatenate(x), np.concatenate(y)


def load(folder=None, size=48, scaled=True, examples=None, test_examples=None):
    """Return NORB as Data: pairs as (examples, size, size, 2), labels one-hot float32 (examples, 6).

    Args:
        folder: has the data set's norb...-dat.mat and -cat.mat files, .gz or not, or norb*.npz with x_train, y_train, x_test and y_test of
            any size; otherwise a stand-in.
        size: pixels on a side, bilinearly resized from 108.
        scaled: float32 in 0-1 instead of uint8 in 0-255.
        examples, test_examples: at most so many.
    """
    path, notice, limits = sources.find(folder, ARCHIVE, FILES["train"]), "", (examples, test_examples)
    if path is None:
        parts = sources.images((size, size, 2), CLASSES, *(min(limit or EXAMPLES, EXAMPLES) for limit in limits))
        notice = sources.notice("NORB", f"{ARCHIVE} or {FILES['train']}")
    elif path.suffix == ".npz":
        x, y, x_test, y_test = sources.arrays(path, "x_train", "y_train", "x_test", "y_test")
        parts = [(preprocess.resize(x, size), y) for x, y in sources.shorten(((x, y), (x_test, y_test)), *limits)]
    else:
        parts = [read(path.parent, part, size, limit) for part, limit in zip(("train", "test"), limits, strict=True)]
    ready = []
    for x, y in parts:
        ready += [x.astype("float32") / 255 if scaled else x, sources.labels(y, CLASSES, True)]
    return Data(*ready, real=not notice, notice=notice)
