"""Devices beside those that a process chooses."""

from keras_ocl import runtime
from keras_ocl.runtime.opencl import OpenCL


def another(sharing=None):
    """A Device of the current one's hardware with a context, memory and a queue of its own, by default with the same way of sharing."""
    current = runtime.current_device()
    return runtime.Device(OpenCL(current.driver.handle, sharing or current.sharing), current.name)
