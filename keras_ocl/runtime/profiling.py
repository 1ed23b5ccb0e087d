"""Times of single kernels: KERAS_OCL_VERBOSE=1 and the `profiling()` context."""

import contextlib
import sys
from collections import deque

WINDOW = 256  # events held back before the finished ones are read


class Profiler:
    """Collects (label, milliseconds) of every launch in order; `sink` gets each as soon as it is known."""

    def __init__(self, sink):
        self.sink = sink
        self._pending = deque()

    def add(self, label, event):
        self._pending.append((label, event))
        if len(self._pending) >= WINDOW:
            self.drain()

    def drain(self, wait=False):
        """Pass on the launches that have finished; all of them with `wait`."""
        while self._pending:
            label, event = self._pending[0]
            if wait:
                event.wait()
            elif event.command_execution_status > 0:
                break
            self._pending.popleft()
            self.sink(label, (event.profile.end - event.profile.start) * 1e-6)


def verbose_line(label, milliseconds):
    print(f"keras_ocl: {label} {milliseconds:.4f} ms", file=sys.stderr)


@contextlib.contextmanager
def profiling(device=None):
    """Within this context every launch on `device` (the current one) is timed.

    Yields a list that is filled with (label, milliseconds) in launch order, complete when the context ends.
    """
    if device is None:
        from keras_ocl.runtime.selection import current_device

        device = current_device()
    events = []
    device.finish()
    before = device.queue, device.profiler
    device.queue = device.new_queue(profiling=True)
    device.profiler = Profiler(lambda label, ms: events.append((label, ms)))
    try:
        yield events
    finally:
        device.finish()
        device.queue, device.profiler = before
