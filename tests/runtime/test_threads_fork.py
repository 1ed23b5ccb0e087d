"""Threads, forked children, and a package that is imported again."""

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from keras_ocl import runtime

ADD = ("add", "__kernel void add(__global float* a, const float b) { a[get_global_id(0)] += b; }")


def test_threads_upload_launch_and_read(device):
    failures = []

    def work(number):
        try:
            for i in range(60):
                kernel = device.build([ADD])["add"]
                storage = device.upload(np.full(2000, number, np.float32))
                runtime.set_argument(kernel, 0, storage)
                runtime.set_argument(kernel, 1, np.float32(i).tobytes())
                device.enqueue(kernel, (2000,))
                device.replay([(kernel, (2000,), None, "add")])
                if not (device.download(storage, np.float32, (2000,)) == number + 2 * i).all():
                    failures.append((number, i))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def touch(action, connection):
    try:
        action()
        connection.send("no error")
    except RuntimeError as error:
        connection.send(str(error))
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("what", ["upload", "enqueue", "download", "build", "devices", "finish"])
def test_a_forked_child_is_told_to_spawn(device, what):
    storage = device.upload(np.zeros(4, np.float32))
    kernel = device.build([ADD])["add"]
    action = {
        "upload": lambda: device.upload(np.zeros(4)),
        "enqueue": lambda: device.enqueue(kernel, (4,)),
        "download": lambda: device.download(storage, np.float32, (4,)),
        "build": lambda: device.build([ADD]),
        "devices": runtime.devices,
        "finish": device.finish,
    }[what]
    receive, send = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=touch, args=(action, send))
    child.start()
    assert receive.poll(60), "the child hangs"
    message = receive.recv()
    assert 'start method "spawn"' in message
    assert "after the fork in gunicorn (without preload, or in post_fork)" in message and 'in joblib take the backend "loky"' in message
    child.join(60)
    assert child.exitcode == 0
    assert device.download(storage, np.float32, (4,)).tolist() == [0] * 4


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_before_first_use_is_fine():
    code = (
        "import os; from keras_ocl import runtime; pid = os.fork(); device = runtime.current_device(); device.finish();"
        "print('ok', flush=True); pid and os.waitpid(pid, 0)"
    )
    assert python(code).stdout.count("ok") == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("wait, leave", [("device.finish()", "sys.exit(3)"), ("", "os._exit(3)")])
def test_a_child_that_leaves_is_clean(wait, leave):
    """With memory of the device in its hands, by os._exit with work of the parent's in flight too; the parent goes on."""
    code = f"""
import os, signal, sys, numpy as np
from keras_ocl import runtime
device = runtime.current_device()
kernel = device.build([{ADD!r}])["add"]
storage = device.upload(np.zeros(100000, np.float32))
runtime.set_argument(kernel, 0, storage)
runtime.set_argument(kernel, 1, np.float32(1).tobytes())
for _ in range(50):
    device.enqueue(kernel, (100000,))
{wait}
pid = os.fork()
if not pid:
    signal.alarm(30)  # a child that hangs is killed
    del storage
    {leave}
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), device.download(storage, np.float32, (100000,)).max())
"""
    result = python(code)
    assert result.stdout == "3 50.0\n", result.stderr


def test_state_survives_a_second_import():
    code = """
import sys, numpy as np
from keras_ocl import runtime as first
device = first.current_device()
storage = device.upload(np.arange(4.0))
for name in list(sys.modules):
    if name.startswith("keras"):
        del sys.modules[name]
from keras_ocl import runtime as second
assert second.current_device() is device and isinstance(device, second.Device) and second.OutOfMemory is first.OutOfMemory
import keras_ocl.runtime.memory, keras_ocl.runtime.device as d
assert d.Device is second.Device and keras_ocl.runtime.memory.Storage is type(storage)
assert second.current_device().download(storage, np.float64, (4,)).tolist() == [0, 1, 2, 3]
print("same")
"""
    result = python(code)
    assert result.stdout == "same\n", result.stderr


def test_leaving_with_work_in_flight_is_clean():
    code = """
import numpy as np
from keras_ocl import runtime
device = runtime.current_device()
source = "__kernel void slow(__global float* a) { for (int i = 0; i < 3000000; i++) a[i % 64] = a[i % 64] * 0.5f + 1.0f; }"
kernel = device.build([("slow", source)])["slow"]
storage = device.upload(np.zeros(64, np.float32))
runtime.set_argument(kernel, 0, storage)
for _ in range(20):
    device.enqueue(kernel, (1,))
"""
    result = python(code)
    assert result.returncode == 0, result.stderr
