"""ONNX for gathers, scatters, slices at computed positions and sorting."""

from keras_ocl.export.onnx.rules.movement import sliced
from keras_ocl.export.onnx.rules.reduce import widened

_REDUCTIONS = {"set": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _index(g, node):
    """A node's value as int64."""
    return g.value(node) if node.dtype == "int64" else g.cast(g.value(node), "int64")


def _clipped(g, name, extent):
    """Indices clamped to 0 <= index < extent."""
    return g.add("Clip", name, g.scalar(0, "int64"), g.scalar(extent - 1, "int64"))


def _stacked(g, names, rank):
    """Index tensors of equal shape, stacked along a new last axis."""
    names = [g.unsqueeze(n, [rank]) for n in names]
    return names[0] if len(names) == 1 else g.add("Concat", *names, axis=-1)


def _gather(g, node):
    x, *indices = node.inputs
    axes = node.params["axes"]
    perm = (*axes, *(i for i in range(len(x.shape)) if i not in axes))
    name = g.transpose(g.value(x), perm)
    indices = [_clipped(g, _index(g, i), x.shape[a]) for i, a in zip(indices, axes, strict=True)]
    if len(axes) == 1:
        return g.add("Gather", name, indices[0], axis=0)
    return g.add("GatherND", name, _stacked(g, indices, len(node.inputs[1].shape)))


def _scattered(g, node, x, indices, updates):
    """Scatter updates into `x`, of node.results' shape, padded by one row that receives out-of-range updates."""
    ((shape, dtype),) = node.results
    clip, mode = node.params.get("clip", False), node.params["mode"]
    if mode in ("max", "min") and g.opset < 18:
        raise NotImplementedError(f"ONNX export: `scatter` of extremes in {g.where()} needs opset 18; pass `opset_version=18`.")
    names, valid = [_index(g, i) for i in indices], None
    if clip:
        names = [_clipped(g, n, shape[k]) for k, n in enumerate(names)]
    else:
        for k, n in enumerate(names):
            inside = g.add("Equal", n, _clipped(g, n, shape[k]))
            valid = inside if valid is None else g.add("And", valid, inside)
        names = [g.add("Where", valid, n, g.scalar(0 if k else shape[0], "int64")) for k, n in enumerate(names)]
    at = _stacked(g, names, len(indices[0].shape))
    x, wider = widened(g, x, dtype)
    none = [0] * len(shape)
    x = g.add("Pad", x, g.extents([*none, 1, *none[1:]]))
    updates, _ = widened(g, updates, dtype)
    result = g.add("ScatterND", x, at, updates, reduction=_REDUCTIONS[mode])
    result = sliced(g, result, (shape[0] + 1, *shape[1:]), none, shape, [1] * len(shape))
    return [result if wider == dtype else g.cast(result, dtype)]


def _scatter(g, node):
    x, *indices, updates = node.inputs
    return _scattered(g, node, g.value(x), indices, g.value(updates))


def _scatter_new(g, node):
    *indices, updates = node.inputs
    ((shape, dtype),) = node.results
    return _scattered(g, node, g.add("Expand", g.scalar(0, dtype), g.extents(shape)), indices, g.value(updates))


# ---- slices at computed positions


def _starts(g, starts, shape, sizes):
    """Starts as one int64 vector, clamped so that the slice lies within `shape`."""
    names = []
    for start, n, size in zip(starts, shape, sizes, strict=True):
        name = g.add("Clip", _index(g, start), g.scalar(0, "int64"), g.scalar(n - size, "int64"))
        names.append(g.unsqueeze(name, [0]))
    return names[0] if len(names) == 1 else g.add("Concat", *names, axis=0)


def _dynamic_slice(g, node):
    x, *starts = node.inputs
    if not starts:
        return g.value(x)
    at = _starts(g, starts, x.shape, node.shape)
    return g.add("Slice", g.value(x), at, g.add("Add", at, g.extents(node.shape)), g.extents(list(range(len(starts)))))


def _dynamic_update_slice(g, node):
    x, update, *starts = node.inputs
    if not starts:
        return g.value(update)
    at = _starts(g, starts, x.shape, update.shape)
    after = g.add("Sub", g.add("Sub", g.extents(x.shape), g.extents(update.shape)), at)
    around = g.add("Concat", at, after, axis=0)
    new, dtype = widened(g, g.value(update), update.dtype)
    ones = g.add("Expand", g.scalar(1, "int32"), g.extents(update.shape))
    mask = g.cast(g.add("Pad", ones, around), "bool")
    new = g.add("Pad", new, around)
    new = new if dtype == node.dtype else g.cast(new, node.dtype)
    return g.add("Where", mask, new, g.value(x))


# ---- sorting


def _ordered(g, key, n, dtype, largest):
    """(values, positions) of the last axis, sorted."""
    key, wider = widened(g, key, dtype)
    values, at = g.add("TopK", key, g.extents([n]), count=2, axis=-1, largest=largest, sorted=1)
    return values if wider == dtype else g.cast(values, dtype), at


def _sort(g, node):
    """Stable sorts by one key after another, beginning with the last key."""
    names = [g.value(x) for x in node.inputs]
    n = node.inputs[0].shape[-1]
    for k in reversed(range(node.params["keys"])):
        _, at = _ordered(g, names[k], n, node.inputs[k].dtype, 0)
        names = [g.add("GatherElements", name, at, axis=-1) for name in names]
    return names


def _top_k(g, node):
    (x,) = node.inputs
    values, at = _ordered(g, g.value(x), node.params["k"], x.dtype, 1)
    return [values, g.cast(at, "int32")]


RULES = {
    "gather": _gather,
    "scatter": _scatter,
    "scatter_new": _scatter_new,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "sort": _sort,
    "top_k": _top_k,
}

_RANDOM = "an ONNX model keeps no state from which its numbers could follow; leave random layers out of inference"
REFUSED = {name: _RANDOM for name in ("random_bits", "random_binomial", "random_gamma")} | {
    name: "it belongs to training steps, which are not exported" for name in ("distinct_rows", "put_rows")
}
