"""A device: its traits, its context and queue, and everything that is done on it."""

import atexit
import contextlib
import gc
import os
import threading
import time
import weakref
from dataclasses import dataclass

import numpy as np
import pyopencl as cl

from keras_ocl.runtime import state
from keras_ocl.runtime.arena import Arena
from keras_ocl.runtime.memory import Memory, Storage
from keras_ocl.runtime.profilers import READ_BACK, UPLOAD, WAIT, Profiler, Several, verbose_line
from keras_ocl.runtime.programs import Programs
from keras_ocl.runtime.staging import transfer

BACKLOG = 1024  # launches between two points of which the host never runs more than one ahead


@dataclass(frozen=True)
class Traits:
    """What kernels and schedules may ask of a device; never its vendor's name.

    Attributes:
        kind: "cpu" or "gpu" (accelerators are GPUs here).
        vector_width: float lanes of one explicit vector.
        compute_units: their number.
        local_memory: bytes of local memory per work-group.
        max_group: the most work-items of a work-group.
        fp64: whether it computes in float64.
        fp16: whether it computes in float16.
        subgroups: whether it has sub-groups.
        unified_memory: whether it shares its memory with the host.
        max_allocation: bytes of the largest buffer.
        global_memory: bytes of all its memory.
        alignment: bytes to which sub-ranges of a buffer are aligned.
        schedule: the name of the schedule by which kernels are written for it (kernels/schedules/).
        clock: the highest clock frequency in MHz, 0 where the driver does not tell.
        vec_len_hint: whether kernels may forbid the compiler's own vectorisation (cl_intel_vec_len_hint).
    """

    kind: str
    vector_width: int
    compute_units: int
    local_memory: int
    max_group: int
    fp64: bool
    fp16: bool
    subgroups: bool
    unified_memory: bool
    max_allocation: int
    global_memory: int
    alignment: int
    schedule: str
    clock: int
    vec_len_hint: bool = False


