"""Algebraic simplification of elementwise primitives, and what rules of other families need: finding and making constants.

A rule `simplify(graph, inputs, params, origin)` returns a simpler node or None (core/primitive.py). `graph.add` makes a node as it is,
`graph.simplest` the simplest one. What a rule returns is equal for every value of the unknown extents.
"""

import functools
import math

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, key, same
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind, Primitive

_QUARTERS = 8  # exponents up to this many quarters, of either sign, are written with square roots


def constant_value(node):
    """The Python number (or Dim) that every element of `node` has, or None."""
    while node.kind is Kind.VIEW:
        node = node.inputs[0]
    literal = None if node.primitive is None else node.primitive.literal
    return None if literal is None else literal(**node.params)


def is_number(node, number):
    """Whether every element of `node` is `number`, a zero with the same sign."""
    value = constant_value(node)
    known = value is not None and not isinstance(value, (Dim, bool))
    return known and value == number and math.copysign(1, value) == math.copysign(1, number)


def constant(graph, value, dtype, origin):
    """The node of a rank-0 constant."""
    return graph.add(Primitive.registry["constant"], (), {"value": value, "dtype": dtype}, origin)


def full(graph, value, shape, dtype, origin):
    """The node of a constant broadcast to `shape`."""
    scalar = constant(graph, value, dtype, origin)
    return graph.add(Primitive.registry["broadcast"], (scalar,), {"shape": tuple(shape), "dims": ()}, origin) if shape else scalar


def folded(graph, primitive, inputs, params, origin):
    """The constant that `primitive` gives for constant operands, of the result's shape; None if not all are, or it cannot be computed."""
    if primitive.fold is None or not inputs or inputs[0].dtype not in ("float32", "float64", "int32"):
        return None
    values = [constant_value(i) for i in inputs]
    if any(v is None or isinstance(v, Dim) for v in values):
        return None
    kind = dtypes.numpy_dtype(inputs[0].dtype).type
    shape, dtype = primitive.shape(*inputs, **params)
    try:
        value = dtypes.numpy_dtype(dtype).type(primitive.fold(*(kind(v).item() for v in values))).item()
    except (OverflowError, ValueError):
        return None
    return full(graph, value, shape, dtype, origin)


def flattened(graph, primitive, inputs, params, origin):
    """An elementwise operation of reshapes, and of scalars, as the reshape of the same operation; None where an operand is neither.

    Only where the reshape joins the last axes of computed values, which may be broadcast along some of these: the kernel that computes
    them cannot do so in vectors along the joined axis.
    """
    if primitive.kind is not Kind.ELEMENTWISE:
        return None
    reshape, spread = (Primitive.registry[name] for name in ("reshape", "broadcast"))
    bases = [n.inputs[0] for n in inputs if n.primitive is reshape]
    rest = [n for n in inputs if n.primitive is not reshape]
    if not bases or any(n.primitive is not spread or n.inputs[0].shape for n in rest):
        return None
    shape, flat = bases[0].shape, inputs[0].shape
    if len(shape) <= len(flat) or not flat or is_one(shape[-1]) or same(shape[-1:], flat[-1:]):
        return None
    if any(n.kind is not Kind.ELEMENTWISE or not same(n.shape, shape) for n in bases):
        return None
    scalar = {n: graph.simplest(spread, n.inputs, {"shape": shape, "dims": ()}, origin) for n in rest}
    result = graph.simplest(primitive, tuple(scalar.get(n) or n.inputs[0] for n in inputs), params, origin)
    return graph.simplest(reshape, (result,), {"shape": flat}, origin)


def extreme(better):
    """max or min of Python numbers: NaN wins, as in kernels."""
    return lambda a, b: a if a != a or better(a, b) else b


# ---- rules


def convert(graph, inputs, params, origin):
    (x,) = inputs
    dtype = params["dtype"]
    if x.dtype == dtype:
        return x
    if x.kind is Kind.SOURCE and x.primitive.literal is not None:
        value = x.primitive.literal(**x.params)
        if isinstance(value, Dim):
            return constant(graph, value, dtype, origin)
        if dtypes.is_float(x.dtype):
            value = float(dtypes.numpy_dtype(x.dtype).type(value))
        if dtypes.is_float(dtype):
            return constant(graph, float(dtypes.numpy_dtype(dtype).type(value)), dtype, origin)
        if dtype == "bool":
            return constant(graph, bool(value), dtype, origin)
        if dtypes.is_integer(dtype) and value == value and abs(value) < 2**31:
            info = np.iinfo(dtypes.numpy_dtype(dtype))
            return constant(graph, int(value), dtype, origin) if info.min <= value <= info.max else None
        return None
    if x.kind is Kind.VIEW and x.inputs[0].kind is Kind.SOURCE:
        inner = convert(graph, (x.inputs[0],), params, origin)
        return None if inner is None else graph.add(x.primitive, (inner,), x.params, origin)
    if x.kind is Kind.VIEW and x.primitive.flat:  # a cast before a reshape may be part of the kernel that computes the operand
        inner = graph.simplest(Primitive.registry["convert"], x.inputs, params, origin)
        return graph.simplest(x.primitive, (inner,), x.params, origin)
    return None


