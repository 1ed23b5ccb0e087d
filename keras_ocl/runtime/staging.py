"""Copies from the host to the device and back, in the three ways a device's memory can be reached.

An upload returns when the caller's array has been read: it goes to memory that no enqueued command uses, so the host does not wait for
the device, and the device only takes the write in its turn in the queue.
"""

import numpy as np
import pyopencl as cl

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
        self.queue = device.new_queue()

    def upload(self, array, what):
        storage = self.device.memory.allocate_idle(array.nbytes, what)
        if array.nbytes:
            flags = cl.map_flags.WRITE_INVALIDATE_REGION
            mapped, _ = cl.enqueue_map_buffer(self.queue, storage.base, flags, 0, (array.nbytes,), np.uint8, is_blocking=True)
            np.ndarray(array.shape, array.dtype, mapped)[...] = array
            self.device.command(lambda queue: mapped.base.release(queue))
        return storage

    def download(self, storage, out):
        if not out.nbytes:
            return
        queue = self.device.queue
        mapped, _ = cl.enqueue_map_buffer(queue, storage.base, cl.map_flags.READ, storage.offset, (out.nbytes,), np.uint8, is_blocking=True)
        out[...] = np.ndarray(out.shape, out.dtype, mapped)
        mapped.base.release(queue)


class Copied:
    """Separate memories: a private copy in staging memory, then an enqueued write from there.

    For devices on a bus, larger arrays are written while the device computes: on a second queue, into memory that no enqueued command uses.
    """

    def __init__(self, device):
        self.device = device
        self.queue = device.new_queue()
        self._on_a_bus = device.kind == "gpu"

    def upload(self, array, what):
        device, beside = self.device, self._on_a_bus and array.nbytes >= BESIDE
        storage = (device.memory.allocate_idle if beside else device.memory.allocate)(array.nbytes, what)
        if array.nbytes:
            try:
                block = device.memory.take_staging(array.nbytes, self._make, what)
            except OutOfMemory:  # no room for a copy: wait until the caller's own array has been read
                source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                cl.enqueue_copy(device.queue, storage.base, source, is_blocking=True)
                return storage
            np.ndarray(array.shape, array.dtype, block.host)[...] = array
            source = block.host[: array.nbytes]
            if beside:
                device.command(self._write_beside, storage.base, source, block)
            else:
                block.fence = device.command(cl.enqueue_copy, storage.base, source, is_blocking=False)
            block.free.append(block)
        return storage

    def _write_beside(self, queue, target, source, block):
        """Enqueue a write on the second queue, and in `queue` a barrier that waits for it; returns the barrier's event."""
        try:
            block.fence = cl.enqueue_copy(self.queue, target, source, is_blocking=False)
            self.queue.flush()
            return cl.enqueue_barrier(queue, wait_for=[block.fence])
        except BaseException:  # no barrier in `queue` tells when the memory is free
            self.queue.finish()
            raise

    def _make(self, size, free):
        """A new block of staging memory."""
        if not self._on_a_bus:
            return Block(None, size, free, np.empty(size, np.uint8))
        # Memory of the driver's own, mapped permanently, which transfers use without another copy.
        buffer = cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
        how = cl.map_flags.READ | cl.map_flags.WRITE
        mapped, _ = cl.enqueue_map_buffer(self.queue, buffer, how, 0, (size,), np.uint8, is_blocking=True)

        def release():
            mapped.base.release(self.queue)
            buffer.release()

        return Block(buffer, size, free, mapped, release)

    def download(self, storage, out):
        if out.nbytes:
            target = out.reshape(-1).view(np.uint8)
            cl.enqueue_copy(self.device.queue, target, storage.base, src_offset=storage.offset, is_blocking=True)


def transfer(device):
    """The upload and download methods for `device`, as its `sharing` requires."""
    return {"shared": Shared, "mapped": Mapped, "copied": Copied}[device.sharing](device)
