"""A device: its context and queue, and everything that is done on it."""

import atexit
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, cycle, repeat
from operator import call
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from keras_ocl.runtime import host, state
from keras_ocl.runtime.arena import Arena
from keras_ocl.runtime.counts import Statistics
from keras_ocl.runtime.driver import Driver, Event, Failure, Kernel, Queue
from keras_ocl.runtime.errors import DeviceLost
from keras_ocl.runtime.memory import Memory, Storage, refusal
from keras_ocl.runtime.profilers import READ_BACK, UPLOAD, WAIT, Profiler, Several, verbose_line
from keras_ocl.runtime.programs import Programs, UnoptimisedBuilds
from keras_ocl.runtime.staging import transfer
from keras_ocl.runtime.worker import Worker

_NAP = 1e-3  # seconds between polls of an event; shorter sleeps use a tenth of a core
BACKLOG = 1024  # launches between two fences: at each the host waits for the fence before it, so the queue cannot grow without end

_NO_MEMORY = Failure.MEMORY, Failure.RESOURCES  # where memory that is given back may help

BoundLaunch = tuple[Kernel, tuple[int, ...], tuple[int, ...] | None, str]  # kernel, work-items (none is 0), work-items of a group, label
LoopStep = tuple[Sequence[BoundLaunch], Iterable[tuple[Kernel, int]], bytes]  # launches, arguments (by position), the bytes to set those to

_USES = "allocate allocate_state build command copy copy_rows download enqueue finish idle repeat replay upload wait".split()
_living: "weakref.WeakSet[Device]" = weakref.WeakSet()


