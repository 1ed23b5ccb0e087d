"""Context managers that time every launch on a device."""

import contextlib

from keras_ocl.runtime.profilers import Profiler
from keras_ocl.runtime.selection import current_device


@contextlib.contextmanager
def profiled(device, profiler):
    """Within this context `profiler` gets every launch on `device`; it has all of them at the end. Other profilers may get them too."""
    device.add_profiler(profiler)
    try:
        yield profiler
    finally:
        device.remove_profiler(profiler)


@contextlib.contextmanager
def profiling(device=None):
    """Within this context every launch on `device` (by default the current one) is timed, and every operation that the host computes.

    Yields a list of (label, milliseconds) in launch order, complete when the context ends.
    """
    if device is None:
        device = current_device()
    events = []
    with profiled(device, Profiler(lambda launch: events.append((launch.label, (launch.end - launch.start) * 1e-6)))):
        yield events
