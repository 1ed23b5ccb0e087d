"""Processes that compile beside this one: a CPU runtime's compiler works on one program at a time in each process.

They are started when much is to be compiled, find the same device, get OpenCL C and answer with binaries, and end when nothing was asked
of them for a while or this process is gone. Where one cannot be started, or fails, this process compiles everything itself.
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
MOST = 7  # of a device; a model has not more programs that are worth it
MEMORY = 512 << 20  # bytes that are free for each: it takes a fifth of that, more for large programs
IDLE = 20.0  # seconds after which a process ends
AT_EXIT = 3.0  # seconds


def most_compilers(compute_units):
    """How many processes may compile for a CPU of so many compute units: KERAS_OCL_COMPILERS, else one for each other unit, up to 7.

    Raises ValueError where the variable is no number.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked and not asked.isdecimal():
        raise ValueError(f"{VARIABLE} is {asked!r}, not a number of processes: 0 compiles everything in this one")
    if _python() is None:
        return 0
    return int(asked) if asked else min(MOST, max(0, compute_units - 1))


def _python():
    """The command of a Python that can import what this one can; None in a program that Python is only a part of."""
    python = interpreter()
    if python is None:
        return None
    code = f"import sys; sys.path[:] = {sys.path!r}; from keras_ocl.runtime.compiler_process import serve; serve()"
    return [python, "-I", "-W", "ignore", "-c", code]


_all = weakref.WeakSet()  # Compilers


def _before_exit():
    """What was begun is kept, if that takes no longer than AT_EXIT: else a short script would never find it compiled."""
    if not Process.forked:
        end = time.monotonic() + AT_EXIT
        for compilers in list(_all):
            compilers.wait(max(0, end - time.monotonic()))


atexit.register(_before_exit)


class Compilers:
    """Up to `most` processes that compile for the device of an `identity` (as `programs.identity` tells it)."""

    def __init__(self, identity, most):
        self.most = most
        self._identity = identity
        self._tasks = queue.SimpleQueue()  # (Future of a binary or None, source, options, whether it is wanted, what to do with the binary)
        self._begun = set()  # Futures
        self._lock = threading.Lock()
        self.running = 0
        _all.add(self)

    def start(self, count):
        """Have `count` processes (or as many as there may be) on their way; does not wait for them."""
        with self._lock:
            count = min(count, self.most, available_memory() // MEMORY if count else 0)
            while self.running < count:
                self.running += 1
                threading.Thread(target=self._drive, name="keras_ocl compiler", daemon=True).start()

    def share(self, tasks):
        """(number, binary) of each of `tasks`, which are (source, options), in any order; the binary is None where the caller shall
        compile, as soon as it is told."""
        futures = [Future() for _ in tasks]
        for future, (source, options) in zip(futures, tasks, strict=True):
            self._tasks.put((future, source, options, lambda: True, lambda binary: None))
        try:
            # Processes take from the front, we from the back what they have not begun.
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
        """Futures of the binaries of `sources`, which processes compile one after the other; of None where they cannot or need not.

        wanted: function of a source's number, which tells in a thread, when its turn has come, whether it shall be compiled.
        keep: function of the number and the binary or None, which is called in a thread before the Future is done if it was wanted.
        after: function that returns when they may begin, which is called in a thread too.
        """
        part = functools.partial
        tasks = [(Future(), source, options, part(wanted, k), part(keep, k)) for k, source in enumerate(sources)]
        futures = [future for future, *_ in tasks]
        self._begun.update(futures)
        for future in futures:
            future.add_done_callback(self._begun.discard)
        threading.Thread(target=self._put, args=(tasks, after), name="keras_ocl drafts", daemon=True).start()
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
        """Wait until all that was begun is done, so long at most."""
        wait(self._begun.copy(), seconds)

    def _give_up(self):
        """Nobody works on what was asked for. Under the lock."""
        while not self._tasks.empty():
            future = self._tasks.get()[0]
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _finish(self, task, compiled):
        """Compile a task, unless that is not wanted any more. compiled: function of (source, options), its binary or None."""
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
        """One process's life."""
        try:
            with _Process(self._identity) as process:
                while True:
                    try:
                        task = self._tasks.get(timeout=IDLE)
                    except queue.Empty:
                        return
                    self._finish(task, process.ask)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.most = 0  # what failed once is not tried again
            logger.debug("keras_ocl compiles in one process: %s", error or type(error).__name__)
        finally:
            with self._lock:
                self.running -= 1
                if not self.running:
                    self._give_up()  # what came in the last moment, or after a failure


class _Process:
    """One process. Use as a context manager; OSError or EOFError where it does not answer."""

    def __init__(self, identity):
        errors = None if os.environ.get("KERAS_OCL_VERBOSE", "0") not in ("", "0") else subprocess.DEVNULL
        # A session of its own: Ctrl-C is for us.
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
        """What the process answers; the first time it is asked to find a device, then to compile (source, options)."""
        pickle.dump(what, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)
