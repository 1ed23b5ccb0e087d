"""Memory, profile and caches, as a user asks for them."""

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import runtime

SOURCE = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2; }"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Keeps the user's own programs on disk out of harm's way."""
    monkeypatch.setattr(runtime.current_device().programs.steps, "folder", tmp_path)


def test_memory_info():
    device = runtime.current_device()
    before = keras_ocl.memory_info()
    storage = device.allocate(1 << 20, "test")
    during = keras_ocl.memory_info(device.name)
    assert during["current"] - before["current"] >= 1 << 20
    assert during["peak"] >= during["current"] and during["reserved"] >= during["current"]
    assert 0 < during["available"] <= during["budget"]
    assert 0 <= during["arena"] <= during["current"]
    del storage
    assert keras_ocl.memory_info()["current"] == before["current"]


def test_profile():
    device = runtime.current_device()
    storage = device.upload(np.ones(64, "float32"))
    kernel = device.build([("twice", SOURCE)])["twice"]
    kernel.set_arg(0, storage.mem)
    with keras_ocl.profile() as times:
        for _ in range(3):
            device.enqueue(kernel, (64,), label="doubling")
    assert [label for label, _ in times.launches] == ["doubling"] * 3
    ((label, count, total),) = times.totals()
    assert (label, count) == ("doubling", 3) and total == pytest.approx(times.milliseconds) and total >= 0
    assert "doubling" in str(times) and str(times).splitlines()[-1].endswith("total")
    assert np.array_equal(device.download(storage, np.float32, (64,)), np.full(64, 8, "float32"))


def test_a_profile_shows_what_runs_on_the_host():
    matrix = keras.ops.convert_to_tensor(4 * np.eye(3, dtype="float32"))
    with keras_ocl.profile() as times:
        keras.ops.linalg.cholesky(matrix + 1)
    labels = [label for label, _ in times.launches]
    assert labels[-1] == "host cholesky" and labels.index("add") < len(labels) - 1
    assert times.launches[-1][1] > 0 and "host cholesky" in str(times)


def test_an_empty_profile_prints():
    with keras_ocl.profile() as times:
        pass
    assert times.totals() == [] and "total" in str(times)


def test_clear_cache():
    device = runtime.current_device()
    device.build([("twice", SOURCE)])
    device.build([("twice", SOURCE.replace("2", "2.0f"))])
    builds = device.statistics.builds
    keras_ocl.clear_cache()
    assert device.programs.disk is None or device.programs.disk.size() == 0
    device.build([("twice", SOURCE)])
    assert device.statistics.builds == builds + 1


def test_eager_code_compiles_again_after_clear_cache():
    statistics = runtime.current_device().statistics

    def draws():
        return np.asarray(keras.random.uniform((3,), seed=1) + 1)

    before = draws()
    builds = statistics.builds
    np.testing.assert_array_equal(draws(), before)
    assert statistics.builds == builds
    keras_ocl.clear_cache()
    np.testing.assert_array_equal(draws(), before)
    assert statistics.builds >= builds + 2


def test_unknown_device():
    with pytest.raises((ValueError, RuntimeError), match="no-such-device"):
        keras_ocl.memory_info("no-such-device")
