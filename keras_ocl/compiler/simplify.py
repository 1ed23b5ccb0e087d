"""Peephole simplification while the graph is built: identities, constants, composed views."""

import functools
import math
import operator

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import is_one
from keras_ocl.core.origin import NOWHERE
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives.dot import joins

_FOLD = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
    "eq": operator.eq,
    "ne": operator.ne,
}
_QUARTERS = 8  # powers up to this many fourths, either way, are made of square roots


def add(graph, primitive, inputs, params, origin=NOWHERE):
    """The simplest node equal to `primitive(*inputs)`."""
    rule = _RULES.get(primitive.name)
    if rule is not None:
        found = rule(graph, inputs, params, origin)
        if found is not None:
            return found
    folded = _fold(graph, primitive, inputs, params, origin)
    return folded if folded is not None else graph.add(primitive, inputs, params, origin)


def constant_value(node):
    """The Python number that every element of `node` has, or None."""
    while node.name in ("broadcast", "reshape"):
        node = node.inputs[0]
    return node.params["value"] if node.name == "constant" else None


def _fold(graph, primitive, inputs, params, origin):
    """A constant, broadcast where the operands are."""
    function = _FOLD.get(primitive.name)
    if function is None or not inputs or inputs[0].dtype not in ("float32", "float64", "int32"):
        return None
    values = [constant_value(i) for i in inputs]
    if any(v is None or isinstance(v, Dim) for v in values):
        return None
    kind = dtypes.numpy_dtype(inputs[0].dtype).type
    shape, dtype = primitive.shape(*inputs, **params)
    try:
        value = dtypes.numpy_dtype(dtype).type(function(*(kind(v).item() for v in values))).item()
    except (OverflowError, ValueError):
        return None
    return _full(graph, value, shape, dtype, origin)


def _constant(graph, value, dtype, origin):
    return graph.add(Primitive.registry["constant"], (), {"value": value, "dtype": dtype}, origin)


def _full(graph, value, shape, dtype, origin):
    constant = _constant(graph, value, dtype, origin)
    return graph.add(Primitive.registry["broadcast"], (constant,), {"shape": tuple(shape), "dims": ()}, origin) if shape else constant


def _same(a, b):
    """Equal shapes, and equal for every value of the unknown extents."""
    return len(a) == len(b) and all(_same_extent(x, y) for x, y in zip(a, b, strict=True))


def _same_extent(x, y):
    if isinstance(x, Dim) or isinstance(y, Dim):
        return isinstance(x, Dim) and isinstance(y, Dim) and x.key == y.key
    return x == y


def _identity(graph, inputs, params, origin):
    return inputs[0]


def _convert(graph, inputs, params, origin):
    (x,) = inputs
    dtype = params["dtype"]
    if x.dtype == dtype:
        return x
    if x.name == "constant":
        value = x.params["value"]
        if isinstance(value, Dim):
            return _constant(graph, value, dtype, origin)
        if dtypes.is_float(dtype):
            return _constant(graph, float(dtypes.numpy_dtype(dtype).type(value)), dtype, origin)
        if dtype == "bool":
            return _constant(graph, bool(value), dtype, origin)
        if dtypes.is_integer(dtype) and value == value and abs(value) < 2**31:
            info = np.iinfo(dtypes.numpy_dtype(dtype))
            return _constant(graph, int(value), dtype, origin) if info.min <= value <= info.max else None
        return None
    if x.name == "broadcast" and x.inputs[0].name == "constant":
        inner = _convert(graph, (x.inputs[0],), params, origin)
        return None if inner is None else graph.add(x.primitive, (inner,), x.params, origin)
    return None


def _reshape(graph, inputs, params, origin):
    (x,) = inputs
    if _same(x.shape, params["shape"]):
        return x
    if x.name == "reshape":
        return add(graph, x.primitive, x.inputs, params, origin)
    return None


def _transpose(graph, inputs, params, origin):
    (x,) = inputs
    perm = params["perm"]
    if list(perm) == list(range(len(perm))):
        return x
    if x.name == "transpose":
        inner = x.params["perm"]
        return add(graph, x.primitive, x.inputs, {"perm": tuple(inner[p] for p in perm)}, origin)
    return None


def _broadcast(graph, inputs, params, origin):
    (x,) = inputs
    shape, dims = params["shape"], params["dims"]
    if _same(x.shape, shape) and list(dims) == list(range(len(shape))):
        return x
    if x.name == "broadcast":
        inner = x.inputs[0]
        through = tuple(dims[d] for d in x.params["dims"])
        if all(_same_extent(inner.shape[i], shape[d]) or is_one(inner.shape[i]) for i, d in enumerate(through)):
            return add(graph, x.primitive, x.inputs, {"shape": shape, "dims": through}, origin)
    return None


def _neutral(value, both):
    """x op value is x; with `both`, value op x too."""

    def rule(graph, inputs, params, origin):
        a, b = inputs
        if _is(constant_value(b), value):
            return a
        if both and _is(constant_value(a), value):
            return b
        return None

    return rule


def _is(constant, value):
    return (
        constant is not None
        and not isinstance(constant, (Dim, bool))
        and constant == value
        and math.copysign(1, constant) == math.copysign(1, value)
    )


def _add(graph, inputs, params, origin):
    # x + 0.0 turns -0.0 into 0.0; Keras's sums from zero make it worth treating as the identity.
    found = _neutral(0, True)(graph, inputs, params, origin)
    return found if found is not None else _side_by_side(graph, *inputs, origin)


