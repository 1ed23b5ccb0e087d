"""Traces for `keras.callbacks.TensorBoard(profile_batch=...)`.

The callback starts a trace before the first batch of its range and stops it after the last. Each trace is a file
`plugins/profile/<time>/<host>.trace.json.gz` below the callback's `train` folder, where TensorBoard's profile plug-in looks for it, in
Chrome's trace event format: open it at https://ui.perfetto.dev or, in Chrome, at chrome://tracing. One process in it is the device, with
an event per kernel launch; the other is the host, with the batches, the host's own operations (such as LAPACK's), builds of kernels and
waits for values that are read back.
"""

import contextlib
import platform
import time
from pathlib import Path

from keras_ocl import chrome_trace, runtime


class _Running:
    """A trace of the current device that is being recorded."""

    def __init__(self, logdir):
        self.logdir = Path(logdir)
        self.device = runtime.current_device()
        self.trace = runtime.Timeline()
        self._context = contextlib.ExitStack()
        self._context.enter_context(runtime.profiled(self.device, self.trace))

    def stop(self):
        self._context.close()

    def write(self):
        """Writes the trace's file and returns its path."""
        folder = self.logdir / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{platform.node() or 'host'}.trace.json.gz"
        chrome_trace.write(path, str(self.device), self.trace)
        return path


_running: _Running | None = None


def start_trace(logdir):
    """Begin to record the current device's launches, for a file below `logdir`. An empty `logdir`, Keras's warm-up, does nothing.

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
    """End the trace once the device has finished; with `save`, write its file."""
    global _running
    if _running is None:
        return
    ended, _running = _running, None
    ended.stop()
    if save:
        ended.write()


@contextlib.contextmanager
def ending_with_errors():
    """Context manager: a trace that begins inside is ended by an error that leaves it, and its file is not written."""
    before = _running
    try:
        yield
    except BaseException:
        if _running is not before:
            stop_trace(save=False)
        raise


def start_batch_trace(batch):
    """Begin a batch within a trace; returns the context for `stop_batch_trace`."""
    span = _running.trace.span(f"batch {batch}") if _running is not None else contextlib.nullcontext()
    span.__enter__()
    return span


def stop_batch_trace(batch_trace_context):
    """Ends the batch that `start_batch_trace` began."""
    batch_trace_context.__exit__(None, None, None)
