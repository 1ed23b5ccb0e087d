"""Stored Programs: a later process traces and simplifies a function, and reads from disk what an earlier one made of its graph.

A Program is stored under a digest of all that fusion, lowering and assembly read, so whatever changes a Program changes its digest:

- the simplified graph, with the present values of unknown extents (digest.py);
- the traits of the device, with its schedule and overrides: all settings of the environment on which lowering depends become traits;
- the source files of the parts of this package that take part, and Python's version.

The facts about unknown extents that lowering found out are stored with it, and noted again: without them its trace would seem to be valid
for extents for which it is not.

Not stored are eager kernels, which are lowered in little more time than their digest would take, and graphs that have no digest: with a
user's own primitives, functions or communicators in them.

Entries are read as the programs on disk are, only if a process of this user wrote them (runtime/disk_cache.py), and can only be made of
the classes of a Program. One that cannot be read is as good as none.
"""

import dataclasses
import functools
import hashlib
import io
import os
import pickle
import sys
import time
import zlib

from keras_ocl.compiler.run import program as data
from keras_ocl.compiler.run.digest import Nameless
from keras_ocl.core.dim import Dim, note_again

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PARTS = ("core", "kernels", "primitives", "compiler")  # parts of the package by which a graph becomes a Program
_IMPORTED = time.time()
_CLASSES = {(c.__module__, c.__qualname__): c for c in (*vars(data).values(), Dim) if dataclasses.is_dataclass(c) or c is Dim}


def program(sources, disk):
    """The Program of a Sources: that on the DiskCache `disk` (None: there is none), else one that is made now, and stored."""
    key = None if disk is None else key_of(sources)
    found = key and _loaded(disk.get_step(key))
    made, facts = found or (sources.program, sources.facts)
    note_again(facts)
    if key and not found:
        disk.put_step(key, _dumped(made, facts))
    return made


def key_of(sources):
    """The key under which the Program of a Sources is stored; None where it is not."""
    package = _package()
    if package is None:
        return None
    try:
        return hashlib.sha256(f"{package} {sources.digest()}".encode()).hexdigest()
    except Nameless:
        return None


@functools.cache
def _package():
    """The digest of Python's version and the package's source files; None where there are none, or not those that this process imported."""
    text = hashlib.sha256(sys.version.encode())
    walks = [os.walk(os.path.join(_PACKAGE, part)) for part in _PARTS]
    paths = [os.path.join(folder, name) for walk in walks for folder, _, names in walk for name in names if name.endswith(".py")]
    if __file__ not in paths:
        return None
    for path in sorted(paths):
        with open(path, "rb") as f:
            status = os.fstat(f.fileno())
            text.update(f"{path[len(_PACKAGE) :]} {status.st_size}\n".encode() + f.read())
        if max(status.st_mtime, status.st_ctime) >= _IMPORTED:
            return None
    return text.hexdigest()


def _dumped(made, facts):
    return zlib.compress(pickle.dumps((made, facts), protocol=5), 1)


class _Unpickler(pickle.Unpickler):
    """Reads objects of the classes of a Program alone."""

    def find_class(self, module, name):
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a Program")
        return _CLASSES[module, name]


def _loaded(entry):
    """(Program, facts) of the bytes of an entry; None where there is none, or it is of another form."""
    if entry is None:
        return None
    try:
        made, facts = _Unpickler(io.BytesIO(zlib.decompress(entry))).load()
        # Many Programs have the same texts.
        kernels = {name: data.Kernel(sys.intern(k.source), tuple(map(sys.intern, k.helpers))) for name, k in made.kernels.items()}
        return dataclasses.replace(made, kernels=kernels), facts
    except Exception:  # of any type, as pickle's documentation says
        return None
