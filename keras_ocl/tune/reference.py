"""What products and convolutions of small integers give, by NumPy: exactly, so that kernels are right bit for bit or wrong."""

import itertools

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.kernels.gemm.parts import Problem as Product

_MOST = 2  # largest operand


def filled(buffer, rng):
    """A flat NumPy array for an operand's Buffer, of integers from -2 to 2."""
    return rng.integers(-_MOST, _MOST + 1, int(buffer.elements), np.int8).astype(dtypes.numpy_dtype(buffer.dtype))


def result(problem, p, arrays):
    """The result of a kernels' problem `p` of a Problem, for flat `arrays` by operand, as float32 or float64 that hold it exactly."""
    if isinstance(p, Product):
        return _product(p, arrays)
    g = p.geometry
    terms = np.prod(g.filter[:-1]) if problem.operation == "convolution" else np.prod(g.output[:-1])
    dtype = _exact(terms)
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    x = arrays["x"].reshape(tuple(map(int, g.input)))
    if problem.operation == "convolution":
        return _convolution(g, x, _filter(p, arrays["w"]))
    return _filter_gradient(g, x, arrays["dy"].reshape(tuple(map(int, g.output))))


def _exact(terms):
    """The dtype whose sums of so many products are exact."""
    return np.float32 if _MOST * _MOST * int(terms) < 2**24 else np.float64


def _product(p, arrays):
    batch = 1 if p.batch is None else int(p.batch)

    def matrices(operand, rows, columns):
        array = arrays["a" if operand is p.a else "b"].astype(_exact(p.k))
        strides = [int(n) * array.itemsize for n in (operand.batch_stride, operand.row_stride, operand.column_stride)]
        return np.lib.stride_tricks.as_strided(array, (batch, int(rows), int(columns)), strides)

    found = matrices(p.a, p.m, p.k) @ matrices(p.b, p.k, p.n)
    return found[0] if p.batch is None else found


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
