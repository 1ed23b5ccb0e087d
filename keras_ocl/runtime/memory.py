"""Device memory: pooled blocks, slabs for state, sub-ranges of them, and the budget they share.

A Block is one Buffer of the driver, of a size class. Storages are cheap handles on a block (or on a range of one); a dead Storage puts
its block back on the free list of its class. The queue is in order, so the device may use a freed block at once; the host may write to
it only when its fence has completed: the last event that was enqueued before the block was freed.
"""

import _thread
import gc
import os
import re
import sys
import threading
from bisect import insort
from collections import deque

from keras_ocl.runtime import host
from keras_ocl.runtime.driver import Failure
from keras_ocl.runtime.errors import OutOfMemory, readable

SLAB_FIRST = 4 << 20  # bytes of the first slab of state; each further one is SLAB_GROWTH times larger, up to SLAB_LIMIT
SLAB_GROWTH = 4
SLAB_LIMIT = 256 << 20
IN_FLIGHT = 16 << 20  # bytes of blocks of one size class that uploads may have in flight before they wait for the oldest
UNSEEN = 1 << 20  # most bytes of new blocks between two queries of the host's free memory, which take longer than making a block


def size_class(nbytes):
    """Bytes of the block for a request: rounded up to eighths of the power of two below it, and to multiples of 256."""
    if nbytes <= 256:
        return 256
    shift = max((nbytes - 1).bit_length() - 4, 8)
    return -(-nbytes >> shift) << shift


def exact_size(nbytes):
    """Used instead of size_class with KERAS_OCL_EXACT_BUFFERS=1, so that Oclgrind sees every access past an array's end."""
    return max(nbytes, 1)


