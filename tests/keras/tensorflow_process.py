"""Keras on TensorFlow, always in a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.plugin.process import WITHOUT_EXTRAS

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).parents[2]


def results_on_tensorflow(folder, name, *arguments):
    """The arrays that `python -m NAME FILE ARGUMENTS...` stores in FILE; processes that name the same `folder` run it once."""
    path = folder / f"{'_'.join([name, *arguments])}.npz"
    with open(path.with_suffix(".lock"), "w") as lock:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            module_on_tensorflow(name, path, *arguments)
    return np.load(path)


def module_on_tensorflow(name, *arguments, **options):
    """What `python -m NAME ARGUMENTS...` does, as `on_tensorflow`."""
    on_tensorflow(f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)", *arguments, **options)


def on_tensorflow(code, *arguments, folder=ROOT, timeout=900):
    """Runs `code` in `folder`, or skips the test where TensorFlow is not installed. AssertionError holds its errors."""
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    # Without oneDNN, which is off on CPUs without AVX-512, it has no gradients of grouped convolutions outside of XLA.
    environment["TF_ENABLE_ONEDNN_OPTS"] = "1"
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_EXTRAS + code, *map(str, arguments)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stderr
