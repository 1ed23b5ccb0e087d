"""Times of kernels."""

import os
import subprocess
import sys

import numpy as np

from keras_ocl import runtime

ADD = ("add", "__kernel void add(__global float* a) { a[get_global_id(0)] += 1; }")


def test_profiling_collects_every_launch(device):
    kernel = device.build([ADD])["add"]
    storage = device.upload(np.zeros(1000, np.float32))
    runtime.set_argument(kernel, 0, storage)
    queue = device.queue
    with runtime.profiling() as events:
        for i in range(300):
            device.enqueue(kernel, (1000,), None, f"step {i}")
        device.replay([(kernel, (1000,), None, "last"), (kernel, (1000,), None, "")])
    assert [label for label, _ in events] == [f"step {i}" for i in range(300)] + ["last", "add"]
    assert all(0 <= ms < 1000 for _, ms in events)
    assert device.queue is queue and device.profiler is None
    device.enqueue(kernel, (1000,))
    assert len(events) == 302
    assert device.download(storage, np.float32, (1,))[0] == 303


def test_verbose_prints_one_line_a_kernel():
    code = f"""
import numpy as np
from keras_ocl import runtime
device = runtime.current_device()
kernel = device.build([{ADD!r}])["add"]
runtime.set_argument(kernel, 0, device.upload(np.zeros(8, np.float32)))
device.enqueue(kernel, (8,), None, "dense/matmul")
with device.operation("cholesky"):
    pass
"""
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "KERAS_OCL_VERBOSE": "1"}, capture_output=True, text=True, timeout=120
    )
    for label in ("dense/matmul", "host cholesky"):
        lines = [line for line in result.stderr.splitlines() if line.startswith(f"keras_ocl: {label} ")]
        assert len(lines) == 1 and lines[0].endswith(" ms"), result.stderr
