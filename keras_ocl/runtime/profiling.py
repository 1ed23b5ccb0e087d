"""Contexts in which every launch on a device is timed."""

import contextlib

from keras_ocl.runtime.profilers import Profiler
from keras_ocl.runtime.selection import current_device


@contextlib.contextmanager
def profiled(device, profiler):
    """Within this context `profiler` gets every launch on `device`; it has all of them when the context ends."""
    before = device.queue, device.profiler
    _switch(device, device.new_queue(profiling=True), profiler)
    try:
        yield profiler
    finally:
        _switch(device, *before)


def _switch(device, queue, profiler):
    with device.arena.lock:  # what runs in it on one queue is done before another's commands get there
        device.finish()
        device.queue, device.profiler = queue, profiler


@contextlib.contextmanager
def profiling(device=None):
    """Within this context every launch on `device` (the current one) is timed, and every operation that the host computes.

    Yields a list that is filled with (label, milliseconds) in launch order, complete when the context ends.
    """
    if device is None:
        device = current_device()
    events = []
    with profiled(device, Profiler(lambda launch: events.append((launch.label, (launch.end - launch.start) * 1e-6)))):
        yield events
