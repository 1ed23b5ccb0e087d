"""One process of `python -m comparisons.gpu`: measures the cases of one stage on one backend, and tells each figure as soon as it is there.

`python -m comparisons.gpu_worker STAGE BACKEND KIND SHORT` reads [[case, precision], ...] as JSON from standard input. It prints lines that
begin with MARK: {"begin": [case, precision]}, {"row": a figure} or {"reason": why the backend cannot be measured}. A case that fails right
after another that failed ends the process, since a device may be lost for it; the cases behind are left to the next one.
"""

import functools
import importlib.metadata
import json
import sys
import traceback

import numpy as np

from comparisons import frameworks, gpu_cases, references

MARK = "figure: "


def tell(**what):
    """Prints a line for the process that waits for this one."""
    print(f"\n{MARK}{json.dumps(what)}", flush=True)


# ---- the stage "driver"


def device():
    """Rows of the device, its platform and driver, and its traits."""
    import dataclasses

    import keras  # noqa: F401 - loads the backend, whose compiler tries matrix units

    from keras_ocl import runtime

    opened = runtime.current_device()
    (info,) = [info for info in runtime.devices() if info.name == opened.name.partition("/")[0]]
    traits = {f.name: getattr(opened.traits, f.name) for f in dataclasses.fields(opened.traits) if f.name != "overrides"}
    shown = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in traits.items()}
    yield {"kind": opened.kind, "model": info.model, "platform": info.platform, "driver": info.driver, "traits": shown}


def extensions():
    """A row with the extensions that the driver has."""
    from keras_ocl import runtime

    yield {"extensions": sorted(runtime.current_device().queue.device.extensions.split())}


def units():
    """A row of each dtype of each matrix unit that the device may have: "works", or why the unit is refused."""
    from keras_ocl import compiler, runtime  # noqa: F401 - the compiler tries matrix units
    from keras_ocl.compiler.matrix_units import outcome
    from keras_ocl.kernels.matrix.probe import probe
    from keras_ocl.kernels.matrix.units import named

    opened = runtime.current_device()
    for name in (*opened.traits.matrix_units, *opened.refused_units):
        for dtype in named(name).dtypes:
            yield {"case": f"unit {name}", "precision": dtype, "verdict": outcome(opened, probe(named(name), dtype)) or "works"}
        if reason := opened.refused_units.get(name):
            yield {"case": f"unit {name}", "precision": "all", "verdict": f"refused: {reason}"}
    yield {"verdict": f"kernels use {', '.join(opened.traits.matrix_units) or 'none'}"}


def versions():
    """A row with the versions of packages."""
    found = {}
    for name in ("keras-ocl", "keras", "numpy", "pyopencl", "torch", "jax", "pytest-xdist"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    yield {"versions": found}


DRIVER = {"device": device, "units": units, "versions": versions, "extensions": extensions}


# ---- the other stages


@functools.lru_cache(1)  # the precisions of a case follow one another
def _normal(shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, "float32") for shape in shapes]


def operation(stage, backend, name, precision, short):
    """The row of one product, convolution or attention."""
    import ml_dtypes

    found, dtype = gpu_cases.operations(stage, short)[name], frameworks.dtype_of(precision)
    rounded = {"float32": "float32", "float16": "float16", "bfloat16": ml_dtypes.bfloat16}[dtype]
    arrays = [array.astype(rounded).astype("float32") for array in _normal(found.shapes)]
    seconds, results, more = frameworks.measure(backend, found.kind, arrays, precision)
    return {"ms": seconds * 1e3, "tflops": found.flops / seconds / 1e12, "error": references.error(found.kind, arrays, results), **more}


def rows(stage, backend, name, precision, short):
    """The rows of a case."""
    if stage == "driver":
        yield from DRIVER[name]()
    elif stage == "fit":
        from comparisons import gpu_networks

        yield gpu_networks.fit(backend, name, precision)
    else:
        yield operation(stage, backend, name, precision, short)


def main(stage, backend, kind, short):
    """Measure the cases that standard input names."""
    cases, failed = json.load(sys.stdin), False
    if reason := frameworks.unavailable(backend, kind):
        tell(reason=reason)
        return
    if backend == "ocl" or stage == "fit":  # before the first case begins, whose time is limited
        importlib.import_module("keras")
    for name, precision in cases:
        tell(begin=[name, precision])
        try:
            for row in rows(stage, backend, name, precision, short == "short"):
                tell(row={"case": name, "precision": precision, **row})
        except Exception as error:
            traceback.print_exc()
            tell(row={"case": name, "precision": precision, "failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]})
            if failed:
                return
            failed = True
        else:
            failed = False


if __name__ == "__main__":
    main(*sys.argv[1:])