def neutral(number, commutes=False):
    """Rule for an operation with a neutral element: x op number is x; if it commutes, number op x too."""

    def rule(graph, inputs, params, origin):
        a, b = inputs
        if is_number(b, number):
            return a
        return b if commutes and is_number(a, number) else None

    return rule


def add(graph, inputs, params, origin):
    # x + 0.0 turns -0.0 into 0.0; Keras's sums from zero make it worth treating as the identity.
    found = neutral(0, commutes=True)(graph, inputs, params, origin)
    return found if found is not None else _side_by_side(graph, *inputs, origin)


def _side_by_side(graph, a, b, origin):
    """The sum of neighbouring slices padded with zeros, as the gradient of a split gives it: their concat, padded where zeros remain."""
    pad, concat = Primitive.registry["pad"], Primitive.registry["concat"]
    if any(x.primitive is not pad or not is_number(x.inputs[1], 0) for x in (a, b)):
        return None
    lows, highs = [x.params["low"] for x in (a, b)], [x.params["high"] for x in (a, b)]
    axes = {i for part in (*lows, *highs) for i, n in enumerate(part) if isinstance(n, Dim) or n != 0}
    if len(axes) != 1 or any(any(x.params["interior"]) for x in (a, b)):
        return None
    (axis,) = axes
    if lows[0][axis] < lows[1][axis]:
        a, b, lows, highs = b, a, lows[::-1], highs[::-1]
    first, second = b.inputs[0], a.inputs[0]
    if key(lows[1][axis] + first.shape[axis]) != key(lows[0][axis]) or lows[1][axis] < 0 or highs[0][axis] < 0:
        return None
    pieces = [piece for x in (first, second) for piece in (x.inputs if x.primitive is concat and x.params["axis"] == axis else (x,))]
    together = graph.add(concat, tuple(pieces), {"axis": axis}, origin)
    low = tuple(lows[1][i] if i == axis else 0 for i in range(len(a.shape)))
    high = tuple(highs[0][i] if i == axis else 0 for i in range(len(a.shape)))
    if all(not isinstance(n, Dim) and n == 0 for n in (*low, *high)):
        return together
    return graph.add(pad, (together, a.inputs[1]), {"low": low, "high": high, "interior": (0,) * len(a.shape)}, origin)


def power(graph, inputs, params, origin):
    x, e = inputs
    exponent = constant_value(e)
    if exponent is None or isinstance(exponent, Dim) or not dtypes.is_float(x.dtype):
        return None
    if exponent == 1:
        return x
    if exponent == 2:
        return _apply(graph, origin, "mul", x, x)
    if exponent == -1:
        return _apply(graph, origin, "div", full(graph, 1.0, x.shape, x.dtype, origin), x)
    if exponent != 0 and abs(exponent) <= _QUARTERS / 4 and exponent * 4 % 1 == 0:
        return _roots(graph, x, exponent, origin)
    return None


def _apply(graph, origin, name, *operands):
    return graph.add(Primitive.registry[name], operands, {}, origin)


def _roots(graph, x, exponent, origin):
    """x to the power of a multiple of 1/4, from square roots: in a tenth of the time of pow, and as exact."""
    apply = functools.partial(_apply, graph, origin)
    whole, fourths = divmod(int(4 * abs(exponent)), 4)
    factors = [apply("abs", x)] * whole
    if fourths:
        infinity = full(graph, math.inf, x.shape, x.dtype, origin)
        least = apply("eq", x, full(graph, -math.inf, x.shape, x.dtype, origin))  # its powers are those of infinity, but its root is NaN
        root = apply("abs", apply("sqrt", apply("select", least, infinity, x)))  # the root of -0.0 is -0.0, its powers are not
        factors += [root] * (fourths // 2) + [apply("sqrt", root)] * (fourths % 2)
    product = functools.reduce(functools.partial(apply, "mul"), factors)
    return product if exponent > 0 else apply("div", full(graph, 1.0, x.shape, x.dtype, origin), product)


def select(graph, inputs, params, origin):
    mask, a, b = inputs
    value = constant_value(mask)
    if a is b:
        return a
    return None if value is None else (a if value else b)
