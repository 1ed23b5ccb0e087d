"""Properties of a device (Traits), and the ways in which the host can reach its memory."""

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyopencl as cl

from keras_ocl.runtime.matrix_units import candidates
from keras_ocl.runtime.overrides import Overrides, read_overrides
from keras_ocl.runtime.quarantine import Target, quarantined
from keras_ocl.runtime.quirks import quirks_of


@dataclass(frozen=True)
class Traits:
    """The properties of a device that kernels and schedules may depend on; never its vendor's name.

    Attributes:
        kind: "cpu" or "gpu" (accelerators are GPUs here).
        vector_width: float lanes of one explicit vector.
        compute_units: number of compute units.
        local_memory: bytes of local memory per work-group.
        max_group: most work-items of a work-group.
        fp64: whether kernels can compute in float64.
        fp16: whether kernels can compute in float16.
        subgroups: whether it has sub-groups.
        unified_memory: whether it shares its memory with the host.
        max_allocation: bytes of the largest buffer.
        global_memory: bytes of all its memory.
        alignment: bytes to a multiple of which sub-ranges of a buffer must begin.
        schedule: the name of the schedule by which kernels are written for it (kernels/schedules/).
        clock: the highest clock frequency in MHz, 0 where the driver does not tell.
        item_registers: most 32-bit registers that compilers give a work-item.
        max_groups: most work-groups of a launch in each dimension; empty where there is no limit.
        unit_registers: 32-bit registers of a compute unit, over all its work-items.
        sub_buffers: whether overlapping ranges of a buffer may be sub-buffers; else kernels get the whole buffer and an offset.
        required_groups: whether kernels can have the work-group size that they require, whatever limit the driver states for them.
        persistent_loops: whether all steps of a loop may run in one launch (a persistent kernel).
        byte: multiply-adds in the time of one byte of memory traffic, at the peaks of both.
        vec_len_hint: whether kernels may forbid the compiler's own vectorisation (cl_intel_vec_len_hint).
        matrix_units: names of its matrix units (kernels/matrix/units.py): those that it may have, until they are tried (matrix_units.py).
        matrix_rates: multiply-adds that each of these does in the time of one of a work-item.
        quirks: names of the faults that code works around for this device, rows of runtime/quirks.py; by default those of an unknown one.
        keep: what a training step keeps for its gradient: "cut", "all" or "least" (compiler/fuse/kept.py).
        overrides: numbers and tiles that were measured on the device, in place of what the schedule estimates.
        quarantine: names of the families of kernels (kernels/families.py) that were found wrong on the device and are not to be used.
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
    sub_buffers: bool = True
    required_groups: bool = False
    persistent_loops: bool = True
    item_registers: int = 255
    max_groups: tuple[int, ...] = ()
    unit_registers: int = 65536
    byte: float = 20
    matrix_units: tuple[str, ...] = ()
    matrix_rates: tuple[float, ...] = ()
    quirks: frozenset[str] = quirks_of("", "")
    keep: str = "cut"
    overrides: Overrides = Overrides()
    quarantine: frozenset[str] = frozenset()

    def without(self, families: Iterable[str]) -> "Traits":
        """These traits with another quarantine.

        Args:
            families: names of all families of kernels that are not to be used.

        Returns:
            A new `Traits`; it has no matrix units, and no vectors of more than 4 lanes, where they are among the families.
        """
        quarantine = frozenset(families)
        units = {} if "matrix_units" in quarantine else dict(zip(self.matrix_units, self.matrix_rates, strict=True))
        width = min(self.vector_width, 4) if "wide_vectors" in quarantine else self.vector_width
        return replace(self, quarantine=quarantine, vector_width=width, matrix_units=tuple(units), matrix_rates=tuple(units.values()))


def pci_address(handle: Any) -> str:
    """The PCI address of a pyopencl Device, such as "0000:65:00", which identifies it on its host whatever other devices a process sees; ""
    where the driver does not tell: most drivers but NVIDIA's and AMD's."""
    extensions = handle.extensions.split()
    try:
        if "cl_nv_device_attribute_query" in extensions:
            return f"{handle.pci_domain_id_nv:04x}:{handle.pci_bus_id_nv:02x}:{handle.pci_slot_id_nv:02x}"
        if "cl_amd_device_attribute_query" in extensions:
            place = handle.topology_amd
            return f"{place.bus:02x}:{place.device:02x}.{place.function}"
    except cl.Error:  # older drivers have the extension without all of it
        pass
    return ""


_RECORDS = Path(__file__).parent / "records"
_GROUPS = (2**24 - 1, 2**16 - 1, 2**16 - 1)  # OpenCL does not tell; GPUs have at least the limits that other interfaces state


def read_traits(handle: Any) -> Traits:
    """The Traits of a pyopencl Device."""
    extensions = handle.extensions.split()
    cpu = bool(handle.type & cl.device_type.CPU)
    width = max(handle.preferred_vector_width_float, handle.native_vector_width_float, 4 if cpu else 1)
    kind = "cpu" if cpu else "gpu"
    # Intel GPUs: units of 8 threads with 4 KiB of registers each, taken as shared by 16 work-items; the compiler chooses how many. No
    # driver tells this of other GPUs.
    threads = "cl_intel_required_subgroup_size" in extensions and not cpu
    quirks = quirks_of(handle.platform.name.strip(), handle.driver_version)
    schedule = os.environ.get("KERAS_OCL_SCHEDULE") or kind
    units = candidates(_architecture(handle), extensions) if schedule == "gpu" else {}
    target = Target(handle.platform.name, handle.name, handle.driver_version, schedule)
    traits = Traits(
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
        schedule=schedule,
        clock=handle.max_clock_frequency,
        vec_len_hint="cl_intel_vec_len_hint" in extensions,
        sub_buffers="overlapping_sub_buffers" not in quirks,
        required_groups="stated_group_limit" in quirks,
        persistent_loops=_persistent_loops(),
        max_groups=() if cpu else _GROUPS,
        item_registers=64 if threads else 255,
        unit_registers=8192 if threads else 65536,
        byte=_byte(_architecture(handle)),
        matrix_units=tuple(units),
        matrix_rates=tuple(units.values()),
        quirks=quirks,
        keep=_keep(),
        overrides=read_overrides(schedule, handle.name, handle.driver_version, handle.max_compute_units),
    )
    return traits.without(quarantined(target))


def _persistent_loops() -> bool:
    """Traits.persistent_loops from KERAS_OCL_LOOPS; ValueError where that is invalid."""
    way = os.environ.get("KERAS_OCL_LOOPS", "")
    if way not in ("", "launched"):
        raise ValueError(f'KERAS_OCL_LOOPS={way!r}: it is "launched", or not set')
    return not way


WAYS_OF_KEEPING = ("cut", "all", "least")


def _keep() -> str:
    """Traits.keep from KERAS_OCL_KEEP; ValueError where that is invalid."""
    way = os.environ.get("KERAS_OCL_KEEP") or "cut"
    if way not in WAYS_OF_KEEPING:
        raise ValueError(f'KERAS_OCL_KEEP={way!r}: it is "cut", "all" or "least"')
    return way


def _architecture(handle: Any) -> str:
    """The name of a device's architecture, such as "sm_90" or "gfx90a"; "" where the driver does not tell."""
    extensions = handle.extensions.split()
    try:
        if "cl_nv_device_attribute_query" in extensions:
            return f"sm_{handle.compute_capability_major_nv}{handle.compute_capability_minor_nv}"
        if "cl_amd_device_attribute_query" in extensions:
            return handle.name.split(":")[0]
    except cl.Error:
        pass
    return ""


