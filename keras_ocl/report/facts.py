"""The facts of a report: versions, the system, and the device as OpenCL tells and as this package took it."""

import dataclasses
import importlib.metadata
import os
import platform

from keras_ocl import runtime
from keras_ocl.report.private import hidden
from keras_ocl.runtime.host import cpu_name

PACKAGES = ("keras-ocl", "keras", "numpy", "pyopencl")
# Settings that change kernels or times. Those that name a file, a device or another runtime are not among them.
SETTINGS = (
    "KERAS_OCL_SCHEDULE", "KERAS_OCL_CHECK", "KERAS_OCL_TRANSFER", "KERAS_OCL_MATRIX", "KERAS_OCL_PRECISION", "KERAS_OCL_KEEP",
    "KERAS_OCL_MEMORY_LIMIT", "KERAS_OCL_LOOPS", "KERAS_OCL_QUARANTINE", "KERAS_OCL_EXACT_BUFFERS", "KERAS_OCL_VERBOSE",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that count, by name."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def system() -> dict[str, object]:
    """The operating system's name and its kernel's release, the CPU's name, the number of cores that this process may use, and how many
    programs ran on them in the last minute (None where the system does not tell)."""
    name = platform.system()
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (AttributeError, OSError, KeyError):  # not Linux, or one without that file
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    found = {"os": name, "kernel": platform.release(), "machine": platform.machine(), "cpu": cpu_name()}
    return {name: hidden(text) for name, text in found.items()} | {"cores": cores, "load": load}


def settings() -> dict[str, str]:
    """The settings of the environment that change kernels or times, by name."""
    return {name: hidden(os.environ[name]) for name in SETTINGS if name in os.environ}


def device_facts(device: runtime.Device) -> dict[str, object]:
    """A Device as OpenCL tells (`opencl`), as it is taken (`traits`), and what was tried: how the host reaches its memory (`memory`) and
    which matrix units were refused and why (`refused_units`).

    Of numbers and tiles that were tuned for the device there are the counts alone (`tuned`), as their file has a path.
    """
    traits = {field.name: _plain(getattr(device.traits, field.name)) for field in dataclasses.fields(device.traits)}
    own = device.traits.overrides
    del traits["overrides"], traits["quarantine"]
    told = runtime.facts_of(device)
    return {
        "name": device.name,
        "opencl": {name: value if name == "extensions" else _hidden(value) for name, value in told.items()},
        "traits": traits,
        "memory": device.sharing,
        "refused_units": _hidden(device.refused_units),
        "tuned": {"numbers": len(own.tuning), "tiles": len(own.choices)},
    }


def _hidden(value):
    if isinstance(value, dict):
        return {name: _hidden(one) for name, one in value.items()}
    return hidden(value) if isinstance(value, str) else value


def _plain(value):
    """A trait as a value that JSON can hold."""
    return sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
