"""Persistent kernels: all steps of a loop in one launch, where each work-group takes a few rows of the batch through all steps.

A launch takes a GPU longer than a step of a small recurrent layer computes. Where the rows of a batch do not depend on one another
(core/factors.py), a group can do all steps of its rows without the other groups: the kernels of a step, lowered by the `rows` schedule so
that each knows which row it works for, become stages that the group runs one after the other, with a barrier between. A step hands values
to the next through global memory, in practice the compute unit's cache. (See Diamos et al., "Persistent RNNs", 2016, which keep the weights
in registers too.)
"""

from dataclasses import replace

from keras_ocl.compiler.launch import joining
from keras_ocl.compiler.launch.provenance import JoinedProvenance
from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, same, size_hint
from keras_ocl.core.factors import Seen, of
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.schedules import rows as schedule
from keras_ocl.kernels.spec import STEP, Args, KernelSpec

# Times in multiply-adds of a compute unit:
_LATENCY = 120_000  # latency of a stage, which waits for the one before and reads its results
_LONGEST = 1e11  # longest launch: half a second
_LAUNCH = 2  # a launch in a loop takes so many times the least time of one, as the host enqueues it (9 to 18 microseconds with an H200)
_CACHE = 1 << 18  # bytes of a compute unit's own cache, or more


def allowed(traits):
    """Whether the device may gain by persistent kernels: a CPU's work-items take turns at each barrier, and its launches are cheap."""
    return traits.kind == "gpu" and traits.persistent_loops and schedule_of(traits).persistent


def batch_of(nodes, carried, outputs):
    """(extent of the batch, set of the nodes that fall into its rows) of a loop's body whose rows do not depend on one another; else None.

    A node falls into rows if its first axis is the batch and each row of it needs only the same row of its operands that do.

    Args:
        nodes: the body's nodes, in topological order. carried: the inputs that are carries. outputs: the body's results.
    """
    if not carried or any(not n.shape or hint(n.shape[0]) == 0 for n in carried):
        return None
    batch = carried[0].shape[0]
    rows = set()  # nodes that fall into rows; no step changes the memory of the others
    for n in nodes:
        if n in carried or n.kind is Kind.STEP_SLICE:
            fits = len(n.shape) > 0 and same((n.shape[0],), (batch,))
        elif rows.isdisjoint(n.inputs):
            fits = False
        elif _falls_into_rows(n, rows, batch):
            fits = True
        else:
            return None
        if fits:
            rows.add(n)
    return (batch, rows) if rows.issuperset(outputs) and rows.issuperset(carried) else None


def _falls_into_rows(n, rows, batch):
    """Whether a row of `n` (an index along its first axis) needs only the same row of its operands in `rows`."""
    if n.results is not None or n.primitive.loops or n.primitive.host is not None or not n.shape or not same((n.shape[0],), (batch,)):
        return False
    if n.kind is Kind.VIEW and n.primitive.flat:
        return True
    factors = of(n.primitive, Seen(n.inputs, (n,), n.params, lambda tensor: None))
    if factors is None:
        return False
    label = factors.results[0][0]
    alike = all(factors.operands[k][0] == label and label not in factors.operands[k][1:] for k, i in enumerate(n.inputs) if i in rows)
    return label is not None and alike and label not in factors.sums and label not in factors.rebased.values()


def kernel(loop, batch, stored, traits):
    """The persistent kernel that does all steps of a Loop lowered by the `rows` schedule, a KernelSpec; None if impossible or slower.

    Args:
        batch: number of rows in the batch. stored: set of the Buffers that it may write, those of nodes that fall into rows.
    """
    rows = schedule.rows(batch, traits)
    stages = []
    for spec in loop.launches:
        if (
            not isinstance(spec, KernelSpec)
            or not joining.possible(spec)
            or any(a.kind == "out" and a.value not in stored for a in spec.args)
        ):
            return None
        stage = _stage(spec, batch, rows, schedule.items(traits))
        if stage is None:
            return None
        stages.append(stage)
    reread = _reread(stages, stored)
    if not stages or not _pays(stages, reread, batch, rows, loop.length, traits):
        return None
    spec = _kernel(loop, stages, batch, rows, reread, traits)
    return spec if len(spec.args) <= joining.ARGUMENTS else None


def _stage(spec, batch, rows, items):
    """How a kernel's work divides: (kernel, "elements", elements of a row) or (kernel, "groups", groups along the columns), or None."""
    if spec.group is None and len(spec.grid) == 1:
        each = spec.grid[0] // batch
        return (spec, "elements", each) if same((each * batch,), spec.grid) else None
    if spec.group == (items, 1, 1) and same((spec.grid[1],), (ceil_div(batch, rows),)) and is_one(spec.grid[2]):
        return spec, "groups", ceil_div(spec.grid[0], items)
    return None


def _reread(stages, stored):
    """Bytes that each work-group reads again in every step, such as weights."""
    whole = {a.value for spec, *_ in stages for a in spec.args if a.kind == "in" and a.value not in stored and None in a.parts}
    return sum(hint(b.elements) * dtypes.itemsize(b.dtype) for b in whole)


