"""Profilers, which take the times of launches and of the host's activities: `Profiler`, `Timeline` and `Record`."""

import contextlib
import operator
import sys
import threading
import time
from array import array
from collections import Counter
from typing import NamedTuple

import pyopencl as cl

WINDOW = 256  # events kept before the times of the finished ones are read
_SAMPLE = 16  # one launch in so many compares the device's clock with the host's
_START, _END, _QUEUED = cl.profiling_info.START, cl.profiling_info.END, cl.profiling_info.QUEUED
OVERLAPPED = "overlapped"  # name in traces of the thread for operations that the host computes beside the device
WAIT, READ_BACK, UPLOAD, BUILD = "wait", "read back", "upload", "build"  # first words of the labels of the host's spans


class Label(str):
    """A launch's name.

    Attributes:
        source: an object that says what the launch computes.
        kind: whether it is a "kernel", a "host" operation or a "copy".
        nbytes: bytes of a copy, or of a host operation's operands.
        overwrites: whether it writes over a variable's value.
    """

    __slots__ = ("kind", "nbytes", "overwrites", "source")

    def __new__(cls, text, source=None, kind="kernel", nbytes=0, overwrites=False):
        label = super().__new__(cls, text)
        label.source, label.kind, label.nbytes, label.overwrites = source, kind, nbytes, overwrites
        return label


class Launch(NamedTuple):
    """One launch: label, start and end (nanoseconds of the device's clock), nanoseconds the host took to enqueue it, and context.

    An operation that the host computes instead is one too: labelled "host ...", on the host's clock, with its whole time as `host`.
    """

    label: str
    start: int
    end: int
    host: int
    context: object

    @property
    def kind(self):
        """The kind of the Label; a plain string is the label of a kernel."""
        return getattr(self.label, "kind", "kernel")


