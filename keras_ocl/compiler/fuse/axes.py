"""Which loops of a kernel the axes of a node inside it run along."""

from keras_ocl.core.access import ONLY, REGROUPED, Along, Inner
from keras_ocl.core.dim import key
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind

ANY = -1  # the index on an axis may depend on any loop
INNER = 1000  # INNER + i: the loop of a reduction inside, over axis i of what it reduces
_FOLLOWED = (Kind.VIEW, Kind.REDUCTION)  # kinds whose axes are followed, besides elementwise; those of other kinds are all ANY


def axis_map(user, position, along):
    """The loops that the axes of `user.inputs[position]` run along, given those of `user`'s own axes (`along`).

    A tuple with one entry per axis: an axis of the region's space; None for no loop; ANY for an index that may depend on any loop; from
    INNER on, the loop of a reduction inside.
    """
    if user.kind is Kind.ELEMENTWISE:
        return tuple(along)
    x = user.inputs[position]
    if user.kind not in _FOLLOWED:
        return (ANY,) * len(x.shape)
    access = user.primitive.access(user, position)
    if REGROUPED in access:
        return reshape_map(user.shape, x.shape, along)
    return tuple(_loop(entry, along) for entry in access)


def _loop(entry, along):
    if type(entry) is Along:
        return along[entry.axis]
    if type(entry) is Inner:
        return INNER + entry.axis
    return None if entry is ONLY else ANY


def reshape_map(shape, old, along):
    """The axis map of a reshape's operand: leading and trailing axes that it leaves as they are, but for extents of 1, keep their loop."""
    new = [(n, a) for n, a in zip(shape, along, strict=True) if not is_one(n)]
    was = [i for i, n in enumerate(old) if not is_one(n)]
    result = [None if is_one(n) else ANY for n in old]
    for (n, a), i in zip(new, was, strict=False):
        if key(n) != key(old[i]):
            break
        result[i] = a
    for (n, a), i in zip(reversed(new), reversed(was), strict=False):
        if key(n) != key(old[i]):
            break
        result[i] = a
    return tuple(result)
