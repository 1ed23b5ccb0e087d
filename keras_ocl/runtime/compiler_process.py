"""The process that compiles for another process; see compilers.py."""

import os
import pickle
import queue
import threading

from keras_ocl.runtime import discovery
from keras_ocl.runtime.driver import BuildFailure
from keras_ocl.runtime.opencl import OpenCL, identity
from keras_ocl.runtime.programs import STANDARD

WARM_UP = "__kernel void first(__global float* x) { x[get_global_id(0)] += 1; }"  # a first program takes a tenth of a second more


def serve():
    """Read a device's identity, then one (source, options) after the other, and answer with binaries until the other process ends.

    The answer is None for what cannot be compiled: the other process compiles it again, and sees the compiler's log.
    """
    requests, answers = queue.SimpleQueue(), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print must not reach the pipe
    threading.Thread(target=_read, args=(requests,), daemon=True).start()

    def answer(what):
        pickle.dump(what, answers)
        answers.flush()

    wanted = requests.get()
    handle = next(d for platform in discovery.platforms() for d in platform.get_devices() if identity(d) == wanted)
    driver = OpenCL(handle, "copied")
    driver.compile(WARM_UP, STANDARD)
    answer("ready")
    while True:
        source, options = requests.get()
        try:
            answer(driver.binary(driver.compile(source, options)))
        except BuildFailure:
            answer(None)


def _read(requests):
    """Put requests in a queue, and end the process when the other one has ended, even while it compiles."""
    with os.fdopen(os.dup(0), "rb") as pipe:
        while True:
            try:
                requests.put(pickle.load(pipe))
            except (EOFError, pickle.UnpicklingError):
                os._exit(0)
