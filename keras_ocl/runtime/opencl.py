"""OpenCL: the Driver of a device that pyopencl knows."""

import ctypes
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl
from pyopencl import _cl
from pyopencl.characterize import has_src_build_cache

from keras_ocl.runtime import host
from keras_ocl.runtime.driver import Allocation, Buffer, BuildFailure, Driver, Event, Failure, Kernel, Queue
from keras_ocl.runtime.kernel_objects import kernel_object
from keras_ocl.runtime.memory import Storage
from keras_ocl.runtime.quirks import INTEL_CPU
from keras_ocl.runtime.traits import read_traits

SCHEMA = "1"  # raise when the meaning of a cache entry changes
HUGE_PAGES_FROM = 4 << 20  # bytes from which memory gets huge pages, as in NumPy: its first use is several times cheaper

# Intel's compiler reads a header of its extensions for every program, unless its guard is defined (quirk long_header): all that it declares
# has one of these in its name.
_EXTENSIONS, _WITHOUT_EXTENSIONS = re.compile("sub_group|cl_intel|float_atomics"), "-D_OPENCL_CTH_"

_CODE = cl.status_code
_FAILURES = {
    **dict.fromkeys((_CODE.DEVICE_NOT_AVAILABLE, _CODE.INVALID_DEVICE, _CODE.INVALID_CONTEXT, _CODE.INVALID_COMMAND_QUEUE), Failure.LOST),
    # Errors of drivers that allocate a buffer's memory only when a command first uses it; OUT_OF_RESOURCES has other causes too.
    **dict.fromkeys((_CODE.MEM_OBJECT_ALLOCATION_FAILURE, _CODE.OUT_OF_HOST_MEMORY), Failure.MEMORY),
    _CODE.OUT_OF_RESOURCES: Failure.RESOURCES,
}


def identity(handle: Any) -> str:
    """Text that differs wherever the compiled programs of a pyopencl Device might not run."""
    platform = handle.platform
    about = (platform.name.strip(), platform.version, handle.name, handle.version, handle.driver_version, host.cpu_flags(), cl.VERSION_TEXT)
    return "\0".join((SCHEMA, *about))


