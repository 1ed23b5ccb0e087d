"""A concat of updated slices of one tensor is an update of that tensor.

So a key-value cache is written: every layer takes its part, updates one row of it, and the parts are put together again. As an update of
the whole it can be done in place.
"""

from typing import NamedTuple

from keras_ocl.core.dim import product, same
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives import algebra


class _Box(NamedTuple):
    """The part of `whole`, a node, of `sizes` from `lows` on."""

    whole: object
    lows: list
    sizes: list


class _Update(NamedTuple):
    """An update of a box: `value`, reshaped to `sizes` along the axes of the box's whole, at `starts`, nodes or None for 0."""

    box: _Box
    value: object
    sizes: list
    starts: list


def joined_updates(graph, inputs, params, origin):
    """The update that a concat of `inputs` is, or None (see Primitive's `simplify`)."""
    axis, parts = params["axis"], [_update(i) for i in inputs]
    if any(p is None or p.box.whole is not parts[0].box.whole for p in parts):
        return None
    lows, sizes = list(parts[0].box.lows), list(parts[0].box.sizes)
    apart = [j for j, low in enumerate(lows) if not same((low,), (parts[1].box.lows[j],))]
    if len(apart) != 1:
        return None
    (j,) = apart
    end = lows[j]
    for p, node in zip(parts, inputs, strict=True):
        others = [k for k in range(len(lows)) if k != j]
        if not (
            same((p.box.lows[j],), (end,))
            and all(same((p.box.lows[k], p.box.sizes[k], p.sizes[k]), (lows[k], sizes[k], parts[0].sizes[k])) for k in others)
            and all(p.starts[k] is parts[0].starts[k] for k in others)
            and same((p.sizes[j],), (p.box.sizes[j],))
            and same((product(node.shape[:axis]),), (product(sizes[:j]),))
            and same((product(node.shape[axis + 1 :]),), (product(sizes[j + 1 :]),))
        ):
            return None
        end = end + p.box.sizes[j]
    sizes[j] = end - lows[j]
    make, rule = graph.simplest, Primitive.registry
    values = [make(rule["reshape"], (p.value,), {"shape": tuple(p.sizes)}, origin) for p in parts]
    value = make(rule["concat"], tuple(values), {"axis": j}, origin)
    whole = parts[0].box.whole
    if not same(sizes, whole.shape):
        limits = tuple(low + n for low, n in zip(lows, sizes, strict=True))
        whole = make(rule["slice"], (whole,), {"starts": tuple(lows), "limits": limits, "strides": (1,) * len(lows)}, origin)
    starts = [algebra.constant(graph, 0, "int32", origin) if s is None else s for s in parts[0].starts]
    updated = make(rule["dynamic_update_slice"], (whole, value, *starts), {}, origin)
    shape, _ = rule["concat"].shape(*inputs, **params)
    return make(rule["reshape"], (updated,), {"shape": shape}, origin)


def _update(node):
    """The _Update that a node is, reshaped or not; None for others."""
    while node.name == "reshape":
        node = node.inputs[0]
    if node.name != "dynamic_update_slice":
        return None
    x, value, *given = node.inputs
    box = _box(x)
    pairs = _paired(x.shape, box.sizes)
    if pairs is None or any(n == 0 for n in value.shape):
        return None
    sizes, starts = [1] * len(box.sizes), [None] * len(box.sizes)
    for i, j in pairs:
        sizes[j] = value.shape[i]
        starts[j] = None if same((value.shape[i],), (x.shape[i],)) else given[i]
    return _Update(box, value, sizes, starts)


def _box(node):
    """The _Box that a node is, whose sizes are the node's shape but for axes of extent 1."""
    if node.name in ("reshape", "slice"):
        x = node.inputs[0]
        box = _box(x)
        if node.name == "reshape":
            if _paired(node.shape, box.sizes) is not None:
                return box
        else:
            p, pairs = node.params, _paired(x.shape, box.sizes)
            if pairs is not None and set(p["strides"]) == {1} and all(n != 0 for n in node.shape):
                lows, sizes = list(box.lows), list(box.sizes)
                for i, j in pairs:
                    lows[j], sizes[j] = lows[j] + p["starts"][i], node.shape[i]
                return _Box(box.whole, lows, sizes)
    return _Box(node, [0] * len(node.shape), list(node.shape))


def _paired(shape, sizes):
    """Pairs (axis of `shape`, axis of `sizes`) of those that are not of extent 1, or None where these are not the same."""
    first, second = ([i for i, n in enumerate(extents) if not is_one(n)] for extents in (shape, sizes))
    fits = len(first) == len(second) and same([shape[i] for i in first], [sizes[j] for j in second])
    return list(zip(first, second, strict=True)) if fits else None
