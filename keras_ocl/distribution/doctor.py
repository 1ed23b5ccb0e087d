"""`python -m keras_ocl doctor --mpi`: whether jobs of several ranks can run here; started by a launcher, it checks that job."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import time
from typing import NamedTuple

import numpy as np

from keras_ocl import runtime
from keras_ocl.distribution import cores, launcher, mpi, wire

_VARIABLES = (
    "KERAS_OCL_DEVICE", "KERAS_OCL_SHARES", "KERAS_OCL_WIRE", "KERAS_OCL_OVERLAP", "KERAS_OCL_BIND", "KERAS_OCL_HEARTBEAT",
    "KERAS_OCL_STALL", "MPI4PY_LIBMPI", "MPI4PY_MPIABI", "MPIR_CVAR_CH4_NETMOD",
    "UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_btl",
)  # fmt: skip
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_SIZES = ((1, 200), (2**22, 5))  # elements of an array, and the number of times that it is reduced
_BRINGS = f"{launcher.INSTALL} brings one on Linux x86-64, on a cluster the module of its MPI does (such as `module load openmpi`)"
_OTHER_MPI = (
    "start by the mpiexec of that library, name this mpiexec's library in MPI4PY_LIBMPI, or build mpi4py for it: "
    "pip install --no-binary mpi4py mpi4py"
)
_TRANSPORT = "try another transport (UCX_TLS=tcp,self with pip's MPICH, FI_PROVIDER=tcp with Intel MPI, OMPI_MCA_pml=ob1 with Open MPI)"


class _Known(NamedTuple):
    """A device, described for other ranks."""

    name: str
    kind: str
    text: str
    address: str  # see runtime.pci_address
    units: int
    cores: str  # the cores that the rank may use, if the device is a CPU


class _Rank(NamedTuple):
    """A rank's description of itself for the others."""

    host: str
    process: int
    device: _Known | None
    why: str  # the reason for that device, or for having none


def check(choose):
    """Print the environment and the results of checks, on the first rank only; returns the exit status, 1 where something fails.

    Args:
        choose: a function that returns (this rank's Device or None, the reason).
    """
    problem, started = None, None
    if importlib.util.find_spec("mpi4py") is None:
        problem = f"mpi4py is not installed: {launcher.INSTALL}"
    else:
        try:
            started = launcher.started_by(os.environ)
            if started is not None:
                mpi.initialize()
        except (RuntimeError, ValueError) as error:
            problem = error
    if problem is None:
        return _alone() if started is None else _job(started[0], choose)
    local = _local_rank()
    if local is None or os.environ[local] == "0":  # once per host
        print(problem if local is None else f"{platform.node()}: {problem}")
    return 1


def _local_rank():
    """The environment variable with a process's index among those of its host; None if the launcher sets none."""
    return next((variable for variable in _LOCAL_RANK if variable in os.environ), None)


# ---- without a launcher


def _alone():
    """Print what is installed for starting a job; returns the exit status."""
    try:
        library = _library()
    except (ImportError, RuntimeError) as error:  # RuntimeError where mpi4py is installed, but no MPI library
        library, problem = None, str(error).partition("\n")[0]
    _print_environment(library)
    path, srun = launcher.mpiexec(), shutil.which("srun")
    family, version = _launcher_version(path) if path else (None, None)
    print(f"mpiexec: {f'{path} ({family} {version})' if path else 'none'}{f', srun: {srun}' if srun else ''}")
    if library is None:
        print(f"the MPI library cannot be loaded ({problem}): {_BRINGS}; MPI4PY_LIBMPI=/PATH/libmpi.so names another")
    elif path is None and srun is None:
        print(f"there is no mpiexec to start several processes with: {_BRINGS}")
    elif family not in (None, "?") and (family == "Open MPI") != library.startswith("Open MPI"):
        print(f"mpiexec is {family}'s, but mpi4py uses another MPI's library, so its processes would not find one another: {_OTHER_MPI}")
    else:
        start = "mpiexec -n 2" if path else "srun --mpi=pmi2 -n 2"
        print(f"no launcher started this process: `{start} python -m keras_ocl doctor --mpi` checks ranks, devices and collectives")
        return 0
    return 1


def _library():
    """The MPI library's name and version, found without initialising it."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().split("\n")[0].strip(" \0").split())


def _print_environment(library):
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    print("packages: " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("keras-ocl", "keras", "mpi4py")))
    settings = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    print("environment: " + (", ".join(settings) or "nothing set that matters here"))
    print(f"MPI library: {library or 'none'}")


def _launcher_version(path):
    """(MPI implementation of the mpiexec, its version); "?" where it does not tell."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "?", "?"
    text = done.stdout + done.stderr
    families = {"Open MPI": r"Open MPI|OpenRTE|PRRTE|prte", "Intel MPI": r"Intel\(R\) MPI", "MPICH": "HYDRA"}
    version = re.search(r"\d+(?:\.\d+)+", text)
    return next((name for name, sign in families.items() if re.search(sign, text)), "?"), version[0] if version else "?"