def _pays(stages, reread, batch, rows, length, traits):
    """Whether a step takes less time than the launches it needs otherwise, and all steps end before a driver's watchdog interferes.

    Times are in multiply-adds of a compute unit, which reads 64 bytes from the cache that all units share in the time of 128 of them.
    """
    tuning, groups, step = tuning_of(traits), ceil_div(hint(batch), rows), 2 * reread + len(stages) * _LATENCY
    for spec, kind, each in stages:
        work = spec.provenance.work / spec.provenance.launches / 2 / groups
        active = schedule.items(traits) if kind == "groups" else hint(each) * rows
        step += work * max(1, tuning.unit_items / max(1, active))
    step *= schedule.rounds(batch, traits)
    return step <= len(stages) * _LAUNCH * tuning.launch and step * hint(length) <= _LONGEST


def _kernel(loop, stages, batch, rows, reread, traits):
    args, specs = Args(), [spec for spec, *_ in stages]
    steps, items = args.int(loop.length), schedule.items(traits)
    local, variants = _local(specs, args), [loop.resolver(v, lambda buffer: buffer) for v in range(len(loop.variants))]

    def places(buffer):
        return [resolve(buffer) for resolve in variants]

    def given(a):
        if a.is_pointer:
            names = [args.pointer(b, a.dtype, out=a.kind == "out") for b in places(a.value)]
            return names[0] if len(set(names)) == 1 else f"(odd ? {names[1]} : {names[0]})"
        if a.kind == "local":
            return local[a.dtype]
        return "step" if a.value is STEP else joining.given(args, a)

    functions, calls, barrier = {}, [], f"{args.barrier('CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE')}\n"
    for spec, kind, count in stages:
        own, others = ([("global", 0)], {}) if kind == "elements" else ([("group", 0), ("group", 1)], {("global", 2): "0"})
        # A loop calls it, and the memory that it reads changes between calls.
        name, text = joining.function(spec, own, others, restrict="restrict_outlives_calls" not in traits.quirks)
        functions[name], number = text, args.int(count)
        call, i = f"{name}({', '.join(map(given, spec.args))}, i", index_type(spec.grid[0])
        if kind == "elements":
            calls.append(f"for ({i} i = ({i})first * {number} + me; i < ({i})end * {number}; i += {items}) {call});\n{barrier}")
        else:  # groups along the columns run one after the other, in the same local memory
            calls.append(f"for ({i} i = 0; i < {number}; ++i) {{\n{call}, block);\n{barrier}}}\n")
    lines = [
        f"const int me = {args.place('local', 0)}, block = {args.place('group', 0)};\n",
        f"const int first = block * {rows}, end = min(first + {rows}, {args.int(batch)});\n",
        f"for (int k = 0; k < {steps}; ++k) {{\n",
        f"const int step = {f'{steps} - 1 - k' if loop.reverse else 'k'};\n",
        # The last step is of variant 0, which leaves the results where they belong.
        f"const int odd = ({steps} - 1 - k) & 1;\n" if len(variants) > 1 else "",
        *calls,
        "}\n",
    ]
    return args.kernel(
        f"{loop.name}, all steps",
        "".join(lines),
        (ceil_div(batch, rows) * items,),
        (items,),
        helpers=frozenset().union(*(spec.helpers for spec in specs)),
        title=f"all steps of a loop, a group those of {rows} rows",
        provenance=JoinedProvenance(specs, loop.length, reread, places),
        functions=tuple(functions.values()),
    )


def _local(specs, args):
    """Dict from the C type of elements to the name of the array in local memory that the kernels use one after the other."""
    most = {}
    for a in (a for spec in specs for a in spec.args if a.kind == "local"):
        most[a.dtype] = max(a.value, most.get(a.dtype, 0))
    return {ctype: args.local(ctype, elements) for ctype, elements in most.items()}


def into(loop, spec):
    """Makes `spec`, the result of `kernel`, the Loop's only launch."""
    buffers = {b for variant in loop.variants for b in variant.values()}
    loop.launches, loop.variants, loop.shared, loop.length = [spec], [{b: b for b in buffers}], {}, 1


def of_rows(rows, traits):
    """The traits by which a loop's body is lowered for `kernel`: without limits of a launch's size, as no kernel is launched by itself.

    Operands of the nodes `rows` that do not fall into rows, such as weights, are read by each group in every step: if they exceed a unit's
    cache, groups are twice as large.
    """
    read = {i for n in rows if n.kind is not Kind.STEP_SLICE for i in n.inputs} - rows
    reread = sum(size_hint(i.shape) * dtypes.itemsize(i.dtype) for i in read)
    most = schedule.ITEMS * (2 if reread >= _CACHE else 1)
    return replace(traits, schedule=schedule.NAME, max_groups=(), max_group=min(most, traits.max_group))


def stored(rows, extra, shared):
    """The Buffers of the nodes that fall into rows, under all names by which kernels access their memory."""
    found = set()
    for n in rows:
        for b in (n.buffer, *extra.get(n, ())):
            found.add(b if b.slice is None else b.slice.base)
    return found | {a for a, b in shared.items() if b in found} | {shared[b] for b in found if b in shared}
