"""Helpers for kernels that compute whole rows: which results have one value per row, such as the row's maximum, and at which index.

Rows run along the last axes of a kernel's index space; the axes before them count the rows.
"""

from keras_ocl.compiler.fuse import cost
from keras_ocl.core.dim import same, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind

REDUCING = (Kind.REDUCTION, Kind.WINDOW, Kind.CONTRACTION)


def per_element(shape, space):
    """Whether results of `shape` have one element per index of `space`: the shapes are equal apart from axes of extent 1."""
    return same([n for n in shape if not is_one(n)], [n for n in space if not is_one(n)])


def leading(shape, space):
    """How many leading axes of `space` count rows, if results of `shape` have one element per row; None where they have not.

    Axes of extent 1 do not count: a sum of rows has one value per row with its axes kept or not.
    """
    real, rows = _real(space), [n for n in shape if not is_one(n)]
    if len(rows) > len(real) or not all(same((n,), (space[i],)) for n, i in zip(rows, real, strict=False)):
        return None
    rank = real[len(rows) - 1] + 1 if rows else 0
    return rank if rank < len(space) else None


def of(index, shape, space, nowhere):
    """The index in a result of `shape`, of one value per element or row, given an element's `index` in `space`.

    nowhere: the index on axes of extent 1.
    """
    real = iter(_real(space))
    return tuple(nowhere if is_one(n) else index[next(real)] for n in shape)


def _real(space):
    return [i for i, n in enumerate(space) if not is_one(n)]


def reduced(node, placements):
    """Elements per row of the reduction that `node` is, or follows from elementwise; None if it needs no reduction that is not stored."""
    while node.kind is Kind.ELEMENTWISE or node.kind is Kind.VIEW and node.primitive.flat:
        node = next((i for i in node.inputs if cost.size(i) == cost.size(node) and i.inputs and not placements[i].in_memory), None)
        if node is None:
            return None
    return cost.terms(node) if node.kind is Kind.REDUCTION else None


def one_level(region, evaluations, nested):
    """Whether the reductions of `region` with more than `nested` terms, and one more with `evaluations`, are all for the same rows."""
    if evaluations > size_hint(region.space):
        return False
    reductions = ((n, places) for n, places in region.places.items() if n.kind in REDUCING)
    return all(cost.terms(n) <= nested or cost.evaluations(places) == evaluations for n, places in reductions)
