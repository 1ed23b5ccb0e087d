"""Parts of a device: some of its compute units as a separate device (OpenCL 1.2, section 4.3, clCreateSubDevices).

A name may end in `/units=N`, for N compute units, or in `/KofN`, for the K-th (from 1) of N parts that are as equal as possible.
"""

import re
from dataclasses import dataclass

import pyopencl as cl

BY_COUNTS = cl.device_partition_property.BY_COUNTS
EQUALLY = cl.device_partition_property.EQUALLY

LIMITS = (
    "limit the whole process instead, by the runtime's own means: CL_CONFIG_CPU_TBB_NUM_WORKERS=N (Intel), POCL_CPU_MAX_CU_COUNT=N "
    "(PoCL from 4.0 on; POCL_MAX_PTHREAD_COUNT=N before) or, for any CPU, `taskset -c 0-M`"
)


@dataclass(frozen=True)
class Part:
    """The part that a name's ending asks for: `units` compute units, or (if that is 0) the part with `index`, from 0, of `count` parts."""

    units: int
    index: int = 0
    count: int = 1

    def __str__(self):
        return f"units={self.units}" if self.units else f"{self.index + 1}of{self.count}"


def parse(name):
    """(name of the whole device, Part or None). Raises ValueError for an invalid number of a part."""
    found = re.fullmatch(r"(.+)/(?:units=(\d+)|(\d+)of(\d+))", name)
    if found is None:
        return name, None
    whole, units, index, count = found[1], int(found[2] or 0), int(found[3] or 0), int(found[4] or 0)
    if units == 0 and not 1 <= index <= count:
        raise ValueError(f"{name!r} names no part of a device: write {whole}/units=N with N from 1 on, or {whole}/KofN with K from 1 to N")
    return whole, Part(units, index - 1, count) if units == 0 else Part(units)


def split(device, part):
    """The pyopencl Device for a Part of the Device `device`; the device's own one if the part is the whole device.

    Units are taken from the end. In Intel's runtime the thread that waits for a device also computes for its first unit, beside a worker
    thread, so a part with only the first unit would keep two cores busy.

    Raises:
        ValueError: the device has fewer compute units than asked for.
        RuntimeError: the device cannot be split; names the runtimes' own limits instead.
    """
    total = device.traits.compute_units
    wanted = part.units or part.count
    if wanted > total:
        what = f"{part.units} compute units" if part.units else f"{part.count} parts"
        raise ValueError(f"{device} has {total} compute unit{'s' * (total > 1)}, not {what}: ask for {total} at most")
    if part.units == total or (not part.units and part.count == 1):
        return device.driver.handle
    if part.units:
        counts, index = [total - part.units, part.units], 1
    else:
        counts, index = [total // part.count + (k < total % part.count) for k in range(part.count)], part.index
    ways = device.driver.handle.partition_properties
    if BY_COUNTS in ways:
        properties = [BY_COUNTS, *counts]
    elif EQUALLY in ways and total % counts[-1] == 0 and len(set(counts)) <= 1 + bool(part.units):
        properties, index = [EQUALLY, counts[-1]], -1 if part.units else index
    else:
        raise RuntimeError(f"{device} cannot be split into compute units (clCreateSubDevices offers no way); {LIMITS}")
    try:
        return device.driver.handle.create_sub_devices(properties)[index]
    except cl.Error as error:
        raise RuntimeError(f"{device} cannot be split into {part}: {error}; {LIMITS}") from None
