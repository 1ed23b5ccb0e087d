"""ONNX for views, slices, padding and concatenation. The graph makes constants, broadcasts and iotas where they are used."""

from keras_ocl.core.dim import Dim

_BACK_TO_THE_START = -(2**63) + 1


def _reshape(g, node):
    return g.reshape(g.value(node.inputs[0]), node.shape)


def _transpose(g, node):
    return g.transpose(g.value(node.inputs[0]), node.params["perm"])


def _reverse(g, node):
    axes = list(node.params["axes"])
    minus = g.extents([-1] * len(axes))
    return g.add("Slice", g.value(node.inputs[0]), minus, g.extents([_BACK_TO_THE_START] * len(axes)), g.extents(axes), minus)


def sliced(g, name, shape, starts, limits, strides):
    """Elements start, start + stride, ... below limit along each axis of a value of `shape`."""

    def whole(n, start, limit, stride):
        return not isinstance(start, Dim) and start == 0 and stride == 1 and limit - n == 0 and not isinstance(limit - n, Dim)

    bounds = zip(shape, starts, limits, strides, strict=True)
    cut = [(i, start, limit, stride) for i, (n, start, limit, stride) in enumerate(bounds) if not whole(n, start, limit, stride)]
    if not cut:
        return name
    axes, starts, limits, strides = (g.extents(part) for part in zip(*cut, strict=True))
    return g.add("Slice", name, starts, limits, axes, strides)


def _slice(g, node):
    (x,), p = node.inputs, node.params
    return sliced(g, g.value(x), x.shape, p["starts"], p["limits"], p["strides"])


def padded(g, name, value, low, high):
    """The value padded along each axis with `low` and `high` elements of the rank-0 `value`; negative numbers crop."""
    if all(not isinstance(n, Dim) and n == 0 for n in (*low, *high)):
        return name
    return g.add("Pad", name, g.extents([*low, *high]), value)


def spread(g, name, shape, interior, value):
    """(value, shape) with `interior` elements of the rank-0 `value` inserted between neighbours along each axis."""
    shape = list(shape)
    for axis, gaps in enumerate(interior):
        n = shape[axis]
        if gaps == 0:
            continue
        name = g.unsqueeze(name, [axis + 1])
        none = [0] * (len(shape) + 1)
        name = padded(g, name, value, none, [gaps if i == axis + 1 else 0 for i in range(len(none))])
        shape[axis] = n * (gaps + 1)
        name = g.reshape(name, shape)
        limits = [m - gaps if i == axis else m for i, m in enumerate(shape)]
        name = sliced(g, name, shape, [0] * len(shape), limits, [1] * len(shape))
        shape = limits
    return name, shape


def _pad(g, node):
    (x, value), p = node.inputs, node.params
    value = g.value(value)
    if any(i and not isinstance(n, Dim) and n == 0 for n, i in zip(x.shape, p["interior"], strict=True)):
        return g.add("Expand", value, g.extents(node.shape))
    name, _ = spread(g, g.value(x), x.shape, p["interior"], value)
    return padded(g, name, value, p["low"], p["high"])


def _concat(g, node):
    return g.add("Concat", *(g.value(x) for x in node.inputs), axis=node.params["axis"])


def _unpack_int4(g, node):
    (x,), axis = node.inputs, node.params["axis"]
    sixteen, eight = g.scalar(16, "int32"), g.scalar(8, "int32")
    byte = g.add("Mod", g.cast(g.value(x), "int32"), g.scalar(256, "int32"))
    halves = [g.unsqueeze(half, [axis + 1]) for half in (g.add("Mod", byte, sixteen), g.add("Div", byte, sixteen))]
    shape = [2 * n if i == axis else n for i, n in enumerate(x.shape)]
    name = g.reshape(g.add("Concat", *halves, axis=axis + 1), shape)
    name = sliced(g, name, shape, [0] * len(shape), node.shape, [1] * len(shape))
    if node.dtype == "int8":
        name = g.add("Sub", g.add("Mod", g.add("Add", name, eight), sixteen), eight)
    return g.cast(name, node.dtype)


RULES = {
    "unpack_int4": _unpack_int4,
    "reshape": _reshape,
    "transpose": _transpose,
    "reverse": _reverse,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
}
