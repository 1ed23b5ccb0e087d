"""The comparison of memory: its measures of resident memory, each network, its command, and what is left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from comparisons import memory
from comparisons.memory_networks import NETWORKS
from keras_ocl import lowering, runtime

ROOT = Path(__file__).resolve().parents[2]
LARGE = 64 << 20  # bytes, beside which other allocations of a test are small


@pytest.mark.parametrize("sampled", [False, True])
def test_the_peak_within_a_context(sampled, monkeypatch):
    if sampled:
        monkeypatch.setattr(memory, "open", _without_reset, raising=False)
    before = memory.resident()
    np.ones(LARGE, "int8")  # a peak before the context does not count
    with memory.Peak() as small:
        pass
    assert small.nbytes - before < LARGE / 2
    with memory.Peak() as large:
        for _ in range(5):  # so that samples meet it
            np.ones(LARGE, "int8").sum()
    assert 0.9 * LARGE < large.nbytes - before < 2 * LARGE
    assert memory.resident() < large.nbytes - LARGE / 2


def _without_reset(path, mode="r"):
    if path.endswith("clear_refs"):
        raise PermissionError(path)
    return open(path, mode)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_become_training_steps(name):
    """Each on a record, where nothing runs; the step keeps something, and has its gradients."""
    keras.utils.clear_session()
    train = lowering.lower(NETWORKS[name], runtime.read_record("sm_86"))[0].memory
    assert 0 < train.kept_bytes <= train.arena_bytes < 2 << 30


def test_remat_keeps_less():
    some = [lowering.lower(NETWORKS[name], runtime.read_record("intel-cpu"))[0].memory for name in ("16 blocks", "16 blocks, remat")]
    assert some[1].kept_bytes < some[0].kept_bytes / 2


def test_ways():
    assert list(memory.ways(["ocl", "jax"], ["all", "least"])) == [
        ("ocl", "ocl", {}),
        ("ocl, keep all", "ocl", {"KERAS_OCL_KEEP": "all"}),
        ("ocl, keep least", "ocl", {"KERAS_OCL_KEEP": "least"}),
        ("jax", "jax", {}),
    ]


def test_ratios_count_the_networks_of_both():
    results = {"a": {"ocl": {"warm": 2}, "jax": {"warm": 4}}, "b": {"ocl": {"warm": 2}, "jax": {"warm": 16}}}
    results["c"] = {"ocl": {"warm": 5}, "jax": {"error": "skipped"}}
    assert memory.ratios(results, "ocl") == {"jax": (pytest.approx(4), 2)}


def test_what_is_not_installed_is_skipped(monkeypatch):
    monkeypatch.setitem(memory.BACKENDS, "jax", "a_package_that_nobody_has")
    assert memory.measured_apart("CNN", "jax", {}, 1) == {"error": "skipped: a_package_that_nobody_has is not installed"}


def test_command(tmp_path):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "comparisons.memory", "CNN", "--backends", "ocl", "--keep", "all", "--steps", "1", "--json", path]
    environment = {**os.environ, "KERAS_OCL_DEVICE": runtime.current_device().name}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())["CNN"]
    assert list(found) == ["ocl", "ocl, keep all"] and "ocl, keep all" in done.stdout
    for figures in found.values():
        assert 0 < figures["kept"] <= figures["arena"] < figures["device"]
        assert 0 < figures["warm"] <= figures["peak"] and figures["step"] > 0
    assert found["ocl"]["variables"] > 4 * 2 * 2304 * 512, "weights and the optimizer's"


def test_unknown_names_are_told():
    done = subprocess.run([sys.executable, "-m", "comparisons.memory", "CMM"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "there is no network 'CMM'; there are transformer encoder" in done.stderr
