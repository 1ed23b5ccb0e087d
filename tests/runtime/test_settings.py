"""Settings that force how host memory is reached and how much memory there is, and the bytes that statistics count."""

import os
import re
import subprocess
import sys

import numpy as np
import pyopencl as cl
import pytest

from keras_ocl import runtime
from keras_ocl.runtime import memory
from keras_ocl.runtime.traits import ways_of_sharing


def run(code, **environment):
    """The finished process of `code` in a fresh Python on the current device."""
    environment = {**os.environ, "KERAS_OCL_DEVICE": runtime.current_device().name, **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


WAY = """
import numpy as np
from keras_ocl import runtime
device = runtime.current_device()
storage = device.upload(np.arange(1000, dtype=np.float32))
assert (device.download(storage, np.float32, (1000,)) == np.arange(1000)).all()
print(device.sharing, type(device.transfer).__name__)
"""


def test_each_way_can_be_forced(device):
    for way in ways_of_sharing(device.driver.handle):
        result = run(WAY, KERAS_OCL_TRANSFER=way)
        assert result.stdout == f"{way} {way.title()}\n", result.stderr


def test_memory_is_shared_only_where_it_is_one():
    """Fine-grained shared memory alone is what cards with memory of their own report too."""

    class Handle:
        svm_capabilities = cl.device_svm_capabilities.FINE_GRAIN_BUFFER

        def __init__(self, kind, unified):
            self.type, self.host_unified_memory = kind, unified

    gpu, cpu = cl.device_type.GPU, cl.device_type.CPU
    assert ways_of_sharing(Handle(gpu, False)) == ["copied"]
    assert ways_of_sharing(Handle(gpu, True)) == ["shared", "mapped", "copied"]
    assert ways_of_sharing(Handle(cpu, True)) == ["shared", "copied"]


def test_a_way_that_the_device_does_not_have(device):
    ways = ways_of_sharing(device.driver.handle)
    missing = {"shared", "mapped", "copied"} - set(ways)
    if not missing:
        pytest.skip("this device has all ways")
    way = missing.pop()
    error = run(WAY, KERAS_OCL_TRANSFER=way).stderr.splitlines()[-1]
    assert f"KERAS_OCL_TRANSFER={way} is no way to its memory; there " in error and ", ".join(ways) in error
    assert "install" not in error


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("KERAS_OCL_TRANSFER", "magic", '"shared", "mapped" or "copied"'),
        ("KERAS_OCL_LOOPS", "held", '"launched", or not set'),
        ("KERAS_OCL_MEMORY_LIMIT", "much", "a number of bytes, or of KiB, MiB or GiB such as 512MiB"),
    ],
)
def test_a_setting_that_means_nothing(name, value, says):
    error = run(WAY, **{name: value}).stderr.splitlines()[-1]
    assert error == f"ValueError: {name}={value!r}: it is {says}"


@pytest.mark.parametrize("command", ["devices", "doctor"])
@pytest.mark.parametrize(
    "name, says",
    [
        ("KERAS_OCL_KEEP", '"cut", "all" or "least"'),
        ("KERAS_OCL_MATRIX", "there is no matrix unit 'magic'; the units are "),
    ],
)
def test_commands_name_a_setting_that_means_nothing(name, says, command):
    environment = {**os.environ, "KERAS_OCL_DEVICE": runtime.current_device().name, "KERAS_OCL_SCHEDULE": "gpu", name: "magic"}
    done = subprocess.run([sys.executable, "-m", "keras_ocl", command], env=environment, capture_output=True, text=True, timeout=300)
    assert f"{name}='magic': " in done.stdout and says in done.stdout
    assert done.returncode == 1 and not done.stderr


@pytest.mark.parametrize("text, nbytes", [("1000", 1000), ("512MiB", 512 << 20), ("1.5 gib", 3 << 29), ("64 KiB", 1 << 16)])
def test_memory_limits(text, nbytes, device, monkeypatch):
    monkeypatch.setenv("KERAS_OCL_MEMORY_LIMIT", text)
    assert memory.memory_limit() == nbytes
    assert memory.budget(device.traits) <= nbytes
    monkeypatch.delenv("KERAS_OCL_MEMORY_LIMIT")
    assert memory.memory_limit() is None and memory.budget(device.traits) > 512 << 20


def test_bytes_are_counted(any_device):
    statistics = any_device.statistics
    before = statistics.uploads, statistics.upload_bytes, statistics.downloads, statistics.download_bytes
    storage = any_device.upload(np.zeros((10, 100), np.float32)[::2])
    any_device.download(storage, np.float16, (7,))
    after = statistics.uploads, statistics.upload_bytes, statistics.downloads, statistics.download_bytes
    assert np.subtract(after, before).tolist() == [1, 2000, 1, 14]
    assert "upload_bytes=" in repr(statistics)


MODEL = """
import keras, numpy as np
from keras_ocl import runtime

def train(widths, batch=32):
    model = keras.Sequential([keras.Input((50,)), *(keras.layers.Dense(w, "relu", name=f"wide{w}") for w in widths), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((batch, 50), "float32")
    return model.fit(x, x[:, :1], batch_size=batch, verbose=0).history["loss"][0]

def refused(*arguments):
    try:
        train(*arguments)
    except runtime.OutOfMemory as error:
        print(error)
    else:
        print("it fits")

assert train([40, 20]) >= 0
refused([6400, 3200])  # the weights
refused([3200, 1600])  # the optimizer's moments
refused([2000], 8192)  # the activations
assert train([40, 20]) >= 0
"""


def test_a_model_that_does_not_fit_ends_in_one_sentence_and_the_next_one_trains():
    result = run(MODEL, KERAS_OCL_MEMORY_LIMIT="64MiB")
    assert result.returncode == 0, result.stderr
    weights, moments, activations = result.stdout.splitlines()
    free = r" needs [0-9.]+ MiB, [0-9.]+ [KM]iB of 64\.0 MiB free; use a smaller batch or model"
    shape = r" of shape \(6400, 3200\): out of memory on \S+ \(.*\): "
    assert re.match(r"Variable sequential\S*/wide3200/kernel" + shape + r"\w+" + free, weights), weights
    shape = r" of shape \(3200, 1600\): out of memory on \S+ \(.*\): "
    assert re.match(r"Variable adam\S*wide1600_kernel_\w+" + shape + r"\S+" + free, moments), moments
    assert re.match(r"out of memory on .*: \S*train_step" + free, activations), activations
