"""Traces for `keras.callbacks.TensorBoard(profile_batch=...)`.

The callback starts a trace before the first batch of its range and stops it after the last. Each trace is a file
`plugins/profile/<time>/<host>.trace.json.gz` below the callback's `train` folder, where TensorBoard's profile plug-in looks for them, in
Chrome's trace event format: open it at https://ui.perfetto.dev or, in Chrome, at chrome://tracing. One process there is the device, with an
event for each kernel launch; the other is the host, with the batches, the host's own operations (such as LAPACK's), builds of kernels and
waits for values that are read back.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import contextlib
import gzip
import json
import platform
import time
from pathlib import Path

from keras_ocl import runtime

_DEVICE, _HOST = 1, 2  # the trace's processes


class _Running:
    """A trace that is being recorded, of the current device."""

    def __init__(self, logdir):
        self.logdir = Path(logdir)
        self.device = runtime.current_device()
        self.trace = runtime.Trace()
        self._context = contextlib.ExitStack()
        self._context.enter_context(runtime.profiled(self.device, self.trace))

    def stop(self):
        self._context.close()

    def write(self):
        """Writes the trace's file and returns its path."""
        folder = self.logdir / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{platform.node() or 'host'}.trace.json.gz"
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump({"displayTimeUnit": "ms", "traceEvents": self._events()}, file)
        return path

    def _events(self):
        processes = [(_DEVICE, str(self.device), self.trace.launches()), (_HOST, "host", self.trace.spans)]
        events = []
        for process, name, spans in processes:
            events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
            threads = {thread: k for k, thread in enumerate(dict.fromkeys(span.thread for span in spans))}
            for thread, k in threads.items():
                events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": k, "args": {"name": thread}})
            for span in spans:
                start, duration = (span.start - self.trace.begin) * 1e-3, (span.end - span.start) * 1e-3  # microseconds
                events.append({"ph": "X", "name": span.label, "pid": process, "tid": threads[span.thread], "ts": start, "dur": duration})
        return events


_running: _Running | None = None


def start_trace(logdir):
    """Begins to record the current device's launches, to be written below `logdir`. An empty `logdir`, Keras's warm-up, does nothing.

    Raises:
        RuntimeError: a trace is being recorded already.
    """
    global _running
    if not logdir:
        return
    if _running is not None:
        raise RuntimeError(f"a trace for {_running.logdir} is being recorded already: only one can be at a time")
    _running = _Running(logdir)


def stop_trace(save):
    """Ends the trace once the device has finished; with `save` writes its file."""
    global _running
    if _running is None:
        return
    ended, _running = _running, None
    ended.stop()
    if save:
        ended.write()


def start_batch_trace(batch):
    """Begins a batch within a trace; returns what `stop_batch_trace` takes."""
    span = _running.trace.span(f"batch {batch}") if _running is not None else contextlib.nullcontext()
    span.__enter__()
    return span


def stop_batch_trace(batch_trace_context):
    """Ends the batch that `start_batch_trace` began."""
    batch_trace_context.__exit__(None, None, None)
