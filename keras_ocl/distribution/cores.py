"""Divides a host's cores among its ranks. A CPU's OpenCL runtime starts a thread per core that its process may use. If all ranks may use
all cores, there are more threads than cores, and kernels wait for the last of their threads."""

import os
from pathlib import Path

from keras_ocl import runtime

BIND = "KERAS_OCL_BIND"
_TOPOLOGY = Path("/sys/devices/system/cpu")
# PoCL counts the machine's cores whatever its process may use. Its variable from 4.0 on, and before.
POCL = ("POCL_CPU_MAX_CU_COUNT", "POCL_MAX_PTHREAD_COUNT")


def bind(on_host):
    """Divide the cores of this host among its ranks, unless that was done: each rank, and threads it starts later, gets its own cores.

    Does nothing where the launcher has bound ranks, a device's part is named, there are fewer cores than ranks, OpenCL has been started, or
    KERAS_OCL_BIND is 0.

    Args:
        on_host: MPI's communicator of this host's ranks; this is a collective.
    """
    mine = _usable()
    everyone = on_host.allgather(mine)
    if on_host.size == 1 or not mine or any(cores != mine for cores in everyone) or len(mine) < on_host.size:
        return
    take(on_host.rank, on_host.size)


def take(place, places):
    """Bind this process, and the threads that it starts later, to its share of the cores."""
    cores = share(os.sched_getaffinity(0), place, places, _neighbours)
    os.sched_setaffinity(0, cores)
    for variable in POCL:
        os.environ.setdefault(variable, str(len(cores)))


def _usable():
    """The cores that this process may use; [] if they must not be divided."""
    part_named = "/" in os.environ.get("KERAS_OCL_DEVICE", "")
    if os.environ.get(BIND) == "0" or part_named or runtime.started() or not hasattr(os, "sched_setaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


def share(cores, place, places, neighbours):
    """The cores of the rank with index `place` of `places`: shares as equal as possible, neighbouring cores together.

    Args:
        cores: the numbers of at least `places` cores.
        neighbours: a function from a core's number to a sort key by which neighbouring cores are adjacent.
    """
    ordered = sorted(cores, key=lambda core: (neighbours(core), core))
    return ordered[place * len(cores) // places : (place + 1) * len(cores) // places]


def _neighbours(core):
    """(processor, physical core) of what Linux calls a CPU: two hardware threads may share a physical core."""
    topology = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        return tuple(int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return (0, core)


def described():
    """The cores that this process may use, such as "cores 0, 1", as text; "" if the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    return "cores " + ", ".join(map(str, sorted(os.sched_getaffinity(0))))
