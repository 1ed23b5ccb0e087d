"""The data of the plain scripts, such as comparisons/xor.py, as they load them."""

from importlib import import_module
from pathlib import Path

from comparisons.data import Data, sources

PATTERNS = {"mnist_mlp": "mnist*.npz", "cifar_cnn": "cifar10*.npz"}


def find(script, path):
    """Return the data file of a script: `path` itself, or the file in the folder `path` that its pattern names; None for none.

    Raises FileNotFoundError when `path` does not exist or the folder holds no such file.
    """
    pattern = PATTERNS.get(script)
    if path is None or pattern is None:
        return None
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist: give --data an .npz file, or a folder with {pattern}")
    found = sources.find(path, pattern) if Path(path).is_dir() else path
    if found is None:
        raise FileNotFoundError(f"{path} holds no {pattern} for {script}")
    return str(found)


def load(path, script):
    """Return the data of a script; `path`: what --data names, or None for what the script does by itself."""
    (x, y), (x_test, y_test) = import_module(f"comparisons.{script}").load_data(find(script, path))
    return Data(x, y, x_test, y_test)
