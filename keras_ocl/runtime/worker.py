"""A thread that computes for another one, beside what the device does."""

import queue
import threading
from concurrent.futures import Future


class Worker:
    """A thread that computes one thing after the other, in the order in which they are given.

    It does not keep the process alive: what it waits for may never come.
    """

    def __init__(self, name):
        self._name, self._given, self._thread, self._lock = name, queue.SimpleQueue(), None, threading.Lock()

    def give(self, future, function):
        """The thread will call `function()`, whose result or exception the concurrent.futures.Future then has."""
        self._given.put((future, function))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(self._given,), name=self._name, daemon=True)
                self._thread.start()

    def finish(self):
        """Wait until all that was given is done."""
        behind = Future()
        self.give(behind, lambda: None)
        behind.result()

    def end(self):
        """The thread ends behind what was given."""
        self._given.put((None, None))


def _work(given):
    while True:
        future, function = given.get()
        if future is None:
            return
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        del future, function  # they hold memory, and the next may never come
