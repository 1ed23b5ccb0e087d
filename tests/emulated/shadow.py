"""Each launch once more on a CPU runtime, from the same memory, and what differs (EMULATED_SHADOW=1): it shows which launch is wrong first.

A difference of more than EMULATED_SHADOW_ULPS units of the last place of 32-bit words is printed, three times per kernel at most. Kernels
of matrix units and others that are for AMD alone do not compile there: they are named and left out.
"""

import contextlib
import ctypes
import functools
import sys
import warnings
from collections import Counter

import numpy as np
import pyopencl as cl

from tests.emulated import settings

_MOST = 3  # reports of a kernel
_told, _busy = Counter(), []


@functools.cache
def _context():
    return cl.Context([next(d for platform in cl.get_platforms() if "Emulated" not in platform.name for d in platform.get_devices())])


@functools.cache
def _queue():
    return cl.CommandQueue(_context())


@functools.cache
def _program(source, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cl.Program(_context(), source).build(options.split())


@contextlib.contextmanager
def compared(about, name, grid, group, offset, args, sizes):
    """Compares what the block, a launch, leaves in its buffers with what the CPU runtime makes of them.

    about: (source, options) of the program, or None where they are not known. args: as of launching.run; sizes: their bytes.
    """
    if about is None or _busy:
        yield
        return
    _busy.append(True)
    ranges = _ranges(args, sizes)
    before = [ctypes.string_at(low, high - low) for low, high in ranges]
    try:
        wanted = _run(cl.Kernel(_program(*about), name), grid, group, offset, args, sizes, ranges, before)
    except Exception as error:  # whatever the other compiler does not know
        print(f"shadow: {name} {[*grid]} {[*group]}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
        wanted = None
    finally:
        _busy.clear()
    yield
    for (low, high), want in zip(ranges, wanted or (), strict=False):
        text = differences(np.frombuffer(ctypes.string_at(low, high - low), "u1"), want, settings.current().shadow_ulps)
        if text and _told[name] < _MOST:
            _told[name] += 1
            which = [k for k, (kind, value) in enumerate(args) if kind == "g" and low <= value < high]
            print(f"shadow: {name} {[*grid]} {[*group]}, arguments {which}: {text}", file=sys.stderr, flush=True)


def _ranges(args, sizes):
    """[first address, address behind] of memory that arguments use; those that overlap are one."""
    ranges = []
    for low, high in sorted((value, value + size) for (kind, value), size in zip(args, sizes, strict=True) if kind == "g" and value):
        if ranges and low < ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], high)
        else:
            ranges.append([low, high])
    return ranges


def _run(kernel, grid, group, offset, args, sizes, ranges, before):
    """The contents of all ranges after the launch on the CPU runtime."""
    context, flags, kept = _context(), cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, []
    buffers = [cl.Buffer(context, flags, hostbuf=np.frombuffer(data, "u1")) for data in before]
    for k, ((kind, value), size) in enumerate(zip(args, sizes, strict=True)):
        if kind == "l":
            kernel.set_arg(k, cl.LocalMemory(value))
        elif kind == "v":
            kernel.set_arg(k, np.frombuffer(value, "u1"))
        elif not value:
            kernel.set_arg(k, None)
        else:
            i = next(i for i, (low, high) in enumerate(ranges) if low <= value < high)
            whole = ranges[i] == [value, value + size]
            kept.append(buffers[i] if whole else buffers[i].get_sub_region(value - ranges[i][0], size))
            kernel.set_arg(k, kept[-1])
    cl.enqueue_nd_range_kernel(_queue(), kernel, grid, group, offset).wait()
    found = [np.empty(buffer.size, "u1") for buffer in buffers]
    for array, buffer in zip(found, buffers, strict=True):
        cl.enqueue_copy(_queue(), array, buffer)
    return found


def differences(got, want, ulps):
    """In words, how two arrays of bytes differ as float32 by more than `ulps`, or in bytes behind the last word; "" where they do not."""
    n = len(got) // 4 * 4
    a, b = got[:n].view("<i4"), want[:n].view("<i4")
    ordered = [np.where(x < 0, np.int64(-(2**31)) - x, x.astype("i8")) for x in (a, b)]
    far = np.abs(ordered[0] - ordered[1]) > ulps
    with np.errstate(all="ignore"):
        x, y = a.view("<f4"), b.view("<f4")
        usual = np.abs(np.where(np.isfinite(y) & (np.abs(y) < 1e30), y, 0)).max(initial=0)
        far &= ~(np.isnan(x) & np.isnan(y)) & ~(np.abs(x - y) <= 1e-5 * usual)
    rest = int((got[n:] != want[n:]).sum())
    if not far.any() and not rest:
        return ""
    at = np.flatnonzero(far)[:6]
    values = f"{x[at].tolist()} ({a[at].tolist()}), not {y[at].tolist()} ({b[at].tolist()})"
    return f"{int(far.sum())} words and {rest} last bytes differ; at words {at.tolist()} are {values}"
