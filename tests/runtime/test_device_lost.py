"""A device that does not answer any more: one sentence at every use, while others go on."""

import numpy as np
import pyopencl as cl
import pytest

from keras_ocl import runtime
from keras_ocl.runtime.device import living_devices
from tests.devices import another

ADD = ("add", "__kernel void add(__global float* a, const float b) { a[get_global_id(0)] += b; }")


@pytest.fixture
def device():
    """The current device with memory and a queue of its own."""
    return another()


def failing(code):
    """An OpenCL call that always fails."""

    def call(*args, **kwargs):
        raise cl.RuntimeError(cl._cl._ErrorRecord(msg="on purpose", code=getattr(cl.status_code, code), routine="clCall"))

    return call


class Broken:
    """A queue or an event whose every call fails."""

    def __init__(self, code):
        self._call = failing(code)

    def __getattr__(self, name):
        return self._call


def kernel_on(device):
    storage, kernel = device.upload(np.zeros(8, np.float32)), device.build([ADD])["add"]
    runtime.set_argument(kernel, 0, storage)
    runtime.set_argument(kernel, 1, np.float32(1).tobytes())
    return storage, kernel


def uses(device, storage, kernel):
    launch = (kernel, (8,), None, "add")
    return {
        "enqueue": lambda: device.enqueue(kernel, (8,)),
        "replay": lambda: device.replay([launch]),
        "repeat": lambda: device.repeat([([launch], (), b"")] * 3),
        "copy": lambda: device.copy(storage, storage.device.allocate(32)),
        "download": lambda: device.download(storage, np.float32, (8,)),
        "finish": device.finish,
        "upload": lambda: device.upload(np.zeros(8)),
        "build": lambda: device.build([ADD]),
        "allocate": lambda: device.allocate(100),
        "allocate_state": lambda: device.allocate_state(100),
    }


def check_lost(device, storage, kernel):
    """Every use fails at once with the same sentence, and another context of the same device works."""
    sentences = set()
    for use in uses(device, storage, kernel).values():
        with pytest.raises(runtime.DeviceLost) as caught:
            use()
        sentences.add(str(caught.value))
    (sentence,) = sentences
    assert sentence.startswith(f"{device} is lost (") and "load what was saved" in sentence and "\n" not in sentence
    assert device not in living_devices()
    other = runtime.current_device()
    assert other.download(other.upload(np.arange(3)), np.int64, (3,)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("use", ["enqueue", "replay", "repeat"])
@pytest.mark.parametrize("code", ["DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE"])
def test_lost_at_a_launch(device, use, code, monkeypatch):
    storage, kernel = kernel_on(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.driver, "launch", failing(code))
        with pytest.raises(runtime.DeviceLost, match=code):
            uses(device, storage, kernel)[use]()
    check_lost(device, storage, kernel)


@pytest.mark.parametrize("use", ["enqueue", "replay", "repeat", "finish", "copy"])
def test_out_of_resources_for_good(device, use, monkeypatch):
    """What some drivers say when a kernel has crashed: nothing works any more."""
    storage, kernel = kernel_on(device)
    calls, queue = uses(device, storage, kernel), device.queue
    device.finish()
    with monkeypatch.context() as patch:
        for name in ("launch", "copy", "barrier"):
            patch.setattr(device.driver, name, failing("OUT_OF_RESOURCES"))
        device.queue = Broken("OUT_OF_RESOURCES")
        with pytest.raises(runtime.DeviceLost, match="OUT_OF_RESOURCES"):
            calls[use]()
    device.queue = queue
    check_lost(device, storage, kernel)


def test_lost_while_it_is_waited_for(device):
    storage, kernel = kernel_on(device)
    device.finish()
    device.last_event = Broken("EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST")
    if device.sharing != "shared":
        pytest.skip("a read waits in the driver")
    with pytest.raises(runtime.DeviceLost, match="EXEC_STATUS_ERROR"):
        device.download(storage, np.float32, (8,))
    check_lost(device, storage, kernel)


def test_lost_at_an_allocation(device, monkeypatch):
    storage, kernel = kernel_on(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.driver, "allocate", failing("DEVICE_NOT_AVAILABLE"))
        with pytest.raises(runtime.DeviceLost, match="DEVICE_NOT_AVAILABLE"):
            device.allocate(12345678)
    check_lost(device, storage, kernel)


@pytest.mark.parametrize("use", ["enqueue", "repeat"])
def test_a_launch_that_is_refused_is_no_loss(device, use, monkeypatch):
    """As one of a group that the device does not have."""
    storage, kernel = kernel_on(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.driver, "launch", failing("INVALID_WORK_GROUP_SIZE"))
        with pytest.raises((RuntimeError, cl.RuntimeError), match="INVALID_WORK_GROUP_SIZE"):
            uses(device, storage, kernel)[use]()
    device.replay([(kernel, (8,), None, "add")])
    assert device.download(storage, np.float32, (8,)).tolist() == [1] * 8


COMMANDS = {**dict.fromkeys(("enqueue", "replay", "repeat"), "launch"), "copy": "copy"}


MISSING = {
    "MEM_OBJECT_ALLOCATION_FAILURE": (runtime.OutOfMemory, r"out of memory on .* of .* free; the driver said .*{}.*use a smaller batch"),
    "OUT_OF_RESOURCES": (RuntimeError, r"(add|a command) could not be .* on .*: the driver said .*{}.*; it lacks registers.*smaller batch"),
}


@pytest.mark.parametrize("code", MISSING)
@pytest.mark.parametrize("use", COMMANDS)
def test_memory_that_is_missing_when_a_command_needs_it(device, use, code, monkeypatch):
    """As where drivers make a buffer's memory late: what is not in use makes room for it, else the error says what the driver said."""
    kind, text = MISSING[code]
    storage, kernel = kernel_on(device)
    call = uses(device, storage, kernel)[use]
    enqueue, refuse = getattr(device.driver, COMMANDS[use]), failing(code)
    unused = device.allocate(8 << 20)

    def late(*args, **kwargs):
        return refuse() if device.memory.reserved > 8 << 20 else enqueue(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(device.driver, COMMANDS[use], late)
        with pytest.raises(kind, match=text.format(code)) as caught:
            call()
        assert type(caught.value) is kind and "\n" not in str(caught.value)
        del unused
        if use != "enqueue":
            call()
    assert device.download(storage, np.float32, (8,)).tolist() == [{"replay": 1, "repeat": 3}.get(use, 0)] * 8


def test_a_value_that_cannot_be_read_for_want_of_memory(device, monkeypatch):
    storage, _ = kernel_on(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.transfer, "download", failing("MEM_OBJECT_ALLOCATION_FAILURE"))
        with pytest.raises(runtime.OutOfMemory, match="a value could not be read, .* free"):
            device.download(storage, np.float32, (8,))
    assert device.download(storage, np.float32, (8,)).tolist() == [0] * 8
