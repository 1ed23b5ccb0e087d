"""The world of several processes: joining it, and its collectives over MPI. mpi4py is imported if a launcher started the process."""

import atexit
import faulthandler
import functools
import importlib.metadata
import os
import pickle
import sys
import threading
import time

import numpy as np

from keras_ocl import runtime
from keras_ocl.distribution import cores, launcher, overlap, wire, witness
from keras_ocl.distribution.communicator import Communicator, check_extents
from keras_ocl.distribution.exits import Exits
from keras_ocl.distribution.watchdog import STALL, STALL_DEFAULT, Member, Watchdog, seconds

_LARGE = 2**18  # bytes; before larger transfers all ranks wait for one another, with longer sleeps
_SPINS = 20
_YIELDS = 1e-3  # seconds in which a waiting rank yields its core without sleeping, since a sleep takes at least 50 us
_NAP = 1e-3  # longest sleep, in seconds, of a rank that waits for others
_SENDING_NAP = 5e-5  # longest sleep of a rank that sends: MPI only sends while it is polled
_yield = getattr(os, "sched_yield", functools.partial(time.sleep, 0))

_joined = None  # the Communicator that `initialize` made
_kinds = None  # the kind of each rank's device


def initialize(job_addresses=None, num_processes=None, process_id=None):
    """Join the processes that an MPI launcher has started; a single process without a launcher does nothing. Further calls change nothing.

    Args:
        job_addresses: the addresses of all processes or of the first, separated by commas; only their number counts.
        num_processes: the number of processes, which MPI knows too.
        process_id: this process's rank, which MPI knows too.

    Raises:
        ValueError: an argument differs from what the launcher says.
        RuntimeError: several processes are asked for, but no launcher has started them; mpi4py is missing, or belongs to another MPI
            than the launcher; or the ranks run different versions.
    """
    global _joined
    if _joined is None:
        started = launcher.started_by(os.environ)
        if started is None:
            _check_alone(job_addresses, num_processes, process_id)
        name, size = started or ("", 1)
        # A single process needs no MPI, such as a notebook's in a Slurm job.
        _joined = Communicator() if size == 1 else _join(_load(name, size))
    _check_given(_joined.size, _joined.rank, job_addresses, num_processes, process_id)  # on a joined rank, so that an error ends the job


def world():
    """The Communicator of all ranks; before `initialize`, that of this process alone."""
    return Communicator() if _joined is None else _joined


def joined():
    """Whether `initialize` was called."""
    return _joined is not None


def device_kinds():
    """The kind of each rank's device. The first call is collective; after it any rank may call this at any time."""
    global _kinds
    if _kinds is None:
        _kinds = world().gather_objects(runtime.current_device().kind)
    return _kinds


def _check_alone(job_addresses, num_processes, process_id):
    """Raise RuntimeError if several processes are asked for."""
    asked = max(num_processes or 1, (process_id or 0) + 1, len((job_addresses or "").split(",")))
    if asked > 1:
        raise RuntimeError(
            f"keras.distribution.initialize asks for {asked} processes (job_addresses={job_addresses!r}, num_processes={num_processes}, "
            f"process_id={process_id}), but no MPI launcher has started this one: {launcher.advice(asked)}."
        )


def _check_given(size, rank, job_addresses, num_processes, process_id):
    """Raise ValueError if the arguments of `initialize` differ from MPI's numbers."""
    addresses = len(job_addresses.split(",")) if job_addresses else 1
    if num_processes not in (None, size) or process_id not in (None, rank) or addresses not in (1, size):
        raise ValueError(
            f"keras.distribution.initialize(job_addresses={job_addresses!r}, num_processes={num_processes}, process_id={process_id}) "
            f"differs from MPI, by which this is process {rank} of {size}: leave the arguments out."
        )


