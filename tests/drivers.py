"""What some drivers' compilers get wrong, found by asking them: the tests that need it right say so, and skip."""

import functools

import numpy as np
import pyopencl as cl
import pytest

from keras_ocl import runtime

_ZEROS = """
__kernel void zeros(__global float *x) {
  x[0] = x[0] + 0.0f;
  x[1] = x[1] * -0.0f;
}
"""


@functools.cache
def _keeps_signs_of_zeros(device):
    x = np.array([-0.0, 1.0], "float32")
    program = cl.Program(device.driver.context, _ZEROS).build(cache_dir=False)
    with cl.CommandQueue(device.driver.context, device.driver.handle) as queue:
        buffer = cl.Buffer(device.driver.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        program.zeros(queue, (1,), None, buffer)
        cl.enqueue_copy(queue, x, buffer)
    return np.signbit(x).tolist() == [False, True]


def need_signed_zeros():
    """Skip where x + 0 is taken for x, or x * -0 for 0, without leave (-cl-no-signed-zeros): so does Mesa's compiler of 25.0."""
    if not _keeps_signs_of_zeros(runtime.current_device()):
        pytest.skip("the device's compiler drops the signs of zeros")


_DIVISION = """
__kernel void divide(__global const float *x, __global const float *y, __global float *z) {
  int i = get_global_id(0);
  z[i] = x[i] / y[i];
}
"""


@functools.cache
def _divides_exactly(device):
    x, y = np.random.default_rng(0).uniform(1, 4, (2, 1 << 12)).astype("float32")
    program, flags = (
        cl.Program(device.driver.context, _DIVISION).build(cache_dir=False),
        cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR,
    )
    with cl.CommandQueue(device.driver.context, device.driver.handle) as queue:
        buffers = [cl.Buffer(device.driver.context, flags, hostbuf=a) for a in (x, y, x)]
        program.divide(queue, x.shape, None, *buffers)
        found = np.empty_like(x)
        cl.enqueue_copy(queue, found, buffers[2])
    return np.array_equal(found, x / y)


def division_ulps():
    """By how many units in the last place float32's quotients may be off: OpenCL allows 2.5, of which NVIDIA's compiler makes use."""
    return 0 if _divides_exactly(runtime.current_device()) else 2.5


def joins_here_and_there():
    """Whether the compiler rounds a product before a sum in one kernel and not in another, as Mesa's and NVIDIA's do."""
    return runtime.current_device().platform in ("rusticl", "NVIDIA CUDA")


def on_rusticl():
    return runtime.current_device().platform == "rusticl"


def loses_int8_selects():
    """Whether the process may end where an int8 is selected: LLVM 19 cannot compile some of those for llvmpipe (Mesa 25.0)."""
    return on_rusticl() and "llvmpipe" in runtime.current_device().model
