"""Kernel objects of ours, and those that a user makes with pyopencl beside them."""

import numpy as np
import pyopencl as cl
from pyopencl import invoker

from keras_ocl.runtime import kernel_objects as module


def test_pyopencl_writes_code_for_others_kernels_alone(device, monkeypatch):
    written, write = [], invoker.generate_enqueue_and_set_args.__wrapped__
    noted = module._unless_ours(lambda name, *rest, **more: written.append(name) or write(name, *rest, **more))
    monkeypatch.setattr(invoker, "generate_enqueue_and_set_args", noted)
    source = "__kernel void {}(__global int* a, int n) {{ a[get_global_id(0)] = n; }}"
    device.build([("ours", source.format("ours"))])
    theirs = cl.Program(device.driver.context, source.format("theirs")).build(cache_dir=False).theirs
    buffer, found = cl.Buffer(device.driver.context, cl.mem_flags.READ_WRITE, 12), np.empty(3, "i4")
    theirs(device.queue, (3,), None, buffer, np.int32(7))
    cl.enqueue_copy(device.queue, found, buffer)
    assert written == ["theirs"] and found.tolist() == [7, 7, 7]