def _load(name, size):
    """The module mpi4py.MPI, with MPI initialised for calls from several threads, in a process of the launcher `name`."""
    os.environ.setdefault("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1")  # MPICH would print its own message after ours
    try:
        import mpi4py

        ours = "mpi4py.MPI" not in sys.modules
        if ours:
            mpi4py.rc.finalize = False  # mpi4py would finalize in forked children too, where MPI_Finalize does not return
        MPI = _meeting_others_in_mpi_init()
    except (ImportError, RuntimeError) as error:  # RuntimeError where mpi4py is installed, but no MPI library
        cause = str(error).partition("\n")[0]
        how = launcher.advice(size or 2)
        raise RuntimeError(f"{name} has started this process, but mpi4py cannot be used ({cause}): {how}.") from error
    if size is not None and MPI.COMM_WORLD.size != size:
        library = MPI.Get_library_version().split("\n")[0].strip()
        raise RuntimeError(
            f"{name} has started {size} processes, but each sees {MPI.COMM_WORLD.size}, since mpi4py uses the library of another MPI, "
            f"{library}: start them by that one's mpiexec, or build mpi4py for the launcher's (pip install --no-binary mpi4py mpi4py)."
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "MPI was initialised without MPI_THREAD_MULTIPLE: call keras.distribution.initialize before what else uses mpi4py."
        )
    if ours:
        atexit.register(_finalize, MPI, os.getpid())
    return MPI


def _meeting_others_in_mpi_init():
    """The module mpi4py.MPI. Importing it calls MPI_Init, which waits for all ranks and holds the interpreter meanwhile.

    If another rank ends before it comes here, only C code can end the wait: faulthandler prints where this rank is (this function's name),
    and the launcher ends the others.
    """
    stream = sys.__stderr__  # it has a file descriptor, unlike a stream that may have replaced it
    if stream is not None:
        faulthandler.dump_traceback_later(seconds(STALL, STALL_DEFAULT), exit=True, file=stream)
    try:
        from mpi4py import MPI
    finally:
        if stream is not None:
            faulthandler.cancel_dump_traceback_later()
    return MPI


def _finalize(mpi, process):
    """Finalize MPI, in the process that initialised it only."""
    if os.getpid() == process:
        mpi.Finalize()


def _join(mpi):
    """The Communicator of all ranks, with its watchdog running; or that of one process if it is the only one."""
    comm, this = mpi.COMM_WORLD, Member(mpi.COMM_WORLD.rank, mpi.Get_processor_name(), os.getpid())
    if comm.size == 1:
        return Communicator()
    exits = Exits(mpi, this)
    exits.install()  # before anything that may fail on one rank while others wait for it
    _wait_for_all(mpi, exits, this)
    comm, beats = comm.Dup(), comm.Dup()
    found = comm.allgather((this, _versions()))
    members = [member for member, _ in found]
    for member, versions in found:
        if versions != found[0][1]:
            differ = ", ".join(f"{name} {versions[name]}, not {value}" for name, value in found[0][1].items() if versions[name] != value)
            raise RuntimeError(f"{member} has {differ} as {members[0]} has: all ranks need the same.")
    watchdog = Watchdog(mpi, beats, members, exits.abort)
    on_host = comm.Split_type(mpi.COMM_TYPE_SHARED)
    joined = MpiCommunicator(mpi, comm, watchdog, "the world", list(range(comm.size)), several_hosts=on_host.size < comm.size)
    watchdog.start()
    exits.joined(watchdog.leave, witness.begin(on_host, [members[rank] for rank in on_host.allgather(comm.rank)]))
    runtime.take_turn(on_host.rank)
    cores.bind(on_host)
    on_host.Free()
    if comm.rank == 0:  # launchers name a killed process by its number, and end the others before they can print anything
        runtime.announce("keras_ocl runs on %d ranks: %s", comm.size, ", ".join(f"{m.rank} (process {m.pid} on {m.host})" for m in members))
    return joined


def _wait_for_all(mpi, exits, this):
    """Return when all processes have come here; end the job if they do not in time."""
    request, limit = mpi.COMM_WORLD.Ibarrier(), time.monotonic() + seconds(STALL, STALL_DEFAULT)
    while not request.Test():
        if time.monotonic() > limit:
            exits.abort(f"{this} waits in keras.distribution.initialize for others that never call it")
        time.sleep(_NAP)


