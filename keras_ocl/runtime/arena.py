"""The memory of intermediate results, which all compiled functions of a device share: its queue runs one after the other."""

import threading
import weakref


class Arena:
    """One buffer, as large as the largest of its tenants needs; made, and made larger, when one of them runs.

    A run holds `lock` from its first command to its last, so that the commands of two runs never mix in the queue. Nothing that outlives
    a run lies here.

    Attributes:
        storage: the Storage, or None.
        users: who is running in it: several where a finaliser or a signal handler interrupts a run with one of its own.
    """

    def __init__(self, device):
        self._device = device
        self.lock = threading.RLock()
        self.storage = None
        self.users = ()
        self._tenants = weakref.WeakSet()

    def enter(self, tenant, nbytes, what):
        """The Storage, of `nbytes` at least. Before it goes, `tenant.leave()` is called. Raises OutOfMemory, which names `what`."""
        if self.storage is None or self.storage.nbytes < nbytes:
            self._drop()  # first, so that both are never there at once
            self.storage = self._device.allocate(max(nbytes, 1), what)  # buffers may be empty
        self._tenants.add(tenant)
        return self.storage

    def release(self):
        """Give the memory back to the system unless a run is using it; waits for the device. Returns whether there was any."""
        if not self.lock.acquire(blocking=False):
            return False  # another thread runs in it
        try:
            found = self.storage is not None and not self.users
            if found:
                self._drop()
            return found
        finally:
            self.lock.release()

    def _drop(self):
        for tenant in list(self._tenants):
            tenant.leave()  # sub-buffers keep the whole alive
        self._tenants.clear()
        storage, self.storage = self.storage, None
        if storage is not None:
            self._device.destroy(storage)
