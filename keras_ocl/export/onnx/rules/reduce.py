"""ONNX for reductions: along axes, over windows, and cumulative ones."""

import numpy as np
from onnx import helper

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.export.onnx.graph import onnx_type
from keras_ocl.export.onnx.rules.movement import padded, sliced

# Narrower integers are reduced in a wider type, in which the compiler sums them too.
_WIDER = {"bool": "int32", "int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}


def widened(g, name, dtype):
    """(value, dtype): the value converted to a dtype that ONNX runtimes support."""
    wider = _WIDER.get(dtype, dtype)
    return (name if wider == dtype else g.cast(name, wider)), wider


def _narrowed(g, name, wider, dtype):
    return name if wider == dtype else g.cast(name, dtype)


# ---- along axes


def _reduce(operator):
    def rule(g, node):
        (x,), axes = node.inputs, [int(a) for a in node.params["axes"]]
        name, wider = widened(g, g.value(x), x.dtype)
        if operator == "ReduceSum" or g.opset >= 18:
            total = g.add(operator, name, g.extents(axes), keepdims=0)
        else:
            total = g.add(operator, name, axes=axes, keepdims=0)
        return _narrowed(g, total, wider, node.dtype)

    return rule


def _argument(operator):
    def rule(g, node):
        (x,) = node.inputs
        name, _ = widened(g, g.value(x), x.dtype)
        position = g.add(operator, name, axis=int(node.params["axis"]), keepdims=0)
        return position if node.dtype == "int64" else g.cast(position, node.dtype)

    return rule


# ---- over windows


def _reduce_window(g, node):
    (x,), p = node.inputs, node.params
    kind, window, strides, padding, dilation = (p[k] for k in ("kind", "window", "strides", "padding", "dilation"))
    name, dtype = g.value(x), x.dtype
    if not dtypes.is_float(dtype):
        name, dtype = g.cast(name, "float64"), "float64"
    if kind == "min":
        name = g.add("Neg", name)
    shape = list(x.shape)
    outside = g.scalar(0 if kind == "sum" else dtypes.least(dtype), dtype)
    # ONNX's own padding is by known numbers that are less than the window; other padding is applied before.
    own = [all(not isinstance(n, Dim) and 0 <= n < k for n in pair) for pair, k in zip(padding, window, strict=True)]
    before = [(0, 0) if o else pair for o, pair in zip(own, padding, strict=True)]
    name = padded(g, name, outside, *zip(*before, strict=True))
    shape = [n + low + high for n, (low, high) in zip(shape, before, strict=True)]
    pads = [pair if o else (0, 0) for o, pair in zip(own, padding, strict=True)]
    pooled = [i for i, k in enumerate(window) if k > 1 or any(pads[i])]
    strided = [i for i, s in enumerate(strides) if s > 1 and i not in pooled]
    if strided:
        steps = [strides[i] if i in strided else 1 for i in range(len(shape))]
        name = sliced(g, name, shape, [0] * len(shape), shape, steps)
    if pooled:
        name = _pooled(g, node, name, kind, dtype, pooled, window, strides, pads, dilation)
    if kind == "min":
        name = g.add("Neg", name)
    return name if dtype == node.dtype else g.cast(name, node.dtype)


def _pooled(g, node, name, kind, dtype, pooled, window, strides, pads, dilation):
    """Pooling over the axes `pooled`, which must be last in ONNX, after two other axes."""
    if len(pooled) > 3:
        raise NotImplementedError(f"ONNX export: `reduce_window` over {len(pooled)} axes in {g.where()}; ONNX pools over at most 3.")
    if kind == "sum" and g.opset < 19 and any(dilation[i] > 1 for i in pooled):
        raise NotImplementedError(f"ONNX export: a dilated sum over windows in {g.where()} needs opset 19; pass `opset_version=19`.")
    rank = len(window)
    perm = [i for i in range(rank) if i not in pooled] + pooled
    name = g.transpose(name, perm)
    lead = rank - len(pooled)
    moved = [node.shape[i] for i in perm]
    if lead != 2:
        inner = g.add("Shape", name, start=lead)
        name = g.add("Reshape", name, g.add("Concat", g.extents([1, -1]), inner, axis=0))
    attributes = {
        "kernel_shape": [int(window[i]) for i in pooled],
        "strides": [int(strides[i]) for i in pooled],
        "pads": [int(pads[i][side]) for side in (0, 1) for i in pooled],
    }
    if any(dilation[i] > 1 for i in pooled):
        attributes["dilations"] = [int(dilation[i]) for i in pooled]
    if kind == "sum":
        mean = g.add("AveragePool", name, count_include_pad=1, **attributes)
        name = g.add("Mul", mean, g.scalar(int(np.prod([int(window[i]) for i in pooled])), dtype))
    else:
        name = g.add("MaxPool", name, **attributes)
    if lead != 2:
        name = g.reshape(name, moved)
    return g.transpose(name, [perm.index(i) for i in range(rank)])


# ---- cumulative


def _cumsum(g, node):
    (x,) = node.inputs
    name, wider = widened(g, g.value(x), x.dtype)
    total = g.add("CumSum", name, g.constant(np.array(node.params["axis"], "int64")), reverse=int(node.params["reverse"]))
    return _narrowed(g, total, wider, node.dtype)


def _running(first, step):
    """A Scan over the axis: `step(state, elements)` lists the nodes that compute the next state; the first state is `first(dtype)`."""

    def rule(g, node):
        axis, reverse = int(node.params["axis"]), int(node.params["reverse"])
        names, wider = zip(*(widened(g, g.value(x), x.dtype) for x in node.inputs), strict=True)
        dtype = wider[0]
        rest = [n for i, n in enumerate(node.shape) if i != axis]
        start = g.add("Expand", g.scalar(first(dtype), dtype), g.extents(rest)) if rest else g.scalar(first(dtype), dtype)
        body = _body(g, step, len(names), dtype)
        count = len(names)
        _, states = g.add(
            "Scan", start, *names, count=2, body=body, num_scan_inputs=count, scan_input_axes=[axis] * count, scan_output_axes=[axis],
            scan_input_directions=[reverse] * count, scan_output_directions=[reverse],
        )  # fmt: skip
        return _narrowed(g, states, dtype, node.dtype)

    return rule


def _body(g, step, count, dtype):
    def value(name):
        return helper.make_tensor_value_info(name, onnx_type(dtype), None)

    state, following, seen = g.fresh("state"), g.fresh("next"), g.fresh("seen")
    elements = [g.fresh("element") for _ in range(count)]
    nodes = step(state, *elements, following)
    nodes.append(helper.make_node("Identity", [following], [seen]))
    return helper.make_graph(nodes, g.fresh("step"), [value(n) for n in (state, *elements)], [value(following), value(seen)])


def _one(operator):
    return lambda state, x, following: [helper.make_node(operator, [state, x], [following])]


def _affine(state, a, b, following):
    product = f"{following}:product"
    return [helper.make_node("Mul", [state, a], [product]), helper.make_node("Add", [product, b], [following])]


RULES = {
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_prod": _reduce("ReduceProd"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_and": _reduce("ReduceMin"),
    "reduce_or": _reduce("ReduceMax"),
    "argmax": _argument("ArgMax"),
    "argmin": _argument("ArgMin"),
    "reduce_window": _reduce_window,
    "cumsum": _cumsum,
    "cumprod": _running(lambda dtype: 1, _one("Mul")),
    "cummax": _running(dtypes.least, _one("Max")),
    "cummin": _running(dtypes.greatest, _one("Min")),
    "linear_recurrence": _running(lambda dtype: 0, _affine),
}

_GRADIENT = "it belongs to gradients, which are not exported"
REFUSED = {name: _GRADIENT for name in ("window_argmax", "window_gather_sum", "window_pick")}
