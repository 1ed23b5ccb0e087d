"""What a process that compiles for another does; see compilers.py."""

import os
import pickle

import pyopencl as cl

from keras_ocl.runtime import discovery
from keras_ocl.runtime.programs import STANDARD, binary_of, build_program, identity

WARM_UP = "__kernel void first(__global float* x) { x[get_global_id(0)] += 1; }"  # a compiler's first takes a tenth of a second more


def serve():
    """Reads the identity of a device, then (source, options) after (source, options), and answers with binaries until nobody asks any more.

    None is the answer to what cannot be compiled: who asked compiles it again, and sees the compiler's log.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print must not reach the pipe

    def answer(what):
        pickle.dump(what, answers)
        answers.flush()

    wanted = pickle.load(requests)
    handle = next(d for platform in discovery.platforms() for d in platform.get_devices() if identity(d) == wanted)
    context = cl.Context([handle])
    build_program(context, handle, WARM_UP, STANDARD)
    answer("ready")
    while True:
        try:
            source, options = pickle.load(requests)
        except EOFError:
            return
        try:
            answer(binary_of(build_program(context, handle, source, options)))
        except cl.Error:
            answer(None)
