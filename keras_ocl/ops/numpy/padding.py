"""keras.ops.numpy, padding."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, maximum, minimum
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy import reduction, statistics
from keras_ocl.ops.numpy.shapes import tile
from keras_ocl.ops.promotion import broadcast_to, operand, scalar_like
from keras_ocl.ops.result_types import dtype_of, result_type
from keras_ocl.ops.slicing import cut


def pad(x, pad_width, mode="constant", constant_values=None):
    """Padding around `x`: `pad_width` is (before, after) for each axis, or one pair or number for all.

    Modes are numpy.pad's: constant (0, or `constant_values`), empty (zeros), edge, linear_ramp (down to 0), maximum, mean, median,
    minimum, reflect, symmetric, wrap; circular is another name of wrap. ValueError for any other, and for an axis of extent 0 that has
    nothing to repeat.
    """
    x = convert_to_tensor(x)
    if constant_values is not None and mode != "constant":
        raise ValueError(f"Argument `constant_values` can only be provided when `mode == 'constant'`. Received: mode={mode}")
    widths = _pad_widths(pad_width, x.ndim)
    if mode in ("constant", "empty"):
        value = operand(0 if constant_values is None else constant_values)
        if x.dtype == "bool" and dtype_of(value) != "bool":
            x = convert_to_tensor(x, result_type(x.dtype, dtype_of(value))) if constant_values is not None else x
        value = convert_to_tensor(value, x.dtype)
        return P.pad(x, value, tuple(w[0] for w in widths), tuple(w[1] for w in widths))
    if mode not in _EXTENSIONS and mode not in _STATISTICS and mode not in ("wrap", "circular", "linear_ramp"):
        known = ", ".join(["constant", "empty", "wrap", "circular", "linear_ramp", *_EXTENSIONS, *_STATISTICS])
        raise ValueError(f"pad: mode {mode!r} is not supported; use one of {known}.")
    for axis, (low, high) in enumerate(widths):
        if x.shape[axis] == 0 and (low or high):
            raise ValueError(f"pad: mode {mode!r} repeats elements, but axis {axis} of shape {tuple(x.shape)} has none; use 'constant'.")
        if mode in ("wrap", "circular"):
            x = _wrap(x, axis, low, high)
        elif mode == "linear_ramp":
            x = _ramp(x, axis, low, high)
        elif mode in _STATISTICS:
            x = _level(x, axis, low, high, _STATISTICS[mode])
        else:
            x = _extend(x, axis, low, high, _EXTENSIONS[mode])
    return x


def _pad_widths(pad_width, rank):
    pad_width = pad_width.tolist() if isinstance(pad_width, (Tensor, np.ndarray)) else pad_width
    if isinstance(pad_width, int):
        return [(pad_width, pad_width)] * rank
    pairs = [tuple(w) if isinstance(w, (list, tuple, np.ndarray)) else w for w in pad_width]
    if len(pairs) == 2 and all(isinstance(w, int) for w in pairs):
        pairs = [tuple(pairs)]
    pairs = [(w, w) if isinstance(w, int) else w * 2 if len(w) == 1 else w for w in pairs]
    if len(pairs) == 1:
        pairs *= rank
    if len(pairs) != rank:
        raise ValueError(f"pad: pad_width {pad_width} does not fit a tensor of rank {rank}.")
    return [tuple(v if isinstance(v, int) else int(v) for v in w) for w in pairs]


def _reflected(x, axis, n, low, high):
    """At most n - 1 mirrored elements on each side, the edge itself not repeated."""
    low, high = minimum(low, n - 1), minimum(high, n - 1)
    return low, high, P.reverse(cut(x, axis, 1, low + 1), (axis,)), P.reverse(cut(x, axis, n - 1 - high, n - 1), (axis,))


def _mirrored(x, axis, n, low, high):
    low, high = minimum(low, n), minimum(high, n)
    return low, high, P.reverse(cut(x, axis, 0, low), (axis,)), P.reverse(cut(x, axis, n - high, n), (axis,))


def _edge(x, axis, n, low, high):
    return low, high, _spread(cut(x, axis, 0, 1), axis, low), _spread(cut(x, axis, n - 1, n), axis, high)


_EXTENSIONS = {"edge": _edge, "reflect": _reflected, "symmetric": _mirrored}


def _wrap(x, axis, low, high):
    """Whole copies, cut to the width wanted."""
    if not low and not high:
        return x
    n = x.shape[axis]
    before, after = ceil_div(low, n), ceil_div(high, n)
    copies = tile(x, tuple(before + 1 + after if i == axis else 1 for i in range(x.ndim)))
    start = before * n - low
    return cut(copies, axis, start, start + low + n + high)


def _extend(x, axis, low, high, extension):
    while low > 0 or high > 0:
        n = x.shape[axis]
        if n == 1 and extension is _reflected:
            extension = _edge
        done_low, done_high, before, after = extension(x, axis, n, low, high)
        parts = [p for p, extent in ((before, done_low), (x, n), (after, done_high)) if extent > 0]
        x = P.concat(parts, axis)
        low, high = low - done_low, high - done_high
    return x


def _spread(part, axis, extent):
    """A slice of extent 1 repeated along its axis."""
    return broadcast_to(part, tuple(extent if i == axis else n for i, n in enumerate(part.shape)))


def _level(x, axis, low, high, statistic):
    """On both sides what `statistic` makes of the axis; a mean is rounded for integers."""
    value = statistic(x, axis, keepdims=True)
    if value.dtype != x.dtype:
        value = P.convert(P.round(value) if dtypes.is_integer(x.dtype) else value, x.dtype)
    return P.concat([_spread(value, axis, low), x, _spread(value, axis, high)], axis)


_STATISTICS = {
    "maximum": reduction.max,
    "mean": reduction.mean,
    "median": statistics.median,
    "minimum": reduction.min,
}


def _ramp(x, axis, low, high):
    """From 0 at either end to the edge, in equal steps; rounded down for integers."""
    n = x.shape[axis]

    def side(edge, extent, outwards):
        compute = result_type(x.dtype, "float32")
        edge = _spread(convert_to_tensor(edge, compute), axis, extent)
        step = P.iota(edge.shape, axis, compute)
        if outwards:
            step = P.sub(scalar_like(extent - 1, step), step)
        values = P.mul(edge, P.div(step, scalar_like(maximum(extent, 1), step)))
        return P.convert(P.floor(values) if dtypes.is_integer(x.dtype) else values, x.dtype)

    first, last = cut(x, axis, 0, 1), cut(x, axis, n - 1, n)
    return P.concat([side(first, low, False), x, side(last, high, True)], axis)