def read_traits(handle):
    """The Traits of a pyopencl Device."""
    extensions = handle.extensions.split()
    cpu = bool(handle.type & cl.device_type.CPU)
    width = max(handle.preferred_vector_width_float, handle.native_vector_width_float, 4 if cpu else 1)
    kind = "cpu" if cpu else "gpu"
    return Traits(
        kind=kind,
        vector_width=min(width, 16),
        compute_units=handle.max_compute_units,
        local_memory=handle.local_mem_size,
        max_group=handle.max_work_group_size,
        fp64="cl_khr_fp64" in extensions or _reports_double(handle),
        fp16="cl_khr_fp16" in extensions,
        subgroups="cl_khr_subgroups" in extensions or "cl_intel_subgroups" in extensions,
        unified_memory=bool(handle.host_unified_memory),
        max_allocation=handle.max_mem_alloc_size,
        global_memory=handle.global_mem_size,
        alignment=max(handle.mem_base_addr_align // 8, 128),
        schedule=os.environ.get("KERAS_OCL_SCHEDULE") or kind,
        clock=handle.max_clock_frequency,
        vec_len_hint="cl_intel_vec_len_hint" in extensions,
    )


def _reports_double(handle):
    try:
        return handle.double_fp_config != 0
    except cl.Error:
        return False


WAYS_OF_SHARING = ("shared", "mapped", "copied")


def forced_sharing():
    """The way that KERAS_OCL_TRANSFER names, "" where it is not set; ValueError for what is no way."""
    way = os.environ.get("KERAS_OCL_TRANSFER", "")
    if way and way not in WAYS_OF_SHARING:
        raise ValueError(f'KERAS_OCL_TRANSFER={way!r}: it is "shared", "mapped" or "copied"')
    return way


def ways_of_sharing(handle):
    """How the host may reach a device's memory, best first; the self-test tries them in this order.

    "shared": plain reads and writes (fine-grained shared virtual memory). "mapped": one physical memory, through
    map and unmap. "copied": enqueued copies.
    """
    ways = ["copied"]
    # CPU devices too old for shared virtual memory get copies: Mesa's first rusticl aborts on unmap.
    if handle.host_unified_memory and not handle.type & cl.device_type.CPU:
        ways.insert(0, "mapped")
    try:
        if handle.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER:
            ways.insert(0, "shared")
    except (cl.Error, AttributeError):
        pass
    return ways


class Statistics:
    """Counts of what a device has done.

    `kernels` are those compiled in `builds` (cache hits count in neither); `upload_bytes` and `download_bytes` are of arrays on the host.
    """

    COUNTS = ("builds", "kernels", "launches", "uploads", "upload_bytes", "downloads", "download_bytes")

    def __init__(self, memory):
        self._memory = memory
        self.reset()

    def reset(self):
        """Start all counts from 0."""
        self.builds = self.kernels = self.launches = self.uploads = self.upload_bytes = self.downloads = self.download_bytes = 0

    @property
    def bytes_current(self):
        return self._memory.current

    @property
    def bytes_peak(self):
        return self._memory.peak

    def __repr__(self):
        counts = (*self.COUNTS, "bytes_current", "bytes_peak")
        return f"Statistics({', '.join(f'{name}={getattr(self, name)}' for name in counts)})"


_living = weakref.WeakSet()


class Device:
    """One device with its context, in-order queue and memory.

    Everything here enqueues and returns, except `download` and `finish`.
    """

    runs = True  # what is launched on it; on a RecordDevice nothing is

    def __init__(self, handle, name, sharing):
        self.handle = handle
        self.name = name
        self.platform = handle.platform.name.strip()
        self.model = handle.name.strip()
        self.driver = handle.driver_version
        self.traits = read_traits(handle)
        self.kind = self.traits.kind
        self.sharing = sharing
        self.context = cl.Context([handle])
        self.last_event = None
        verbose = os.environ.get("KERAS_OCL_VERBOSE", "0") not in ("", "0")
        self.profiler = None  # what gets every launch; other threads may exchange it at any time
        self._profilers = []
        self.queue = self.new_queue()
        self.memory = Memory(self)
        self.arena = Arena(self)
        self.statistics = Statistics(self.memory)
        self.programs = Programs(self)
        self.transfer = transfer(self)
        self._fence = None
        self.state_lock = threading.RLock()  # held while state is lent, and from the look at who holds it to its overwriting
        self._lock = threading.RLock()
        self._flush_each = self.kind == "cpu"  # a flush costs 0.1 us there, and several elsewhere
        _living.add(self)
        if verbose:
            self.add_profiler(Profiler(verbose_line))

    def new_queue(self, profiling=False):
        """An in-order queue of this device."""
        # The device is named because PoCL calls a part's context a context of the whole device.
        return cl.CommandQueue(self.context, self.handle, properties=cl.command_queue_properties.PROFILING_ENABLE if profiling else 0)

    def add_profiler(self, profiler):
        """From now on `profiler` gets every launch; waits for the device."""
        with self._lock:  # no thread enqueues before the queues are exchanged
            self.finish()
            if not self._profilers:
                self._unprofiled, self.queue = self.queue, self.new_queue(profiling=True)
            self._profilers = [*self._profilers, profiler]
            self.profiler = profiler if len(self._profilers) == 1 else Several(self._profilers)

    def remove_profiler(self, profiler):
        """Ends what `add_profiler` began: `profiler` has all launches then."""
        with self._lock:
            self.finish()
            self._profilers = left = [one for one in self._profilers if one is not profiler]
            if not left:
                self.queue = self._unprofiled
            self.profiler = None if not left else left[0] if len(left) == 1 else Several(left)

    def __str__(self):
        return f"{self.name} ({self.model}, {self.platform})"

    def __repr__(self):
        return f"<Device {self}>"

    # memory

    def allocate(self, nbytes, what=""):
        """A pooled Storage with undefined contents. Raises OutOfMemory, which names `what`."""
        return self.memory.allocate(nbytes, what)

    def allocate_state(self, nbytes, what=""):
        """A Storage for long-lived state, a range of a large buffer that it shares with other state."""
        return self.memory.allocate_state(nbytes, what)

    def destroy(self, storage):
        """Give a whole pooled Storage, of which no views are left, back to the system; waits for the device."""
        self.memory.destroy(storage)

    def release_unused(self):
        """Give back to the system what no tensor or variable lies in, the arena too if nothing runs; waits for the device."""
        gc.collect()
        self.arena.release()
        self.memory.trim()

    # programs

    def build(self, specs, options=""):
        """dict of kernel objects by function name for `specs`; see Programs.build."""
        state.check_not_forked()
        return self.programs.build(specs, options)

    # commands

    def enqueue(self, kernel, grid, group=None, label=""):
        """Launch `kernel` on `grid` work-items (a tuple of ints; with a 0 in it nothing happens)."""
        if 0 in grid:
            return
        if state.Process.forked:
            state.check_not_forked()
        if self.profiler is not None:
            self._timed([([(kernel, grid, group, label or kernel.function_name)], (), b"")])
            return
        with self._lock:  # last_event must be the last one even when several threads launch
            self.last_event = event = cl.enqueue_nd_range_kernel(self.queue, kernel, grid, group)
            statistics = self.statistics
            statistics.launches += 1
            if self._flush_each or not statistics.launches & 7:
                self.queue.flush()  # else some runtimes start only when somebody waits
        if not statistics.launches % BACKLOG:
            self._bound_backlog(event)

    def replay(self, launches):
        """Launch a sequence of (kernel, grid without 0, group, label) with nothing in between; cheaper than `enqueue` for each."""
        self.repeat([(launches, (), b"")])

    def repeat(self, steps):
        """Launch one step of a loop after the other.

        Args:
            steps: list of (launches as `replay` takes them, [(kernel, argument position)], bytes to set those arguments to).
        """
        if self.profiler is not None:
            self._timed(steps)
            return
        if state.Process.forked:
            state.check_not_forked()
        launch = cl.enqueue_nd_range_kernel
        at_once = max(1, BACKLOG // max(1, max((len(launches) for launches, _, _ in steps), default=1)))
        for first in range(0, len(steps), at_once):
            with self._lock:
                queue, count, event = self.queue, 0, None
                for launches, places, number in steps[first : first + at_once]:
                    for kernel, position in places:
                        kernel._set_arg_buf(position, number)
                    for kernel, grid, group, _ in launches:
                        event = launch(queue, kernel, grid, group)
                        count += 1
                        if count & 7 == 1:
                            queue.flush()
                if event is None:
                    return
                self.last_event = event
                queue.flush()
            self._launched(count, event)

    def _timed(self, steps):
        """`repeat` that tells the profiler of every launch."""
        state.check_not_forked()
        launch, clock = cl.enqueue_nd_range_kernel, time.perf_counter_ns
        for launches, places, number in steps:
            if not launches:
                continue
            with self._lock:
                queue, profiler = self.queue, self.profiler
                for kernel, position in places:
                    kernel._set_arg_buf(position, number)
                events, ticks = [], [clock()]
                for kernel, grid, group, _ in launches:
                    events.append(launch(queue, kernel, grid, group))
                    if len(events) & 7 == 1:
                        queue.flush()
                    ticks.append(clock())
                queue.flush()
                self.last_event = events[-1]
                if profiler is not None:
                    profiler.add([label or kernel.function_name for kernel, _, _, label in launches], events, ticks)
            self._launched(len(events), events[-1])

    def command(self, enqueue, *args, **kwargs):
        """Enqueue another command than a kernel by pyopencl's function `enqueue`; returns its event."""
        with self._lock:
            self.last_event = event = enqueue(self.queue, *args, **kwargs)
            self.queue.flush()
        return event

    def _launched(self, count, event):
        """Count launches, of which `event` is the last."""
        statistics = self.statistics
        before = statistics.launches // BACKLOG
        statistics.launches += count
        if statistics.launches // BACKLOG != before:
            self._bound_backlog(event)

    def _bound_backlog(self, event):
        # Keeps a loop that never reads a value from queueing without end.
        before, self._fence = self._fence, event
        if before is not None:
            with self.span(WAIT):
                before.wait()

    def upload(self, array, what=""):
        """A new Storage with the contents of a NumPy array of any dtype and layout; the caller may refill it at once."""
        if state.Process.forked:
            state.check_not_forked()
        array = np.asarray(array)
        self.statistics.uploads += 1
        self.statistics.upload_bytes += array.nbytes
        if array.dtype.kind in "OSUMm":
            raise TypeError(f"{what or 'an array'} of dtype {array.dtype} cannot be put on a device: only numbers and booleans can")
        profiler = self.profiler
        if profiler is None:
            return self.transfer.upload(array, what)
        with profiler.span(UPLOAD, array.nbytes):
            return self.transfer.upload(array, what)

    def download(self, storage, dtype, shape):
        """The first elements of a Storage as a new array. Waits for all that was enqueued."""
        state.check_not_forked()
        self.statistics.downloads += 1
        out = np.empty(shape, dtype)
        if out.nbytes > storage.nbytes:
            raise ValueError(f"cannot read {out.nbytes} bytes ({out.dtype} {out.shape}) from a storage of {storage.nbytes}")
        self.statistics.download_bytes += out.nbytes
        profiler = self.profiler
        if profiler is None:
            self.transfer.download(storage, out)
            return out
        with profiler.span(WAIT):
            if self.last_event is not None:
                self.last_event.wait()
        with profiler.span(READ_BACK, out.nbytes):
            self.transfer.download(storage, out)
        with self._lock:
            profiler.drain()
        return out

    def copy(self, source, target, nbytes=None, start=0, end=0):
        """Enqueue a copy of the Storage `source` into `target`: `nbytes` (all) of it from byte `start` on, to byte `end` on."""
        nbytes = source.nbytes if nbytes is None else nbytes
        if start + nbytes > source.nbytes or end + nbytes > target.nbytes:
            places = f" (from byte {start} of {source.nbytes} to byte {end})" if start or end else ""
            raise ValueError(f"cannot copy {nbytes} bytes into a storage of {target.nbytes}{places}")
        if nbytes:
            state.check_not_forked()
            ranges = {"byte_count": nbytes, "src_offset": source.offset + start, "dst_offset": target.offset + end}
            if self.profiler is None:
                self.command(cl.enqueue_copy, target.base, source.base, **ranges)
                return
            with self._lock:
                begin = time.perf_counter_ns()
                event, profiler = self.command(cl.enqueue_copy, target.base, source.base, **ranges), self.profiler
                if profiler is not None:
                    profiler.copied(event, begin, time.perf_counter_ns(), nbytes)

    def write(self, storage, array, what=""):
        """Enqueue writing a NumPy array into an existing Storage; the caller may refill the array at once."""
        self.copy(self.upload(array, what), storage)

    def span(self, label):
        """Context of something that the host does, for traces."""
        profiler = self.profiler
        return contextlib.nullcontext() if profiler is None else profiler.span(label)

    def operation(self, label):
        """Context of an operation that the host computes, for profiles and traces."""
        profiler = self.profiler
        return contextlib.nullcontext() if profiler is None else profiler.operation(label)

    def finish(self):
        """Wait until everything enqueued is done."""
        state.check_not_forked()
        with self.span(WAIT):
            self.queue.finish()
        if self.profiler is not None:
            with self._lock:
                if self.profiler is not None:
                    self.profiler.drain(wait=True)


def set_argument(kernel, index, value):
    """Set one kernel argument: a Storage, the bytes of a scalar, or a number of local memory's bytes as LocalMemory.

    Bytes (struct.pack) take 0.1 microseconds; NumPy scalars through pyopencl's public way take 5.
    """
    if type(value) is bytes:
        kernel._set_arg_buf(index, value)
    else:
        kernel.set_arg(index, value.mem if type(value) is Storage else value)


def local_memory(nbytes):
    """What set_argument takes for a __local parameter of `nbytes` bytes."""
    return cl.LocalMemory(nbytes)


def living_devices():
    """The Devices of this process; none in a forked child, which must not touch them."""
    return [] if state.Process.forked else list(_living)


@atexit.register
def _finish_all():
    # Memory is freed in any order when the interpreter ends: nothing may still run on it.
    for device in living_devices():
        device.finish()


__all__ = ["Device", "Statistics", "Storage", "Traits", "read_traits", "ways_of_sharing"]