class OpenCL:
    """The Driver of a pyopencl Device (`handle`), with a context of its own.

    `sharing` is one of `traits.ways_of_sharing(handle)`.
    """

    runs = True
    errors: tuple[type[Exception], ...] = (cl.Error,)

    def __init__(self, handle: Any, sharing: str) -> None:
        self.handle, self.sharing = handle, sharing
        self.platform: str = handle.platform.name.strip()
        self.model: str = handle.name.strip()
        self.version: str = handle.driver_version
        self.traits = read_traits(handle)
        self.identity = identity(handle)
        self.caches_programs: bool = has_src_build_cache(handle)
        self.context = cl.Context([handle])

    def failure(self, error: BaseException) -> Failure:
        code = getattr(error.args[0], "code", lambda: None)() if error.args else None
        return _FAILURES.get(code, Failure.INVALID if isinstance(error, cl.LogicError) else Failure.OTHER)

    # memory

    def allocate(self, nbytes: int) -> Allocation:
        flags = cl.mem_flags.READ_WRITE
        if self.sharing != "shared":
            if self.sharing == "mapped":
                flags |= cl.mem_flags.ALLOC_HOST_PTR
            buffer = cl.Buffer(self.context, flags, nbytes)
            return Allocation(buffer, None, buffer.release)
        svm = cl.SVMAllocation(self.context, nbytes, 128, cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER)
        memory = (ctypes.c_char * nbytes).from_address(svm.svm_ptr)
        if nbytes >= HUGE_PAGES_FROM:
            host.advise_huge_pages(svm.svm_ptr, nbytes)
        buffer = cl.Buffer(self.context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=np.frombuffer(memory, np.uint8))

        def release() -> None:
            buffer.release()
            svm.release()

        return Allocation(buffer, memory, release)

    def allocate_pinned(self, queue: Queue, nbytes: int) -> Allocation:
        # Memory of the driver's own, mapped permanently.
        buffer = cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
        how = cl.map_flags.READ | cl.map_flags.WRITE
        mapped, _ = cl.enqueue_map_buffer(queue, buffer, how, 0, (nbytes,), np.uint8, is_blocking=True)

        def release() -> None:
            mapped.base.release(queue)
            buffer.release()

        return Allocation(buffer, mapped, release)

    # commands: where a step calls them, pyopencl's functions in C themselves, whose types its annotations tell in other words

    launch: Any = staticmethod(cl.enqueue_nd_range_kernel)
    copy: Any = staticmethod(_cl._enqueue_copy_buffer)
    copy_rows: Any = staticmethod(_cl._enqueue_copy_buffer_rect)
    write: Any = staticmethod(_cl._enqueue_write_buffer)
    read: Any = staticmethod(_cl._enqueue_read_buffer)

    def queue(self, profiling: bool = False) -> Queue:
        # The device is named because a context may be said to be one of another device (quirk context_of_parts).
        return cl.CommandQueue(self.context, self.handle, properties=cl.command_queue_properties.PROFILING_ENABLE if profiling else 0)

    def map(self, queue: Queue, buffer: Buffer, offset: int, nbytes: int, write: bool) -> tuple[np.ndarray, Callable[[Queue], Event]]:
        how = cl.map_flags.WRITE_INVALIDATE_REGION if write else cl.map_flags.READ
        mapped, _ = cl.enqueue_map_buffer(queue, buffer, how, offset, (nbytes,), np.uint8, is_blocking=True)
        return mapped, mapped.base.release

    def barrier(self, queue: Queue, event: Event | None = None) -> Event:
        return cl.enqueue_marker(queue) if event is None else cl.enqueue_barrier(queue, wait_for=[event])

    # programs

    def compile(self, source: str, options: str) -> Any:
        if self.platform == INTEL_CPU and not _EXTENSIONS.search(source + options):
            try:
                return self._compile(source, f"{options} {_WITHOUT_EXTENSIONS}")
            except BuildFailure:
                pass  # the source has a fault, or other versions declare more there
        return self._compile(source, options)

    def _compile(self, source: str, options: str) -> Any:
        program = None
        try:
            program = _cl._Program(self.context, source)
            program._build(options.encode(), [self.handle])
        except cl.Error as error:
            raise BuildFailure(self._log(program) or str(error)) from None
        return program

    def _log(self, program: Any) -> str:
        """What the compiler said of a program; "" where nothing is known."""
        try:
            return program.get_build_info(self.handle, cl.program_build_info.LOG) if program else ""
        except cl.Error:
            return ""

    def load(self, binary: bytes) -> tuple[Any, set[str]] | None:
        try:
            program = _cl._Program(self.context, [self.handle], [binary])
            program._build(b"", [self.handle])
            names = program.get_info(cl.program_info.KERNEL_NAMES)
        except cl.Error:
            return None
        return program, set(str(names).split(";"))

    def binary(self, program: Any) -> bytes | None:
        try:
            return program.get_info(cl.program_info.BINARIES)[0] or None
        except cl.Error:
            return None

    def kernel(self, program: Any, name: str) -> Kernel:
        return kernel_object(program, name)

    def group_limit(self, kernel: Kernel) -> int:
        return kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self.handle)  # type: ignore[attr-defined]


if TYPE_CHECKING:
    _driver: type[Driver] = OpenCL  # mypy compares the class with the protocol here


def set_argument(kernel: Kernel, index: int, value: Storage | bytes | cl.LocalMemory) -> None:
    """Set one kernel argument: a Storage, the bytes of a scalar, or what `local_memory` returns.

    Bytes (struct.pack) take 0.1 microseconds; NumPy scalars through pyopencl's public way take 5.
    """
    if type(value) is bytes:
        kernel._set_arg_buf(index, value)
    else:
        kernel.set_arg(index, value.mem if type(value) is Storage else value)


def local_memory(nbytes: int) -> cl.LocalMemory:
    """What `set_argument` takes for a __local parameter of `nbytes` bytes."""
    return cl.LocalMemory(nbytes)
