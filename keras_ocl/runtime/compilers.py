"""Compiler processes beside this one, since a CPU runtime's compiler works on one program at a time in each process.

They are started when much must be compiled, find the same device, receive OpenCL C and answer with binaries. They end after some
seconds without work, or when this process ends. Where one cannot be started or fails, this process compiles everything itself.
"""

import atexit
import functools
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future, wait

from keras_ocl.runtime.host import available_memory, interpreter
from keras_ocl.runtime.state import Process

logger = logging.getLogger("keras_ocl")

VARIABLE = "KERAS_OCL_COMPILERS"
MOST = 7  # processes for a device; more do not pay for a model's programs
MEMORY = 512 << 20  # bytes of free memory required per process: it uses a fifth of that, more for large programs
IDLE = 20.0  # seconds without work after which a process ends
AT_EXIT = 3.0  # seconds to wait at exit for compilers


def most_compilers(compute_units):
    """Most compiler processes for a CPU with so many compute units: KERAS_OCL_COMPILERS, else one less than its units and 7 at most.

    Raises ValueError where the variable is no number.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked and not asked.isdecimal():
        raise ValueError(f"{VARIABLE} is {asked!r}, not a number of processes: 0 compiles everything in this one")
    if _python() is None:
        return 0
    return int(asked) if asked else min(MOST, max(0, compute_units - 1))


def _python():
    """Command of a Python that can import what this one can; None in a program in which Python is embedded."""
    python = interpreter()
    if python is None:
        return None
    code = f"import sys; sys.path[:] = {sys.path!r}; from keras_ocl.runtime.compiler_process import serve; serve()"
    return [python, "-I", "-W", "ignore", "-c", code]


_all = weakref.WeakSet()  # Compilers


def _before_exit():
    """Wait up to AT_EXIT seconds for compilers and store their results: else a short script would compile the same every time."""
    if not Process.forked:
        end = time.monotonic() + AT_EXIT
        for compilers in list(_all):
            compilers.wait(max(0, end - time.monotonic()))


atexit.register(_before_exit)


class Compilers:
    """Up to `most` processes that compile for the device with an `identity` (see `opencl.identity`)."""

    def __init__(self, identity, most):
        self.most = most
        self._identity = identity
        self._tasks = queue.SimpleQueue()  # (Future of a binary or None, source, options, wanted(), keep(binary))
        self._begun = set()  # Futures of `begin` that are not done
        self._lock = threading.Lock()
        self.running = 0
        _all.add(self)

    def start(self, count):
        """Start processes until `count` run (or as many as are allowed and memory suffices for); does not wait for them."""
        with self._lock:
            count = min(count, self.most, available_memory() // MEMORY if count else 0)
            while self.running < count:
                self.running += 1
                threading.Thread(target=self._drive, name="keras_ocl compiler", daemon=True).start()

    def share(self, tasks):
        """Generator of (index, binary) for `tasks`, a list of (source, options), in any order. Where the binary is None the caller compiles
        that task itself, before it continues."""
        futures = [Future() for _ in tasks]
        for future, (source, options) in zip(futures, tasks, strict=True):
            self._tasks.put((future, source, options, lambda: True, lambda binary: None))
        try:
            # Processes take tasks from the front; the caller takes, from the back, those not begun.
            for k in reversed(range(len(futures))):
                if futures[k].cancel():
                    yield k, None
            for k, future in enumerate(futures):
                if not future.cancelled():
                    yield k, future.result()
        finally:
            for future in futures:
                future.cancel()

    def begin(self, sources, options, wanted, keep, after):
        """Futures of the binaries of `sources`, which processes compile in order; None as the result where they cannot or need not.

        wanted: function of a source's index, called in a thread when its turn comes; it says whether to compile the source.
        keep: function of the index and the binary or None, called in a thread before the Future is done, if the source was wanted.
        after: function that returns when compiling may begin, called in a thread too.
        """
        part = functools.partial
        tasks = [(Future(), source, options, part(wanted, k), part(keep, k)) for k, source in enumerate(sources)]
        futures = [future for future, *_ in tasks]
        self._begun.update(futures)
        for future in futures:
            future.add_done_callback(self._begun.discard)
        threading.Thread(target=self._put, args=(tasks, after), name="keras_ocl optimised builds", daemon=True).start()
        return futures

    def _put(self, tasks, after):
        try:
            after()
        finally:
            for task in tasks:
                self._tasks.put(task)
            self.start(len(tasks))
            with self._lock:
                if not self.running:
                    self._give_up()

    def wait(self, seconds):
        """Wait until all that `begin` began is done, for `seconds` at most."""
        wait(self._begun.copy(), seconds)

    def _give_up(self):
        """No process is left: give None as the result of every task. Called under the lock."""
        while not self._tasks.empty():
            future = self._tasks.get()[0]
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _finish(self, task, compiled):
        """Compile a task unless it is no longer wanted. compiled: function from (source, options) to a binary or None."""
        future, source, options, wanted, keep = task
        if future.set_running_or_notify_cancel():
            binary = None
            try:
                if wanted():
                    try:
                        binary = compiled((source, options))
                    finally:
                        keep(binary)
            finally:
                future.set_result(binary)

    def _drive(self):
        """The thread that starts one process and gives it tasks until it ends."""
        try:
            with _Process(self._identity) as process:
                while True:
                    try:
                        task = self._tasks.get(timeout=IDLE)
                    except queue.Empty:
                        return
                    self._finish(task, process.ask)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.most = 0  # after a failure, no process is started again
            logger.debug("keras_ocl compiles in one process: %s", error or type(error).__name__)
        finally:
            with self._lock:
                self.running -= 1
                if not self.running:
                    self._give_up()  # tasks of the last moment, or after a failure


class _Process:
    """One compiler process. A context manager; OSError or EOFError if the process does not answer."""

    def __init__(self, identity):
        errors = None if os.environ.get("KERAS_OCL_VERBOSE", "0") not in ("", "0") else subprocess.DEVNULL
        # A session of its own: Ctrl-C must reach this process only.
        self._process = subprocess.Popen(_python(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        self.ask(identity)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        self._process.kill()
        self._process.wait()

    def ask(self, what):
        """Send a request and return the answer: first a device's identity, then (source, options)."""
        pickle.dump(what, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)
