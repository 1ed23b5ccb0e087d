"""Process state that outlives a re-import of keras_ocl.

`keras.config.set_backend` drops every module whose name starts with "keras", this package included,
and imports it afresh. Contexts, queues and memory must not be made twice, and an object made before
must still be an instance of the class imported after. So the package's modules themselves are kept in
a module that is registered under another name, and put back when the package is imported again.
"""

import os
import sys
import types

HOLDER = "_ocl_process_state"


def restore(package):
    """Put the kept modules of `package` back into sys.modules, if there are any."""
    holder = sys.modules.get(HOLDER)
    if holder is not None:
        for name, module in holder.modules.items():
            sys.modules.setdefault(name, module)
            setattr(sys.modules[package], name.rpartition(".")[2], sys.modules[name])


def keep(package):
    """Keep all modules of `package` imported so far; called once it is fully imported."""
    holder = sys.modules.get(HOLDER)
    if holder is None:
        holder = sys.modules[HOLDER] = types.ModuleType(HOLDER, "OpenCL state of this process (keras_ocl)")
        holder.modules = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(package + "."):
            holder.modules.setdefault(name, module)


class Process:
    """What this process knows about itself: whether OpenCL was started here or before a fork."""

    started = False  # OpenCL's libraries were loaded: their threads exist in this process only
    forked = False  # we are a forked child of a process that had started OpenCL


def check_not_forked():
    """Raise RuntimeError in a forked child, where OpenCL's threads do not exist and any call could hang."""
    if Process.forked:
        raise RuntimeError(
            "OpenCL cannot be used in a forked child of a process that has already used it; "
            'use multiprocessing start method "spawn" (multiprocessing.get_context("spawn"))'
        )


def _after_fork():
    Process.forked = Process.started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
