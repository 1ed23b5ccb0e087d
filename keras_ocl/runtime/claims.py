"""Which process compiles a kernel that several need at the same time: the one that claims it; the others load what it stores.

A claim is a lock of one byte of a file beside the programs, at an offset computed from the kernel's key. The system releases a process's
locks when it ends, for whatever reason. No process waits while it has claims, so there are no deadlocks, and no wait is long.
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
PATIENCE = 60.0  # seconds of waiting after which this process compiles everything itself: the other may be stopped
POLL = 0.02  # seconds between two tries

_files = {}  # path -> _File; closing one would release all of this process's locks on it
_opening = threading.Lock()


class _File:
    """A file of locks, open until the process ends."""

    def __init__(self, path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        self._held = Counter()  # offset -> claims of it by this process
        self._lock = threading.Lock()

    def take(self, place):
        """Whether this process has the lock of byte `place` now. OSError if the file system has no locks."""
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
            if not self._held[place]:  # it was claimed without locks
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
    """Offset in the file. Kernels with the same one, by chance, only wait for one another. Windows counts up to 2**31."""
    return int(key[:7], 16)


class Claims:
    """Claims on the kernels of a DiskCache; where its folder cannot be written or has no locks, each process compiles all it needs."""

    def __init__(self, disk):
        self._disk = disk
        self._path = None  # of the file, once it is needed
        self._patient = True

    def _file(self):
        """The _File, or None if processes do not wait for one another."""
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
        """The list of those `keys` that this process shall compile; another process is compiling the others."""
        file = self._file()
        if file is None:
            return list(keys)
        try:
            return [key for key in keys if file.take(_place(key))]
        except OSError:
            self._patient = False
            return list(keys)

    def take_all(self, keys):
        """Claim all of `keys`, after waiting until no other process claims any; call it without having claims."""
        keys = sorted(keys, key=_place)  # of two processes that want the same keys, one gets all
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
        """Release claims, after storing what was compiled."""
        file = _files.get(self._path)
        for key in keys if file is not None else ():
            file.give_back(_place(key))

    def wait(self, keys):
        """Wait until no other process claims any of `keys`, for at most PATIENCE seconds; call it without having claims."""
        end = time.monotonic() + PATIENCE
        for key in keys:
            while not (taken := self.take([key])):
                if time.monotonic() > end:
                    self._patient = False
                    return
                time.sleep(POLL)
            self.give_back(taken)
