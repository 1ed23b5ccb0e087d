"""Loops in a part of a mesh: a loop's body is partitioned like the step around it, but without collectives."""

from keras_ocl.core.body import Body, Draft
from keras_ocl.distribution.layout import layout_key, local_shape, whole


class CollectiveInLoop(Exception):
    """The body of a loop would need a collective in every step."""


def partition_scan(around, eq, partition, value):
    """The Values of a scan's results. Each part computes what the layouts of the operands allow, or all of it where steps would need
    collectives.

    Args:
        around: the Partition of the enclosing equations.
        partition, value: the classes Partition and Value.
    """
    consts, carries = eq.params["consts"], eq.params["carries"]
    last = consts + carries
    layouts = [around.value(x).layout for x in eq.inputs]
    layouts[last:] = [(None, *layout[1:]) for layout in layouts[last:]]
    settled = set()
    try:
        while True:
            body, after = _body(eq.params["body"], layouts, consts, carries, settled, partition, value)
            if body is not None:
                break
            for k, layout in enumerate(after[:carries]):
                if k not in settled and layout_key(layouts[consts + k]) != layout_key(layout):
                    # A carry that begins whole may become cut; one that is cut and becomes cut in another way must be whole.
                    layouts[consts + k] = whole(len(layout)) if any(layouts[consts + k]) else layout
                    settled.add(k)
    except CollectiveInLoop:
        operands = [around.part(x, whole(len(x.shape))) for x in eq.inputs]
        return [value(r, whole(len(r.shape))) for r in eq.primitive(*operands, **eq.params)]
    operands = [around.part(x, layout) for x, layout in zip(eq.inputs, layouts, strict=True)]
    results = eq.primitive(*operands, **{**eq.params, "body": body})
    carried, stacked = layouts[consts:last], [(None, *layout) for layout in after[carries:]]
    histories = [(None, *carried[k]) for k in eq.params["histories"]]
    return [value(r, layout) for r, layout in zip(results, (*carried, *stacked, *histories), strict=True)]


def _body(body, layouts, consts, carries, settled, partition, value):
    """(the Body for these layouts of its inputs, the layouts that its outputs get); the Body is None if a carry that is not `settled` would
    get another layout than it has."""
    with Draft() as draft:
        known = {}
        for t, layout in zip(body.inputs, layouts, strict=True):
            known[id(t)] = value(draft.input(local_shape(t.shape, layout), t.dtype), layout)
        inner = partition(body.equations, known, collective=False)
        after = [v.layout for v in inner.run(body.outputs)]
        carried = layouts[consts : consts + carries]
        if any(layout_key(a) != layout_key(b) for k, (a, b) in enumerate(zip(carried, after, strict=False)) if k not in settled):
            return None, after
        wanted = [*carried, *after[carries:]]
        outputs = [inner.part(t, layout) for t, layout in zip(body.outputs, wanted, strict=True)]
    return Body(draft.inputs, outputs, draft.equations, draft.recorded), after
