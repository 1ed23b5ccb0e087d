"""Cores of a host among its ranks. A CPU's OpenCL runtime starts a thread for each core that its process may use; ranks that all may use
all cores would have more threads than there are cores, and kernels wait for the last of their threads."""

import os
from pathlib import Path

from keras_ocl import runtime

BIND = "KERAS_OCL_BIND"
_TOPOLOGY = Path("/sys/devices/system/cpu")
# PoCL counts the machine's cores whatever its process may use: how it is called from 4.0 on, and before.
POCL = ("POCL_CPU_MAX_CU_COUNT", "POCL_MAX_PTHREAD_COUNT")


def bind(on_host):
    """Divide the cores of this host among its ranks, where nobody else has: each is bound to its own, with threads that it starts later.

    Nothing is done where the launcher has bound ranks, a device's part is named, there are fewer cores than ranks, OpenCL was started
    already, or KERAS_OCL_BIND is 0.

    Args:
        on_host: MPI's communicator of this host's ranks; collective.
    """
    mine = _usable()
    everyone = on_host.allgather(mine)
    if on_host.size == 1 or not mine or any(cores != mine for cores in everyone) or len(mine) < on_host.size:
        return
    take(on_host.rank, on_host.size)


def take(place, places):
    """Bind this process to its share of the cores, with threads that it starts later."""
    cores = share(os.sched_getaffinity(0), place, places, _neighbours)
    os.sched_setaffinity(0, cores)
    for variable in POCL:
        os.environ.setdefault(variable, str(len(cores)))


def _usable():
    """The cores that this process may use; none where they are not to be divided."""
    part_named = "/" in os.environ.get("KERAS_OCL_DEVICE", "")
    if os.environ.get(BIND) == "0" or part_named or runtime.started() or not hasattr(os, "sched_setaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


def share(cores, place, places, neighbours):
    """The cores of the rank in `place` of `places`: as many for each as can be, neighbours together.

    Args:
        cores: numbers of at least `places` cores.
        neighbours: a function of a core's number by whose values neighbours sort beside one another.
    """
    ordered = sorted(cores, key=lambda core: (neighbours(core), core))
    return ordered[place * len(cores) // places : (place + 1) * len(cores) // places]


def _neighbours(core):
    """(processor, core) of what Linux calls a CPU: two threads of a core share it."""
    topology = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        return tuple(int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return (0, core)


def described():
    """The cores that this process may use, such as "cores 0, 1"; "" where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    return "cores " + ", ".join(map(str, sorted(os.sched_getaffinity(0))))