class Profiler:
    """Collects every launch in order; `sink` gets each Launch as soon as its times are known.

    Launches are kept in columns until then, since a step may have hundreds of them, of a microsecond each on the host.

    Attributes:
        ahead: upper bound of the nanoseconds by which the host's clock is ahead of the device's; None before any times were read.
    """

    def __init__(self, sink=None, context=None):
        self.sink, self._context = sink, context or (lambda: None)
        self.ahead = None
        self._labels, self._events, self._contexts, self._ticks, self._hosts = [], [], [], array("q"), array("q")

    def add(self, labels, events, ticks):
        """Note launches enqueued one after the other; `ticks` are the host's clock (ns) before the first and after each of them."""
        after = ticks[1:]
        self._labels += labels
        self._events += events
        self._contexts += [self._context()] * len(labels)
        self._ticks.extend(after)
        self._hosts.extend(map(operator.sub, after, ticks))
        # The queue is in order: when a launch has finished, so have those before it.
        if len(self._events) >= 2 * WINDOW and self._events[WINDOW].command_execution_status <= 0:
            self._take(WINDOW)

    def drain(self, wait=False):
        """Pass on the launches that have finished; all of them with `wait`."""
        if wait and self._events:
            self._events[-1].wait()
        finished = 0
        while finished < len(self._events) and (wait or self._events[finished].command_execution_status <= 0):
            finished += 1
        self._take(finished)

    def _take(self, count):
        """Read the times of the first `count` launches, and pass them on."""
        events = self._events[:count]
        # `event.profile` says the same, and takes ten times as long.
        starts, ends = ([event.get_profiling_info(what) for event in events] for what in (_START, _END))
        # A launch is queued before the host's clock is read, so the smallest difference of the clocks is nearest the truth.
        distances = [self._ticks[k] - events[k].get_profiling_info(_QUEUED) for k in range(0, count, _SAMPLE)]
        self.ahead = min(distances if self.ahead is None else [self.ahead, *distances], default=None)
        self._told(self._labels[:count], starts, ends, self._hosts[:count], self._contexts[:count])
        for column in (self._labels, self._events, self._contexts, self._ticks, self._hosts):
            del column[:count]

    def _told(self, *columns):
        """Pass on launches whose times are known: labels, starts, ends, times on the host, contexts."""
        for launch in zip(*columns, strict=True):
            self.sink(Launch(*launch))

    def span(self, label, nbytes=0):
        """Context manager for something that the host does; only a `Timeline` takes its time."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def operation(self, label, nbytes=0):
        """Context manager for an operation on `nbytes` bytes that the host computes: it counts as a launch."""
        start = time.perf_counter_ns()
        yield
        Profiler.overlapped(self, label, start, time.perf_counter_ns(), nbytes)

    def overlapped(self, label, start, end, nbytes):
        """Note an operation that the host has computed beside the device (start and end in ns): it counts as a launch."""
        label = Label(f"host {label}", getattr(label, "source", None), "host", nbytes)
        self._told([label], [start], [end], [end - start], [self._context()])

    def copied(self, event, begin, end, nbytes):
        """A copy within the device was enqueued, between `begin` and `end` (ns of the host); only a `Record` takes its time."""

    def ran(self, executable, results):
        """A compiled function (its compiler.Executable) was enqueued and returned the Storages `results`; only a `Record` notes it."""

    def step(self, name):
        """An eager step of training, evaluation or prediction begins; only a `Record` notes it."""


class Several:
    """Passes every call on to several Profilers."""

    def __init__(self, profilers):
        self.profilers = tuple(profilers)

    def add(self, labels, events, ticks):
        for one in self.profilers:
            one.add(labels, events, ticks)

    def drain(self, wait=False):
        for one in self.profilers:
            one.drain(wait)

    def span(self, label, nbytes=0):
        return self._all(one.span(label, nbytes) for one in self.profilers)

    def operation(self, label, nbytes=0):
        return self._all(one.operation(label, nbytes) for one in self.profilers)

    def overlapped(self, *args):
        for one in self.profilers:
            one.overlapped(*args)

    @contextlib.contextmanager
    def _all(self, contexts):
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            yield

    def copied(self, event, begin, end, nbytes):
        for one in self.profilers:
            one.copied(event, begin, end, nbytes)

    def ran(self, executable, results):
        for one in self.profilers:
            one.ran(executable, results)

    def step(self, name):
        for one in self.profilers:
            one.step(name)


def verbose_line(launch):
    """Print the label and milliseconds of a Launch (KERAS_OCL_VERBOSE)."""
    print(f"keras_ocl: {launch.label} {(launch.end - launch.start) * 1e-6:.4f} ms", file=sys.stderr)


class Span(NamedTuple):
    """Something that took time: label, start and end (nanoseconds of `time.perf_counter_ns`), thread of the process, bytes moved."""

    label: str
    start: int
    end: int
    thread: str
    nbytes: int = 0


class Timeline(Profiler):
    """Launches, and the host's activities meanwhile.

    Attributes:
        begin: when the trace began, in nanoseconds of `time.perf_counter_ns`.
        spans: one Span for each activity of the host, in the order in which they ended.
    """

    def __init__(self, context=None):
        super().__init__(context=context)
        self._kept = [], array("q"), array("q"), array("q"), []  # columns of Launches
        self.begin = time.perf_counter_ns()
        self.spans = []

    def _told(self, *columns):
        for kept, more in zip(self._kept, columns, strict=True):
            kept.extend(more)

    def launches(self):
        """The Launches of kernels, copies and host operations that were recorded, in order."""
        return [Launch(*launch) for launch in zip(*self._kept, strict=True)]

    def device_spans(self):
        """One Span per launch of a kernel, in order, on the host's clock; complete when the device has finished."""
        ahead = self.ahead or 0
        return [Span(one.label, one.start + ahead, one.end + ahead, "kernels") for one in self.launches() if one.kind == "kernel"]

    def span(self, label, nbytes=0):
        return _Timing(self, label, nbytes)

    operation = span  # shown among the host's activities, not as launches

    def overlapped(self, label, start, end, nbytes):
        self.spans.append(Span(label, start, end, OVERLAPPED, nbytes))

    def overlaps(self):
        """[(Span, ns in which kernels ran)] of each operation that the host computed beside the device; call it when that has finished."""
        kernels = self.device_spans()
        found = [span for span in self.spans if span.thread == OVERLAPPED]
        return [(one, sum(max(0, min(one.end, k.end) - max(one.start, k.start)) for k in kernels)) for one in found]


class _Timing:
    """Context manager that adds a Span to a Timeline. (A class, since contextlib's take five times as long.)"""

    __slots__ = ("label", "nbytes", "start", "trace")

    def __init__(self, trace, label, nbytes):
        self.trace, self.label, self.nbytes = trace, label, nbytes

    def __enter__(self):
        self.start = time.perf_counter_ns()

    def __exit__(self, *_):
        end = time.perf_counter_ns()
        self.trace.spans.append(Span(self.label, self.start, end, threading.current_thread().name, self.nbytes))


class Record(Timeline):
    """A Timeline that also counts how often compiled functions and eager steps ran.

    Attributes:
        runs: (executable, context) -> number of runs; `handed_out`: the same keys -> the executable's handed_out() in its first run.
        steps: name of a step -> number of times that it began, in eager code.
    """

    def __init__(self, context):
        super().__init__(context)
        self.runs, self.handed_out, self.steps = Counter(), {}, Counter()

    @contextlib.contextmanager
    def operation(self, label, nbytes=0):
        with Profiler.operation(self, label, nbytes), self.span(label, nbytes):
            yield

    def overlapped(self, *args):
        Profiler.overlapped(self, *args)
        super().overlapped(*args)

    def copied(self, event, begin, end, nbytes):
        self.add([Label("copy", None, "copy", nbytes)], [event], [begin, end])

    def ran(self, executable, results):
        key = executable, self._context()
        if key not in self.handed_out:
            self.handed_out[key] = executable.handed_out(results)
        self.runs[key] += 1

    def step(self, name):
        self.steps[name] += 1
