"""Driver: what a Device needs of the interface through which commands reach the hardware.

`opencl.py` implements it with pyopencl. `record.py` implements it for a device that is not there, where nothing runs. A Driver only passes
calls on; what is done where one fails, and in which order, is the Device's business. Its objects (queues, events, buffers, kernels) are
used as they come from pyopencl, without wrappers, since a step handles hundreds of them.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_ocl.runtime.traits import Traits


class Event(Protocol):
    """Tells about one enqueued command."""

    @property
    def command_execution_status(self) -> int:
        """Positive until the command is done, 0 then, negative where it failed."""

    def wait(self) -> object:
        """Wait until the command is done; raises one of the driver's `errors` where it failed."""

    def get_profiling_info(self, what: int, /) -> int:
        """A time of the command in nanoseconds of the device's clock; only of queues made with `profiling`."""


class Queue(Protocol):
    """Commands, which the device runs in the order in which they were enqueued."""

    def flush(self) -> None:
        """Have the device begin with what was enqueued."""

    def finish(self) -> None:
        """Wait until all that was enqueued is done."""


class Buffer(Protocol):
    """A range of device memory."""

    def get_sub_region(self, offset: int, nbytes: int, /) -> "Buffer":
        """The `nbytes` bytes from byte `offset` on, as a Buffer that shares this one's memory."""


class Kernel(Protocol):
    """A kernel object: a function of a program with its arguments.

    Attributes:
        function_name: the function's name.
        ours: the program, which lives as long as its kernels.
    """

    function_name: str
    ours: object

    def set_arg(self, index: int, value: Any, /) -> None:
        """Set an argument to a Buffer, a NumPy scalar or local memory."""

    def _set_arg_buf(self, index: int, value: bytes, /) -> None:
        """Set an argument to the bytes of a scalar."""


class Allocation(NamedTuple):
    """New memory.

    Attributes:
        buffer: the memory as the device knows it.
        host: the same memory as a writable buffer where the host may access it at any time, else None.
        release: function that gives the memory back to the system.
    """

    buffer: Buffer
    host: Any
    release: Callable[[], object]


class Failure(Enum):
    """What one of a driver's errors means."""

    LOST = "the device does not answer any more"
    MEMORY = "memory is lacking"
    RESOURCES = "memory is lacking, or registers, local memory or time for a kernel"
    INVALID = "the call was not valid"
    OTHER = "anything else"


class BuildFailure(Exception):
    """OpenCL C that the compiler refused; `log` is what it said."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


class Driver(Protocol):
    """The interface below a Device. Every method may raise one of `errors`.

    `launch` and `copy` are functions in C where commands run: no signal handler runs while a Device has them called by C code too
    (`Device.replay`), and neither needs a call of Python.

    Attributes:
        platform: the implementation, in its own words; `model`: the device, in the driver's words; `version`: the driver's version.
        traits: the device's Traits.
        sharing: how the host reaches the device's memory, see `traits.ways_of_sharing`; "none" where there is no memory.
        runs: whether launched kernels run.
        errors: the exceptions that a failing call raises.
        identity: text that differs wherever the device's compiled programs might not run.
        caches_programs: whether the driver keeps programs that it compiled on disk.
    """

    platform: str
    model: str
    version: str
    traits: Traits
    sharing: str
    runs: bool
    errors: tuple[type[Exception], ...]
    identity: str
    caches_programs: bool

    def failure(self, error: BaseException) -> Failure:
        """What one of `errors` means."""

    # memory

    def allocate(self, nbytes: int) -> Allocation:
        """`nbytes` bytes (at least 1) of memory for kernels."""

    def allocate_pinned(self, queue: Queue, nbytes: int) -> Allocation:
        """`nbytes` bytes (at least 1) of the host's memory from which `write` needs no other copy; waits for `queue`."""

    # commands, which return at once with their Event

    def queue(self, profiling: bool = False) -> Queue:
        """A new Queue; with `profiling` its events know when their commands ran."""

    def launch(self, queue: Queue, kernel: Kernel, grid: tuple[int, ...], group: tuple[int, ...] | None, /) -> Event:
        """Run a kernel on `grid` work-items, in groups of `group` work-items (None: as the driver likes)."""

    def copy(self, queue: Queue, source: Buffer, target: Buffer, nbytes: int, start: int, end: int, /) -> Event:
        """Copy `nbytes` bytes (at least 1) from byte `start` of `source` to byte `end` of `target`."""

    def copy_rows(
        self,
        queue: Queue,
        source: Buffer,
        target: Buffer,
        start: Sequence[int],
        end: Sequence[int],
        region: Sequence[int],
        pitch: Sequence[int],
        to_pitch: Sequence[int],
        /,
    ) -> Event:
        """Copy a rectangle: `region` is (bytes of a row, rows, 1), `start` and `end` are (byte, 0, 0), the pitches (bytes of a row, 0)."""

    def write(self, queue: Queue, target: Buffer, source: Any, *, is_blocking: bool) -> Event:
        """Write an array of bytes to the beginning of a Buffer; with `is_blocking`, wait until the array has been read."""

    def read(self, queue: Queue, source: Buffer, target: Any, *, src_offset: int, is_blocking: bool) -> Event:
        """Read into an array of bytes from byte `src_offset` of a Buffer on; with `is_blocking`, wait until it is filled."""

    def map(self, queue: Queue, buffer: Buffer, offset: int, nbytes: int, write: bool) -> tuple[np.ndarray, Callable[[Queue], Event]]:
        """Let the host access a range of a Buffer, to `write` all of it or to read it; waits for `queue`.

        Returns the range as an array of bytes, and the function that enqueues the end of the access.
        """

    def barrier(self, queue: Queue, event: Event | None = None) -> Event:
        """Have later commands wait for the Event of another queue; None: for nothing but the commands before."""

    # programs

    def compile(self, source: str, options: str) -> Any:
        """A program made of OpenCL C; raises BuildFailure."""

    def load(self, binary: bytes) -> tuple[Any, set[str]] | None:
        """The program that a binary holds, and the names of its kernels; None where the driver rejects it."""

    def binary(self, program: Any) -> bytes | None:
        """A program's binary; None where the driver does not give it."""

    def kernel(self, program: Any, name: str) -> Kernel:
        """A new kernel object."""

    def group_limit(self, kernel: Kernel) -> int:
        """The most work-items that a group of this kernel can have."""
