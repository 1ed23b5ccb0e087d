"""ONNX for matrix products and convolutions."""

from keras_ocl.core.dim import Dim, product
from keras_ocl.export.onnx.rules.movement import padded, spread
from keras_ocl.export.onnx.rules.reduce import widened


def _dot_general(g, node):
    """One MatMul: on the left free axes before contracted ones, on the right contracted before free ones, each set of axes merged."""
    (ac, bc), (ab, bb) = node.params["contract"], node.params["batch"]
    a, b = node.inputs
    af, bf = ([i for i in range(len(x.shape)) if i not in used] for x, used in ((a, (*ac, *ab)), (b, (*bc, *bb))))
    left, right, dtype = g.value(a), g.value(b), node.dtype
    if a.dtype != dtype:
        left = g.cast(left, dtype)
    if b.dtype != dtype:
        right = g.cast(right, dtype)
    left, wider = widened(g, left, dtype)
    right, _ = widened(g, right, dtype)
    left, right = g.transpose(left, (*ab, *af, *ac)), g.transpose(right, (*bb, *bc, *bf))
    batch = [a.shape[i] for i in ab]
    rows, columns, inner = [a.shape[i] for i in af], [b.shape[i] for i in bf], [a.shape[i] for i in ac]
    if ab and len(rows) != 1:
        rows = [product(rows)]
    if ab and len(columns) != 1 or len(columns) > 1:
        columns = [product(columns)]
    if len(rows) != len(af) or len(ac) != 1:
        left = g.reshape(left, [*batch, *rows, product(inner)])
    if len(columns) != len(bf) or len(ac) != 1:
        right = g.reshape(right, [*batch, product(inner), *columns])
    result = g.add("MatMul", left, right)
    if len(rows) != len(af) or len(columns) != len(bf):
        result = g.reshape(result, node.shape)
    return result if wider == dtype else g.cast(result, dtype)


# ---- convolutions: channels are last here, and first in ONNX


def _first(rank):
    """Permutation from channels last to channels first."""
    return (0, rank + 1, *range(1, rank + 1))


def _last(rank):
    return (0, *range(2, rank + 2), 1)


def _filter(g, node, w):
    """The filter as (filters, input channels per group, *window); in our order the last two axes are input channels and filters."""
    rank = len(w.shape) - 2
    return g.transpose(g.value(w), (rank + 1, rank, *range(rank)))


def _attributes(node, window, pads):
    p = node.params
    attributes = {"kernel_shape": [int(k) for k in window], "group": int(p["groups"]), "strides": [int(s) for s in p["strides"]]}
    if any(d > 1 for d in p["dilation"]):
        attributes["dilations"] = [int(d) for d in p["dilation"]]
    if any(any(pair) for pair in pads):
        attributes["pads"] = [int(pair[side]) for side in (0, 1) for pair in pads]
    return attributes


def _plain(pads):
    """Whether ONNX's padding attribute can represent the padding: known and not negative."""
    return all(not isinstance(n, Dim) and n >= 0 for pair in pads for n in pair)


def _conv(g, node):
    x, w = node.inputs
    rank = len(w.shape) - 2
    pads, name, zero = node.params["padding"], g.value(x), g.scalar(0, node.dtype)
    name, shape = spread(g, name, x.shape, (0, *(d - 1 for d in node.params["input_dilation"]), 0), zero)
    if not _plain(pads):
        name = padded(g, name, zero, [0, *(low for low, _ in pads), 0], [0, *(high for _, high in pads), 0])
        pads = ((0, 0),) * rank
    y = g.add("Conv", g.transpose(name, _first(rank)), _filter(g, node, w), **_attributes(node, w.shape[:-2], pads))
    return g.transpose(y, _last(rank))


def _conv_input_grad(g, node):
    """A ConvTranspose without padding, whose result is then cropped by the padding."""
    dy, w = node.inputs
    p, rank, window = node.params, len(w.shape) - 2, w.shape[:-2]
    if any(d != 1 for d in p["input_dilation"]):
        raise NotImplementedError(f"ONNX export: the gradient of a convolution with dilated input in {g.where()} has no ONNX operator.")
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(dy.shape[1:-1], p["strides"], window, p["dilation"], strict=True)]
    pads = [(low, whole - low - n) for (low, _), whole, n in zip(p["padding"], full, node.shape[1:-1], strict=True)]
    inside = _plain(pads)
    operands = g.transpose(g.value(dy), _first(rank)), _filter(g, node, w)
    y = g.add("ConvTranspose", *operands, **_attributes(node, window, pads if inside else ((0, 0),) * rank))
    y = g.transpose(y, _last(rank))
    if inside:
        return y
    return padded(g, y, g.scalar(0, node.dtype), [0, *(-low for low, _ in pads), 0], [0, *(-high for _, high in pads), 0])


def _det(g, node):
    return g.add("Det", g.value(node.inputs[0]))


RULES = {"dot_general": _dot_general, "conv": _conv, "conv_input_grad": _conv_input_grad, "det": _det}

_FACTORS = "ONNX has no such decomposition"
REFUSED = {
    name: _FACTORS
    for name in ("cholesky", "cofactor", "inverse", "slogdet", "solve", "triangular_solve", "pinv", "qr", "svd", "eigh", "eig", "lu")
} | {"conv_filter_grad": "it belongs to gradients, which are not exported"}
