"""Reductions of rows, columns and all elements; softmax and normalisations."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import floats, integers, normal, wide

_SHAPES = (  # of the operand, and the axes to reduce
    ((33, 1000), (1,)),
    ((3, 40001), (1,)),
    ((1000, 33), (0,)),
    ((20001, 5), (0,)),
    ((100003,), (0,)),
    ((7, 129, 11), (1,)),
    ((6, 9, 10, 37), (0, 1, 2)),
    ((5, 3, 8, 7), (1, 3)),
)


def cases(traits, short):
    """The cases of reductions."""
    shapes = [_SHAPES[k] for k in (0, 2, 4, 6)] if short else _SHAPES
    found = [case for dtype in floats(traits, short) for shape, axes in shapes for case in _sums(dtype, shape, axes)]
    found += [case for shape, axes in shapes for case in _extremes(shape, axes)]
    for shape in [(37, 203)] if short else [(37, 203), (5, 3001), (700, 10)]:
        found += _rows(shape)
    return found


def _sums(dtype, shape, axes):
    x = normal("summed", *shape, dtype=dtype)
    count = int(np.prod([shape[axis] for axis in axes]))

    def function(x):
        return [
            P.reduce_sum(x, axes),
            P.reduce_sum(P.mul(P.convert(x, "float32"), P.convert(x, "float32")) if dtype == "float16" else P.mul(x, x), axes),
        ]

    def wanted():
        return [wide(x).sum(axes), (wide(x) ** 2).sum(axes)]

    def scales():
        return [abs(wide(x)).sum(axes), (wide(x) ** 2).sum(axes)]

    yield Case(f"sums of {dtype} {list(shape)} along {list(axes)}", function, (x,), wanted, 4 + count**0.5 / 4, scales)


def _extremes(shape, axes):
    x, whole = normal("extremes", *shape), integers("extremes", -(2**31), 2**31 - 1, *shape)
    flags = integers("flags", 0, 50, *shape) > 0

    def function(x, whole, flags):
        found = [
            P.reduce_max(x, axes),
            P.reduce_min(x, axes),
            P.reduce_sum(whole, axes),
            P.reduce_max(whole, axes),
            P.reduce_and(flags, axes),
        ]
        return found + [P.argmax(x, axes[-1]), P.argmin(whole, axes[-1])]

    def wanted():
        found = [x.max(axes), x.min(axes), whole.sum(axes, dtype=np.int32), whole.max(axes), flags.all(axes)]
        return found + [x.argmax(axes[-1]), whole.argmin(axes[-1])]

    names = ("maximum", "minimum", "sum of int32", "maximum of int32", "all", "argmax", "argmin of int32")
    yield Case(f"extremes and integers {list(shape)} along {list(axes)}", function, (x, whole, flags), wanted, names=names)


def _rows(shape):
    """Softmax, and the normalisation of rows and of columns, whose results have the operands' shape."""
    x, row = normal("normalised", *shape, scale=3), normal("row", shape[1])
    rows, columns = shape

    def over(x, axis):
        return P.broadcast(x, shape, (1 - axis,))

    def mean(x, axis):
        return P.mul(P.reduce_sum(x, (axis,)), P.full((shape[1 - axis],), 1 / shape[axis], x.dtype))

    def normalised(x, axis):
        apart = P.sub(x, over(mean(x, axis), axis))
        variance = mean(P.mul(apart, apart), axis)
        return P.mul(apart, over(P.rsqrt(P.add(variance, P.full(variance.shape, 1e-3, x.dtype))), axis)), variance

    def function(x, row):
        powers = P.exp(P.sub(x, over(P.reduce_max(x, (1,)), 1)))
        softmax = P.div(powers, over(P.reduce_sum(powers, (1,)), 1))
        by_row, variances = normalised(x, 1)
        return [softmax, P.mul(by_row, over(row, 0)), variances, normalised(x, 0)[0]]

    def of(x, axis):
        apart = x - x.mean(axis, keepdims=True)
        variance = (apart**2).mean(axis, keepdims=True)
        return apart / np.sqrt(variance + 1e-3), variance.squeeze(axis)

    def wanted():
        powers = np.exp(wide(x) - wide(x).max(1, keepdims=True))
        by_row, variances = of(wide(x), 1)
        return [powers / powers.sum(1, keepdims=True), by_row * wide(row), variances, of(wide(x), 0)[0]]

    def scales():
        softmax, *others = wanted()
        # The rounding of x - maximum is an absolute error of the exponent.
        return [softmax * (1 + abs(wide(x) - wide(x).max(1, keepdims=True))), *(abs(w) + 1 for w in others)]

    names = ("softmax", "rows normalised", "variances of rows", "columns normalised")
    yield Case(f"softmax and normalisations {rows} x {columns}", function, (x, row), wanted, 30, scales, names)
