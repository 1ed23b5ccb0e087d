"""Times of kernels."""

import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

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


def test_profiles_nest_and_may_end_in_any_order(device):
    kernel = device.build([ADD])["add"]
    storage = device.upload(np.zeros(8, np.float32))
    runtime.set_argument(kernel, 0, storage)
    queue = device.queue
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    seen = [first.enter_context(runtime.profiling())]
    device.enqueue(kernel, (8,), None, "a")
    seen.append(second.enter_context(runtime.profiling()))
    device.enqueue(kernel, (8,), None, "b")
    with device.operation("c"):
        pass
    first.close()
    device.enqueue(kernel, (8,), None, "d")
    second.close()
    device.enqueue(kernel, (8,), None, "e")
    assert device.queue is queue and device.profiler is None
    assert [sorted(label for label, _ in events) for events in seen] == [["a", "b", "host c"], ["b", "d", "host c"]]


@pytest.mark.parametrize("way", ["enqueue", "replay"])
def test_while_a_profile_begins_other_threads_wait_for_its_queue(device, monkeypatch, way):
    kernel = device.build([ADD])["add"]
    runtime.set_argument(kernel, 0, device.upload(np.zeros(8, np.float32)))
    launch = {"enqueue": lambda: device.enqueue(kernel, (8,)), "replay": lambda: device.replay([(kernel, (8,), None, "")])}[way]
    thread, new_queue = threading.Thread(target=launch), device.driver.queue

    def meanwhile(**options):
        thread.start()
        thread.join(0.3)
        return new_queue(**options)

    monkeypatch.setattr(device.driver, "queue", meanwhile)
    with runtime.profiling():
        thread.join()
        assert device.last_event.command_queue == device.queue, "two queues have no order"


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
