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
    program = cl.Program(device.context, _ZEROS).build()
    with cl.CommandQueue(device.context, device.handle) as queue:
        buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        program.zeros(queue, (1,), None, buffer)
        cl.enqueue_copy(queue, x, buffer)
    return np.signbit(x).tolist() == [False, True]


def need_signed_zeros():
    """Skip where x + 0 is taken for x, or x * -0 for 0, without leave (-cl-no-signed-zeros): so does Mesa's compiler of 25.0."""
    if not _keeps_signs_of_zeros(runtime.current_device()):
        pytest.skip("the device's compiler drops the signs of zeros")


def on_rusticl():
    return runtime.current_device().platform == "rusticl"


def loses_int8_selects():
    """Whether the process may end where an int8 is selected: LLVM 19 cannot compile some of those for llvmpipe (Mesa 25.0)."""
    return on_rusticl() and "llvmpipe" in runtime.current_device().model
