"""Chains: small kernels that follow one another become one kernel, whose one work-item does the work of them all.

A launch costs a CPU one to three microseconds, and some implementations ten times as much, which is more than a kernel of a small model
computes, and a compiler takes tens of milliseconds for each kernel. Kernels whose work is less than a launch's cost are joined.
"""

import hashlib
import re

from keras_ocl.compiler.provenance import ChainProvenance
from keras_ocl.core.dim import hint, key, product
from keras_ocl.core.index import is_one
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import STEP, Args, KernelSpec

_ARGUMENTS = 96  # of a kernel: an OpenCL device takes 1,024 bytes of them
_ITEM = re.compile(r"get_global_id\((\d)\)")


def chained(launches, traits):
    """`launches` with runs of small kernels joined where the device's schedule asks for it."""
    limit, found, run = schedule_of(traits).chained, [], []

    def close():
        found.extend([_joined(run)] if len(run) > 1 else run)
        run.clear()

    for launch in launches:
        fits = limit and isinstance(launch, KernelSpec) and _is_small(launch, limit, traits.compute_units)
        if not fits or _arguments((*run, launch)) > _ARGUMENTS:
            close()
        (run if fits else found).append(launch)
    close()
    return found


def _arguments(parts):
    """How many arguments a chain of these kernels has: each buffer and each extent is one."""
    return len({(a.kind, key(a.value)) if isinstance(a.value, int) else a.value for part in parts for a in part.args})


def _is_small(spec, limit, units):
    """Whether one work-item may do all that the kernel does: what the other units would have done is less than a launch.

    For the extents first seen: those that are more than eight times as large have kernels of their own (family.py).
    """
    if not spec.group or not all(map(is_one, spec.group)) or any(a.kind == "local" for a in spec.args):
        return False
    if spec.scalar:  # a user's, whose text may ask for its place in any way
        return False
    items = hint(product(spec.grid))
    if items <= 1:
        return True
    return spec.provenance.work * (1 - 1 / min(items, units)) <= limit


def _joined(parts):
    args, calls, functions = Args(), [], {}
    for spec in parts:
        name, text = _function(spec)
        functions[name] = text
        given = [_given(args, a) for a in spec.args]
        loops = ""
        for k, extent in enumerate(spec.grid):
            if not is_one(extent):
                loops += f"for (int i{k} = 0; i{k} < {args.int(extent)}; ++i{k})\n"
        places = ["0" if is_one(extent) else f"i{k}" for k, extent in enumerate((*spec.grid, 1, 1)[:3])]
        calls.append(f"{loops}{name}({', '.join((*given, *places))});\n")
    return KernelSpec(
        f"{parts[0].name} to {parts[-1].name}",
        args.args,
        "".join(calls),
        (1,),
        helpers=frozenset().union(*(spec.helpers for spec in parts)),
        title=f"{len(parts)} kernels, one after the other",
        provenance=ChainProvenance(parts),
        overwrites=any(spec.overwrites for spec in parts),
        functions=tuple(functions.values()),
    )


def _given(args, a):
    """C text of the argument `a` of a part, as the chain passes it on."""
    if a.kind in ("in", "out"):
        return args.pointer(a.value, a.dtype, out=a.kind == "out", parts=a.parts)
    if a.value is STEP:
        return args.step()
    return args.scalar(a.value, a.kind) if a.kind in ("float", "double") else args.int(a.value, a.kind)


def _function(spec):
    """(name, text) of the function that does the work of one work-item; equal ones have equal names."""
    body = _ITEM.sub(r"item_\1", spec.text())
    items = ", ".join(f"const size_t item_{k}" for k in range(3))
    text = f"({', '.join(filter(None, (spec.signature(), items)))}) {{\n{body}}}\n"
    name = "part_" + hashlib.sha256(text.encode()).hexdigest()[:20]
    return name, f"// {spec.title}\nstatic __attribute__((noinline)) void {name}{text}"