def _byte(architecture: str) -> float:
    """Traits.byte from the record of an architecture, whose devices have similar ratios; the default without one, as no driver tells."""
    path = _RECORDS / f"{architecture}.toml"
    return tomllib.loads(path.read_text()).get("byte", Traits.byte) if path.is_file() else Traits.byte


def _reports_double(handle: Any) -> bool:
    try:
        return handle.double_fp_config != 0
    except cl.Error:
        return False


WAYS_OF_SHARING = ("shared", "mapped", "copied")


def forced_sharing() -> str:
    """The way of sharing that KERAS_OCL_TRANSFER names, "" where it is not set; ValueError where that is invalid."""
    way = os.environ.get("KERAS_OCL_TRANSFER", "")
    if way and way not in WAYS_OF_SHARING:
        raise ValueError(f'KERAS_OCL_TRANSFER={way!r}: it is "shared", "mapped" or "copied"')
    return way


def ways_of_sharing(handle: Any) -> list[str]:
    """The ways in which the host may reach a device's memory, best first; the self-test tries them in this order.

    "shared": plain reads and writes (fine-grained shared virtual memory). "mapped": one physical memory, through map and unmap. "copied":
    enqueued copies, the only way where the device has its own memory.
    """
    ways = ["copied"]
    # Devices with their own memory may report shared virtual memory too, but every access would cross the bus.
    if not handle.host_unified_memory:
        return ways
    # CPU devices too old for shared virtual memory get copies, as some abort (quirk unmap_aborts).
    if not handle.type & cl.device_type.CPU:
        ways.insert(0, "mapped")
    try:
        if handle.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER:
            ways.insert(0, "shared")
    except (cl.Error, AttributeError):
        pass
    return ways