def _side_by_side(graph, a, b, origin):
    """The sum of neighbours in zeros, as the gradient of a split gives it: their concat, in the zeros that remain."""
    if a.name != "pad" or b.name != "pad" or not all(_is(constant_value(x.inputs[1]), 0) for x in (a, b)):
        return None
    lows, highs = [x.params["low"] for x in (a, b)], [x.params["high"] for x in (a, b)]
    axes = {i for part in (*lows, *highs) for i, n in enumerate(part) if isinstance(n, Dim) or n != 0}
    if len(axes) != 1 or any(any(x.params["interior"]) for x in (a, b)):
        return None
    (axis,) = axes
    if lows[0][axis] < lows[1][axis]:
        a, b, lows, highs = b, a, lows[::-1], highs[::-1]
    first, second = b.inputs[0], a.inputs[0]
    if not _same_extent(lows[1][axis] + first.shape[axis], lows[0][axis]) or lows[1][axis] < 0 or highs[0][axis] < 0:
        return None
    pieces = [piece for x in (first, second) for piece in (x.inputs if x.name == "concat" and x.params["axis"] == axis else (x,))]
    together = graph.add(Primitive.registry["concat"], tuple(pieces), {"axis": axis}, origin)
    low = tuple(lows[1][i] if i == axis else 0 for i in range(len(a.shape)))
    high = tuple(highs[0][i] if i == axis else 0 for i in range(len(a.shape)))
    if all(not isinstance(n, Dim) and n == 0 for n in (*low, *high)):
        return together
    return graph.add(a.primitive, (together, a.inputs[1]), {"low": low, "high": high, "interior": (0,) * len(a.shape)}, origin)


def _pow(graph, inputs, params, origin):
    x, e = inputs
    exponent = constant_value(e)
    if exponent is None or isinstance(exponent, Dim) or not dtypes.is_float(x.dtype):
        return None
    registry = Primitive.registry
    if exponent == 1:
        return x
    if exponent == 2:
        return graph.add(registry["mul"], (x, x), {}, origin)
    if exponent == -1:
        return graph.add(registry["div"], (_full(graph, 1.0, x.shape, x.dtype, origin), x), {}, origin)
    if exponent != 0 and abs(exponent) <= _QUARTERS / 4 and exponent * 4 % 1 == 0:
        return _roots(graph, x, exponent, origin)
    return None


def _roots(graph, x, exponent, origin):
    """x to the power of some fourths, from square roots: a tenth of the time of pow, and as exact."""

    def apply(name, *operands):
        return graph.add(Primitive.registry[name], operands, {}, origin)

    whole, fourths = divmod(int(4 * abs(exponent)), 4)
    factors = [apply("abs", x)] * whole
    if fourths:
        infinity = _full(graph, math.inf, x.shape, x.dtype, origin)
        least = apply("eq", x, _full(graph, -math.inf, x.shape, x.dtype, origin))  # whose powers are infinite, but not its root
        root = apply("abs", apply("sqrt", apply("select", least, infinity, x)))  # the root of -0.0 is -0.0, its powers are not
        factors += [root] * (fourths // 2) + [apply("sqrt", root)] * (fourths % 2)
    product = functools.reduce(functools.partial(apply, "mul"), factors)
    return product if exponent > 0 else apply("div", _full(graph, 1.0, x.shape, x.dtype, origin), product)


def _select(graph, inputs, params, origin):
    mask, a, b = inputs
    value = constant_value(mask)
    if a is b:
        return a
    return None if value is None else (a if value else b)


def _dot_general(graph, inputs, params, origin):
    """A transposed operand is the operand with its axes renamed, where its free axes stay in order."""
    if _is_outer(inputs, params):
        return _outer(graph, inputs, params, origin)
    operands, contract, batch = list(inputs), list(params["contract"]), list(params["batch"])
    changed = False
    for side, x in enumerate(inputs):
        if x.name != "transpose":
            continue
        perm = x.params["perm"]
        free = [perm[i] for i in range(len(perm)) if i not in contract[side] and i not in batch[side]]
        if free != sorted(free):
            continue
        contracted, batched = tuple(perm[i] for i in contract[side]), tuple(perm[i] for i in batch[side])
        if not joins(x.inputs[0], contracted, batched):
            continue
        operands[side], contract[side], batch[side] = x.inputs[0], contracted, batched
        changed = True
    if not changed:
        return None
    return add(
        graph, Primitive.registry["dot_general"], tuple(operands), {**params, "contract": tuple(contract), "batch": tuple(batch)}, origin
    )


def _is_outer(inputs, params):
    """Whether each sum is one product of floats."""
    single = all(is_one(inputs[0].shape[i]) for i in params["contract"][0])
    return single and dtypes.is_float(params["dtype"]) and all(x.dtype == params["dtype"] for x in inputs)


def _outer(graph, inputs, params, origin):
    """An outer product as an elementwise one, which can be part of a kernel before or behind it."""
    registry = Primitive.registry
    shape, _ = registry["dot_general"].shape(*inputs, **params)
    count = len(params["batch"][0])
    operands, first = [], count
    for x, batch, contract in zip(inputs, params["batch"], params["contract"], strict=True):
        free = [i for i in range(len(x.shape)) if i not in (*batch, *contract)]
        x = add(graph, registry["transpose"], (x,), {"perm": (*batch, *free, *contract)}, origin)
        x = add(graph, registry["reshape"], (x,), {"shape": tuple(x.shape[: count + len(free)])}, origin)
        dims = (*range(count), *range(first, first + len(free)))
        operands.append(add(graph, registry["broadcast"], (x,), {"shape": shape, "dims": dims}, origin))
        first += len(free)
    return add(graph, registry["mul"], tuple(operands), {}, origin)


_RULES = {
    "dot_general": _dot_general,
    "stop_gradient": _identity,
    "convert": _convert,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "add": _add,
    "sub": _neutral(0, False),
    "mul": _neutral(1, True),
    "div": _neutral(1, False),
    "pow": _pow,
    "select": _select,
}
