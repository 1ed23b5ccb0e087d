"""Where a data set comes from: a file in the folder of --data, a download, or a seeded stand-in of the same shapes."""

from importlib import import_module
from pathlib import Path

import numpy as np

EXAMPLES = 4096  # so many different examples a stand-in has; a larger one repeats them


def find(folder, *patterns):
    """Return the path of the first file in `folder` that fits a pattern, in the order of the patterns; None where none does.

    `folder` None is a folder without files. Raises FileNotFoundError for a folder that does not exist.
    """
    if folder is None:
        return None
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: give --data a folder with {' or '.join(patterns)}")
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), None)


def arrays(path, *names):
    """Return the arrays called `names` of the .npz file at `path`; raises KeyError, naming the file, for one that it lacks."""
    with np.load(path) as file:
        lacking = [name for name in names if name not in file]
        if lacking:
            raise KeyError(f"{path} holds no {', '.join(lacking)}: its arrays are {', '.join(file)}, but {', '.join(names)} are needed")
        return [file[name] for name in names]


def download(load):
    """Return (load(), "") for a function of keras.datasets, or (None, why it cannot be downloaded)."""
    try:
        return load(), ""
    except Exception as error:  # Keras raises a bare Exception when a download fails
        return None, str(error).splitlines()[0]


def notice(name, patterns, reason=""):
    """Return the sentence that says that `name` is a stand-in."""
    reason = f" (it cannot be downloaded: {reason})" if reason else ""
    return f"{name} is a seeded stand-in of its shapes{reason}: times are valid, accuracies are not; give --data a folder with {patterns}"


def images(shape, classes, examples, test_examples, seed=0):
    """Return (x, y), (x_test, y_test) of learnable images: a smooth pattern a class, under noise.

    x: uint8 (examples, *shape), shape = (height, width, channels); y: uint8 (examples,).
    """
    generator = np.random.default_rng(seed)
    height, width, channels = shape
    coarse = generator.uniform(40, 215, (classes, -(-height // 4), -(-width // 4), channels))
    patterns = coarse.repeat(4, 1).repeat(4, 2)[:, :height, :width]

    def draw(count):
        different = min(count, EXAMPLES)
        y = generator.integers(0, classes, different, dtype=np.uint8)
        noise = generator.integers(-40, 41, (different, *shape), dtype=np.int16)
        x = np.clip(patterns.astype(np.int16)[y] + noise, 0, 255).astype(np.uint8)
        again = np.arange(count) % max(different, 1)
        return x[again], y[again]

    return draw(examples), draw(test_examples)


def of_keras(module, name, folder, pattern, shape, classes, examples, test_examples):
    """Return ((x, y), (x_test, y_test)) of images of `shape` that keras.datasets has as `module`, and a notice ("" for the real ones).

    From the .npz file in `folder` that fits `pattern`, else by download, else the stand-in of `images` in the given numbers.
    """
    path = find(folder, pattern)
    if path is not None:
        x, y, x_test, y_test = arrays(path, "x_train", "y_train", "x_test", "y_test")
        parts, reason = ((x, y), (x_test, y_test)), ""
    else:
        parts, reason = download(lambda: import_module(f"keras.datasets.{module}").load_data())
    if parts is None:
        return images(shape, classes, examples, test_examples), notice(name, pattern, reason)
    return [(x.reshape(-1, *shape), np.ravel(y)) for x, y in parts], ""


def labels(y, classes, one_hot):
    """Return labels of any integer type as int32 (examples,), or one-hot as float32 (examples, classes)."""
    y = np.ravel(y).astype("int32")
    return np.eye(classes, dtype="float32")[y] if one_hot else y


def shorten(parts, examples, test_examples):
    """Return ((x, y), (x_test, y_test)) with at most so many training and test examples (None: all)."""
    return [(x[:count], y[:count]) for (x, y), count in zip(parts, (examples, test_examples), strict=True)]
