"""Prices of index arithmetic, in additions on one element of a vector. Rules add them up to the cost of an evaluation."""

from keras_ocl.core.dim import size_hint

MASK = 3  # two comparisons with the bounds of an axis, and joining them
DIVISION = 3  # of an index by a constant
_LANES = 16  # of a vector, roughly


def masking(node, axis):
    """The price of telling where an element lies along an axis of `node`, which is computed outside the loop over the axes after it."""
    return MASK * min(1, _LANES / max(1, size_hint(node.shape[axis + 1 :])))
