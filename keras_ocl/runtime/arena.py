"""The memory of intermediate results, which all compiled functions of a device share: its queue runs one after the other."""

import itertools
import threading
import weakref


class Arena:
    """A buffer, or where the device has none so large several, as large as the largest of its tenants needs; made when one of them runs.

    A run holds `lock` from its first command to its last, so that the commands of two runs never mix in the queue. Nothing that outlives
    a run lies here.

    Attributes:
        storages: a tuple of the Storages, empty where there is none.
        users: who is running in it: several where a finaliser or a signal handler interrupts a run with one of its own.
    """

    def __init__(self, device):
        self._device = device
        self.lock = threading.RLock()
        self.storages = ()
        self.users = ()
        self._tenants = weakref.WeakSet()

    def enter(self, tenant, sizes, what):
        """The Storages, of at least so many bytes. Before they go, `tenant.leave()` is called. Raises OutOfMemory, which names `what`."""
        there = [storage.nbytes for storage in self.storages]
        wanted = [max(pair) for pair in itertools.zip_longest(there, sizes, fillvalue=1)]  # buffers may be empty
        if wanted != there:
            self._drop()  # first, so that both are never there at once
            self.storages = tuple([self._device.allocate(nbytes, what) for nbytes in wanted])
        self._tenants.add(tenant)
        return self.storages

    def release(self):
        """Give the memory back to the system unless a run is using it; waits for the device. Returns whether there was any."""
        if not self.lock.acquire(blocking=False):
            return False  # another thread runs in it
        try:
            found = bool(self.storages) and not self.users
            if found:
                self._drop()
            return found
        finally:
            self.lock.release()

    def abandon(self):
        """The next run gets other memory: something may still write to this, which is free again when nobody holds the Storages."""
        self._left()
        self.storages = ()

    def _drop(self):
        self._left()
        storages, self.storages = self.storages, ()
        for storage in storages:
            self._device.destroy(storage)

    def _left(self):
        for tenant in list(self._tenants):
            tenant.leave()  # sub-buffers keep the whole alive
        self._tenants.clear()
