"""Light operations: values that several kernels had better compute each than load, because they follow from what those load anyway.

Such is the product of a gradient with x - mean: in a normalisation's gradient, a kernel over rows and sums over columns read it.
"""

from keras_ocl.compiler.fuse import cost
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels import elementwise

PLACED = (Kind.INPUT, Kind.PROJECTION, Kind.STEP_SLICE)  # values that are in memory without a kernel of their own
_LIGHT = 4 * elementwise.CHEAP  # most work on an element that is repeated in several kernels to save a store
_PER_ROW = 16  # what has so many times fewer elements than a tensor, such as one per row, costs next to nothing beside it
_VISITS = 64  # most nodes that are looked at to foresee what a region loads


def light(node, readers, border, in_memory, may_be_epilogue):
    """Whether the regions `readers` had better compute `node` than load it: one light operation, or a few that need no more loads.

    Args:
        border: graph.border. What the forward part computes is in memory where the backward part reads it (kept.py).
        in_memory: function of a node: whether it is in memory whatever happens to `node`.
        may_be_epilogue: function of a node: whether a template can store it without loading what it follows from.
    """
    if node.kind is not Kind.ELEMENTWISE:
        return False
    if cost.price(node) <= elementwise.CHEAP and all(map(_is_there, map(viewed, node.inputs))):
        return True
    arrays = None if may_be_epilogue(node) else _arrays(node, border, in_memory)
    return arrays is not None and sum(len(arrays - _loads(r, node, in_memory)) for r in readers) <= len(readers)


def viewed(node):
    """What `node` is a view of, or a view of a view, and so on; `node` itself if it is none."""
    while node.kind is Kind.VIEW:
        node = node.inputs[0]
    return node


def _is_there(node):
    return node.kind in (*PLACED, Kind.SOURCE, Kind.REDUCTION, Kind.WINDOW) or node.primitive.pointwise is None


def _arrays(node, border, in_memory):
    """The set of arrays of the size of `node` from which it follows by light operations; None where there is none."""
    work, arrays, found, waiting = 0, set(), {node}, [node]
    while waiting:
        n = waiting.pop()
        work += cost.price(n)
        if work > _LIGHT:
            return None
        for i in n.inputs:
            base = viewed(i)
            if base in found or base.kind is Kind.SOURCE or _PER_ROW * cost.size(base) <= cost.size(node):
                continue
            found.add(base)
            if base.kind in PLACED or base.order < border <= node.order or in_memory(base):
                arrays.add(base)
            elif base is i and base.kind is Kind.ELEMENTWISE:
                waiting.append(base)
            else:
                return None
    return arrays


def _loads(region, node, in_memory):
    """The arrays of the size of `node` that `region` will load, as far as can be foreseen, if `node` is computed somewhere else."""
    found, waiting = {node}, sorted(region.operands, key=lambda n: n.order)
    while waiting and len(found) < _VISITS:
        n = waiting.pop()
        if n not in found and cost.size(n) >= cost.size(node):
            found.add(n)
            if n.kind in (Kind.ELEMENTWISE, Kind.VIEW) and not in_memory(n):
                waiting += n.inputs
    return found
