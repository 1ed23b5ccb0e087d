"""keras.applications: a prediction and a training step of every family, from random weights, next to TensorFlow.

Compared are logits, loss, every gradient and the moving statistics, without dropout and stochastic depth, whose random numbers differ. The
other members of the families are the same code with other widths and depths.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.keras import application_cases as cases

ROOT = pathlib.Path(__file__).parents[2]
TOLERANCE = 1e-3
QUICK = ("ConvNeXtTiny", "VGG16")  # the least kernels


def on_tensorflow(name, path):
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-m", "tests.keras.application_cases", name, str(path)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stderr
    return np.load(path)


def norm(arrays):
    return np.sqrt(sum(np.sum(np.square(a, dtype="float64")) for a in arrays))


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in cases.MODELS])
def test_a_step_as_on_tensorflow(name, tmp_path):
    pytest.importorskip("tensorflow")
    expected = on_tensorflow(name, tmp_path / "expected.npz")
    ours = cases.run(name)
    assert list(ours) == list(expected)
    kinds = {kind: [key for key in ours if key.startswith(kind)] for kind in ("outputs", "loss", "gradient", "statistic")}
    for kind, keys in kinds.items():
        difference = norm(ours[key] - expected[key] for key in keys)
        assert difference <= TOLERANCE * norm(expected[key] for key in keys), f"{kind}: they differ by {difference}"
    whole = norm(expected[key] for key in kinds["gradient"])
    assert np.isfinite(whole) and whole > 0
    # By variable: one winner of a max pooling that rounding changes shows here; a bias before a normalization has a gradient of rounding.
    for key in kinds["gradient"]:
        difference = norm([ours[key] - expected[key]])
        assert difference <= 20 * TOLERANCE * norm([expected[key]]) + 1e-5 * whole, f"{key}: they differ by {difference}"
