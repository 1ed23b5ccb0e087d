"""Sums of squared deviations from the parts that the mean's sum is split into: mean and variance in one pass over memory.

The sum of (x - mean)**2 can begin when the mean is there, so it reads all of x from memory again. But each part of the mean's sum has a
mean of its own, about which it can sum squares while a cache still holds it. For any s, such as the mean of all,

    sum (x - s)**2 = sum over parts of [sum (x - m)**2 + (m - s) * (2 * sum (x - m) + n * (m - s))],

where n counts the part's elements and m is its mean (Chan, Golub and LeVeque 1979). The sum of x - m is 0 but for the rounding of m, which
counts where the mean is far larger than the deviations. Nothing cancels, as in the difference of the mean square and the squared mean.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import product, same
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.primitives import algebra

_VISITS = 16  # most nodes between the sum of squares and the sum of x: a mean is a division, a conversion, some views


def squares(graph, primitive, inputs, params, origin):
    """The node of a sum of (x - s)**2, if s follows from a sum of x along the same axes that is split into parts; else None."""
    found = _deviation(inputs[0], params["axes"])
    if found is None:
        return None
    x, s = found
    total = _split_sum(primitive, x, params["axes"], s)
    if total is None:
        return None

    def apply(name, *operands, **params):
        return graph.simplest(Primitive.registry[name], operands, params, origin)

    shape = total.shape
    counts = _counts(graph, apply, x, total, origin)
    means = apply("div", total, counts)
    within, rest = (apply(name, x, means, **total.params) for name in ("partial_squares", "partial_deviations"))
    s = apply("reshape", s, shape=tuple(shape[1:]))
    away = apply("sub", means, apply("broadcast", s, shape=shape, dims=tuple(range(1, len(shape)))))
    between = apply("mul", away, apply("add", apply("add", rest, rest), apply("mul", counts, away)))
    return graph.simplest(primitive, (apply("add", within, between),), {"axes": (0,)}, origin)


def _deviation(node, axes):
    """(x, s) if `node` is (x - s)**2, where s has one value for each result of a reduction along `axes`; else None."""
    square, minus, spread = (Primitive.registry[name] for name in ("mul", "sub", "broadcast"))
    if node.primitive is not square or node.inputs[0] is not node.inputs[1] or node.inputs[0].primitive is not minus:
        return None
    x, s = node.inputs[0].inputs
    if s.primitive is not spread or dtypes.accumulator(x.dtype) != x.dtype or not dtypes.is_float(x.dtype):
        return None
    (s,), dims = s.inputs, s.params["dims"]
    along = [d for d, n in zip(dims, s.shape, strict=True) if not is_one(n)]
    return (x, s) if along == [d for d, n in enumerate(x.shape) if d not in axes and not is_one(n)] else None


def _split_sum(primitive, x, axes, s):
    """The partial sums of x along `axes` from whose sum `s` follows by elementwise operations and views; None where there are none."""
    waiting, found = [s], {s}
    while waiting and len(found) <= _VISITS:
        node = waiting.pop()
        if node.primitive is primitive:
            (parts,) = node.inputs
            if parts.primitive is primitive.partial and parts.inputs[0] is x and parts.params["axes"] == axes:
                return parts
        elif node.kind in (Kind.ELEMENTWISE, Kind.VIEW):
            waiting += [i for i in node.inputs if i not in found]
            found.update(node.inputs)
    return None


def _counts(graph, apply, x, total, origin):
    """The number of elements in each part, in the shape of the partial sums `total`; the last part may have fewer than the others."""
    axis, chunk, shape = total.params["axis"], total.params["chunk"], total.shape
    across = product(x.shape[a] for a in total.params["axes"] if a != axis)
    last = x.shape[axis] - (shape[0] - 1) * chunk
    most, least = (algebra.full(graph, n * across, shape, x.dtype, origin) for n in (chunk, last))
    if same((last,), (chunk,)):
        return most
    place, end = apply("iota", shape=shape, axis=0, dtype="int32"), algebra.full(graph, shape[0] - 1, shape, "int32", origin)
    return apply("select", apply("lt", place, end), most, least)
