"""Convolutions with both gradients: direct, pointwise, depthwise, grouped, dilated, strided, transposed; in one to three dimensions."""

import itertools
from dataclasses import dataclass

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import normal, wide


@dataclass(frozen=True)
class _Geometry:
    """A convolution: `size` (n, *spatial, channels), `window`, output channels, and for each spatial dimension the stride and the like."""

    name: str
    size: tuple
    window: tuple
    outputs: int
    stride: int = 1
    padding: tuple = (1, 1)
    dilation: int = 1
    groups: int = 1
    dtype: str = "float32"

    @property
    def filter(self):
        return (*self.window, self.size[-1] // self.groups, self.outputs)

    @property
    def keywords(self):
        rank = len(self.window)
        each = {"strides": self.stride, "padding": self.padding, "dilation": self.dilation, "input_dilation": 1}
        return {**{name: (value,) * rank for name, value in each.items()}, "groups": self.groups}

    @property
    def result(self):
        return P.conv_output_shape(self.size, self.filter, **self.keywords)


_DIRECT = (
    _Geometry("3 x 3", (3, 13, 15, 5), (3, 3), 7),
    _Geometry("3 x 3 of 32 channels", (2, 17, 16, 32), (3, 3), 40),
    _Geometry("5 x 5, stride 2", (2, 21, 19, 16), (5, 5), 24, 2, (2, 1)),
    _Geometry("1 x 1", (2, 9, 11, 64), (1, 1), 72, 1, (0, 0)),
    _Geometry("depthwise", (2, 14, 13, 24), (3, 3), 24, groups=24),
    _Geometry("of 2 groups", (2, 10, 11, 16), (3, 3), 24, groups=2),
    _Geometry("dilated", (1, 20, 18, 8), (3, 3), 12, 1, (2, 2), 2),
    _Geometry("of 1 channel", (2, 28, 28, 1), (3, 3), 32, 1, (0, 0)),
    _Geometry("in 1 dimension", (3, 101, 12), (5,), 20, 2, (2, 2)),
    _Geometry("in 3 dimensions", (1, 7, 8, 9, 4), (3, 3, 3), 6),
    _Geometry("1 x 1, stride 2", (2, 10, 10, 48), (1, 1), 64, 2, (0, 0)),
)
_SHORT = (0, 2, 4)
_DEPTHWISE = _Geometry("depthwise, 40 channels", (4, 14, 13, 40), (3, 3), 40, groups=40)


def cases(traits, short):
    """The cases of convolutions without Winograd's algorithm."""
    geometries = [_DIRECT[k] for k in _SHORT] if short else list(_DIRECT)
    activated = [_activated(_DEPTHWISE)] + ([] if short else [_activated(_DIRECT[k]) for k in (0, 1, 3, 5)])
    return [_case(g) for g in geometries] + activated + ([] if short else of_units(traits, short))


def of_units(traits, short):
    """The cases of convolutions whose operands matrix units take."""
    return [_case(_Geometry("of float16", (2, 13, 15, 32), (3, 3), 32, dtype="float16"))]


def winograd(traits, short):
    """The cases of Winograd's algorithm, large enough for all compute units."""
    side = 30 if traits.compute_units <= 4 else 58
    channels, count = (64, 64), max(1, min(traits.compute_units // 8, 16))
    found = [_case(_Geometry("3 x 3 of 64 channels", (count, side, side, channels[0]), (3, 3), channels[1]))]
    if not short:
        found += [
            _case(_Geometry("3 x 3 without a border", (count, side + 1, side + 3, 32), (3, 3), 96, 1, (0, 0))),
            _case(_Geometry("3 x 3 of 128 channels", (4 * count, 15, 17, 128), (3, 3), 128)),
        ]
    return found


def _case(g):
    """A convolution, the gradient of its input (a transposed convolution) and that of its filter."""
    x, w, dy = (normal(name, *shape, dtype=g.dtype) for name, shape in (("x", g.size), ("w", g.filter), ("dy", g.result)))

    def function(x, w, dy):
        y = P.conv(x, w, **g.keywords)
        return [y, P.conv_input_grad(dy, w, g.size, **g.keywords), P.conv_filter_grad(x, dy, g.filter, **g.keywords)]

    def wanted():
        return _of(g, wide(x), wide(w), wide(dy))

    def scales():
        return _of(g, abs(wide(x)), abs(wide(w)), abs(wide(dy)))

    pixels = g.result[0] * int(np.prod(g.result[1:-1]))
    names = ("forward", "gradient of the input", "gradient of the filter")
    return Case(f"convolution {g.name}", function, (x, w, dy), wanted, 16 + pixels**0.5, scales, names)


def _activated(g):
    """The gradient of a filter whose kernel may compute the input, an activation, where it loads or packs it."""
    x, dy = normal("x", *g.size), normal("dy", *g.result)

    def function(x, dy):
        return P.conv_filter_grad(P.max(x, P.full(x.shape, 0, "float32")), dy, g.filter, **g.keywords)

    def wanted(x, dy):
        return _of(g, np.maximum(wide(x), 0), np.zeros(g.filter), dy)[2:]

    pixels = g.result[0] * int(np.prod(g.result[1:-1]))
    name = f"gradient of the filter after an activation: {g.name}"
    return Case(name, function, (x, dy), lambda: wanted(x, wide(dy)), 16 + pixels**0.5, lambda: wanted(x, abs(wide(dy))))


def _of(g, x, w, dy):
    """(forward, gradient of the input, gradient of the filter) as sums over the taps."""
    low, high = g.padding
    padded = np.pad(x, ((0, 0), *[(low, high)] * len(g.window), (0, 0)))
    y, dx, dw = np.zeros(g.result), np.zeros_like(padded), np.zeros_like(w)
    parts = [
        (slice(k * g.filter[-2], (k + 1) * g.filter[-2]), slice(k * g.outputs // g.groups, (k + 1) * g.outputs // g.groups))
        for k in range(g.groups)
    ]
    for tap in itertools.product(*map(range, g.window)):
        at = tuple(
            slice(k * g.dilation, k * g.dilation + (n - 1) * g.stride + 1, g.stride) for k, n in zip(tap, g.result[1:-1], strict=True)
        )
        seen = padded[:, *at]
        for some, out in parts:
            y[..., out] += seen[..., some] @ w[tap][:, out]
            dx[:, *at][..., some] += dy[..., out] @ w[tap][:, out].T
            dw[tap][:, out] += seen[..., some].reshape(-1, g.filter[-2]).T @ dy[..., out].reshape(-1, g.outputs // g.groups)
    inner = tuple(slice(low, n - high or None) for n in padded.shape[1:-1])
    return [y, dx[:, *inner], dw]
