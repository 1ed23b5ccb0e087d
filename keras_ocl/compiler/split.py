"""Splitting long reductions with few results into partial reductions that run side by side.

The number of parts is a function of the extents alone, so the order of summation, and with it the
result, does not depend on the run.
"""

from keras_ocl.core.dim import hint, product

_LONG = 2048  # elements per result from which splitting pays
_FEW = 4096  # results up to which rows alone give too few work-items
_PART = 16384  # elements per part
_ROWS = 32  # rows per part of a sum along columns: streams of memory that a CPU's prefetcher follows at once
_WIDE = 2**19  # elements from which that pays, more than a second-level cache holds; more of them for columns shorter than _TALL
_TALL = 512


def split(graph, primitive, inputs, params, origin):
    """The node of a reduction, as a reduction of parts where it is long and has few results, or reads rows that lie far apart."""
    (x,) = inputs
    axes = params["axes"]
    count = hint(product(x.shape[a] for a in axes))
    results = hint(product(x.shape)) // max(1, count)
    longest = max(axes, key=lambda a: hint(x.shape[a]), default=None)
    far = len(x.shape) - 1 not in axes and count >= 2 * _ROWS and count * results >= _WIDE * max(1, _TALL // max(1, count))
    few = count >= _LONG and results <= _FEW
    if not (far or few) or hint(x.shape[longest]) < 8:
        return None
    parts = min(64, count * results // _PART) if few else count // _ROWS
    parts = max(2, min(parts, hint(x.shape[longest])))
    chunk = -(-hint(x.shape[longest]) // parts)
    partial = graph.add(primitive.partial, inputs, {"axes": tuple(axes), "axis": longest, "chunk": chunk}, origin)
    return graph.add(primitive, (partial,), {"axes": (0,)}, origin)
