"""Running the kernels that a template returns, without a graph."""

import numpy as np

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.kernels import prelude
from keras_ocl.kernels.spec import Workspace


def launch(device, specs, buffers):
    """Build and launch kernels; `buffers` maps handles to storages, workspaces are made here."""
    head = "".join(prelude.pieces(frozenset().union(*(s.helpers for s in specs))))
    kernels = device.build([(f"f{i}", s.source(f"f{i}"), [head]) for i, s in enumerate(specs)])
    for i, spec in enumerate(specs):
        kernel = kernels[f"f{i}"]
        for position, arg in enumerate(spec.args):
            if arg.kind in ("in", "out"):
                handle = arg.value
                if isinstance(handle, Workspace) and handle not in buffers:
                    buffers[handle] = device.allocate(int(handle.elements) * dtypes.itemsize(handle.dtype))
                kernel.set_arg(position, buffers[handle].mem)
            elif arg.kind == "local":
                size = 8 if arg.dtype in ("double", "long", "ulong") else 4
                kernel.set_arg(position, runtime.local_memory(int(arg.value) * size))
            else:
                kind = {"long": np.int64, "float": np.float32, "double": np.float64}.get(arg.kind, np.int32)
                kernel.set_arg(position, kind(arg.value))
        device.enqueue(kernel, tuple(int(g) for g in spec.grid), spec.group and spec.group[: len(spec.grid)])
