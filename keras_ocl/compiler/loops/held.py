"""A loop's steps in one launch: each work-group takes a few rows of the batch through all of them.

A launch takes a GPU longer than a step of a small recurrent layer computes. Where the rows of a batch do not depend on one another
(core/factors.py), a group can do all steps of some rows with no other's help: the kernels of a step, lowered by the `rows` schedule so that
each knows which row it works for, follow one another in it with a barrier between. What a step hands to the next goes through memory, that
is a unit's cache. (Persistent kernels: Diamos et al., "Persistent RNNs", 2016, which keep the weights in registers too.)
"""

from dataclasses import replace

from keras_ocl.compiler import joining
from keras_ocl.compiler.provenance import JoinedProvenance
from keras_ocl.core.dim import ceil_div, hint, same
from keras_ocl.core.factors import Seen, of
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.schedules import rows as schedule
from keras_ocl.kernels.spec import STEP, Args, KernelSpec

_BARRIER = "barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);\n"


def batch_of(nodes, carried, outputs):
    """(extent of the batch, set of the nodes that fall into its rows) of a loop's body where rows depend on no others; else None.

    Args:
        nodes: the body's, in order. carried: those inputs that steps hand on. outputs: the body's results.
    """
    if not carried or any(not n.shape for n in carried):
        return None
    batch = carried[0].shape[0]
    rows, steps = set(), set()  # steps: what differs from step to step, and does not fall into rows
    for n in nodes:
        if n in carried:
            fits = same((n.shape[0],), (batch,))
        elif n.kind is Kind.INPUT:
            continue
        elif n.kind is Kind.STEP_SLICE:
            fits = len(n.shape) > 0 and same((n.shape[0],), (batch,))
        elif rows.isdisjoint(n.inputs):
            if not steps.isdisjoint(n.inputs):
                steps.add(n)
            continue
        else:
            fits = steps.isdisjoint(n.inputs) and _falls_into_rows(n, rows, batch)
            if not fits:
                return None
        (rows if fits else steps).add(n)
    return (batch, rows) if rows.issuperset(outputs) and rows.issuperset(carried) else None


def _falls_into_rows(n, rows, batch):
    """Whether a row of `n` needs only the same row of those operands that fall into rows."""
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


def held(loop, batch, stored, traits):
    """The KernelSpec that does all steps of a Loop whose launches are of the `rows` schedule; None where they are not such, or it is slower.

    Args:
        batch: how many rows there are. stored: set of the Buffers where what falls into rows may be written.
    """
    rows = schedule.rows(batch, traits)
    stages = []
    for spec in loop.launches:
        if not isinstance(spec, KernelSpec) or spec.scalar or any(a.kind == "out" and a.value not in stored for a in spec.args):
            return None
        stage = _stage(spec, batch, rows, schedule.items(traits))
        if stage is None:
            return None
        stages.append(stage)
    if not stages or not _pays(stages, ceil_div(hint(batch), rows), traits):
        return None
    return _kernel(loop, stages, batch, rows, traits)


