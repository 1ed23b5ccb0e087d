"""Splitting long reductions with few results into partial reductions that run in parallel.

The number of parts is a function of the extents alone, so the order of summation, and with it the
result, does not depend on the run.
"""

from keras_ocl.core.dim import hint, size_hint


def split(graph, limits, primitive, inputs, params, origin):
    """The node of a reduction of partial results, if it is long and has few results, or reads rows that lie far apart; else None.

    limits: a kernels.schedules.tuning.Splitting.
    """
    (x,) = inputs
    axes = params["axes"]
    count = size_hint(x.shape[a] for a in axes)
    results = size_hint(x.shape) // max(1, count)
    longest = max(axes, key=lambda a: hint(x.shape[a]), default=None)
    last = len(x.shape) - 1
    rows = last in axes
    wide = count * results >= limits.wide * max(1, limits.tall // max(1, count))
    far = not rows and count >= 2 * limits.rows and wide
    most = min(limits.few, limits.few_rows) if rows else limits.few
    few = count >= (limits.long if rows else limits.high) and count * results >= limits.worth and results <= most
    if not (far or few) or hint(x.shape[longest]) < limits.least:
        return None
    parts = min(limits.parts, count * results // limits.part, count // limits.steps) if few else count // limits.rows
    if longest == last and not limits.first and hint(x.shape[last]) < limits.run * parts:
        # Another axis, if it has enough parts: parts of whole rows, not of a few elements of each.
        others = [a for a in axes if a != last and 4 * hint(x.shape[a]) * results >= parts]
        longest = max(others, key=lambda a: hint(x.shape[a]), default=last)
    parts = max(2, min(parts, hint(x.shape[longest])))
    axis = next(a for a in sorted(axes) if hint(x.shape[a]) >= parts) if limits.first else longest
    chunk = -(-hint(x.shape[axis]) // parts)
    partial = graph.add(primitive.partial, inputs, {"axes": tuple(axes), "axis": axis, "chunk": chunk}, origin)
    return graph.add(primitive, (partial,), {"axes": (0,)}, origin)
