"""Vertical chains: small kernels that follow one another become one kernel, in which a single work-item does the work of them all.

The launch latency on a CPU is one to three microseconds, with some implementations ten times as much, which is longer than a kernel of a
small model computes, and a compiler takes tens of milliseconds for each kernel. Kernels whose work costs less than a launch are joined.
"""

from keras_ocl.compiler.launch import joining
from keras_ocl.compiler.launch.provenance import JoinedProvenance
from keras_ocl.core.dim import size_hint
from keras_ocl.core.index import is_one
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec


def chained(launches, traits):
    """`launches` with runs of small kernels joined where the device's schedule asks for it."""
    limit, found, run = schedule_of(traits).chained, [], []

    def close():
        found.extend([_joined(run)] if len(run) > 1 else run)
        run.clear()

    for launch in launches:
        fits = limit and isinstance(launch, KernelSpec) and _is_small(launch, limit, traits.compute_units)
        if not fits or len(joining.arguments((*run, launch))) > joining.ARGUMENTS:
            close()
        (run if fits else found).append(launch)
    close()
    return found


def _is_small(spec, limit, units):
    """Whether one work-item may do all of a kernel's work: the share that other compute units would have done costs less than a launch.

    Decided for the extents of the first trace; extents more than eight times as large get kernels of their own (family.py).
    """
    if not joining.possible(spec) or not spec.group or not all(map(is_one, spec.group)) or any(a.kind == "local" for a in spec.args):
        return False
    items = size_hint(spec.grid)
    if items <= 1:
        return True
    return spec.provenance.work * (1 - 1 / min(items, units)) <= limit


def _joined(parts):
    args, calls, functions = Args(), [], {}
    for spec in parts:
        name, text = joining.of_an_item(spec, "__attribute__((noinline)) ")
        functions[name] = text
        given = [joining.given(args, a) for a in spec.args]
        loops = ""
        for k, extent in enumerate(spec.grid):
            if not is_one(extent):
                loops += f"for (int i{k} = 0; i{k} < {args.int(extent)}; ++i{k})\n"
        places = ["0" if is_one(extent) else f"i{k}" for k, extent in enumerate((*spec.grid, 1, 1)[:3])]
        calls.append(f"{loops}{name}({', '.join((*given, *places))});\n")
    return args.kernel(
        f"{parts[0].name} to {parts[-1].name}",
        "".join(calls),
        (1,),
        helpers=frozenset().union(*(spec.helpers for spec in parts)),
        title=f"{len(parts)} kernels, one after the other",
        provenance=JoinedProvenance(parts),
        overwrites=any(spec.overwrites for spec in parts),
        functions=tuple(functions.values()),
    )
