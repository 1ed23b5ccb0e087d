"""Prices of what indices cost, in additions on one element of a vector, of which rules make the cost of an evaluation."""

from keras_ocl.core.dim import hint, product

MASK = 3  # two comparisons with the bounds of an axis, and joining them
DIVISION = 3  # of an index by a constant
_LANES = 16  # of a vector, about


def masking(node, axis):
    """Telling where an element lies on an axis of `node`: that is known outside of the loop over what is within the axis."""
    return MASK * min(1, _LANES / max(1, hint(product(node.shape[axis + 1 :]))))