class Device:
    """One device with its in-order queue and memory: what is done on it, and what where the driver refuses.

    Methods enqueue commands and return at once, except `download`, `wait`, `finish` and those that say that they wait. They raise
    DeviceLost once the device is lost, and RuntimeError in a forked child of a process that has used OpenCL.

    Attributes:
        driver: the Driver that passes commands on.
        name: what the package's functions call it, such as "gpu:0".
        platform, model, driver_version, traits, sharing, runs: the driver's, see there; `kind`: that of the traits.
        refused_units: name of each matrix unit that was tried and does not work on it -> the reason, as a clause.
        queue: the Queue to which all commands go.
        last_event: the Event of the last command; None before the first.
        profiler: the Profiler that is told of every launch, or None; other threads may replace it at any time.
        state_lock: held to hand out a variable's buffer, and to check for holders and overwrite it.
        memory, arena, statistics, programs, worker: its Memory, Arena, Statistics, Programs and Worker.
    """

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.name = driver, name
        self.platform, self.model, self.driver_version = driver.platform, driver.model, driver.version
        self.traits, self.sharing, self.runs = driver.traits, driver.sharing, driver.runs
        self.kind = self.traits.kind
        self.refused_units: dict[str, str] = {}
        self.last_event: Event | None = None
        self.profiler: Profiler | Several | None = None
        self._profilers: list[Profiler] = []
        self._use(driver.queue())
        self.memory = Memory(self)
        self.arena = Arena(self)
        self.statistics = Statistics(self.memory)
        self.programs = Programs(self)
        self.transfer = transfer(self)
        self.worker = Worker(f"host operations of {name}")
        weakref.finalize(self, self.worker.end)
        self._fence: Event | None = None
        self.state_lock = threading.RLock()
        self._lock = threading.RLock()
        self._flush_each = self.kind == "cpu"  # a flush takes 0.1 us on CPUs, and several us elsewhere
        if self.runs:
            _living.add(self)
            if os.environ.get("KERAS_OCL_VERBOSE", "0") not in ("", "0"):
                self.add_profiler(Profiler(verbose_line))

    def _use(self, queue: Queue) -> None:
        """Send all commands to `queue` from now on."""
        self.queue, turn = queue, repeat(queue).__next__
        # `_start` calls these in a cycle, one or two per launch: `turn` returns the queue; `flush` returns None, which is filtered out. The
        # queue is flushed after the first launch and then after every eighth, since some runtimes start only then or when somebody waits.
        self._turns = (turn, queue.flush, *[turn] * 7)

    def add_profiler(self, profiler: Profiler) -> None:
        """Give `profiler` every launch from now on; waits for the device."""
        with self._lock:  # no thread enqueues before the queues are exchanged
            self.finish()
            if not self._profilers:
                self._unprofiled = self.queue
                self._use(self.driver.queue(profiling=True))
            self._profilers = [*self._profilers, profiler]
            self.profiler = profiler if len(self._profilers) == 1 else Several(self._profilers)

    def remove_profiler(self, profiler: Profiler) -> None:
        """End what `add_profiler` began, once `profiler` has received all launches so far; waits for the device."""
        with self._lock:
            self.finish()
            self._profilers = left = [one for one in self._profilers if one is not profiler]
            if not left:
                self._use(self._unprofiled)
            self.profiler = None if not left else left[0] if len(left) == 1 else Several(left)

    def __str__(self) -> str:
        return f"{self.name} ({self.model}, {self.platform})"

    def __repr__(self) -> str:
        return f"<Device {self}>"

    # memory

    def allocate(self, nbytes: int, what: str = "") -> Storage:
        """A pooled Storage of `nbytes` bytes with undefined contents. Raises OutOfMemory, which names `what`."""
        return self.memory.allocate(nbytes, what)

    def allocate_state(self, nbytes: int, what: str = "") -> Storage:
        """A Storage for long-lived state such as variables: a range of a large buffer that it shares with other state.

        Raises OutOfMemory, which names `what`.
        """
        return self.memory.allocate_state(nbytes, what)

    def destroy(self, storage: Storage) -> None:
        """Give a whole pooled Storage, which has no views any more, back to the system; waits for the device."""
        self.memory.destroy(storage)

    def release_unused(self) -> None:
        """Give back to the system all memory without tensors or variables, and the arena unless a run uses it; waits for the device."""
        gc.collect()
        self.arena.release()
        self.memory.trim()
        host.trim_heap()

    # programs

    def build(self, specs: Iterable[tuple[Any, ...]], options: str = "", unoptimised: UnoptimisedBuilds | None = None) -> dict[str, Kernel]:
        """dict of kernel objects by function name for `specs`; see Programs.build."""
        state.check_not_forked()
        return self.programs.build(specs, options, unoptimised)

    def group_limit(self, kernel: Kernel) -> int:
        """Largest work-group, in work-items, for this kernel: less than the device's limit where each work-item needs many registers."""
        if self.traits.required_groups:
            return self.traits.max_group
        return self.driver.group_limit(kernel)

    # commands

    def enqueue(self, kernel: Kernel, grid: tuple[int, ...], group: tuple[int, ...] | None = None, label: str = "") -> None:
        """Launch `kernel` on `grid` work-items (a tuple of ints; if one of them is 0, nothing is launched)."""
        if 0 in grid:
            return
        if state.Process.forked:
            state.check_not_forked()
        if self.profiler is not None:
            self.replay([(kernel, grid, group, label)])
            return
        with self._lock:  # last_event must be the last one even when several threads launch
            try:
                self.last_event = event = self.driver.launch(self.queue, kernel, grid, group)
            except BaseException as error:
                self._failed(error)
                raise
            statistics = self.statistics
            statistics.launches += 1
            if self._flush_each or not statistics.launches & 7:
                self.queue.flush()  # else some runtimes start only when somebody waits
        if not statistics.launches % BACKLOG:
            self._bound_backlog(event)

    def replay(self, launches: Sequence[BoundLaunch], copies: Sequence[tuple[Storage, Storage]] = (), then: Iterable[object] = ()) -> None:
        """Enqueue launches and copies: all or, where that fails, as few as possible. Takes less host time per launch than `enqueue`.

        Args:
            launches: list of (kernel, grid without 0, work-group size, label).
            copies: list of (source Storage, target Storage), which are copied after the launches.
            then: an iterator, its steps in C code alone, exhausted with the last launch: an interruption finds all done, or nothing.

        Raises:
            OutOfMemory, RuntimeError: the driver refused a launch again when it had done all earlier ones; no variable was changed.
            DeviceLost: so too, after launches that overwrite variables.
        """
        if state.Process.forked:
            state.check_not_forked()
        with self._lock:
            done: list[Any] = []
            clock = None if (profiler := self.profiler) is None else time.perf_counter_ns
            begin = clock and clock()
            copying = [self._copying(*pair) for pair in copies] if copies else ()
            try:
                try:
                    self._start(done, launches, copying, then, clock)
                except self.driver.errors as error:
                    self._start_again(error, done, launches, copying, then, clock)
            finally:
                if done:
                    self.last_event = event = done[-1] if clock is None else done[-1][0]
            if not done:
                return
            self.queue.flush()
            if profiler is not None:
                self._tell(profiler, launches, copies, begin, done)
        self._launched(len(launches), event)

    def _start(self, done: list[Any], launches: Sequence[BoundLaunch], copying: Sequence[Any], then: Iterable[object], clock: Any) -> None:
        """Enqueue the commands that `done` does not have yet; it gets each one's event, or with `clock` (event, time of enqueuing in ns).

        A single call of C code does it, so no signal handler runs and no other thread's exception arrives half-way. The flushes in between
        (see _use) keep the device busy meanwhile.
        """
        work: Iterable[Any] = ()
        if left := launches[len(done) :] if done else launches:
            kernels, grids, groups, _ = zip(*left, strict=True)
            work = map(self.driver.launch, filter(None, map(call, cycle(self._turns))), kernels, grids, groups)
        if copying:
            work = chain(work, map(call, copying[max(len(done) - len(launches), 0) :]))
        if clock is not None:
            work = zip(work, map(call, repeat(clock)), strict=False)
        done.extend(chain(work, filter(None, then)))

    def _start_again(
        self, error: Exception, done: list[Any], launches: Sequence[BoundLaunch], copying: Sequence[Any], then: Iterable[object], clock: Any
    ) -> None:
        """Continue where `_start` failed, once the device has done the earlier commands. If variables stay half-updated, it is lost."""
        try:
            self._again(error, lambda: self._start(done, launches, copying, then, clock))
        except BaseException as again:
            begun = any(getattr(label, "overwrites", False) for _, _, _, label in launches[: len(done)])
            if begun and len(done) < len(launches) + len(copying):
                raise self.lose(again) from again
            if not isinstance(again, self.driver.errors):
                raise
            kernel, _, _, label = launches[min(len(done), len(launches) - 1)]
            raise self._refused(again, label or kernel.function_name) from again

    def _again(self, error: Exception, enqueue: Callable[[], Any]) -> Any:
        """Retries `enqueue`, which failed with the driver's `error`, after the device has done all earlier commands; returns its result.

        Where memory was lacking, it retries after each step of `Memory.reclaim`.
        """
        self.check(error)
        for _ in self.memory.reclaim() if self.driver.failure(error) in _NO_MEMORY else (None,):
            try:
                return enqueue()
            except self.driver.errors as again:
                error = again
        raise error

    def _refused(self, error: Exception, name: str) -> Exception:
        """The exception for the driver's `error` at a launch of compiled code that has not overwritten any variable yet."""
        return self._failure(error, f"{name} could not be launched", "; no variable was changed")

    def _failure(self, error: Exception, what: str, then: str = "") -> Exception:
        """The exception that says that `what` failed with the driver's `error`; it quotes the driver, followed by `then`."""
        failure = self.driver.failure(error)
        if failure is Failure.RESOURCES:
            return RuntimeError(
                f"{what} on {self}: the driver said {error}{then}; it lacks registers, local memory or time for a kernel, or memory"
                f" ({self.memory.free()}): try a smaller batch, or KERAS_OCL_SCHEDULE=reference, whose kernels need little"
            )
        if failure is Failure.MEMORY:
            return self.memory.out_of_memory(what, refusal(error) + then)
        return RuntimeError(f"{what} on {self}: {error}{then}")

    def check(self, error: Exception) -> None:
        """After the driver's `error`, wait until all enqueued commands are done; raises DeviceLost where the device cannot finish them."""
        if self.driver.failure(error) is Failure.LOST:
            raise self.lose(error) from error
        try:
            self.queue.finish()
        except self.driver.errors as another:
            raise self.lose(another) from another

    def lose(self, why: BaseException) -> DeviceLost:
        """Make every later use of the device raise DeviceLost, because of the exception `why`; returns that DeviceLost."""
        text = (
            f"{self} is lost ({why}), with all that lies on it; start the process again, or go on on another device,"
            " and load what was saved"
        )

        def refuse(*args: object, **kwargs: object) -> NoReturn:
            raise DeviceLost(text)

        for name in _USES:
            setattr(self, name, refuse)
        _living.discard(self)
        return DeviceLost(text)

    def wait(self, event: Event) -> None:
        """Wait until a command is done; raises DeviceLost."""
        try:
            event.wait()
        except self.driver.errors as error:
            raise self.lose(error) from error

    def await_quietly(self, event: Event | None) -> None:
        """`wait` for the worker thread: it polls and sleeps, since in some runtimes a waiting thread computes later commands as well."""
        while event is not None and event.command_execution_status > 0:
            time.sleep(_NAP)
        if event is not None:
            self.wait(event)

    def _copying(self, source: Storage, target: Storage) -> Callable[[], Event]:
        """A function, in C code, that enqueues a copy of a whole Storage."""
        return partial(self.driver.copy, self.queue, source.base, target.base, target.nbytes, source.offset, target.offset)

    def _tell(
        self, profiler: Any, launches: Sequence[BoundLaunch], copies: Sequence[tuple[Storage, Storage]], begin: Any, done: Any
    ) -> None:
        """Tell the profiler what `replay` has enqueued since `begin` (ns)."""
        events, ticks = [event for event, _ in done], [begin, *(tick for _, tick in done)]
        if launches:
            labels = [label or kernel.function_name for kernel, _, _, label in launches]
            profiler.add(labels, events[: len(launches)], ticks[: len(launches) + 1])
        for k, (_, target) in enumerate(copies, len(launches)):
            profiler.copied(events[k], ticks[k], ticks[k + 1], target.nbytes)

    def repeat(self, steps: Sequence[LoopStep]) -> None:
        """Launch the steps of a loop one after the other.

        Args:
            steps: list of (launches as `replay` takes them, [(kernel, argument position)], bytes to set those arguments to).

        Raises OutOfMemory or RuntimeError where the driver refused a launch again when it had done all earlier ones.
        """
        if self.profiler is not None:
            self._timed(steps)
            return
        if state.Process.forked:
            state.check_not_forked()
        launch = self.driver.launch
        at_once = max(1, BACKLOG // max(1, max((len(launches) for launches, _, _ in steps), default=1)))
        for first in range(0, len(steps), at_once):
            with self._lock:
                queue, count, event, label = self.queue, 0, None, ""
                try:
                    for launches, places, number in steps[first : first + at_once]:
                        for kernel, position in places:
                            kernel._set_arg_buf(position, number)
                        for kernel, grid, group, label in launches:  # noqa: B007 (told where it fails)
                            try:
                                event = launch(queue, kernel, grid, group)
                            except self.driver.errors as error:
                                event = self._again(error, partial(launch, queue, kernel, grid, group))
                            count += 1
                            if count & 7 == 1:
                                queue.flush()
                except BaseException as error:
                    self._failed(error, label or "a kernel in a loop")
                    raise
                if event is None:
                    return
                self.last_event = event
                queue.flush()
            self._launched(count, event)

    def _timed(self, steps: Sequence[LoopStep]) -> None:
        """`repeat` with a profiler, which is told of every launch."""
        state.check_not_forked()
        launch, clock = self.driver.launch, time.perf_counter_ns
        for launches, places, number in steps:
            if not launches:
                continue
            with self._lock:
                queue, profiler = self.queue, self.profiler
                events, ticks, label = [], [clock()], ""
                try:
                    for kernel, position in places:
                        kernel._set_arg_buf(position, number)
                    for kernel, grid, group, label in launches:  # noqa: B007 (told where it fails)
                        try:
                            events.append(launch(queue, kernel, grid, group))
                        except self.driver.errors as error:
                            events.append(self._again(error, partial(launch, queue, kernel, grid, group)))
                        if len(events) & 7 == 1:
                            queue.flush()
                        ticks.append(clock())
                    queue.flush()
                except BaseException as error:
                    self._failed(error, label or "a kernel in a loop")
                    raise
                self.last_event = events[-1]
                if profiler is not None:
                    profiler.add([label or kernel.function_name for kernel, _, _, label in launches], events, ticks)
            self._launched(len(events), events[-1])

    def command(self, enqueue: Callable[..., Event], *args: Any, **kwargs: Any) -> Event:
        """Enqueue a command that is not a kernel by `enqueue(queue, *args, **kwargs)`, a function of the driver; returns its Event.

        Raises OutOfMemory or RuntimeError where the driver refused it again when it had done all earlier commands.
        """
        with self._lock:
            try:
                try:
                    event = enqueue(self.queue, *args, **kwargs)
                except self.driver.errors as error:
                    event = self._again(error, lambda: enqueue(self.queue, *args, **kwargs))
                self.last_event = event
                self.queue.flush()
            except BaseException as error:
                self._failed(error)
                raise
        return event

    def _failed(self, error: BaseException, loop: str | None = None) -> None:
        """After an exception, keep memory in use until all enqueued commands are done. `loop`: name of the kernel, in a loop."""
        if isinstance(error, DeviceLost):
            return
        if isinstance(error, self.driver.errors):
            self.check(error)
        self.last_event = self.driver.barrier(self.queue)
        if loop and isinstance(error, self.driver.errors):
            raise self._refused(error, loop) from error
        if isinstance(error, self.driver.errors) and self.driver.failure(error) in _NO_MEMORY:
            raise self._failure(error, "a command could not be enqueued") from error

    def _launched(self, count: int, event: Event) -> None:
        """Count `count` more launches; `event` is that of the last."""
        statistics = self.statistics
        before = statistics.launches // BACKLOG
        statistics.launches += count
        if statistics.launches // BACKLOG != before:
            self._bound_backlog(event)

    def _bound_backlog(self, event: Event) -> None:
        # Keeps a loop that never reads a value from queueing without end.
        before, self._fence = self._fence, event
        if before is not None:
            with self.span(WAIT):
                self.wait(before)

    def upload(self, array: ArrayLike, what: str = "") -> Storage:
        """A new Storage with the contents of a NumPy array of any dtype and layout; the caller may change the array at once.

        Raises OutOfMemory, which names `what`, and TypeError where the elements are neither numbers nor booleans.
        """
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

    def download(self, storage: Storage, dtype: DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
        """The first elements of a Storage as a new NumPy array. Waits for everything that was enqueued.

        Raises ValueError where the Storage is smaller, and RuntimeError where nothing runs, so that there are no values.
        """
        state.check_not_forked()
        self.statistics.downloads += 1
        out = np.empty(shape, dtype)
        if out.nbytes > storage.nbytes:
            raise ValueError(f"cannot read {out.nbytes} bytes ({out.dtype} {out.shape}) from a storage of {storage.nbytes}")
        self.statistics.download_bytes += out.nbytes
        profiler = self.profiler
        if profiler is None:
            self._read(storage, out)
            return out
        with profiler.span(WAIT):
            if self.last_event is not None:
                self.wait(self.last_event)
        with profiler.span(READ_BACK, out.nbytes):
            self._read(storage, out)
        with self._lock:
            profiler.drain()
        return out

    def download_later(self, storage: Storage, dtype: DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
        """The first elements of a Storage as a new array, which is filled once all commands enqueued so far are done."""
        state.check_not_forked()
        out = np.empty(shape, dtype)
        self.statistics.downloads += 1
        self.statistics.download_bytes += out.nbytes
        if out.nbytes:
            self.command(self.driver.read, storage.base, out.reshape(-1).view(np.uint8), src_offset=storage.offset, is_blocking=False)
        return out

    def view(self, storage: Storage, dtype: DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
        """The first elements of a Storage as an array in the same memory; use it only while no enqueued command does (see `finish`).

        Only where the host has the same memory: `sharing` is "shared".
        """
        return self.transfer.view(storage, dtype, shape)

    def _read(self, storage: Storage, out: np.ndarray) -> None:
        try:
            self.transfer.download(storage, out)
        except self.driver.errors as error:
            try:
                self._again(error, partial(self.transfer.download, storage, out))
            except self.driver.errors as again:
                if self.driver.failure(again) not in _NO_MEMORY:
                    raise
                raise self._failure(again, "a value could not be read") from again

    def copy(self, source: Storage, target: Storage, nbytes: int | None = None, start: int = 0, end: int = 0) -> None:
        """Enqueue a copy of `nbytes` bytes (default: all) of the Storage `source` from byte `start`, to byte `end` of `target`.

        Raises ValueError where a range leaves its Storage, else as `command`.
        """
        nbytes = source.nbytes if nbytes is None else nbytes
        if start + nbytes > source.nbytes or end + nbytes > target.nbytes:
            places = f" (from byte {start} of {source.nbytes} to byte {end})" if start or end else ""
            raise ValueError(f"cannot copy {nbytes} bytes into a storage of {target.nbytes}{places}")
        if nbytes:
            state.check_not_forked()
            what = source.base, target.base, nbytes, source.offset + start, target.offset + end
            if self.profiler is None:
                self.command(self.driver.copy, *what)
                return
            with self._lock:
                begin = time.perf_counter_ns()
                event, profiler = self.command(self.driver.copy, *what), self.profiler
                if profiler is not None:
                    profiler.copied(event, begin, time.perf_counter_ns(), nbytes)

    def copy_rows(self, target: Storage, copies: Sequence[tuple[Storage, int, int, int, int, int, int]]) -> None:
        """Enqueue copies of rows into the Storage `target`.

        `copies`: list of (source Storage, first byte, row pitch in bytes, first byte in the target, row pitch there, bytes of a row,
        number of rows); rows and their bytes are not 0.
        """
        state.check_not_forked()
        done: list[Any] = []
        driver, clock = self.driver, time.perf_counter_ns

        def enqueue(queue: Queue) -> Event:  # a retry starts again with the first copy
            done[:] = [(None, clock())]
            for source, start, pitch, to, to_pitch, nbytes, rows in copies:
                start, to = source.offset + start, target.offset + to
                if rows == 1:
                    event = driver.copy(queue, source.base, target.base, nbytes, start, to)
                else:
                    places, pitches = ((start, 0, 0), (to, 0, 0), (nbytes, rows, 1)), ((pitch, 0), (to_pitch, 0))
                    event = driver.copy_rows(queue, source.base, target.base, *places, *pitches)
                done.append((event, clock()))
            return event

        with self._lock:
            event, profiler = self.command(enqueue), self.profiler
            if profiler is not None:
                for copy, (_, begin), (one, end) in zip(copies, done[:-1], done[1:], strict=True):
                    profiler.copied(one, begin, end, copy[-1] * copy[-2])
        self._launched(len(copies), event)

    def write(self, storage: Storage, array: ArrayLike, what: str = "") -> None:
        """Enqueue writing a NumPy array into an existing Storage; the caller may refill the array at once."""
        self.copy(self.upload(array, what), storage)

    def span(self, label: str) -> contextlib.AbstractContextManager[None]:
        """Context manager for something that the host does, which traces show as `label`."""
        profiler = self.profiler
        return contextlib.nullcontext() if profiler is None else profiler.span(label)

    def operation(self, label: str, nbytes: int = 0) -> contextlib.AbstractContextManager[None]:
        """Context manager for an operation on `nbytes` bytes that the host computes, for profiles and traces."""
        profiler = self.profiler
        return contextlib.nullcontext() if profiler is None else profiler.operation(label, nbytes)

    def overlapped(self, label: str, start: int, end: int, nbytes: int) -> None:
        """Tell profiles and traces of an operation on `nbytes` bytes that the worker computed; times are from `time.perf_counter_ns`."""
        profiler = self.profiler
        if profiler is not None:
            profiler.overlapped(label, start, end, nbytes)

    def finish(self) -> None:
        """Wait until everything enqueued is done."""
        self.idle()
        if self.profiler is not None:
            with self._lock:
                if self.profiler is not None:
                    self.profiler.drain(wait=True)

    def idle(self) -> None:
        """`finish` without draining the profiler, and so without the queue's lock: for callers that hold the memory's lock."""
        state.check_not_forked()
        with self.span(WAIT):
            try:
                self.queue.finish()
            except self.driver.errors as error:
                raise self.lose(error) from error


def living_devices() -> list[Device]:
    """The Devices of this process; none in a forked child, which must not touch them."""
    return [] if state.Process.forked else list(_living)


@atexit.register
def _finish_all() -> None:
    # The interpreter frees memory in any order as it ends: no command may still be using it.
    for device in living_devices():
        device.finish()
