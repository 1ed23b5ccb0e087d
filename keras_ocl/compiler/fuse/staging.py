"""Staging: a kernel of rows computes a value once, keeps a row of it in scratch memory, and reads it back in its later loops over the row.

Such is softmax's exp(x - max), which its sum and its result read. A work-item has to compute whole rows: the order of its own loops is all
that puts the stores before the loads, and its row stays in the cache.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import same, size_hint
from keras_ocl.core.primitive import Kind


def rank(node, region, places, indices, schedule, traits):
    """How many leading axes of the space of `region` count the rows of which its kernel can stage `node`; None where it cannot.

    `places`: the list of indices (see cost.Places) at which the kernel reads `node`. `indices`: the cost.Places that they come from.
    """
    least, most = schedule.staged_rows
    if not most or node.kind is not Kind.ELEMENTWISE or not dtypes.is_float(node.dtype) or len(places) < 2:
        return None
    if region.anchor is not None or not same(node.shape, region.space) or 0 in region.space:
        return None
    root = indices.results(region, region.space)
    sweeps = {index: _rows(index, root) for index in _reduced(region, indices)}
    if any(index != root and sweeps.get(index) is None for index in places):
        return None
    found = {sweeps[index] for index in places if index != root} | set(region.staged.values())
    if len(found) != 1:
        return None
    (rows,) = found
    enough = size_hint(region.space[:rows]) >= 2 * traits.compute_units  # several work-items cannot share a row that one of them stages
    return rows if enough and least <= size_hint(region.space[rows:]) <= most else None


def computed(places, region, indices):
    """Which of the `places` at which the kernel of `region` reads a staged node are those where it computes it: one, in a reduction."""
    root = indices.results(region, region.space)
    return [index for index in places if index != root][:1]


def _reduced(region, indices):
    """The indices at which the kernel's reductions read their operands."""
    return (indices.operand(n, 0, at) for n, places in region.places.items() if n.kind is Kind.REDUCTION for at in places)


def _rows(index, root):
    """How many leading axes count rows, if `index` runs through whole rows of the element at `root`; else None."""
    rows = next((i for i, (a, b) in enumerate(zip(index, root, strict=False)) if a != b), 0)
    return rows if len(index) == len(root) and all(a != b for a, b in zip(index[rows:], root[rows:], strict=True)) else None
