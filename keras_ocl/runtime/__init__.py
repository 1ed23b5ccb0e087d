"""The only code that uses OpenCL: discovery, devices, memory, programs, commands.

See Device for what can be done on one; nothing else in the package imports pyopencl. These modules hold the state of the process
(contexts, memory, programs), so keras_ocl.plugin keeps them when `keras.config.set_backend` drops all others.
"""

import keras_ocl.runtime.versions  # noqa: F401 - before all that needs what it looks for
from keras_ocl.runtime.arena import Arena
from keras_ocl.runtime.counts import Statistics
from keras_ocl.runtime.device import Device, living_devices
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.errors import FAILURES, DeviceLost, KernelBuildError, OutOfMemory
from keras_ocl.runtime.facts import facts_of
from keras_ocl.runtime.hardware import Hardware
from keras_ocl.runtime.memory import Storage, before_out_of_memory
from keras_ocl.runtime.opencl import local_memory, set_argument
from keras_ocl.runtime.overrides import device_file
from keras_ocl.runtime.profilers import BUILD, READ_BACK, UPLOAD, WAIT, Label, Profiler, Record, Timeline
from keras_ocl.runtime.profiling import profiled, profiling
from keras_ocl.runtime.programs import UnoptimisedBuilds
from keras_ocl.runtime.quarantine import Record as QuarantineRecord
from keras_ocl.runtime.quarantine import (
    Target,
    quarantine_file,
    quarantine_setting,
    read_quarantine,
    remove_quarantine,
    target_of,
    write_quarantine,
)
from keras_ocl.runtime.quirks import INTEL_CPU, POCL
from keras_ocl.runtime.record import RecordDevice, read_hardware, read_record, record_names
from keras_ocl.runtime.selection import (
    DeviceInfo,
    announce,
    current_device,
    device_scope,
    devices,
    examine_devices,
    find_device,
    open_again,
    platform_list,
    take_turn,
    when_used,
)
from keras_ocl.runtime.state import started
from keras_ocl.runtime.traits import Traits, pci_address

__all__ = [
    "Arena",
    "BUILD",
    "Device",
    "DeviceInfo",
    "DeviceLost",
    "DiskCache",
    "FAILURES",
    "Hardware",
    "INTEL_CPU",
    "KernelBuildError",
    "Label",
    "OutOfMemory",
    "POCL",
    "Profiler",
    "QuarantineRecord",
    "READ_BACK",
    "Record",
    "RecordDevice",
    "Statistics",
    "Storage",
    "Target",
    "Timeline",
    "Traits",
    "UPLOAD",
    "UnoptimisedBuilds",
    "WAIT",
    "announce",
    "before_out_of_memory",
    "current_device",
    "device_file",
    "device_scope",
    "devices",
    "examine_devices",
    "facts_of",
    "find_device",
    "living_devices",
    "local_memory",
    "open_again",
    "pci_address",
    "platform_list",
    "profiled",
    "profiling",
    "quarantine_file",
    "quarantine_setting",
    "read_hardware",
    "read_quarantine",
    "read_record",
    "record_names",
    "remove_quarantine",
    "set_argument",
    "started",
    "take_turn",
    "target_of",
    "when_used",
    "write_quarantine",
]
