"""Along which loops of a kernel the axes of a node run that is computed inside it."""

from keras_ocl.compiler.split import PARTIAL
from keras_ocl.core.index import is_one
from keras_ocl.kernels import elementwise

ANY = -1  # the index on an axis may depend on any loop
INNER = 1000  # INNER + i: the loop of a reduction inside, over axis i of what it reduces
PARTIAL_NAMES = frozenset(p.name for p in PARTIAL.values())


def axis_map(user, position, along):
    """Where the axes of `user.inputs[position]` run, given where `user`'s own axes run (`along`).

    Entries: an axis of the region's space; None for no loop; ANY for an index that may depend on any loop; from INNER on, a loop of a
    reduction inside.
    """
    x = user.inputs[position]
    rank = len(x.shape)
    if user.name in elementwise.OPS or user.name == "stop_gradient":
        return tuple(along)
    if user.name == "broadcast":
        return tuple(
            None if is_one(n) and not is_one(user.shape[d]) else along[d] for n, d in zip(x.shape, user.params["dims"], strict=True)
        )
    if user.name == "transpose":
        m = [None] * rank
        for out_axis, in_axis in enumerate(user.params["perm"]):
            m[in_axis] = along[out_axis]
        return tuple(m)
    if user.name in ("slice", "reverse"):
        return tuple(along)
    if user.name == "reshape":
        return reshape_map(user.shape, x.shape, along)
    if user.name.startswith(("reduce_", "arg")) and user.name != "reduce_window":
        axes = user.params["axes"] if "axes" in user.params else (user.params["axis"],)
        kept = iter(along)
        return tuple(INNER + i if i in axes else next(kept) for i in range(rank))
    if user.name in PARTIAL_NAMES:
        axes, kept = user.params["axes"], iter(along[1:])
        return tuple(INNER + i if i in axes else next(kept) for i in range(rank))
    return (ANY,) * rank


def reshape_map(shape, old, along):
    """Axes that a reshape leaves alone (only ones come or go beside them) keep their loop."""
    new = [(n, a) for n, a in zip(shape, along, strict=True) if not is_one(n)]
    was = [i for i, n in enumerate(old) if not is_one(n)]
    result = [None if is_one(n) else ANY for n in old]
    for (n, a), i in zip(new, was, strict=False):
        if n != old[i]:
            break
        result[i] = a
    for (n, a), i in zip(reversed(new), reversed(was), strict=False):
        if n != old[i]:
            break
        result[i] = a
    return tuple(result)
