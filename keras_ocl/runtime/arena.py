"""The memory for intermediate results, shared by all compiled functions of a device, since its queue runs one after the other."""

import itertools
import threading
import weakref


class Arena:
    """One buffer, or several where the device's buffers are too small, with the size that the largest tenant (compiled function) needs.

    It is made when a tenant runs. A run holds `lock` from its first command to its last, so commands of two runs never mix in the queue.
    Nothing that outlives a run lies in the arena.

    Attributes:
        storages: a tuple of Storages; empty if there is no memory.
        users: the runs in progress: several where a finaliser or signal handler interrupts a run with one of its own.
    """

    def __init__(self, device):
        self._device = device
        self.lock = threading.RLock()
        self.storages = ()
        self.users = ()
        self._tenants = weakref.WeakSet()

    @property
    def nbytes(self):
        """Bytes of its memory."""
        return sum(storage.nbytes for storage in self.storages)

    def enter(self, tenant, sizes, what):
        """The Storages, of at least `sizes` bytes each. `tenant.leave()` is called before they go. Raises OutOfMemory, naming `what`."""
        there = [storage.nbytes for storage in self.storages]
        wanted = [max(pair) for pair in itertools.zip_longest(there, sizes, fillvalue=1)]  # buffers may be empty
        if wanted != there:
            self._drop()  # first, so that old and new memory never exist at once
            self.storages = tuple([self._device.allocate(nbytes, what) for nbytes in wanted])
        self._tenants.add(tenant)
        return self.storages

    def release(self):
        """Give the memory back to the system unless a run uses it; waits for the device. Returns whether there was any."""
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
        """Let the next run get other memory, as something may still write to this; it is freed when nobody holds its Storages."""
        self._left()
        self.storages = ()

    def _drop(self):
        self._left()
        storages, self.storages = self.storages, ()
        for storage in storages:
            self._device.destroy(storage)

    def _left(self):
        for tenant in list(self._tenants):
            tenant.leave()  # a tenant's sub-buffers would keep the whole buffer alive
        self._tenants.clear()
