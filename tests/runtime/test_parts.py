"""Parts of a device: their names, that they compute, and that they keep to their compute units."""

import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pyopencl as cl
import pytest

import keras_ocl
from keras_ocl import runtime
from keras_ocl.runtime import parts

SPIN = (
    "spin",
    "__kernel void spin(__global float* a) { float x = a[get_global_id(0)];"
    " for (int i = 0; i < 400000; i++) x = x * 0.5f + 1.0f; a[get_global_id(0)] = x; }",
)


def several_units(device):
    """Skips where there is nothing to split, or no way to."""
    if device.traits.compute_units < 2:
        pytest.skip(f"{device} has one compute unit")
    if not offers_a_way(device):
        pytest.skip(f"clCreateSubDevices offers no way to split {device}")


def offers_a_way(device):
    # NVIDIA's list is not empty, but holds neither
    return bool({parts.BY_COUNTS, parts.EQUALLY} & {*device.driver.handle.partition_properties})


@pytest.mark.parametrize(
    "name, whole, part",
    [
        ("cpu:0/units=3", "cpu:0", parts.Part(3)),
        ("intel/1of2", "intel", parts.Part(0, 0, 2)),
        ("a/b/4of4", "a/b", parts.Part(0, 3, 4)),
        ("cpu:0", "cpu:0", None),
        ("some/vendor", "some/vendor", None),
    ],
)
def test_names(name, whole, part):
    assert parts.parse(name) == (whole, part)
    assert part is None or f"{whole}/{part}" == name


@pytest.mark.parametrize("name", ["cpu/units=0", "cpu/0of2", "cpu/3of2"])
def test_a_part_that_cannot_be(name):
    with pytest.raises(ValueError, match=r"names no part of a device: write cpu/units=N .* or cpu/KofN"):
        runtime.find_device(name)


def test_a_part_is_a_device_of_its_own(device):
    several_units(device)
    one = runtime.find_device(f"{device.name}/units=1")
    assert one is runtime.find_device(f"{device.platform}/units=1".lower()) and one is not device
    assert one.name == f"{device.name}/units=1" and one.traits.compute_units == 1
    assert one.driver.context != device.driver.context and one.memory is not device.memory
    units = device.traits.compute_units
    sizes = [runtime.find_device(f"{device.name}/{k}of2").traits.compute_units for k in (1, 2)]
    assert sum(sizes) == units and sizes[0] - sizes[1] in (0, 1)
    assert runtime.find_device(f"{device.name}/units={units}") is device and runtime.find_device(f"{device.name}/1of1") is device


def test_more_units_than_there_are(device):
    with pytest.raises(ValueError, match="compute units?, not 1000 compute units: ask for"):
        runtime.find_device(f"{device.name}/units=1000")
    with pytest.raises(ValueError, match="compute units?, not 1000 parts: ask for"):
        runtime.find_device(f"{device.name}/1of1000")


@pytest.mark.parametrize("ways", [[], [0], [parts.BY_COUNTS]])
def test_a_device_that_cannot_be_split_names_other_limits(ways):
    def create_sub_devices(properties):
        raise cl.LogicError("clCreateSubDevices", -18, "device partition failed")

    handle = types.SimpleNamespace(partition_properties=ways, create_sub_devices=create_sub_devices)
    device = types.SimpleNamespace(driver=types.SimpleNamespace(handle=handle), traits=types.SimpleNamespace(compute_units=8))
    with pytest.raises(RuntimeError, match=r"cannot be split .*CL_CONFIG_CPU_TBB_NUM_WORKERS=N.*POCL_MAX_PTHREAD_COUNT=N.*taskset"):
        parts.split(device, parts.Part(2))


def test_this_device_is_split_or_says_that_it_cannot_be(device):
    if device.traits.compute_units < 2:
        pytest.skip(f"{device} has one compute unit")
    if offers_a_way(device):
        assert runtime.find_device(f"{device.name}/units=1").traits.compute_units == 1
    else:
        with pytest.raises(RuntimeError, match=r"cannot be split into compute units \(clCreateSubDevices offers no way\); limit"):
            runtime.find_device(f"{device.name}/units=1")


@pytest.mark.parametrize(
    "part, properties, taken",
    [
        (parts.Part(2), [parts.EQUALLY, 2], 3),
        (parts.Part(0, 1, 4), [parts.EQUALLY, 2], 1),
    ],
)
def test_a_device_that_splits_equally_only(part, properties, taken):
    asked = []
    handle = types.SimpleNamespace(partition_properties=[parts.EQUALLY], create_sub_devices=lambda p: asked.append(p) or list(range(4)))
    device = types.SimpleNamespace(driver=types.SimpleNamespace(handle=handle), traits=types.SimpleNamespace(compute_units=8))
    assert parts.split(device, part) == taken and asked == [properties]
    with pytest.raises(RuntimeError, match="cannot be split"):
        parts.split(device, parts.Part(3))


def seconds_of_threads():
    """CPU seconds of each thread of this process so far."""
    times = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        times[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return times


def busy_threads(device):
    """How many threads compute while many work-groups of `device` do."""
    kernel = device.build([SPIN])["spin"]
    runtime.set_argument(kernel, 0, device.upload(np.zeros(4096, np.float32)))
    device.enqueue(kernel, (4096,), (16,))
    device.finish()
    before = seconds_of_threads()
    used = [0]
    for _ in range(1000):
        device.enqueue(kernel, (4096,), (16,))
        device.finish()
        used = [seconds - before.get(name, 0) for name, seconds in seconds_of_threads().items()]
        if sum(used) > 1:
            break
    return sum(seconds > 0.15 * sum(used) for seconds in used)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the CPU time of each thread is known on Linux only")
def test_one_unit_keeps_one_core_busy(device):
    several_units(device)
    if device.kind != "cpu":
        pytest.skip("not a CPU")
    assert busy_threads(runtime.find_device(f"{device.name}/units=1")) == 1
    assert busy_threads(device) > 1


def test_a_model_trains_on_a_part_as_on_the_whole(device):
    several_units(device)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(96, 12, 12, 3)).astype("float32"), generator.integers(0, 4, 96)

    def train(name):
        with keras.device(name):
            keras.utils.set_random_seed(1)
            convolution = keras.layers.Conv2D(8, 3, activation="relu")
            model = keras.Sequential([convolution, keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(4)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), loss)
            history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"]
            assert all(v.value.storage.device.name == name for v in model.weights)
            with keras_ocl.profile(name) as times:
                model.predict(x, verbose=0)
            assert times.launches
            return history

    part = f"{device.name}/units=1"
    launches = runtime.find_device(part).statistics.launches
    np.testing.assert_allclose(train(part), train(device.name), rtol=1e-5)
    assert runtime.find_device(part).statistics.launches > launches


def test_the_variable_takes_a_part(device):
    several_units(device)
    code = "from keras_ocl import cli, runtime; print(runtime.current_device().traits.compute_units); cli.main(['devices'])"
    environment = {**os.environ, "KERAS_OCL_DEVICE": f"{device.name}/units=1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout.startswith("1\n") and f"* {device.name} " in result.stdout, result.stderr
