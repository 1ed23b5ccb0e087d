"""Kernels that check their accesses: each that is built while `installed()` compares every access to global memory with its buffer."""

import contextlib

import numpy as np
import pyopencl as cl

from keras_ocl.compiler.run.binding import Binding
from keras_ocl.runtime.memory import Storage
from keras_ocl.runtime.programs import Programs
from tests.accesses.rewriting import ELEMENTS, RECORDS, WORDS, checked

_UNKNOWN = 1 << 62  # bytes of a buffer of which nobody has told how large it is
_accesses = {}  # number -> (kernel, buffer, access), in words
_kernels = {}  # address of a cl.Kernel -> rewriting.Kernel
_arrays = {}  # Device -> cl.Buffer of its faults


class AccessError(AssertionError):
    """Kernels have accessed what lies outside of their buffers."""


def _build(self, specs, options="", unoptimised=None):
    """Programs.build, of kernels that check."""
    specs, found, texts = list(specs), {}, []
    for name, source, *rest in specs:
        source, helpers, found[name] = checked(source, tuple(rest[0]) if rest else (), _accesses)
        texts.append((name, source, helpers))
    kernels = _original["build"](self, texts, options)
    for name, kernel in kernels.items():
        if not isinstance(kernel, cl.Kernel):
            continue  # a test's driver runs nothing
        known = _kernels[kernel.int_ptr] = found[name]
        behind = known.count
        for k in range(len(known.pointers)):
            _original["set_arg"](kernel, behind + k, np.uint64(_UNKNOWN))
        _original["set_arg"](kernel, behind + len(known.pointers), _faults(self.device))
    return kernels


def _faults(device):
    if device not in _arrays:  # not in the device's own memory, which tests count
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        _arrays[device] = cl.Buffer(device.driver.context, flags, hostbuf=np.zeros(ELEMENTS, np.uint64))
    return _arrays[device]


def _set_arg(self, position, value):
    """Kernel.set_arg, which tells how large a buffer is as well."""
    _original["set_arg"](self, position, value)
    if isinstance(value, cl.MemoryObject):
        _tell(self, position, value.size)


def _tell(kernel, position, nbytes):
    known = _kernels.get(kernel.int_ptr) if isinstance(kernel, cl.Kernel) else None
    if known is not None and position in known.pointers:
        _original["set_arg"](kernel, known.count + known.pointers.index(position), np.uint64(nbytes))


def _mem(self):
    """Storage.mem: never more than what is the storage's."""
    if self._mem is None or self._mem.size != max(self.nbytes, 1):
        self._mem = self.block.buffer.get_sub_region(self.offset, max(self.nbytes, 1))
    return self._mem


def _bind(self, buffer, storage):
    """Binding.bind: a place in the arena may be larger than what it is for at present."""
    _original["bind"](self, buffer, storage)
    _tell_all(self, buffer, storage)


def _change(self, values):
    _original["change"](self, values)
    for buffer in self._places:
        _tell_all(self, buffer, self.storages.get(buffer))


def _tell_all(binding, buffer, storage):
    """Tells every kernel that takes `buffer` how large it is; a kernel that gets a whole buffer and an offset, where it ends."""
    begin = storage.offset if binding._whole and storage is not None else 0
    for kernel, position, _ in binding._places.get(buffer, ()):
        _tell(kernel, position, begin + binding.sizes[buffer])


_PATCHES = [(Programs, "build", _build), (cl.Kernel, "set_arg", _set_arg), (Storage, "mem", property(_mem))]
_PATCHES += [(Binding, "bind", _bind), (Binding, "change", _change)]
_original = {}


@contextlib.contextmanager
def installed():
    """Inside, every kernel that is built checks its accesses. Raises AccessError at the end where one was outside of its buffer."""
    if _original:  # all of a run's tests check
        yield
        judge()
        return
    _original.update({name: getattr(owner, name) for owner, name, _ in _PATCHES})
    for owner, name, function in _PATCHES:
        setattr(owner, name, function)
    try:
        yield
        judge()
    finally:
        for owner, name, _ in _PATCHES:
            setattr(owner, name, _original[name])
        _original.clear()


def judge():
    """Raises AccessError where a kernel has accessed what lies outside of a buffer since the last time."""
    for device, buffer in _arrays.items():
        found = np.empty(ELEMENTS, np.uint64)
        cl.enqueue_copy(device.queue, found, buffer)
        count = int(found[0] & 0xFFFFFFFF)
        if count:
            cl.enqueue_copy(device.queue, buffer, np.zeros(ELEMENTS, np.uint64))
            records = found[2 : 2 + RECORDS * WORDS].reshape(-1, WORDS)[: min(count, RECORDS)]
            lines = {int(r[0]): _described(*map(int, r)) for r in reversed(records)}
            raise AccessError(f"{count} accesses outside of buffers:\n" + "\n".join(lines.values()))


def _described(number, place, nbytes, extent):
    kernel, buffer, access = _accesses[number]
    place = place - (1 << 64) if place >> 63 else place
    return f"  {access} of {kernel!r}: {nbytes} bytes at byte {place} of {buffer}, which has {extent}"
