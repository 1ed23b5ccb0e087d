"""What all tests of kernels take: the device, and its traits with each schedule in turn."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.kernels.schedule import schedule_names


@pytest.fixture(scope="session")
def device():
    return runtime.current_device()


@pytest.fixture(params=schedule_names())
def traits(request, device):
    return dataclasses.replace(device.traits, schedule=request.param)
