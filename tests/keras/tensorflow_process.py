"""Keras on TensorFlow, always in a process of its own.

`python -m tests.keras.tensorflow_process` stores what modules of cases give there, in `tests/keras/tensorflow`. Tests read these results as
long as the cases, Keras and TensorFlow are what they were made with.
"""

import hashlib
import os
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.plugin.process import WITHOUT_EXTRAS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STORED = ("parity_cases", "model_cases", "assignment_cases")
MADE_WITH = "made with"  # beside the results: what `made_with` said when they were stored


def made_with(module):
    """The versions of Keras and TensorFlow, and a checksum of the text of a module of cases and of the one that others import."""
    versions = {d.name: d.version for d in distributions() if d.name in ("keras", "tensorflow", "tensorflow-cpu", "tensorflow_cpu")}
    texts = [(HERE / f"{name}.py").read_bytes() for name in (module, "parity_cases")]
    return f"{sorted(versions.items())} {hashlib.sha256(b''.join(texts)).hexdigest()}"


def results(module, folder):
    """What a module of cases in this folder gives on TensorFlow, arrays by name: stored, or else from a run that writes to `folder`."""
    stored = HERE / "tensorflow" / f"{module}.npz"
    if stored.exists():
        found = np.load(stored)
        if found[MADE_WITH] == made_with(module):
            return found
    return np.load(run(module, folder / "tensorflow.npz"))


def run(module, path, *arguments, **options):
    """Has a module of cases in this folder write its results on TensorFlow to the file `path`, which is returned."""
    code = f"import runpy; runpy.run_module('tests.keras.{module}', run_name='__main__', alter_sys=True)"
    on_tensorflow(code, path, *arguments, **options)
    return path


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


def store(module):
    """Stores the results of a module of cases."""
    path = HERE / "tensorflow" / f"{module}.npz"
    path.parent.mkdir(exist_ok=True)
    found = dict(np.load(run(module, path)))
    np.savez_compressed(path, **found, **{MADE_WITH: made_with(module)})


if __name__ == "__main__":
    for name in STORED:
        store(name)
