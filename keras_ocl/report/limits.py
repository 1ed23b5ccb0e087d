"""What bounds all kernels of a device, measured: the start of a launch, and the bandwidth of memory and of copies to and from the host."""

import numpy as np

from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import jit
from keras_ocl.report.timing import rates, timed

_EMPTY = "__kernel void nothing(void) {}"
_LAUNCHES = 256  # that follow one another


def launch(device, small):
    """One of many launches that do nothing."""
    kernel = _empty(device)
    launches = [(kernel, (1,), None, "nothing")] * (4 if small else _LAUNCHES)
    times = timed(lambda: device.replay(launches), device.finish)
    return {name: value if name == "n" else float(f"{value / len(launches):.4g}") for name, value in times.items()}


def round_trip(device, small):
    """One launch that does nothing, until the host knows that it is done."""
    kernel = _empty(device)

    def call():
        device.enqueue(kernel, (1,), None, "nothing")
        device.finish()

    return timed(call, lambda: None)


def memory(device, small):
    """An array in the device's memory, read and written once: x + 1."""
    array = _array(device, small, 256 << 20)
    x, add = from_numpy(array), jit(lambda x: x + 1)
    times = timed(lambda: add(x), device.finish)
    return {**times, "bytes_per_s": rates(times, 2 * array.nbytes)}


def upload(device, small):
    """An array of the host's memory, copied to the device's."""
    array = _array(device, small, 64 << 20)
    times = timed(lambda: device.upload(array, "report"), device.finish)
    return {**times, "bytes_per_s": rates(times, array.nbytes)}


def download(device, small):
    """An array of the device's memory, copied to the host's."""
    array = _array(device, small, 64 << 20)
    storage = device.upload(array, "report")
    times = timed(lambda: device.download(storage, array.dtype, array.shape), lambda: None)
    return {**times, "bytes_per_s": rates(times, array.nbytes)}


LIMITS = {"launch": launch, "round trip": round_trip, "memory": memory, "upload": upload, "download": download}


def _empty(device):
    (kernel,) = device.build([("nothing", _EMPTY)]).values()
    return kernel


def _array(device, small, nbytes):
    nbytes = 1 << 12 if small else min(nbytes, device.traits.max_allocation // 4, device.traits.global_memory // 16)
    return np.ones(nbytes // 4, np.float32)
