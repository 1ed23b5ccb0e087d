"""What tests of compiling share: kernels k0, k1, ... that store their number and a half, and waiting for another thread."""

import time

import numpy as np

from keras_ocl import runtime


def kernel_specs(count):
    """What Programs.build takes, of so many kernels."""
    return [(f"k{n}", f"__kernel void k{n}(__global float* a) {{ a[get_global_id(0)] = {n}.5f; }}") for n in range(count)]


def check_kernels(device, kernels):
    """The kernels that Programs.build returned store what they should."""
    for name, kernel in kernels.items():
        storage = device.allocate(32)
        runtime.set_argument(kernel, 0, storage)
        device.enqueue(kernel, (8,))
        assert set(device.download(storage, np.float32, (8,))) == {int(name[1:]) + 0.5}


def wait(condition):
    """Until the condition holds, a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
