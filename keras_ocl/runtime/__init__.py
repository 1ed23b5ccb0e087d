"""The only code that knows OpenCL: discovery, devices, memory, programs, commands.

See Device for what can be done on one; nothing else in the package imports pyopencl.
"""

from keras_ocl.runtime import state as _state

_state.restore(__name__)

# Discovery must come first: it names the runtimes for pyopencl's loader. It does so on first use of a device.
from keras_ocl.runtime.device import Device, Statistics, Traits, local_memory, set_argument  # noqa: E402
from keras_ocl.runtime.errors import KernelBuildError, OutOfMemory  # noqa: E402
from keras_ocl.runtime.memory import Storage  # noqa: E402
from keras_ocl.runtime.profiling import profiling  # noqa: E402
from keras_ocl.runtime.selection import DeviceInfo, current_device, device_scope, devices, find_device, platform_list  # noqa: E402

_state.keep(__name__)

__all__ = [
    "Device",
    "DeviceInfo",
    "KernelBuildError",
    "OutOfMemory",
    "Statistics",
    "Storage",
    "Traits",
    "current_device",
    "device_scope",
    "devices",
    "find_device",
    "local_memory",
    "platform_list",
    "profiling",
    "set_argument",
]
