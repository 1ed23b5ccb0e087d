"""Which process compiles a kernel that several need at the same time: the one that claims it; the others take what it stores.

A claim is a lock of one byte of a file beside the programs, at a place that the kernel's key gives. The system gives a process's locks back
when it ends, however it does. Nobody waits while it claims anything, so nobody waits in a circle, and nobody waits for long.
"""

import errno
import os
import sys
import threading
import time
from collections import Counter

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FILE = "claims"
PATIENCE = 60.0  # seconds without an answer after which this process compiles everything itself: another may be stopped
POLL = 0.02  # seconds

_files = {}  # path -> _File: closing one would give back all of this process's locks of it
_opening = threading.Lock()


class _File:
    """A file of locks, open until the process ends."""

    def __init__(self, path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        self._held = Counter()  # place -> claims of it by this process
        self._lock = threading.Lock()

    def take(self, place):
        """Whether the byte is this process's now. OSError where the file system has no locks."""
        with self._lock:
            try:
                if not self._held[place]:
                    self._system(place, True)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    return False
                raise
            self._held[place] += 1
            return True

    def give_back(self, place):
        with self._lock:
            if not self._held[place]:  # it was taken when there were no locks
                return
            self._held[place] -= 1
            if not self._held[place]:
                del self._held[place]
                self._system(place, False)

    def _system(self, place, take):
        if sys.platform == "win32":
            os.lseek(self._descriptor, place, os.SEEK_SET)
            msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK if take else msvcrt.LK_UNLCK, 1)
        else:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN, 1, place)


def _place(key):
    """Where in the file: kernels that meet there by chance only wait for one another. Windows counts up to 2**31."""
    return int(key[:7], 16)


class Claims:
    """The claims on the kernels of a DiskCache; where it cannot be written, or has no locks, each process compiles all that it needs."""

    def __init__(self, disk):
        self._disk = disk
        self._path = None  # of the file, once it is needed
        self._patient = True

    def _file(self):
        """The _File, None where nobody waits for anybody."""
        if not self._patient or not self._disk.can_store():
            return None
        self._path = os.path.realpath(self._disk.folder / FILE)
        try:
            with _opening:
                if self._path not in _files:
                    _files[self._path] = _File(self._path)
                return _files[self._path]
        except OSError:
            self._patient = False
            return None

    def take(self, keys):
        """Those of `keys` that this process shall compile, as a list; the others another process is compiling."""
        file = self._file()
        if file is None:
            return list(keys)
        try:
            return [key for key in keys if file.take(_place(key))]
        except OSError:
            self._patient = False
            return list(keys)

    def take_all(self, keys):
        """Claim all of `keys`, after waiting until no other process is compiling any of them; call it without claims."""
        keys = sorted(keys, key=_place)  # one of two processes that want the same gets all of them
        while True:
            taken = []
            for key in keys:
                if not self.take([key]):
                    break
                taken.append(key)
            else:
                return
            self.give_back(taken)
            self.wait(keys[len(taken) :])

    def give_back(self, keys):
        """End claims: what was compiled is stored."""
        file = _files.get(self._path)
        for key in keys if file is not None else ():
            file.give_back(_place(key))

    def wait(self, keys):
        """Wait until no other process claims any of `keys`, or for so long that it cannot be at work; call it without claims."""
        end = time.monotonic() + PATIENCE
        for key in keys:
            while not (taken := self.take([key])):
                if time.monotonic() > end:
                    self._patient = False
                    return
                time.sleep(POLL)
            self.give_back(taken)
