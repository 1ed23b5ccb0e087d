"""What products and convolutions of small integers give, by NumPy: exactly, so that kernels are right to the last bit or wrong."""

import itertools
from dataclasses import replace

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.kernels.gemm.parts import Problem as Product

_MOST = 2  # largest operand
_ROUNDED = 1e-5  # rounding of a result, as a part of the largest one


def filled(buffer, rng):
    """A flat NumPy array for an operand's Buffer, of integers from -2 to 2."""
    return rng.integers(-_MOST, _MOST + 1, int(buffer.elements), np.int8).astype(dtypes.numpy_dtype(buffer.dtype))


class Expected:
    """What a kernels' problem `p` of a Problem gives, to compare results with.

    Each row of a result, along its last axis, is compared by its product with random weights (Freivalds 1977), which takes a small part of
    the time that the rows themselves would take: of many wrong results hardly one has the same product.

    Args:
        arrays: the flat operands by name.
    """

    def __init__(self, problem, p, arrays):
        rng = np.random.default_rng(1)
        if isinstance(p, Product):
            self._groups, self._weights = 1, _weights(rng, int(p.n))
            self._products = _product(p, arrays, self._weights)
            return
        g = p.geometry
        self._groups, self._weights = g.groups, _weights(rng, int(g.output[-1]))
        x = arrays["x"].astype(np.float64).reshape(tuple(map(int, g.input)))
        one = replace(g, filter=(*g.filter[:-1], g.groups), output=(*g.output[:-1], g.groups))  # an output channel for each group
        if problem.operation == "convolution":
            self._products = _convolution(one, x, self._weighted(_filter(p, arrays["w"])))
        else:
            dy = arrays["dy"].reshape(tuple(map(int, g.output)))
            self._products = _filter_gradient(one, x, self._weighted(dy))

    def wrong(self, found):
        """What is wrong with a result, as a clause; "" where nothing is."""
        products = self._weighted(found)
        off = products != self._products
        if off.any():  # Winograd's algorithm divides; everything else is exact
            least = _ROUNDED * np.abs(found).max() * np.linalg.norm(self._weights)
            off = ~(np.abs(products - self._products) <= least)
        if not off.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(off)[0])
        return f"row {list(at[:-1])} of the result is wrong, as are {off.sum()} of {off.size}"

    def _weighted(self, array):
        """(..., channels) as (..., groups): the products of each group's channels with their weights."""
        grouped = array.reshape(*array.shape[:-1], self._groups, -1).astype(np.float64)
        return np.einsum("...go,go->...g", grouped, self._weights.reshape(self._groups, -1))


def _weights(rng, count):
    """Weights for so many channels, none of them near 0."""
    return rng.integers(500, 1000, count).astype(np.float64) * rng.choice((-1.0, 1.0), count)


def _product(p, arrays, weights):
    """(batch, rows, 1), or (rows, 1): the product's rows times the weights of its columns."""
    batch = 1 if p.batch is None else int(p.batch)

    def matrices(operand, rows, columns):
        array = arrays["a" if operand is p.a else "b"]
        strides = [int(n) * array.itemsize for n in (operand.batch_stride, operand.row_stride, operand.column_stride)]
        return np.lib.stride_tricks.as_strided(array, (batch, int(rows), int(columns)), strides)

    right = np.stack([matrix.astype(np.float64) @ weights for matrix in matrices(p.b, p.k, p.n)])
    found = np.stack([left.astype(np.float64) @ column for left, column in zip(matrices(p.a, p.m, p.k), right, strict=True)])
    return found[..., None] if p.batch is not None else found[0][:, None]


def _filter(p, w):
    """The filter in the order of its geometry; a transposed problem has that of the other convolution."""
    *taps, inputs, outputs = map(int, p.geometry.filter)
    if not p.transposed:
        return w.reshape((*taps, inputs, outputs))
    groups = p.geometry.groups
    w = w.reshape((*taps, outputs // groups, groups, inputs))[(slice(None, None, -1),) * len(taps)]
    return w.swapaxes(-1, -3).reshape((*taps, inputs, outputs))


def _windows(g, x):
    """Yields (a tap's index, the input positions that the outputs read at it) of an input with its padding."""
    rank, pads = g.rank, []
    spread = np.zeros((x.shape[0], *((n - 1) * s + 1 for n, s in zip(x.shape[1:-1], g.input_dilation, strict=True)), x.shape[-1]), x.dtype)
    spread[(slice(None), *(slice(None, None, s) for s in g.input_dilation))] = x
    for i in range(rank):
        low = int(g.padding[i][0])
        reach = (int(g.output[i + 1]) - 1) * g.strides[i] + (int(g.filter[i]) - 1) * g.dilation[i] + 1
        pads.append((max(0, low), max(0, reach - low - spread.shape[i + 1]), max(0, -low), reach))
    padded = np.pad(spread, [(0, 0), *((low, high) for low, high, _, _ in pads), (0, 0)])
    padded = padded[(slice(None), *(slice(first, first + reach) for _, _, first, reach in pads))]
    for tap in itertools.product(*(range(int(n)) for n in g.filter[:rank])):
        starts = [t * d for t, d in zip(tap, g.dilation, strict=True)]
        ends = [s + (int(n) - 1) * stride + 1 for s, n, stride in zip(starts, g.output[1:-1], g.strides, strict=True)]
        yield tap, padded[(slice(None), *(slice(*bounds) for bounds in zip(starts, ends, g.strides, strict=True)))]


def _grouped(array, groups):
    """(..., channels) as (groups, rows, channels of a group)."""
    return np.moveaxis(array.reshape(-1, groups, array.shape[-1] // groups), 1, 0)


def _convolution(g, x, w):
    y = np.zeros((g.groups, int(np.prod(g.output[:-1])), g.group_outputs), x.dtype)
    for tap, window in _windows(g, x):
        y += _grouped(window, g.groups) @ np.moveaxis(w[tap].reshape(g.group_inputs, g.groups, g.group_outputs), 1, 0)
    return np.moveaxis(y, 0, 1).reshape(tuple(map(int, g.output)))


def _filter_gradient(g, x, dy):
    dw, dy = np.zeros(tuple(map(int, g.filter)), x.dtype), _grouped(dy, g.groups)
    for tap, window in _windows(g, x):
        one = _grouped(window, g.groups).swapaxes(1, 2) @ dy  # (groups, inputs, outputs)
        dw[tap] = np.moveaxis(one, 0, 1).reshape(dw[tap].shape)
    return dw
