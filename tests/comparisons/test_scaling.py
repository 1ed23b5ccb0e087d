"""The scaling script: its model of all-reduces, and that it runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from comparisons import scaling
from keras_ocl import runtime
from tests.distribution.job import needs_mpi


def test_alpha_and_beta_are_found():
    times = [(n, 2 * 7e-6 + n * 3e-10) for n in scaling.SIZES]
    np.testing.assert_allclose(scaling.fit(times), (7e-6, 3e-10), rtol=1e-9)


def test_the_cost_of_collectives():
    assert scaling.collective_seconds(1, 1e6, 5, 1e-3, 1.0) == 0
    np.testing.assert_allclose(scaling.collective_seconds(8, 100, 3, 0.5, 2.0), 2 * 3 * 3 * 0.5 + 2 * 7 / 8 * 100 * 2.0)
    found = {"alone": {"step": 2.0}, "job": {"bytes": 100, "calls": 3}}
    assert scaling.efficiency(1, found, 0.5, 2.0) == 1 and scaling.efficiency(8, found, 0.5, 2.0) == pytest.approx(2 / (2 + 359))


@needs_mpi
def test_it_runs(tmp_path):
    device = runtime.current_device()
    if device.kind != "cpu" or device.traits.compute_units < 2:
        pytest.skip("a CPU with two compute units is needed")
    command = [sys.executable, "-m", "comparisons.scaling", "--models", "MLP", "--steps", "2", "--ranks", "2", "--device", device.name]
    command += ["--json", tmp_path / "figures.json", "--chart", tmp_path / "chart.png"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    job = json.loads((tmp_path / "figures.json").read_text())["models"]["MLP"]["job"]
    weights = 784 * 1024 + 2 * 1024**2 + 3 * 1024 + 1024 * 10 + 10
    assert job["calls"] == 1 and 0 <= job["bytes"] - 4 * weights < 64  # gradients, and the loss
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