def _stage(spec, batch, rows, items):
    """A kernel and how its work falls to a group: ("elements", of a row) or ("groups", along the columns); None where it does not."""
    if spec.group is None and len(spec.grid) == 1:
        each = max(1, hint(spec.grid[0]) // max(1, hint(batch)))
        return (spec, "elements", each) if same((each * batch,), spec.grid) else None
    if spec.group == (items, 1, 1) and same((spec.grid[1],), (ceil_div(batch, rows),)) and is_one(spec.grid[2]):
        return spec, "groups", ceil_div(spec.grid[0], items)
    return None


def _pays(stages, groups, traits):
    """Whether a unit does a step in less than the launches that it takes otherwise: in multiply-adds of a unit, which gets 64 bytes of the
    device's cache in the time of 128 of them."""
    work, read = 0, 0
    for provenance in dict.fromkeys(spec.provenance for spec, *_ in stages):
        work += provenance.work / 2
    for spec, kind, _ in stages:
        if kind == "groups":
            read += max(hint(a.value.nbytes) for a in spec.args if a.kind == "in" and a.value.slice is None)
    return work / groups + 2 * read <= len(stages) * schedule_of(traits).tuning.launch


def _kernel(loop, stages, batch, rows, traits):
    items, args = schedule.items(traits), Args()
    steps, functions, body = args.int(loop.length), {}, []
    locals_ = {}
    for spec, *_ in stages:
        for a in spec.args:
            if a.kind == "local":
                locals_[a.dtype] = max(a.value, locals_.get(a.dtype, 0))
    local = {ctype: args.local(ctype, elements) for ctype, elements in locals_.items()}
    variants = [loop.resolver(v, lambda b: b) for v in range(len(loop.variants))]

    def given(a):
        if a.is_pointer:
            places = [args.pointer(resolve(a.value), a.dtype, out=a.kind == "out") for resolve in variants]
            return places[0] if len(set(places)) == 1 else f"(odd ? {places[1]} : {places[0]})"
        if a.kind == "local":
            return local[a.dtype]
        return "step" if a.value is STEP else joining.given(args, a)

    for spec, kind, count in stages:
        if kind == "elements":
            name, text = joining.function(spec, ["const size_t item_0"], lambda found: "item_0")
        else:
            name, text = joining.function(spec, ["const size_t across_0, const size_t down_0"], _place)
        functions[name] = text
        passed = ", ".join(given(a) for a in spec.args)
        if kind == "elements":
            each = args.int(count)
            body.append(f"for (int i = first * {each} + me; i < end * {each}; i += {items}) {name}({passed}, i);\n")
        else:
            between = _BARRIER if not is_one(count) else ""
            body.append(f"for (int i = 0; i < {args.int(count)}; ++i) {{\n{name}({passed}, i, block);\n{between}}}\n")
        body.append(_BARRIER)
    number = f"{steps} - 1 - k" if loop.reverse else "k"
    head = [
        "const int me = get_local_id(0), block = get_group_id(0);\n",
        f"const int first = block * {rows}, end = min(first + {rows}, {args.int(batch)});\n",
        f"for (int k = 0; k < {steps}; ++k) {{\n",
        f"const int step = {number};\n",
    ]
    if len(variants) > 1:  # the last step is of variant 0, which leaves the results where they belong
        head.append(f"const bool odd = ({steps} - 1 - k) & 1;\n")
    specs = [spec for spec, *_ in stages]
    return KernelSpec(
        f"all steps of {loop.name}",
        args.args,
        "".join((*head, *body, "}\n")),
        (ceil_div(batch, rows) * items,),
        (items,),
        helpers=frozenset().union(*(spec.helpers for spec in specs)),
        title=f"all steps of a loop, {rows} rows of the batch a group",
        provenance=JoinedProvenance(specs),
        functions=tuple(functions.values()),
    )


def _place(found):
    if found[1] == "group":
        return ("across_0", "down_0")[int(found[2])]
    assert found[2] == "2"
    return "0"


def into(loop, spec):
    """Makes `spec`, of `held`, the Loop's only launch."""
    buffers = {b for variant in loop.variants for b in variant.values()}
    loop.launches, loop.variants, loop.shared, loop.length = [spec], [{b: b for b in buffers}], {}, 1


def of_rows(traits):
    """The traits by which a loop's body is lowered for `held`: kernels without limits of a launch's size, as they are launched by none."""
    return replace(traits, schedule=schedule.NAME, max_groups=())


def stored(rows, extra, shared):
    """The Buffers of nodes that fall into rows, as kernels name them."""
    found = set()
    for n in rows:
        for b in (n.buffer, *extra.get(n, ())):
            found.add(b if b.slice is None else b.slice.base)
    return found | {a for a, b in shared.items() if b in found} | {shared[b] for b in found if b in shared}

