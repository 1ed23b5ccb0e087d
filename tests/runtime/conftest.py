import pytest

from keras_ocl import runtime
from keras_ocl.runtime.traits import ways_of_sharing
from tests.devices import another


@pytest.fixture
def device():
    return runtime.current_device()


@pytest.fixture(scope="module", params=["shared", "mapped", "copied", "pinned"])
def any_device(request):
    """The current device with its memory reached in each way that it can bear (a context of its own)."""
    ways = ways_of_sharing(runtime.current_device().driver.handle)
    if request.param == "shared" and "shared" not in ways:
        pytest.skip("no fine-grained shared memory")
    if request.param in ("mapped", "pinned") and len(ways) == 1:
        pytest.skip("this device cannot map")
    if request.param != "pinned":
        return another(request.param)
    device = another("copied")
    device.transfer._on_a_bus = True  # as on GPUs: staging in memory of the driver's own, and a queue for writes
    return device
