"""Running the kernels that a template returns, without a graph."""

import functools
import re
import zlib

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.run.binding import size_of
from keras_ocl.kernels import prelude
from keras_ocl.kernels.spec import Buffer
from keras_ocl.runtime.programs import UNOPTIMISED


@functools.cache
def named(name):
    """The Buffer that a test calls by a name; of any size."""
    return Buffer(0, "float32")


def build_options(device, texts):
    """On CPUs without optimisation, which takes four fifths of such a test's time on Intel's runtime; on PoCL a third of them has it.

    What Intel's optimiser makes of kernels, Keras's own tests and those of models look at.
    """
    checksum = zlib.crc32("".join(texts).encode())
    unoptimised = {"Intel(R) OpenCL": True, "Portable Computing Language": checksum % 3 > 0}
    return UNOPTIMISED if unoptimised.get(device.platform) else ""


def launch(device, specs, storages):
    """Build and launch kernels; `storages` maps names and Buffers to storages, and scratch buffers are made here."""
    launch_all(device, [(specs, storages)])


def launch_all(device, launches):
    """What `launch` does for each (specs, storages), with one build: each takes Intel's runtime some 30 ms, whatever is in it."""
    specs = [spec for specs, _ in launches for spec in specs]
    for spec in specs:
        brought = "".join(prelude.pieces(spec.helpers))
        missing = {f for f in re.findall(r"\b((?:to|from)_\w+_\d+)\(", spec.body) if f"{f}(" not in brought}
        assert not missing, f"{spec.name} calls {missing}, which it does not bring: a kernel is also built without those beside it"
        declared = set(re.findall(r"\b(?:int|long|float|double|half)\d* (\w+)(?: =|;)", spec.body))
        assert not declared & {a.name for a in spec.args}, f"{spec.name} hides its arguments behind variables: {declared}"
        asked = {f"{kind}_{k}" for kind, k in spec.places}
        assert asked >= set(re.findall(r"\b(?:global|group|local)_\d\b", spec.body)) and "get_" not in spec.body, spec.body
        assert spec.barriers == ("barrier(" in spec.body), f"{spec.name} records {spec.barriers} of its barriers"
    head = "".join(prelude.pieces(frozenset().union(*(s.helpers for s in specs))))
    texts = [s.source(f"f{i}") for i, s in enumerate(specs)]
    built = [(f"f{i}", text, [head, *s.functions]) for i, (s, text) in enumerate(zip(specs, texts, strict=True))]
    kernels = device.build(built, build_options(device, texts))
    in_order = iter(kernels[f"f{i}"] for i in range(len(specs)))
    for specs, storages in launches:
        buffers = {key if isinstance(key, Buffer) else named(key): storage for key, storage in storages.items()}
        for spec in specs:
            _enqueue(device, next(in_order), spec, buffers)


def _enqueue(device, kernel, spec, buffers):
    for position, arg in enumerate(spec.args):
        if arg.kind in ("in", "out"):
            if arg.value not in buffers:
                buffers[arg.value] = device.allocate(arg.value.nbytes)
            kernel.set_arg(position, buffers[arg.value].mem)
        elif arg.kind == "local":
            kernel.set_arg(position, runtime.local_memory(int(arg.value) * size_of(arg.dtype)))
        else:
            kind = {"long": np.int64, "float": np.float32, "double": np.float64}.get(arg.kind, np.int32)
            kernel.set_arg(position, kind(arg.value))
    device.enqueue(kernel, tuple(int(g) for g in spec.grid), spec.group and spec.group[: len(spec.grid)])
