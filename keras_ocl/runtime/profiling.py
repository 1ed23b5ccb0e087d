"""Times of single kernels: KERAS_OCL_VERBOSE=1, the `profiling()` context, and a `Trace` that has them beside what the host does."""

import contextlib
import sys
import threading
import time
from collections import deque
from typing import NamedTuple

WINDOW = 256  # events held back before the finished ones are read


class Launch(NamedTuple):
    """One launch: what, when (nanoseconds of the device's clock), and how far the host's clock was ahead of that, or less.

    An operation that the host computes in its place is one too, labelled "host ..." and on the host's clock.
    """

    label: str
    start: int
    end: int
    ahead: int


class Profiler:
    """Collects every launch in order; `sink` gets the Launch as soon as its times are known."""

    def __init__(self, sink):
        self.sink = sink
        self._pending = deque()

    def add(self, label, event):
        self._pending.append((label, event, time.perf_counter_ns()))
        if len(self._pending) >= WINDOW:
            self.drain()

    def drain(self, wait=False):
        """Pass on the launches that have finished; all of them with `wait`."""
        while self._pending:
            label, event, added = self._pending[0]
            if wait:
                event.wait()
            elif event.command_execution_status > 0:
                break
            self._pending.popleft()
            times = event.profile
            self.sink(Launch(label, times.start, times.end, added - times.queued))

    def span(self, label):
        """Context of something that the host does; only a `Trace` takes its time."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def operation(self, label):
        """Context of an operation that the host computes: it counts as a launch."""
        start = time.perf_counter_ns()
        yield
        self.sink(Launch(f"host {label}", start, time.perf_counter_ns(), 0))


def verbose_line(launch):
    print(f"keras_ocl: {launch.label} {(launch.end - launch.start) * 1e-6:.4f} ms", file=sys.stderr)


class Span(NamedTuple):
    """Something that took time: what, when (nanoseconds of `time.perf_counter_ns`), and in which of its process's threads."""

    label: str
    start: int
    end: int
    thread: str


class Trace(Profiler):
    """Launches, and what the host does meanwhile.

    Attributes:
        begin: when the trace began, in nanoseconds of `time.perf_counter_ns`.
        spans: Span of each thing that the host did, in the order in which they ended.
    """

    def __init__(self):
        self._launches = []
        super().__init__(self._launches.append)
        self.begin = time.perf_counter_ns()
        self.spans = []

    def launches(self):
        """Span of each launch, in order, on the host's clock; complete when the device has finished."""
        # A launch is queued before it is added here: the least distance between the clocks is nearest the truth.
        ahead = min((launch.ahead for launch in self._launches), default=0)
        return [Span(launch.label, launch.start + ahead, launch.end + ahead, "kernels") for launch in self._launches]

    @contextlib.contextmanager
    def span(self, label):
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spans.append(Span(label, start, time.perf_counter_ns(), threading.current_thread().name))

    operation = span  # beside the launches, with what else the host does


@contextlib.contextmanager
def profiled(device, profiler):
    """Within this context `profiler` gets every launch on `device`; it has all of them when the context ends."""
    device.finish()
    before = device.queue, device.profiler
    device.queue = device.new_queue(profiling=True)
    device.profiler = profiler
    try:
        yield profiler
    finally:
        device.finish()
        device.queue, device.profiler = before


@contextlib.contextmanager
def profiling(device=None):
    """Within this context every launch on `device` (the current one) is timed, and every operation that the host computes.

    Yields a list that is filled with (label, milliseconds) in launch order, complete when the context ends.
    """
    if device is None:
        from keras_ocl.runtime.selection import current_device

        device = current_device()
    events = []
    with profiled(device, Profiler(lambda launch: events.append((launch.label, (launch.end - launch.start) * 1e-6)))):
        yield events
