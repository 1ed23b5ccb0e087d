"""Devices that are known only from a record of their traits: programs are lowered for them, but nothing runs.

Records are TOML files with one entry per field of Traits and, for GPUs, of Hardware; those in the folder `records` have their names.
"""

import collections
import contextlib
import dataclasses
import threading
import tomllib
from pathlib import Path

import numpy as np

from keras_ocl.runtime.arena import Arena
from keras_ocl.runtime.hardware import Hardware
from keras_ocl.runtime.traits import Traits

_FOLDER = Path(__file__).parent / "records"


def record_names():
    """The names of the records in the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def read_record(name):
    """The Traits of a record: the name of one in the package, or a file's path.

    Raises:
        ValueError: there is no such record, or its entries are not the fields of Traits and Hardware.
    """
    return _read(name)[0]


def read_hardware(name):
    """The Hardware of a record, named as for `read_record`, which raises the same; None where the record has none."""
    return _read(name)[1]


def _read(name):
    path = _FOLDER / f"{name}.toml" if name in record_names() else Path(name)
    if not path.is_file():
        raise ValueError(f"there is no traits record {name!r}: it is a file, or one of {', '.join(record_names())}")
    known = [field.name for field in dataclasses.fields(Hardware)]
    try:
        entries = tomllib.loads(path.read_text())
        hardware = {key: entries.pop(key) for key in known if key in entries}
        if "max_groups" in entries:
            entries["max_groups"] = tuple(entries["max_groups"])
        return Traits(**entries), Hardware(**hardware) if hardware else None
    except (TypeError, tomllib.TOMLDecodeError) as error:
        fields = ", ".join([field.name for field in dataclasses.fields(Traits)] + known)
        raise ValueError(f"the traits record {path}: {error}; its entries are {fields}") from None


class RecordedStorage:
    """A Storage of `nbytes` bytes without memory."""

    __slots__ = ("__weakref__", "base", "device", "mem", "nbytes", "offset")

    def __init__(self, device, nbytes, offset=0):
        self.device, self.nbytes, self.offset, self.mem, self.base = device, nbytes, offset, None, None

    def view(self, offset, nbytes):
        """A storage of the `nbytes` bytes from byte `offset` on."""
        return RecordedStorage(self.device, nbytes, self.offset + offset)


class _Kernel:
    """A kernel object that ignores its arguments."""

    def set_arg(self, position, value):
        pass

    _set_arg_buf = set_arg


class RecordDevice:
    """Takes the place of a Device with these traits in the compiler and in Keras's variables.

    Every command is accepted and does nothing; reading a value is an error, since there is none.
    """

    profiler = None
    runs = False

    def __init__(self, name, traits):
        self.name, self.traits, self.kind = name, traits, traits.kind
        self.state_lock = threading.RLock()
        self.arena = Arena(self)

    def __str__(self):
        return f"{self.name} (a record of its traits)"

    def allocate(self, nbytes, what=""):
        return RecordedStorage(self, nbytes)

    allocate_state = allocate

    def destroy(self, storage):
        pass

    def build(self, specs, options="", unoptimised=None):
        return {name: _Kernel() for name, *_ in specs}

    def group_limit(self, kernel):
        return self.traits.max_group

    def replay(self, launches, copies=(), then=()):
        collections.deque(then, 0)

    def repeat(self, steps):
        pass

    def upload(self, array, what=""):
        return RecordedStorage(self, np.asarray(array).nbytes)

    def copy(self, source, target, nbytes=None, start=0, end=0):
        pass

    def copy_rows(self, target, copies):
        pass

    def write(self, storage, array, what=""):
        pass

    def download(self, storage, dtype, shape):
        raise RuntimeError(f"{self}: nothing runs there, so no value (shape {tuple(shape)}, {np.dtype(dtype)}) can be read")

    def span(self, label):
        return contextlib.nullcontext()

    operation = span

    def finish(self):
        pass
