"""Times of launches and of what the host does meanwhile: KERAS_OCL_VERBOSE=1, the `profiling()` context, `Trace` and `Record`."""

import contextlib
import sys
import threading
import time
from collections import Counter, deque
from typing import NamedTuple

import pyopencl as cl

WINDOW = 256  # events held back before the finished ones are read
_SAMPLE = 16  # of so many launches one tells how the device's clock and the host's differ
_START, _END, _QUEUED = cl.profiling_info.START, cl.profiling_info.END, cl.profiling_info.QUEUED
WAIT, READ_BACK, UPLOAD, BUILD = "wait", "read back", "upload", "build"  # what spans of the host begin with


class Label(str):
    """A launch's name, and as `source` what it computes (any object)."""

    __slots__ = ("source",)

    def __new__(cls, text, source=None):
        label = super().__new__(cls, text)
        label.source = source
        return label


class Launch(NamedTuple):
    """One launch: what, when (nanoseconds of the device's clock), how long the host took to enqueue it, and in which context.

    An operation that the host computes in its place is one too, labelled "host ..." and on the host's clock, with `host` its whole time.
    """

    label: str
    start: int
    end: int
    host: int
    context: object


class Profiler:
    """Collects every launch in order; `sink` gets the Launch as soon as its times are known.

    Attributes:
        ahead: by how many nanoseconds the host's clock is ahead of the device's, or less; None before anything was read.
    """

    def __init__(self, sink, context=None):
        self.sink, self._context = sink, context or (lambda: None)
        self.ahead = None
        self._pending, self._read = deque(), 0

    def add(self, label, event, begin, end):
        """Note a launch that the host enqueued from `begin` to `end`."""
        pending = self._pending
        pending.append((label, event, begin, end, self._context()))
        # The queue is in order: when a launch has finished, so have those before it.
        if len(pending) >= 2 * WINDOW and pending[WINDOW][1].command_execution_status <= 0:
            self._take(WINDOW)

    def drain(self, wait=False):
        """Pass on the launches that have finished; all of them with `wait`."""
        pending = self._pending
        if wait and pending:
            pending[-1][1].wait()
        while pending and (wait or pending[0][1].command_execution_status <= 0):
            self._take(1)

    def _take(self, count):
        for _ in range(count):
            label, event, begin, end, context = self._pending.popleft()
            if not self._read % _SAMPLE:
                # A launch is queued before it is added here: the least distance between the clocks is nearest the truth.
                ahead = end - event.get_profiling_info(_QUEUED)
                self.ahead = ahead if self.ahead is None else min(self.ahead, ahead)
            self._read += 1
            # `event.profile` says the same, and takes ten times as long.
            start, finish = event.get_profiling_info(_START), event.get_profiling_info(_END)
            self.sink(Launch(label, start, finish, end - begin, context))

    def span(self, label, nbytes=0):
        """Context of something that the host does; only a `Trace` takes its time."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def operation(self, label):
        """Context of an operation that the host computes: it counts as a launch."""
        start = time.perf_counter_ns()
        yield
        end = time.perf_counter_ns()
        self.sink(Launch(Label(f"host {label}", getattr(label, "source", None)), start, end, end - start, self._context()))

    def copied(self, event, begin, end, nbytes):
        """A copy within the device was enqueued; only a `Record` takes its time."""

    def ran(self, executable, results):
        """A compiled function (its compiler.Executable) was enqueued, and handed out the Storages `results`; for a `Record`."""

    def step(self, name):
        """An eager step of training, evaluation or prediction begins; for a `Record`."""


def verbose_line(launch):
    print(f"keras_ocl: {launch.label} {(launch.end - launch.start) * 1e-6:.4f} ms", file=sys.stderr)


class Span(NamedTuple):
    """Something that took time: what, when (nanoseconds of `time.perf_counter_ns`), in which of its process's threads, bytes it moved."""

    label: str
    start: int
    end: int
    thread: str
    nbytes: int = 0


class Trace(Profiler):
    """Launches, and what the host does meanwhile.

    Attributes:
        begin: when the trace began, in nanoseconds of `time.perf_counter_ns`.
        spans: Span of each thing that the host did, in the order in which they ended.
    """

    def __init__(self, context=None):
        self._launches = []
        super().__init__(self._launches.append, context)
        self.begin = time.perf_counter_ns()
        self.spans = []

    def launches(self):
        """Span of each launch, in order, on the host's clock; complete when the device has finished."""
        ahead = self.ahead or 0
        return [Span(launch.label, launch.start + ahead, launch.end + ahead, "kernels") for launch in self._launches]

    @contextlib.contextmanager
    def span(self, label, nbytes=0):
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spans.append(Span(label, start, time.perf_counter_ns(), threading.current_thread().name, nbytes))

    operation = span  # beside the launches, with what else the host does


class Record(Trace):
    """A Trace with copies, and with what compiled functions ran.

    Attributes:
        timed: the Launches, in order; operations that the host computes are among them, as they are among the spans.
        copies: (Launch of each copy within the device, its bytes).
        runs: (executable, context) -> how often it ran; `handed_out`: with the same keys, its handed_out() of the first run.
        steps: name of a step -> how often it began, in eager code.
    """

    def __init__(self, context):
        super().__init__(context)
        self.timed, self.copies = [], []
        self.runs, self.handed_out, self.steps = Counter(), {}, Counter()
        self.sink = self._sort

    def _sort(self, launch):
        if type(launch.label) is _Copy:
            self.copies.append((launch, launch.label.nbytes))
            return
        self.timed.append(launch)

    def launches(self):
        self._launches = [launch for launch in self.timed if not launch.label.startswith("host ")]
        return super().launches()

    @contextlib.contextmanager
    def operation(self, label):
        with Profiler.operation(self, label), self.span(label):
            yield

    def copied(self, event, begin, end, nbytes):
        self.add(_Copy(nbytes), event, begin, end)

    def ran(self, executable, results):
        key = executable, self._context()
        if key not in self.handed_out:
            self.handed_out[key] = executable.handed_out(results)
        self.runs[key] += 1

    def step(self, name):
        self.steps[name] += 1


class _Copy(str):
    """The label of a copy of `nbytes`."""

    __slots__ = ("nbytes",)

    def __new__(cls, nbytes):
        label = super().__new__(cls, "copy")
        label.nbytes = nbytes
        return label


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
