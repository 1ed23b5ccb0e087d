"""The host's memory limits, CPU and Python interpreter."""

import contextlib
import ctypes
import functools
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path


def available_memory():
    """Bytes that this process may still allocate: free host memory, limited by its control groups. Huge where unknown."""
    limits = [_meminfo(), *_cgroup_headroom()]
    known = [n for n in limits if n is not None]
    return min(known) if known else 1 << 62


def _meminfo():
    try:
        with open("/proc/meminfo") as f:
            for line in f:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_headroom(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """Bytes left (limit less use) in each memory control group that this process is in (versions 1 and 2)."""
    try:
        lines = Path(own).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit, used = Path(root), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder, limit, used = Path(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # In a container the path may lead outside the mount, whose root is then our own group.
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            group = folder.joinpath(*parts[:depth])
            try:
                most, now = (group / limit).read_text().strip(), (group / used).read_text().strip()
            except OSError:
                continue
            if most != "max" and int(most) < 1 << 60:
                yield max(int(most) - int(now) + _reclaimable(group), 0)


def _reclaimable(group):
    """Bytes of a control group's page cache, which count as used but are given up when memory is needed."""
    try:
        for line in (group / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def advise_huge_pages(address, size):
    """Ask Linux for huge pages for a range of our memory; does nothing on other systems, or where Linux refuses."""
    if sys.platform == "linux":
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (address + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        _c_library().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_HUGEPAGE))


def interpreter():
    """The Python executable for starting other processes; None in a program in which Python is embedded."""
    name = os.path.basename(sys.executable or "").lower()
    return None if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")) else sys.executable


def trim_heap():
    """Have the C library give free memory back to the system, even between blocks in use. Only glibc can."""
    if sys.platform == "linux":
        trim = getattr(_c_library(), "malloc_trim", None)
        if trim is not None:
            trim(0)


@functools.cache
def _c_library():
    return ctypes.CDLL(None)


@functools.cache
def cpu_name():
    """The CPU in its maker's words where the system tells, else its architecture."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return _cpu_line("model name") or platform.processor() or platform.machine()


def _cpu_line(*names):
    """The value of the first line of /proc/cpuinfo that begins with one of `names`; "" where there is none."""
    try:
        with open("/proc/cpuinfo") as f:
            return next((line.split(":", 1)[1].strip() for line in f if line.startswith(names)), "")
    except OSError:
        return ""


@functools.cache
def cpu_flags():
    """Text that differs wherever compiled CPU code might not run: the architecture and the CPU's feature flags."""
    return f"{platform.machine()} {platform.processor()} {_cpu_line('flags', 'Features')}"


def fuses_multiply_add():
    """Whether the CPU is known to have a fused multiply-add instruction."""
    return platform.machine() in ("aarch64", "arm64") or "fma" in cpu_flags().split()
