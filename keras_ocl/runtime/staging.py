"""Copies from the host to the device and back, in the three ways a device's memory can be reached.

An upload returns when the caller's array has been read: it goes to memory that no enqueued command uses, so the host does not wait for
the device, and the device only takes the write in its turn in the queue.
"""

import numpy as np

from keras_ocl.runtime.errors import OutOfMemory
from keras_ocl.runtime.memory import Block

BESIDE = 256 << 10  # bytes from which a second queue pays: writing them at a bus's 10 GB/s takes longer than synchronising two queues


class Shared:
    """Host and device access the same bytes: an upload or download is one copy on the host."""

    def __init__(self, device):
        self.device = device

    def upload(self, array, what):
        storage = self.device.memory.allocate_idle(array.nbytes, what)
        if array.nbytes:
            np.ndarray(array.shape, array.dtype, storage.block.host)[...] = array
        return storage

    def download(self, storage, out):
        event = self.device.last_event
        if event is not None:
            self.device.wait(event)
        if out.nbytes:
            out[...] = self.view(storage, out.dtype, out.shape)

    def view(self, storage, dtype, shape):
        return np.ndarray(shape, dtype, storage.block.host, storage.offset)


class Mapped:
    """One physical memory, accessed by map and unmap. Idle blocks are mapped on a second queue, which is always empty."""

    def __init__(self, device):
        self.device = device
        self.queue = device.driver.queue()

    def upload(self, array, what):
        device = self.device
        storage = device.memory.allocate_idle(array.nbytes, what)
        if array.nbytes:
            mapped, unmap = device.driver.map(self.queue, storage.base, 0, array.nbytes, write=True)
            np.ndarray(array.shape, array.dtype, mapped)[...] = array
            device.command(unmap)
        return storage

    def download(self, storage, out):
        if not out.nbytes:
            return
        queue = self.device.queue
        mapped, unmap = self.device.driver.map(queue, storage.base, storage.offset, out.nbytes, write=False)
        out[...] = np.ndarray(out.shape, out.dtype, mapped)
        unmap(queue)


class Copied:
    """Separate memories: a private copy in staging memory, then an enqueued write from there.

    For devices on a bus, larger arrays are written while the device computes: on a second queue, into memory that no enqueued command uses.
    """

    def __init__(self, device):
        self.device = device
        self.queue = device.driver.queue()
        self._on_a_bus = device.kind == "gpu"

    def upload(self, array, what):
        device, beside = self.device, self._on_a_bus and array.nbytes >= BESIDE
        storage = (device.memory.allocate_idle if beside else device.memory.allocate)(array.nbytes, what)
        if array.nbytes:
            try:
                block = device.memory.take_staging(array.nbytes, self._make, what)
            except OutOfMemory:  # no room for a copy: wait until the caller's own array has been read
                source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                device.driver.write(device.queue, storage.base, source, is_blocking=True)
                return storage
            np.ndarray(array.shape, array.dtype, block.host)[...] = array
            source = block.host[: array.nbytes]
            if beside:
                device.command(self._write_beside, storage.base, source, block)
            else:
                block.fence = device.command(device.driver.write, storage.base, source, is_blocking=False)
            block.free.append(block)
        return storage

    def _write_beside(self, queue, target, source, block):
        """Enqueue a write on the second queue, and in `queue` a barrier that waits for it; returns the barrier's event."""
        driver = self.device.driver
        try:
            block.fence = driver.write(self.queue, target, source, is_blocking=False)
            self.queue.flush()
            return driver.barrier(queue, block.fence)
        except BaseException:  # no barrier in `queue` tells when the memory is free
            self.queue.finish()
            raise

    def _make(self, size, free):
        """A new block of staging memory."""
        if not self._on_a_bus:
            return Block(None, size, free, np.empty(size, np.uint8))
        buffer, memory, release = self.device.driver.allocate_pinned(self.queue, size)
        return Block(buffer, size, free, memory, release)

    def download(self, storage, out):
        if out.nbytes:
            target = out.reshape(-1).view(np.uint8)
            self.device.driver.read(self.device.queue, storage.base, target, src_offset=storage.offset, is_blocking=True)


class Nowhere:
    """No memory: nothing is written, and nothing can be read."""

    def __init__(self, device):
        self.device = device

    def upload(self, array, what):
        return self.device.memory.allocate(array.nbytes, what)

    def download(self, storage, out):
        raise RuntimeError(f"{self.device}: nothing runs there, so no value (shape {out.shape}, {out.dtype}) can be read")


def transfer(device):
    """The upload and download methods for `device`, as its `sharing` requires."""
    return {"shared": Shared, "mapped": Mapped, "copied": Copied, "none": Nowhere}[device.sharing](device)