def round_up(nbytes, unit):
    """The least positive multiple of `unit` that holds `nbytes`."""
    return -(-max(nbytes, 1) // unit) * unit


_forgetters = []


def before_out_of_memory(forget):
    """Register `forget(device)`, called before an allocation fails until it fits or `forget` returns False: it had nothing to forget."""
    if forget not in _forgetters:
        _forgetters.append(forget)


class Block:
    """One Buffer of the driver, or with `buffer` None staging memory that belongs to the host.

    `host` is the memory as a writable buffer where the host can access it, else None. `release()` gives the memory back to the system; it
    is None where garbage collection does so.
    """

    __slots__ = ("buffer", "fence", "free", "host", "release", "size")

    def __init__(self, buffer, size, free, host=None, release=None):
        self.buffer, self.size, self.free, self.host, self.release = buffer, size, free, host, release
        self.fence = None


def take_idle(free, size, wait):
    """Take the oldest block from a free list if the device no longer uses it; None tells the caller to create another.

    Waits for the device, by `wait(event)`, only when the list holds as many blocks in use as uploads may have in flight.
    """
    try:
        block = free.popleft()
    except IndexError:
        return None
    fence = block.fence
    if fence is not None:
        if fence.command_execution_status > 0:
            if len(free) < min(max(IN_FLIGHT // size, 4), 256):
                free.appendleft(block)
                return None
            wait(fence)
        block.fence = None
    return block


class Storage:
    """A range of device memory, which is given back when the Storage is garbage-collected.

    Attributes:
        device: the Device it lives on.
        nbytes: its size in bytes.
        base: the Buffer it lies in; `offset` is its position there in bytes.
        mem: a Buffer to set as a kernel argument, `base` itself or a sub-buffer made on first use.
    """

    __slots__ = ("__weakref__", "_mem", "_owner", "block", "device", "nbytes", "offset")

    def __init__(self, device, block, nbytes, offset=0, owner=None):
        self.device, self.block, self.nbytes, self.offset = device, block, nbytes, offset
        self._owner = owner  # a Slab, the Storage this is a view of, or None for a whole block
        self._mem = block.buffer if offset == 0 else None

    @property
    def base(self):
        return self.block.buffer

    @property
    def mem(self):
        if self._mem is None:
            self._mem = self.block.buffer.get_sub_region(self.offset, max(self.nbytes, 1))
        return self._mem

    def view(self, offset, nbytes):
        """A Storage of the `nbytes` bytes from byte `offset` on; it keeps this one alive.

        Raises ValueError where the range leaves this storage or its start is not aligned to `traits.alignment`.
        """
        if offset < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"view of bytes {offset} to {offset + nbytes} leaves a storage of {self.nbytes} bytes")
        if offset % self.device.traits.alignment:
            raise ValueError(f"view at byte {offset} is not aligned to {self.device.traits.alignment} bytes")
        view = Storage(self.device, self.block, nbytes, self.offset + offset, self)
        if nbytes == self.nbytes and self.device.traits.sub_buffers:
            view._mem = self.mem  # the same Buffer, so that kernels' arguments need not be set again
        return view

    def __del__(self):
        # Runs in any thread, at any time: only operations that need no lock.
        try:
            owner = self._owner
        except AttributeError:  # `__init__` was interrupted
            return
        if owner is None:
            block = self.block
            device = self.device
            block.fence = device.last_event
            device.memory.current -= block.size
            self._owner = _ENDED  # see _not_swallowed
            block.free.append(block)
        elif type(owner) is Slab:
            self.block.fence = self.device.last_event
            size = min(-(-max(self.nbytes, 1) // owner.unit) * owner.unit, self.block.size - self.offset)
            self.device.memory.current -= size
            self._owner = _ENDED
            owner.freed.append((self.offset, size))

    def __repr__(self):
        return f"Storage({self.nbytes} bytes at {self.offset} on {self.device.name})"


_ENDED = object()  # replaces `_owner` once the memory was given back


def _not_swallowed(unraisable, otherwise=sys.unraisablehook):
    """Raise a Ctrl-C again that arrives in a finaliser, where it can be seen; Python would only print it."""
    if unraisable.exc_type is not KeyboardInterrupt:
        otherwise(unraisable)
        return
    if unraisable.object is Storage.__del__:
        place = unraisable.exc_traceback
        while place.tb_frame.f_code is not Storage.__del__.__code__:
            place = place.tb_next
        place.tb_frame.f_locals["self"].__del__()  # gives the memory back unless that was done
    _thread.start_new_thread(_thread.interrupt_main, ())  # from a thread, a little later, since this function cannot raise it


sys.unraisablehook = _not_swallowed


class Slab:
    """A block divided into ranges of multiples of `unit` bytes: first fit on a sorted free list, adjacent free ranges merged."""

    __slots__ = ("block", "freed", "holes", "unit")

    def __init__(self, block, unit):
        self.block, self.unit = block, unit
        self.holes = [(0, block.size)]
        self.freed = deque()  # (offset, bytes) of dead Storages, which the next take() merges

    def take(self, nbytes):
        """Offset of a free range of `nbytes` bytes, or None. Called under the memory's lock."""
        while self.freed:
            self._give(*self.freed.popleft())
        for i, (start, size) in enumerate(self.holes):
            if size >= nbytes:
                if size == nbytes:
                    del self.holes[i]
                else:
                    self.holes[i] = (start + nbytes, size - nbytes)
                return start
        return None

    def _give(self, start, size):
        insort(self.holes, (start, size))
        i = max(self.holes.index((start, size)) - 1, 0)
        while i + 1 < len(self.holes):
            (a, n), (b, m) = self.holes[i : i + 2]
            if a + n == b:
                self.holes[i : i + 2] = [(a, n + m)]
            elif b > start:
                break
            else:
                i += 1


class Memory:
    """All memory of one device.

    Attributes:
        current, peak: bytes handed out now, and the most so far.
        reserved: bytes of Buffers that exist (handed out, free in the pools, or in slabs), and of staging memory.
        budget: the most bytes that `reserved` may reach. Where device and host share memory, it follows the host's free memory.
        largest: the most bytes of one Buffer.
    """

    def __init__(self, device):
        self.device = device
        self.current = self.peak = self.reserved = 0
        budget(device.traits)  # raises where KERAS_OCL_MEMORY_LIMIT cannot be read
        self.largest = device.traits.max_allocation
        self._budget = None  # bytes, if a budget was set
        self._granted = 0  # bytes up to which `reserved` may grow before the host's free memory is queried again
        self._size = exact_size if os.environ.get("KERAS_OCL_EXACT_BUFFERS", "0") not in ("", "0") else size_class
        self._free = {}  # bytes of a block -> deque of free blocks, oldest first; no size class exceeds the largest buffer
        self._staging = {}  # the same for staging memory
        self._slabs = []
        self._blocks = set()  # all blocks, so that one lost in an interruption is not freed while the device may use it
        self._lock = threading.RLock()

    @property
    def budget(self):
        return budget(self.device.traits, self.reserved) if self._budget is None else self._budget

    @budget.setter
    def budget(self, nbytes):
        self._budget = nbytes

    @property
    def available(self):
        """Bytes that can still be handed out."""
        return max(self.budget - self.reserved + self._pooled(), 0)

    def allocate(self, nbytes, what=""):
        """A Storage of `nbytes` bytes (0 allowed) with undefined contents; raises OutOfMemory."""
        size = self._size(nbytes)
        free = self._free.get(size)
        if free is None:
            size, free = self._free_list(self._free, size, nbytes, what)
        try:
            block = free.pop()  # the newest: still in cache
        except IndexError:
            block = self._create(size, nbytes, free, what)
        try:
            self.current += block.size
            if self.current > self.peak:
                self.peak = self.current
            return Storage(self.device, block, nbytes)
        except BaseException:  # an interruption: nobody holds the block
            self._take_back(block)
            raise

    def allocate_idle(self, nbytes, what=""):
        """A Storage whose memory no enqueued command uses, so that the host may write to it at once.

        Waits for the device only when it still uses many blocks of that size.
        """
        size = self._size(nbytes)
        free = self._free.get(size)
        if free is None:
            size, free = self._free_list(self._free, size, nbytes, what)
        block = take_idle(free, size, self.device.wait)
        if block is None:
            block = self._create(size, nbytes, free, what)
        try:
            self.current += block.size
            if self.current > self.peak:
                self.peak = self.current
            return Storage(self.device, block, nbytes)
        except BaseException:  # an interruption: nobody holds the block
            self._take_back(block)
            raise

    def _take_back(self, block):
        if block not in block.free:  # otherwise a dead Storage has put it there
            self.current -= block.size
            block.free.append(block)

    def take_staging(self, nbytes, make, what=""):
        """A Block of `nbytes` bytes (at least 1) of staging memory that no enqueued command reads; raises OutOfMemory.

        The caller appends the block to its list `free` afterwards, with a fence. `make(size, free)` returns a new Block.
        """
        size, free = self._free_list(self._staging, size_class(nbytes), nbytes, what)
        return take_idle(free, size, self.device.wait) or self._create(size, nbytes, free, what, make)

    def _free_list(self, lists, size, nbytes, what):
        """(bytes of a block, free blocks of that size) for a request of size class `size`, which is capped at the largest buffer."""
        self._check_limit(nbytes, what)
        size = min(size, self.largest)
        return size, lists.setdefault(size, deque())

    def _check_limit(self, nbytes, what):
        if nbytes > self.largest:
            raise self._does_not_fit(nbytes, what, f"a single buffer holds at most {readable(self.largest)}")

    def allocate_state(self, nbytes, what=""):
        """A Storage for long-lived state, a range of a slab; what is allocated in succession is adjacent in the slab."""
        self._check_limit(nbytes, what)
        size = min(round_up(nbytes, self.device.traits.alignment), self.largest)
        with self._lock:
            for slab in self._slabs:
                offset = slab.take(size)
                if offset is not None:
                    break
            else:
                slab = self._new_slab(size, nbytes, what)
                offset = slab.take(size)
        self.current += size
        self.peak = max(self.peak, self.current)
        return Storage(self.device, slab.block, nbytes, offset, slab)

    def _new_slab(self, size, nbytes, what):
        limit = min(SLAB_LIMIT, self.largest // 4)
        usual = min(SLAB_FIRST * SLAB_GROWTH ** len(self._slabs), limit)
        if size > usual // 2:
            usual = size  # a slab of its own
        elif usual > (left := self.available):
            small = max(size, min(SLAB_FIRST, limit))
            usual = small if small <= left else size  # near the limit: a small slab, or one of just this size
        slab = Slab(self._create(usual, nbytes, None, what), self.device.traits.alignment)
        self._slabs.append(slab)
        return slab

    def trim(self):
        """Release all free blocks to the system; waits for the device."""
        self.device.idle()
        with self._lock:
            for free in [*self._free.values(), *self._staging.values()]:
                while free:
                    try:
                        block = free.pop()
                    except IndexError:  # another thread took it
                        break
                    self._destroy(block)
            for slab in list(self._slabs):
                while slab.freed:
                    slab._give(*slab.freed.popleft())
                if slab.holes == [(0, slab.block.size)]:
                    self._slabs.remove(slab)
                    self._destroy(slab.block)

    def destroy(self, storage):
        """Release the block of a pooled Storage, which has no views any more, to the system; waits for the device."""
        block = storage._owner = storage.block  # not None, so that the Storage's finaliser puts no block on a free list
        block.fence = self.device.last_event
        with self._lock:
            self.current -= block.size
            self._destroy(block)

    def _destroy(self, block):
        if block.fence is not None:
            self.device.wait(block.fence)
        self._blocks.discard(block)
        self.reserved -= block.size
        self._granted -= block.size
        if block.release is not None:
            block.release()
        block.host = None

    def _pooled(self):
        return sum(size * len(free) for size, free in [*self._free.items(), *self._staging.items()])

    def _create(self, size, nbytes, free, what, make=None):
        """A new block of `size` bytes for a request of `nbytes` bytes, made by `make(size, free)` if the budget allows it."""
        make = make or self._raw
        with self._lock:
            if not self._fits(size) and size > self.budget:
                raise self._does_not_fit(nbytes, what)  # emptying caches would not help
            block, why = self._try(size, free, make)
            if block is None:
                for _ in self.reclaim():
                    block, why = self._try(size, free, make)
                    if block is not None:
                        break
            if block is None:
                block = f" in a block of {readable(size)}" if not why and nbytes <= self.available else ""
                raise self._does_not_fit(nbytes, what, why, block)
            self._blocks.add(block)
            self.reserved += size
            return block

    def _try(self, size, free, make):
        """(new block, ""), or (None, the driver's error); the latter is "" where the budget is exceeded."""
        if not self._fits(size):
            return None, ""
        try:
            return make(size, free), ""
        except self.device.driver.errors as error:
            if self.device.driver.failure(error) is Failure.INVALID:
                raise
            self.device.check(error)
            return None, refusal(error)

    def reclaim(self):
        """Gives memory back to the system step by step, first unused memory, then what can be made again; yields True after each step."""
        gc.collect()
        self.trim()
        yield True
        if self.device.arena.release():
            yield True
        for forget in _forgetters:
            while forget(self.device):
                gc.collect()
                self.trim()
                yield True

    def _fits(self, size):
        wanted = self.reserved + size
        if wanted > min(self._granted, self._limit()):
            budget = self.budget
            self._granted = self.reserved + min(UNSEEN, (budget - self.reserved) // 16)
            return wanted <= budget
        return True

    def _limit(self):
        """The bytes of `budget` that are known without querying the host's free memory."""
        return fixed_budget(self.device.traits) if self._budget is None else self._budget

    def _does_not_fit(self, nbytes, what, why="", block=""):
        return self.out_of_memory(f"{what or 'a buffer'} needs {readable(nbytes)}{block}", why)

    def out_of_memory(self, what, why=""):
        """The OutOfMemory that says `what`, a clause, and its reason `why`."""
        return OutOfMemory(
            f"out of memory on {self.device}: {what}, {self.free()}"
            f"{'; ' + why if why else ''}; use a smaller batch or model, or let go of arrays you no longer need"
        )

    def free(self):
        """The bytes that are free, and the budget, as text."""
        return f"{readable(self.available)} of {readable(self.budget)} free"

    def _raw(self, size, free):
        """A new Block for kernels."""
        buffer, memory, release = self.device.driver.allocate(size)
        return Block(buffer, size, free, memory, release)


def refusal(error):
    """A driver's out-of-memory `error` as text: the driver knows better than our count what is free."""
    return f"the driver said {error}: it has less than that left, or not in one piece"


def budget(traits, reserved=0):
    """The most bytes that a device's buffers, which take `reserved` bytes now, may take in all.

    Nine tenths of the device's memory, or of what the host has free where it shares its memory, but no more than KERAS_OCL_MEMORY_LIMIT.
    """
    fixed = fixed_budget(traits)
    return min(fixed, reserved + int(0.9 * host.available_memory())) if traits.unified_memory else fixed


def fixed_budget(traits):
    """The bytes of `budget` without regard to the host's free memory."""
    return min(int(0.9 * traits.global_memory), memory_limit() or 1 << 62)


def memory_limit():
    """The bytes that KERAS_OCL_MEMORY_LIMIT, such as 512MiB, allows a device's buffers; None where it is not set.

    Raises ValueError where it is no number of bytes, KiB, MiB or GiB.
    """
    text = os.environ.get("KERAS_OCL_MEMORY_LIMIT", "")
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]ib)?", text.strip().lower())
    if found is None:
        raise ValueError(f"KERAS_OCL_MEMORY_LIMIT={text!r}: it is a number of bytes, or of KiB, MiB or GiB such as 512MiB")
    return int(float(found[1]) * 1024 ** (1 + ("kib", "mib", "gib").index(found[2]) if found[2] else 0))
