"""A thread that computes for another one, while the device computes."""

import queue
import threading
from concurrent.futures import Future


class Worker:
    """A thread that calls functions one after the other, in the order in which they are given.

    It does not keep the process alive, since a function may wait forever.
    """

    def __init__(self, name):
        self._name, self._given, self._thread, self._lock = name, queue.SimpleQueue(), None, threading.Lock()

    def give(self, future, function):
        """Have the thread call `function()`; the concurrent.futures.Future then gets its result or exception."""
        self._given.put((future, function))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=_work, args=(self._given,), name=self._name, daemon=True)
                self._thread.start()

    def finish(self):
        """Wait until all functions given so far are done."""
        behind = Future()
        self.give(behind, lambda: None)
        behind.result()

    def end(self):
        """End the thread after the functions given so far."""
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
        del future, function  # they hold memory, and the next function may never come