# ---- in a job


def _job(name, choose):
    """Print this job's ranks, and check their collectives; returns the exit status."""
    world = mpi.world()
    device, why = choose()
    known = None
    if device is not None:
        mine = cores.described() if device.kind == "cpu" else ""
        known = _Known(device.name, device.kind, str(device), runtime.pci_address(device.driver.handle), device.traits.compute_units, mine)
    ranks = world.gather_objects(_Rank(platform.node(), os.getpid(), known, why))
    missing = [(number, rank.why) for number, rank in enumerate(ranks) if rank.device is None]
    timed = [_timed(world, numbers, times) for numbers, times in _SIZES] if world.size > 1 else []
    wrong = sorted({number for _, _, right in timed for number, fine in enumerate(right) if not fine})
    if world.rank == 0:
        _print_environment(_library())
        print(f"started by {name}: {world.size} rank{'s' * (world.size > 1)} with the same versions of keras and keras-ocl")
        _print_ranks(ranks)
        for number, reason in missing:
            print(f"rank {number} has no device: {reason}")
        for warning in _shared(ranks, _local_rank()):
            print(warning)
        for numbers, seconds, right in timed:
            _print_timed(4 * numbers, seconds, all(right))
        if wrong:
            print(f"{_named(wrong)} got wrong sums, by a fault of the MPI library or the network: {_TRANSPORT}")
        if world.size == 1:
            print("one rank has nothing to exchange: start more (-n 2)")
    world.barrier()  # a rank that ends with status 1 ends the others, while the first may still be printing
    return int(bool(missing or wrong))


def _named(ranks):
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _print_ranks(ranks):
    rows = [("rank", "host", "process", "device")]
    for number, rank in enumerate(ranks):
        device = " ".join(filter(None, (rank.device.text, rank.device.address, rank.device.cores))) if rank.device else "none"
        rows.append((str(number), rank.host, str(rank.process), device))
    widths = [max(len(row[k]) for row in rows) for k in range(3)] + [0]
    for row in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))


def _shared(ranks, local):
    """Yield a warning for each device that several ranks use; `local` is the variable with the rank within a host, or None."""
    users = {}
    for number, rank in enumerate(ranks):
        if rank.device:
            which = rank.device.address or (rank.device.name, rank.device.cores)
            users.setdefault((rank.host, which), []).append((number, rank.device))
    for (host, _), found in users.items():
        numbers, device = [number for number, _ in found], found[0][1]
        if len(found) == 1:
            continue
        whole = device.name.partition("/")[0]
        if device.kind == "gpu":
            remedy, own = "give each rank a GPU of its own, and start no more ranks than a host has", f"gpu:${local}"
        elif device.units < len(found):
            remedy, own = f"start at most {device.units} there, one for each of its compute units", ""
        else:
            binding = "`mpiexec -bind-to core`, `srun --cpu-bind=cores`"
            remedy = f"give each rank cores of its own ({binding}) or a part of it, or start one rank a host"
            own = f"{whole}/$(({local} + 1))of{len(found)}"
        how = f": `sh -c 'KERAS_OCL_DEVICE={own} exec python SCRIPT.py'`" if local and own else ""
        yield f"warning: {_named(numbers)} share {device.name} of {host}; {remedy}{how}"


def _timed(world, numbers, times):
    """(elements of an array, median seconds of its all-reduce, a list that tells for each rank whether its sums are right)."""
    pattern = np.arange(numbers, dtype=np.float32) % 2
    expected = pattern * world.size + world.size * (world.size - 1) / 2
    mine, taken = pattern + np.float32(world.rank), []
    for _ in range(times + 1):  # the first meeting of the ranks is not timed
        begun = time.perf_counter()
        (found,) = world.all_reduce([mine], "sum")
        taken.append(time.perf_counter() - begun)
    right = np.allclose(found, expected, rtol=1e-6 if wire.wire_dtype() == np.float32 else 1e-2)
    return numbers, float(np.median(taken[1:])), world.gather_objects(bool(right))


def _print_timed(nbytes, seconds, right):
    large = nbytes >= 2**20
    size, rate = (f"{nbytes >> 20} MiB", f", {nbytes / seconds / 1e9:.3g} GB/s") if large else (f"{nbytes} bytes", "")
    print(f"all-reduce of {size}: {'right' if right else 'WRONG'}, {seconds * 1e6:.0f} us{rate}")
