"""Helpers for kernels that compute whole rows: which results have one value per row, such as the row's maximum, and at which index.

Rows run along the last axes of a kernel's index space; the axes before them count the rows.
"""

from keras_ocl.compiler.fuse import cost
from keras_ocl.core.dim import same, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind

REDUCING = (Kind.REDUCTION, Kind.WINDOW, Kind.CONTRACTION)


def leading(shape, space):
    """How many leading axes of `space` count rows, if results of `shape` have one element per row; None where they have not."""
    rank = next((i for i, (n, m) in enumerate(zip(shape, space, strict=False)) if not same((n,), (m,))), min(len(shape), len(space)))
    return rank if rank < len(space) and all(map(is_one, shape[rank:])) else None


def of(index, shape, nowhere):
    """The index of a row's value in a result of `shape`, given an element's `index`; `nowhere` is the index on axes of extent 1."""
    return tuple(nowhere if i >= len(index) or is_one(n) else index[i] for i, n in enumerate(shape))


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
