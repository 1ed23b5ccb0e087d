"""What OpenCL tells of a device, for reports: its driver, extensions and limits, and nothing that tells machines of one kind apart."""

from typing import Any

import pyopencl as cl

from keras_ocl.runtime.device import Device

_TEXTS = ("vendor", "version", "opencl_c_version", "board_name_amd")
# Addresses on the bus, serial numbers and free memory are none of these.
_NUMBERS = (
    "address_bits", "max_compute_units", "max_clock_frequency", "global_mem_size", "global_mem_cache_size", "global_mem_cacheline_size",
    "max_mem_alloc_size", "max_constant_buffer_size", "local_mem_size", "local_mem_type", "host_unified_memory", "mem_base_addr_align",
    "max_work_group_size", "max_work_item_sizes", "preferred_work_group_size_multiple", "max_num_sub_groups", "max_parameter_size",
    "preferred_vector_width_float", "native_vector_width_float", "native_vector_width_double", "native_vector_width_half",
    "single_fp_config", "double_fp_config", "half_fp_config", "svm_capabilities", "image_support", "profiling_timer_resolution",
    "compute_capability_major_nv", "compute_capability_minor_nv", "warp_size_nv", "registers_per_block_nv", "integrated_memory_nv",
    "kernel_exec_timeout_nv", "gfxip_major_amd", "gfxip_minor_amd", "wavefront_width_amd", "simd_per_compute_unit_amd", "simd_width_amd",
    "local_mem_size_per_compute_unit_amd", "local_mem_banks_amd", "global_mem_channels_amd",
)  # fmt: skip


def facts_of(device: Device) -> dict[str, Any]:
    """What OpenCL tells of a Device that pyopencl knows, as values that JSON can hold.

    Returns:
        A dict with "platform" (its name, vendor and version), "model", "driver", the texts and numbers that the driver knows of the names
        above (pyopencl's names of clGetDeviceInfo's parameters), and "extensions", a sorted list.
    """
    handle = device.driver.handle  # type: ignore[attr-defined]
    platform = handle.platform
    found: dict[str, Any] = {
        "platform": {name: str(getattr(platform, name)).strip() for name in ("name", "vendor", "version")},
        "model": device.model,
        "driver": device.driver_version,
    }
    for name in (*_TEXTS, *_NUMBERS):
        try:
            value = getattr(handle, name)
        except (cl.Error, AttributeError, UnicodeDecodeError):  # of another vendor, a later version, or unreadable
            continue
        found[name] = value.strip() if isinstance(value, str) else value if isinstance(value, list) else int(value)
    return {**found, "extensions": sorted(handle.extensions.split())}