def _versions():
    """What must be equal on all ranks: versions and settings that decide a script's operations, and how sums are exchanged."""
    settings = {wire.WIRE: wire.wire_dtype().name, overlap.OVERLAP: overlap.setting()}
    return {name: importlib.metadata.version(name) for name in ("keras", "keras-ocl")} | settings


class MpiCommunicator(Communicator):
    """Several ranks. Nonblocking MPI calls are polled until they complete, since MPI's own waiting would occupy a core.

    Args:
        mpi: the module mpi4py.MPI.
        comm: an MPI communicator of these ranks that nothing else uses.
        watchdog: this process's Watchdog.
        name: the communicator's name in messages, equal on all ranks.
        ranks: the ranks of the world that belong to it.
        several_hosts: whether the world spans several hosts.
    """

    def __init__(self, mpi, comm, watchdog, name, ranks, several_hosts):
        self.rank, self.size = comm.rank, comm.size
        self._mpi, self._comm, self._watchdog, self._name, self._ranks = mpi, comm, watchdog, name, ranks
        self._several_hosts = several_hosts
        self._progress = watchdog.follow(name, ranks)
        self._meetings = comm.Dup()
        self._known = set()  # digests of the collectives before which ranks have compared their calls
        self._wire = wire.wire_dtype()
        self._parts = {}  # every rank's color -> this rank's Communicator; kept since MPI has few thousand, and freeing one is collective
        self._request = None  # of the current wait, or of one that an exception interrupted; it keeps its buffers alive
        self._broken = False
        self._lock = threading.Lock()

    @property
    def overlaps(self):
        return overlap.overlaps(_kinds or ["cpu"], self._several_hosts)  # kinds are known wherever there is a mesh

    def all_reduce(self, arrays, kind, targets=()):
        arrays = [np.asarray(array) for array in arrays]
        results = list(targets) or [None] * len(arrays)
        packed, apart = {}, []  # (dtype of transfer, operation) -> indices of arrays; (index, operation) of large arrays
        for place, array in enumerate(arrays):
            carrier, combined = self._carrier(array.dtype, kind), wire.combined(array.dtype, kind)
            if carrier == array.dtype and array.nbytes > _LARGE:  # sent as it is: copying takes as long as sending
                apart.append((place, combined))
            else:
                packed.setdefault((carrier, combined), []).append(place)

        def run():
            if sum(array.nbytes for array in arrays) > _LARGE:
                self._wait(self._meetings.Ibarrier(), _NAP)
            for place, combined in apart:
                results[place] = self._reduced(arrays[place], combined, results[place])
            for (carrier, combined), places in packed.items():
                reduced = self._reduced_together([arrays[place] for place in places], carrier, combined)
                for place, result in zip(places, reduced, strict=True):
                    results[place] = result
            return results

        return self._watched(_described(f"all_reduce({kind})", *((array.dtype, array.shape) for array in arrays)), run)

    def all_gather(self, array, axis, extents, target=None):
        array = np.asarray(array)
        axis %= array.ndim
        check_extents(self, array.shape[axis], (extents[self.rank],), extents)
        shape, rest = list(array.shape), array.shape[:axis] + array.shape[axis + 1 :]
        shape[axis] = sum(extents)
        item = int(np.prod(rest)) * array.itemsize
        counts = [n * item for n in extents]

        def run():
            result, ends = np.empty(shape, array.dtype) if target is None else target, np.cumsum(counts)
            in_order = wire.lie_in_order(shape, axis)
            gathered = _bytes(result) if in_order else np.empty(sum(counts), np.uint8)
            self._transfer(gathered.nbytes, lambda: self._comm.Iallgatherv(_bytes(array), [gathered, counts]))
            if in_order:
                return result
            for part, end, count in zip(wire.parts(result, axis, extents), ends, counts, strict=True):
                part[...] = gathered[end - count : end].view(array.dtype).reshape(part.shape)
            return result

        return self._watched(_described(f"all_gather(axis {axis}, extents {tuple(extents)})", (array.dtype, rest)), run)

    def reduce_scatter(self, array, axis, extents, kind="sum", target=None):
        array = np.asarray(array)
        axis %= array.ndim
        check_extents(self, array.shape[axis], extents, extents)
        carrier, op = self._carrier(array.dtype, kind), self._operation(wire.combined(array.dtype, kind))
        parts = wire.parts(array, axis, extents)
        counts = [part.size for part in parts]

        def run():
            if carrier == array.dtype and wire.lie_in_order(array.shape, axis):
                buffer = wire.ravelled(array)
            else:
                buffer = wire.packed(parts, carrier, kind)
            if carrier == wire.HALF:
                result = self._summed(buffer, counts)
            else:
                own = target is not None and carrier == array.dtype
                result = target if own else np.empty(counts[self.rank], carrier)
                self._transfer(buffer.nbytes, lambda: self._comm.Ireduce_scatter(buffer, result, counts, op))
                if own:
                    return target
            return wire.decode(result, array.dtype).reshape(parts[self.rank].shape)

        return self._watched(_described(f"reduce_scatter({kind}, axis {axis}, extents {tuple(extents)})", (array.dtype, array.shape)), run)

    def broadcast(self, array, root=0):
        array = np.asarray(array)

        def run():
            result = np.array(array, order="C")
            self._transfer(result.nbytes, lambda: self._comm.Ibcast(_bytes(result), root))
            return result

        return self._watched(_described(f"broadcast(root {root})", (array.dtype, array.shape)), run)

    def gather_objects(self, thing):
        return self._watched("gather_objects", lambda: self._gathered(thing))

    def barrier(self):
        self._watched("barrier", lambda: self._wait(self._comm.Ibarrier(), _NAP))

    def split(self, color):
        def run():
            colors = tuple(self._gathered(color))  # all ranks are here, so MPI's blocking calls will not wait
            if colors not in self._parts:
                ranks = [rank for rank, other in zip(self._ranks, colors, strict=True) if other == color]
                comm = self._comm.Split(color, self.rank)
                if len(ranks) > 1:
                    name = f"{self._name}, part {color} of split {len(self._parts) + 1}"
                    self._parts[colors] = MpiCommunicator(self._mpi, comm, self._watchdog, name, ranks, self._several_hosts)
                else:
                    comm.Free()
                    self._parts[colors] = Communicator()
            return self._parts[colors]

        return self._watched("split", run)

    def _carrier(self, dtype, kind):
        """The dtype in which arrays are transferred."""
        return self._wire if kind == "sum" and dtype == np.float32 else wire.carrier(dtype, kind)

    def _operation(self, combined):
        """MPI's operation for a kind of `wire.combined`."""
        mpi = self._mpi
        return {"sum": mpi.SUM, "prod": mpi.PROD, "max": mpi.MAX, "min": mpi.MIN, "and": mpi.BAND, "or": mpi.BOR}[combined]

    def _reduced(self, array, kind, target):
        """The array combined over the ranks, in `target` if that is not None."""
        result = np.empty(array.shape, array.dtype) if target is None else target
        self._wait(self._comm.Iallreduce(wire.ravelled(array), result, self._operation(kind)), _SENDING_NAP)
        return result

    def _reduced_together(self, arrays, carrier, kind):
        """The arrays, which share a carrier dtype, combined over the ranks in one call of MPI."""
        combined = wire.packed(arrays, carrier, kind)
        if combined.size and carrier == wire.HALF:
            self._sum_of_halves(combined)
        elif combined.size:
            in_place, op = self._mpi.IN_PLACE, self._operation(kind)
            self._wait(self._comm.Iallreduce(in_place, combined, op), _SENDING_NAP if combined.nbytes > _LARGE else _NAP)
        return [wire.decode(part, array.dtype).reshape(array.shape) for part, array in zip(wire.cut(combined, arrays), arrays, strict=True)]

    def _sum_of_halves(self, values):
        """Sum bfloat16 values over the ranks, in place: each rank sums one part in float32, in rank order, and rounds it once."""
        extent = -(-values.size // self.size)
        padded = np.zeros(extent * self.size, values.dtype)
        padded[: values.size] = values
        part = self._summed(padded, [extent] * self.size).astype(values.dtype)
        self._transfer(padded.nbytes, lambda: self._comm.Iallgather(part.view(np.uint16), padded.view(np.uint16)))
        values[...] = padded[: values.size]

    def _summed(self, values, counts):
        """This rank's part of the sum of bfloat16 values over the ranks, in float32."""
        count = counts[self.rank]
        arrived = np.empty(count * self.size, values.dtype)
        whole, mine = [values.view(np.uint16), counts], [arrived.view(np.uint16), [count] * self.size]
        self._transfer(values.nbytes, lambda: self._comm.Ialltoallv(whole, mine))
        total = np.zeros(count, np.float32)
        for part in arrived.reshape(self.size, count):
            total += part.astype(np.float32)
        return total

    def _gathered(self, thing):
        """A list of every rank's object."""
        mine = np.frombuffer(pickle.dumps(thing), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._wait(self._comm.Iallgather(np.array([mine.size]), sizes), _NAP)
        everything = np.empty(sizes.sum(), np.uint8)
        self._wait(self._comm.Iallgatherv(mine, [everything, sizes]), _NAP)
        ends = np.cumsum(sizes)
        return [pickle.loads(everything[end - size : end]) for end, size in zip(ends, sizes, strict=True)]

    def _watched(self, text, run):
        """The result of the collective `run`, which the watchdog observes under the name `text`."""
        with self._lock:
            if self._broken:
                raise RuntimeError(f"A collective of {self._name} was interrupted, so its ranks have come apart: start the job again.")
            digest, chain = self._progress.begin(text)
            self._broken = True
            try:
                if digest not in self._known:
                    self._meet(chain)
                    self._known.add(digest)
                result = run()
                self._broken = False
                return result
            except self._mpi.Exception:
                self._watchdog.explained()
                raise
            finally:
                self._progress.end(finished=not self._broken)

    def _meet(self, chain):
        """Return when all ranks have called the same collective, as MPI may end the process where transfers do not match."""
        chains = np.empty(self.size, np.uint64)
        self._wait(self._meetings.Iallgather(np.array([chain], np.uint64), chains), _NAP)
        if np.any(chains != chains[0]):
            self._watchdog.explained()
            raise RuntimeError(f"Ranks of {self._name} call different collectives.")

    def _transfer(self, nbytes, begin):
        """Complete the request that `begin` starts; for many bytes, begin only when all ranks are there."""
        if nbytes > _LARGE:
            self._wait(self._meetings.Ibarrier(), _NAP)
        self._wait(begin(), _SENDING_NAP if nbytes > _LARGE else _NAP)

    def _wait(self, request, nap):
        """Return when the request is done: poll, yield the core in between, then sleep for longer and longer, up to `nap` seconds."""
        self._request = request
        looks, begun = 0, time.perf_counter()
        while not request.Test():
            looks += 1
            waited = time.perf_counter() - begun
            if looks > _SPINS and waited < _YIELDS:
                _yield()
            elif waited >= _YIELDS:
                time.sleep(min(waited / 20, nap))
        self._request = None


@functools.lru_cache(maxsize=4096)
def _described(call, *arrays):
    """Text of a collective that must be equal on all ranks: its name and the (dtype, shape) of its arrays."""
    return f"{call} of " + ", ".join(f"{dtype.name}{list(map(int, shape))}" for dtype, shape in arrays)


def _bytes(array):
    """The bytes of an array, without a copy if it is contiguous."""
    return wire.ravelled(array).view(np.uint8)
