import pytest

from keras_ocl import runtime
from keras_ocl.runtime.device import Device
from keras_ocl.runtime.traits import ways_of_sharing


@pytest.fixture
def device():
    return runtime.current_device()


@pytest.fixture(scope="module", params=["shared", "mapped", "copied", "pinned"])
def any_device(request):
    """The current device with its memory reached in each way that it can bear (a context of its own)."""
    current = runtime.current_device()
    ways = ways_of_sharing(current.handle)
    if request.param == "shared" and "shared" not in ways:
        pytest.skip("no fine-grained shared memory")
    if request.param in ("mapped", "pinned") and len(ways) == 1:
        pytest.skip("this device cannot map")
    if request.param != "pinned":
        return Device(current.handle, current.name, request.param)
    device = Device(current.handle, current.name, "copied")
    device.transfer._on_a_bus = True  # as on GPUs: staging in memory of the driver's own, and a queue for writes
    return device
