"""With another malloc in the process (LD_PRELOAD, a sanitizer) OpenCL's libraries use that one too, and free memory with the right one."""

import ctypes.util
import os
import platform
import subprocess
import sys

import pytest

CODE = """
import numpy as np
from keras_ocl import runtime
from keras_ocl.runtime import discovery
print(discovery._allocator_is_replaced())
device = runtime.current_device()
storage = device.upload(np.arange(5.0))
print(device.download(storage, np.float64, (5,)).sum())
"""


def library(name):
    found = ctypes.util.find_library(name)
    if found is None:
        pytest.skip(f"no lib{name} here")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
@pytest.mark.parametrize("names", [["jemalloc"], ["tcmalloc_minimal"], ["asan", "stdc++"]], ids=lambda names: names[0])
def test_a_preloaded_allocator(names):
    found = [library(name) for name in names]
    # Of the system's runtimes only PoCL's (those from PyPI are found anyway): GPUs' drivers load libraries as sanitizers refuse to.
    vendors = {"OCL_ICD_VENDORS": "/etc/OpenCL/vendors/pocl.icd"}
    environment = {**os.environ, **vendors, "LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": "detect_leaks=0"}
    result = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout == "True\n10.0\n", result.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="glibc's")
def test_none_is_preloaded():
    """Debian's Python is not position-independent: there malloc's address is the program's own jump to libc's."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout == "False\n10.0\n", result.stderr[-2000:]
