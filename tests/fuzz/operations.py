"""What random programs are made of: operations as `keras.ops` computes them, as NumPy does in float64, and how parameters are drawn."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from keras import ops
from scipy import special

from keras_ocl.kernels.elementwise import OPS
from tests.elementwise import ROWS

OPERATIONS = {}
MOST = 4096  # elements of a result


@dataclass(frozen=True)
class Operation:
    """
    ours, theirs: functions (operands..., **params) on Tensors, and on arrays of float64.
    draw: (draw, shapes of the operands) -> params, or None where the operation does not apply.
    exact: whether integers stay integers.
    """

    name: str
    arity: int
    ours: Callable
    theirs: Callable
    draw: Callable
    exact: bool


_EXACT = """abs negative square relu sign add subtract multiply maximum minimum sum max min cumsum sort transpose reshape slice flip roll
    pad concatenate stack tile take broadcast_to matmul""".split()


def operation(name, ours, theirs, draw=lambda draw, *shapes: {}, arity=1):
    """Adds one to OPERATIONS."""
    OPERATIONS[name] = Operation(name, arity, ours, theirs, draw, name in _EXACT)


def elements(shape):
    return math.prod(shape)


# ---- elementwise


def _broadcasts(draw, a, b):
    try:
        return {} if elements(np.broadcast_shapes(a, b)) <= MOST else None
    except ValueError:
        return None


def _in_domain(function, domain):
    return lambda *operands: function(*(f(x) for f, x in zip(domain, operands, strict=False)))


for _name, _row in ROWS.items():
    if _row.keras is not None:
        _ours, _theirs = _in_domain(getattr(ops, _row.keras), _row.domain), _in_domain(_row.floats, _row.domain)
        if OPS[_name].arity == 1:
            operation(_row.keras, _ours, _theirs)
        else:
            operation(_row.keras, _ours, _theirs, _broadcasts, 2)

for _name, _ours, _theirs in [
    ("square", ops.square, np.square),
    ("softplus", ops.softplus, lambda x: np.logaddexp(x, 0)),
    ("gelu", lambda x: ops.gelu(x, approximate=False), lambda x: x * 0.5 * (1 + special.erf(x / math.sqrt(2)))),
    ("exp of a limit", lambda x: ops.exp(ops.minimum(x, 3.0)), lambda x: np.exp(np.minimum(x, 3.0))),
    ("clip", lambda x: ops.clip(x, -0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
]:
    operation(_name, _ours, _theirs)

for _name, _ours, _theirs in [
    ("divide", lambda a, b: ops.divide(a, ops.abs(b) + 0.5), lambda a, b: a / (np.abs(b) + 0.5)),
    ("arctan2", lambda a, b: ops.arctan2(a, ops.abs(b) + 0.25), lambda a, b: np.arctan2(a, np.abs(b) + 0.25)),  # not at (0, 0)
    ("where greater", lambda a, b: ops.where(ops.greater(a, b), a * 2, b), lambda a, b: np.where(np.greater(a, b), a * 2, b)),
]:
    operation(_name, _ours, _theirs, _broadcasts, 2)


# ---- reductions, and what runs along an axis


def _axes(draw, shape, least=0):
    """A subset of the axes, all of extents of at least `least`."""
    fit = [i for i, n in enumerate(shape) if n >= least]
    if not fit:
        return None
    return {"axis": tuple(sorted(draw(st.sets(st.sampled_from(fit), min_size=1)))), "keepdims": draw(st.booleans())}


def _some(draw, shape):
    return _axes(draw, shape, 1)


for _name, _ours, _theirs, _draw in [
    ("sum", ops.sum, np.sum, _axes),
    ("mean", ops.mean, np.mean, _some),
    ("max", ops.max, np.max, _some),
    ("min", ops.min, np.min, _some),
    ("var", ops.var, np.var, _some),
    (
        "logsumexp",
        ops.logsumexp,
        lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims)),
        lambda draw, shape: _some(draw, shape) if elements(shape) else None,
    ),
]:
    operation(_name, _ours, _theirs, _draw)


def _axis(draw, shape, least=1):
    fit = [i for i, n in enumerate(shape) if n >= least]
    return {"axis": draw(st.sampled_from(fit))} if fit else None


def _exponentials(x, axis):
    """(x less its maximum, the sum of the exponentials); both are NaN where that is infinite, as in TensorFlow."""
    shifted = x - (x.max(axis, keepdims=True) if x.size else 0.0)
    return shifted, np.exp(shifted).sum(axis, keepdims=True)


def _softmax(x, axis):
    shifted, total = _exponentials(x, axis)
    return np.exp(shifted) / total


def _log_softmax(x, axis):
    shifted, total = _exponentials(x, axis)
    return shifted - np.log(total)


operation("cumsum", ops.cumsum, np.cumsum, _axis)
operation("sort", ops.sort, np.sort, _axis)
operation("softmax", ops.softmax, _softmax, _axis)
operation("log_softmax", ops.log_softmax, _log_softmax, _axis)
operation(
    "standardized",
    lambda x, axis: (x - ops.mean(x, axis, keepdims=True)) * ops.rsqrt(ops.var(x, axis, keepdims=True) + 0.1),
    lambda x, axis: (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 0.1),
    _axis,
)


# ---- movement


def _permutation(draw, shape):
    return {"axes": tuple(draw(st.permutations(range(len(shape)))))} if len(shape) > 1 else None


def _new_shape(draw, shape):
    """The same elements in another shape: two axes joined, one split, ones put in."""
    shape = list(shape)
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(["join", "split", "one"]))
        if what == "join" and len(shape) > 1:
            at = draw(st.integers(0, len(shape) - 2))
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif what == "split" and shape and len(shape) < 5:
            at = draw(st.integers(0, len(shape) - 1))
            factors = [d for d in range(1, max(shape[at], 1) + 1) if shape[at] % d == 0]
            d = draw(st.sampled_from(factors))
            shape[at : at + 1] = [d, shape[at] // d]
        elif len(shape) < 5:
            shape.insert(draw(st.integers(0, len(shape))), 1)
    if shape and 0 not in shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return {"newshape": tuple(shape)}


def _slices(draw, shape):
    """As (start, stop, step) of each axis."""
    bound = st.none() | st.integers(-9, 9)
    return {"parts": tuple((draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))) for _ in shape)} if shape else None


def _sliced(x, parts):
    return x[tuple(slice(*p) for p in parts)]


def _widths(draw, shape):
    widths = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in shape)
    return {"pad_width": widths} if shape and math.prod(n + a + b for n, (a, b) in zip(shape, widths, strict=True)) <= MOST else None


def _reflected(draw, shape):
    if not shape or 0 in shape or elements(shape) > MOST // 8:
        return None
    width = [st.integers(0, min(2, n - 1)) for n in shape]
    return {"pad_width": tuple((draw(w), draw(w)) for w in width), "mode": "reflect"}


def _fits(draw, a, b):
    """An axis along which two shapes may be joined."""
    fit = [i for i in range(len(a)) if len(a) == len(b) and a[:i] + a[i + 1 :] == b[:i] + b[i + 1 :]]
    return {"axis": draw(st.sampled_from(fit))} if fit and elements(a) + elements(b) <= MOST else None


def _repeats(draw, shape):
    repeats = tuple(draw(st.integers(1, 3)) for _ in shape)
    return {"repeats": repeats} if shape and elements(shape) * math.prod(repeats) <= MOST else None


def _indices(draw, shape):
    fit = [i for i, n in enumerate(shape) if n]
    if not fit or elements(shape) > MOST // 8:
        return None
    axis = draw(st.sampled_from(fit))
    return {"indices": draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=6)), "axis": axis}


def _wider(draw, shape):
    target = [n if n != 1 else draw(st.sampled_from([1, 3, 8])) for n in shape]
    target = [draw(st.sampled_from([1, 2, 5])) for _ in range(draw(st.integers(0, 4 - min(4, len(shape)))))] + target
    return {"shape": tuple(target)} if elements(target) <= MOST else None


operation("transpose", ops.transpose, np.transpose, _permutation)
operation("reshape", ops.reshape, lambda x, newshape: np.reshape(x, newshape), _new_shape)
operation("slice", _sliced, _sliced, _slices)
operation("flip", ops.flip, np.flip, _axis)
operation("roll", lambda x, axis: ops.roll(x, 2, axis), lambda x, axis: np.roll(x, 2, axis), _axis)
operation("pad", ops.pad, np.pad, _widths)
operation("pad by reflection", ops.pad, np.pad, _reflected)
operation("concatenate", lambda a, b, axis: ops.concatenate([a, b], axis), lambda a, b, axis: np.concatenate([a, b], axis), _fits, 2)
operation(
    "stack",
    lambda a, b, axis: ops.stack([a, b], axis),
    lambda a, b, axis: np.stack([a, b], axis),
    lambda draw, a, b: {"axis": draw(st.integers(0, len(a)))} if a == b and elements(a) <= MOST // 2 and len(a) < 5 else None,
    2,
)
operation("tile", ops.tile, lambda x, repeats: np.tile(x, repeats), _repeats)
operation("take", ops.take, np.take, _indices)
operation("broadcast_to", ops.broadcast_to, np.broadcast_to, _wider)


# ---- products


def _products(draw, a, b):
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2] or _broadcasts(draw, a[:-2], b[:-2]) is None:
        return None
    return {} if elements(np.broadcast_shapes(a[:-2], b[:-2])) * a[-2] * b[-1] <= MOST else None


operation("matmul", ops.matmul, np.matmul, _products, 2)
operation(
    "products of rows",
    lambda x: ops.matmul(x, ops.swapaxes(x, -1, -2)) * 0.25,
    lambda x: np.matmul(x, np.swapaxes(x, -1, -2)) * 0.25,
    lambda draw, shape: {} if len(shape) > 1 and elements(shape[:-1]) * shape[-2] <= MOST else None,
)


def _filter(kernel, outputs, channels, seed):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (*kernel, channels, outputs)).astype("float32")


def _padded(x, kernel, strides, dilation, padding, value=0.0):
    """`x` with what padding="same" puts around it."""
    widths = [(0, 0)]
    for n, k, s in zip(x.shape[1:-1], kernel, strides, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * dilation + 1 - n, 0) if padding == "same" else 0
        widths.append((total // 2, total - total // 2))
    return np.pad(x, [*widths, (0, 0)], constant_values=value)


def _windows(x, kernel, strides, dilation):
    """For each tap of the kernel, what it meets: (tap, elements of x)."""
    extents = [(n - (k - 1) * dilation - 1) // s + 1 for n, k, s in zip(x.shape[1:-1], kernel, strides, strict=True)]
    for tap in itertools.product(*map(range, kernel)):
        part = [slice(t * dilation, t * dilation + (e - 1) * s + 1, s) for t, e, s in zip(tap, extents, strides, strict=True)]
        yield tap, x[(slice(None), *part)]


def _conv(x, kernel, outputs, seed, strides, padding, dilation):
    w = _filter(kernel, outputs, x.shape[-1], seed).astype(float)
    return sum(part @ w[tap] for tap, part in _windows(_padded(x, kernel, strides, dilation, padding), kernel, strides, dilation))


def _our_conv(x, kernel, outputs, seed, strides, padding, dilation):
    w = ops.cast(_filter(kernel, outputs, x.shape[-1], seed), x.dtype)
    return ops.conv(x, w, strides if len(set(strides)) > 1 else strides[0], padding, "channels_last", dilation)


def _window(draw, shape, reach=1):
    """A kernel, strides and padding that fit a channels-last shape."""
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    padding = draw(st.sampled_from(["valid", "same"]))
    kernel = tuple(draw(st.integers(1, 4)) for _ in shape[1:-1])
    if any((k - 1) * reach + 1 > n for k, n in zip(kernel, shape[1:-1], strict=True)):
        return None
    return {"kernel": kernel, "strides": tuple(draw(st.integers(1, 3)) for _ in kernel), "padding": padding}


def _convolution(draw, shape):
    dilation = draw(st.sampled_from([1, 1, 2]))
    found = _window(draw, shape, dilation)
    if found is None or (dilation > 1 and max(found["strides"]) > 1):
        return None
    outputs = draw(st.sampled_from([1, 3, 8, 17]))
    if elements(shape[:-1]) * outputs > MOST:
        return None
    return found | {"outputs": outputs, "seed": draw(st.integers(0, 9)), "dilation": dilation}


def _max_pool(x, kernel, strides, padding):
    x = _padded(x, kernel, strides, 1, padding, -np.inf)
    return np.max([part for _, part in _windows(x, kernel, strides, 1)], axis=0)


def _average_pool(x, kernel, strides, padding):
    parts, ones = _padded(x, kernel, strides, 1, padding), _padded(np.ones_like(x), kernel, strides, 1, padding)
    total = sum(part for _, part in _windows(parts, kernel, strides, 1))
    return total / sum(part for _, part in _windows(ones, kernel, strides, 1))


operation("conv", _our_conv, _conv, _convolution)
operation("max_pool", lambda x, kernel, strides, padding: ops.max_pool(x, kernel, strides, padding, "channels_last"), _max_pool, _window)
operation(
    "average_pool",
    lambda x, kernel, strides, padding: ops.average_pool(x, kernel, strides, padding, "channels_last"),
    _average_pool,
    _window,
)
