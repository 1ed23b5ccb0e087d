"""What a Device relies on in its driver: the meaning of errors, programs from OpenCL C and binaries, commands that are C code."""

import gc
import sys

import numpy as np
import pyopencl as cl
import pytest

from keras_ocl import runtime
from keras_ocl.runtime.driver import BuildFailure, Failure
from keras_ocl.runtime.quirks import INTEL_CPU
from tests.devices import another

ADD = "__kernel void add(__global float* a, const float b) { a[get_global_id(0)] += b; }"


def error(code, kind=cl.RuntimeError):
    return kind(cl._cl._ErrorRecord(msg="on purpose", code=getattr(cl.status_code, code), routine="clCall"))


@pytest.mark.parametrize(
    "found, meaning",
    [
        (error("DEVICE_NOT_AVAILABLE"), Failure.LOST),
        (error("INVALID_CONTEXT", cl.LogicError), Failure.LOST),
        (error("MEM_OBJECT_ALLOCATION_FAILURE", cl.MemoryError), Failure.MEMORY),
        (error("OUT_OF_HOST_MEMORY"), Failure.MEMORY),
        (error("OUT_OF_RESOURCES"), Failure.RESOURCES),
        (error("INVALID_BUFFER_SIZE", cl.LogicError), Failure.INVALID),
        (error("MAP_FAILURE"), Failure.OTHER),
        (cl.RuntimeError(), Failure.OTHER),
    ],
)
def test_what_errors_mean(device, found, meaning):
    assert device.driver.failure(found) is meaning and isinstance(found, device.driver.errors)


def test_an_allocation_that_is_not_valid_is_no_lack_of_memory(monkeypatch):
    device = another()

    def refuse(nbytes):
        raise error("INVALID_BUFFER_SIZE", cl.LogicError)

    monkeypatch.setattr(device.driver, "allocate", refuse)
    with pytest.raises(cl.LogicError, match="INVALID_BUFFER_SIZE"):
        device.allocate(12345)


def test_what_the_compiler_refuses_comes_with_its_log(device):
    with pytest.raises(BuildFailure) as caught:
        device.driver.compile("__kernel void k(__global float* a) { undeclared_thing; }", "")
    assert "undeclared_thing" in caught.value.log


@pytest.mark.parametrize(
    "text, left_out",
    [
        ("", True),
        ("// cl_intel_subgroups_char", False),  # code that asks for the extension finds it
        ("__kernel void other(__global float* a) { a[0] = sub_group_broadcast(a[0], 0u); }", False),
        ("#if _OPENCL_CTH_ + 0\n#error\n#endif", False),  # what does not compile without is compiled with it
        ("__kernel void other(__global float* a) { atomic_add(a, 1.0f); }", False),
    ],
)
def test_intels_header_is_there_where_it_is_used(device, text, left_out):
    """Its guard is 1 where it is left out, and empty where it was read."""
    if device.platform != INTEL_CPU:
        pytest.skip("a header of Intel's compiler")
    options = "-Dfloat_atomics_enable" if "atomic" in text else ""
    kernel = device.build([("add", f"{text}\n{ADD.replace('b;', '_OPENCL_CTH_ + 0;')}")], options)["add"]
    found = device.upload(np.zeros(8, "float32"))
    runtime.set_argument(kernel, 0, found)
    runtime.set_argument(kernel, 1, np.float32(0).tobytes())
    device.enqueue(kernel, (8,))
    assert device.download(found, np.float32, (8,)).tolist() == [left_out] * 8


def test_a_program_comes_back_from_its_binary(device):
    driver = device.driver
    binary = driver.binary(driver.compile(ADD, ""))
    if binary is None:
        pytest.skip("this driver gives no binaries")
    program, names = driver.load(binary)
    assert names == {"add"} and driver.kernel(program, "add").function_name == "add"
    assert driver.load(b"no program") is None


def calls(function, *args):
    """The names of the Python functions that are called, `function` among them."""
    found = []
    gc.disable()  # it may call functions of hypothesis
    sys.setprofile(lambda frame, event, argument: found.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def test_a_step_calls_no_python_for_each_launch_or_copy(device):
    """So no signal handler runs between them, and a launch takes little of the host's time."""
    source, target, kernel = device.upload(np.zeros(8, "float32")), device.allocate(32), device.build([("add", ADD)])["add"]
    runtime.set_argument(kernel, 0, source)
    runtime.set_argument(kernel, 1, np.float32(1).tobytes())
    launch, copying, done = (kernel, (8,), None, "add"), device._copying(source, target), []
    device.finish()  # else the host may wait for a fence
    device.statistics.reset()
    assert calls(device.replay, [launch] * 101) == ["Device.replay", "Device._start", "Device._launched"]
    assert calls(device._start, done, [launch] * 100, [copying] * 100, (), None) == ["Device._start"] and len(done) == 200
    device.finish()  # `_start` leaves it to `replay` to note the last event, for which a download waits
    assert device.download(target, np.float32, (8,)).tolist() == [201] * 8
