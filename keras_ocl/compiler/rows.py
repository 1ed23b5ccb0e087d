"""Kernels that compute rows, and what they know once for each row: which results have an element for each, and where it is.

Rows run along the last axes of a kernel's index space; the axes before them count the rows.
"""

from keras_ocl.compiler import cost
from keras_ocl.core.dim import hint, product, same
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind

REDUCING = (Kind.REDUCTION, Kind.WINDOW, Kind.CONTRACTION)


def leading(shape, space):
    """How many axes of `space` count the rows that results of `shape` have an element each for; None where they have others."""
    rank = next((i for i, (n, m) in enumerate(zip(shape, space, strict=False)) if not same((n,), (m,))), min(len(shape), len(space)))
    return rank if rank < len(space) and all(map(is_one, shape[rank:])) else None


def of(index, shape, nowhere):
    """Where a row's result of `shape` lies, given the `index` of an element of the row; `nowhere` is the index on an axis of extent 1."""
    return tuple(nowhere if i >= len(index) or is_one(n) else index[i] for i, n in enumerate(shape))


def reduced(node, placements):
    """Elements of the rows that `node` is the reduction of, or follows from elementwise; None where there is none still to compute."""
    while node.kind is Kind.ELEMENTWISE or node.kind is Kind.VIEW and node.primitive.flat:
        node = next((i for i in node.inputs if cost.size(i) == cost.size(node) and i.inputs and not placements[i].in_memory), None)
        if node is None:
            return None
    return cost.terms(node) if node.kind is Kind.REDUCTION else None


def one_level(region, evaluations, nested):
    """Whether reductions of `region` of more than `nested` terms, and one more, evaluated so often, are for the same rows, side by side."""
    if evaluations > hint(product(region.space)):
        return False
    reductions = ((n, places) for n, places in region.places.items() if n.kind in REDUCING)
    return all(cost.terms(n) <= nested or cost.evaluations(places) == evaluations for n, places in reductions)
