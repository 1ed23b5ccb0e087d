"""ONNX for the elementwise primitives: a row each in _OPERATORS, or a reason in REFUSED.

The functions take the graph, the operands' dtype and their names, and return the result's name.
"""

import math

from keras_ocl.core import dtypes

# ONNX runtimes support at least these types; narrower integers are computed in a wider type, and wrap when they are converted back.
_WIDER = {"bool": "int32", "int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "uint32": "int64"}


def _of_floats(operator):
    """A rounding operator, which leaves integers unchanged."""

    def rule(g, dtype, x):
        return g.add(operator if dtypes.is_float(dtype) else "Identity", x)

    return rule


def _trunc(g, dtype, x):
    return g.add("Mul", g.add("Sign", x), g.add("Floor", g.add("Abs", x))) if dtypes.is_float(dtype) else g.add("Identity", x)


def _logarithm(base):
    def rule(g, dtype, x):
        return g.add("Mul", g.add("Log", x), g.scalar(1 / math.log(base), dtype))

    return rule


def _near_zero(g, dtype, x, near, far):
    """`near` where |x| < 1/2, else `far`."""
    return g.add("Where", g.add("Less", g.add("Abs", x), g.scalar(0.5, dtype)), near, far)


def _expm1(g, dtype, x):
    """2 t / (1 - t) with t = tanh(x / 2), which does not cancel near 0."""
    one = g.scalar(1, dtype)
    t = g.add("Tanh", g.add("Mul", x, g.scalar(0.5, dtype)))
    near = g.add("Div", g.add("Add", t, t), g.add("Sub", one, t))
    return _near_zero(g, dtype, x, near, g.add("Sub", g.add("Exp", x), one))


def _log1p(g, dtype, x):
    """2 artanh(x / (2 + x)), which does not cancel near 0."""
    two = g.scalar(2, dtype)
    near = g.add("Mul", two, g.add("Atanh", g.add("Div", x, g.add("Add", two, x))))
    return _near_zero(g, dtype, x, near, g.add("Log", g.add("Add", x, g.scalar(1, dtype))))


def _cbrt(g, dtype, x):
    return g.add("Mul", g.add("Sign", x), g.add("Pow", g.add("Abs", x), g.scalar(1 / 3, dtype)))


def _extreme(operator, comparison):
    """Max or Min. ONNX Runtime 1.31 compares only the lower halves of 64-bit integers in these, so `comparison` and Where are used."""

    def rule(g, dtype, a, b):
        return g.add("Where", g.add(comparison, a, b), a, b) if dtype in ("int64", "uint64") else g.add(operator, a, b)

    return rule


def _sign(g, dtype, x):
    """The sign; for integers by comparisons, as ONNX Runtime 1.31 reads only the lower half of 64 bits, as in Max and Min."""
    if dtypes.is_float(dtype):
        return g.add("Sign", x)
    zero = g.scalar(0, dtype)
    return g.add("Sub", g.cast(g.add("Greater", x, zero), dtype), g.cast(g.add("Less", x, zero), dtype))


def _relu(g, dtype, x):
    return g.add("Relu", x) if dtypes.is_float(dtype) else _extreme("Max", "Greater")(g, dtype, x, g.scalar(0, dtype))


def _floor_div(g, dtype, a, b):
    if dtypes.is_float(dtype):
        return g.add("Floor", g.add("Div", a, b))
    return g.add("Div", g.add("Sub", a, g.add("Mod", a, b)), b)


def _mod(g, dtype, a, b):
    if not dtypes.is_float(dtype):
        return g.add("Mod", a, b)
    zero, rest = g.scalar(0, dtype), g.add("Mod", a, b, fmod=1)
    other_sign = g.add("Less", g.add("Mul", g.add("Sign", rest), g.add("Sign", b)), zero)
    return g.add("Where", other_sign, g.add("Add", rest, b), rest)


def _rem(g, dtype, a, b):
    return g.add("Mod", a, b, fmod=1)


def _atan2(g, dtype, y, x):
    """The angle of (|x|, |y|), computed from the smaller quotient, then reflected into the quadrant."""
    zero, ax, ay = g.scalar(0, dtype), g.add("Abs", x), g.add("Abs", y)
    most, steep = g.add("Max", ax, ay), g.add("Greater", ay, ax)
    origin = g.add("Equal", most, zero)
    small = g.add("Atan", g.add("Div", g.add("Min", ax, ay), g.add("Where", origin, g.scalar(1, dtype), most)))
    angle = g.add("Where", steep, g.add("Sub", g.scalar(math.pi / 2, dtype), small), small)
    angle = g.add("Where", _negative(g, dtype, x), g.add("Sub", g.scalar(math.pi, dtype), angle), angle)
    return g.add("Where", _negative(g, dtype, y), g.add("Neg", angle), angle)


def _negative(g, dtype, x):
    """Whether x is negative or -0."""
    zero = g.scalar(0, dtype)
    return g.add("Or", g.add("Less", x, zero), g.add("Less", g.add("Reciprocal", x), zero))


def _hypot(g, dtype, a, b):
    a, b = g.add("Abs", a), g.add("Abs", b)
    most = g.add("Max", a, b)
    safe = g.add("Where", g.add("Equal", most, g.scalar(0, dtype)), g.scalar(1, dtype), most)
    a, b = g.add("Div", a, safe), g.add("Div", b, safe)
    return g.add("Mul", most, g.add("Sqrt", g.add("Add", g.add("Mul", a, a), g.add("Mul", b, b))))


def _copysign(g, dtype, a, b):
    a = g.add("Abs", a)
    return g.add("Where", _negative(g, dtype, b), g.add("Neg", a), a)


def _bitwise(name, operator):
    """An operator that is new in opset 18."""

    def rule(g, dtype, *operands):
        if g.opset < 18:
            raise NotImplementedError(
                f"ONNX export: `{name}` of {dtype} in {g.where()} needs opset 18 or later; pass `opset_version=18` (asked for: {g.opset})."
            )
        return g.add(operator, *operands)

    return rule


def _shift_left(g, dtype, a, b):
    """A left shift; ONNX shifts only unsigned integers."""
    shifted = g.add("BitShift", g.cast(a, "uint64"), g.cast(b, "uint64"), direction="LEFT")
    return g.cast(shifted, dtype)


def _shift_right(g, dtype, a, b):
    if dtype == "uint64":
        return g.add("BitShift", a, b, direction="RIGHT")
    a, b = g.cast(a, "int64"), g.cast(b, "int64")
    return g.cast(_floor_div(g, "int64", a, g.add("Pow", g.scalar(2, "int64"), b)), dtype)


def _is_nan(g, dtype, x):
    return g.add("IsNaN", x) if dtypes.is_float(dtype) else g.add("Not", g.add("Equal", x, x))


def _is_inf(g, dtype, x):
    return g.add("IsInf", x) if dtypes.is_float(dtype) else g.add("Not", g.add("Equal", x, x))


def _is_finite(g, dtype, x):
    if not dtypes.is_float(dtype):
        return g.add("Equal", x, x)
    return g.add("Not", g.add("Or", g.add("IsInf", x), g.add("IsNaN", x)))


def _select(g, node):
    operands = g.operands(node)
    if node.dtype != "bool":
        return g.add("Where", *operands)
    mask, *values = operands
    return g.cast(g.add("Where", mask, *(g.cast(x, "int32") for x in values)), "bool")


# An operator, or a function that composes it of some; a pair where bools have an operator of their own.
_OPERATORS = {
    "neg": "Neg",
    "abs": "Abs",
    "sign": _sign,
    "relu": _relu,
    "floor": _of_floats("Floor"),
    "ceil": _of_floats("Ceil"),
    "round": _of_floats("Round"),
    "trunc": _trunc,
    "is_nan": _is_nan,
    "is_inf": _is_inf,
    "is_finite": _is_finite,
    "exp": "Exp",
    "exp2": lambda g, dtype, x: g.add("Pow", g.scalar(2, dtype), x),
    "expm1": _expm1,
    "log": "Log",
    "log1p": _log1p,
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "sqrt": "Sqrt",
    "rsqrt": lambda g, dtype, x: g.add("Reciprocal", g.add("Sqrt", x)),
    "cbrt": _cbrt,
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "erf": "Erf",
    "erfc": lambda g, dtype, x: g.add("Sub", g.scalar(1, dtype), g.add("Erf", x)),
    "logistic": "Sigmoid",
    "add": ("Add", "Or"),
    "sub": "Sub",
    "mul": ("Mul", "And"),
    "div": "Div",
    "floor_div": _floor_div,
    "mod": _mod,
    "rem": _rem,
    "pow": "Pow",
    "max": (_extreme("Max", "Greater"), "Or"),
    "min": (_extreme("Min", "Less"), "And"),
    "atan2": _atan2,
    "hypot": _hypot,
    "copysign": _copysign,
    "and": (_bitwise("and", "BitwiseAnd"), "And"),
    "or": (_bitwise("or", "BitwiseOr"), "Or"),
    "xor": (_bitwise("xor", "BitwiseXor"), "Xor"),
    "not": (_bitwise("not", "BitwiseNot"), "Not"),
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "eq": ("Equal", "Equal"),
    "ne": (lambda g, dtype, a, b: g.add("Not", g.add("Equal", a, b)), "Xor"),
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}


def _elementwise(entry):
    numbers, bools = entry if isinstance(entry, tuple) else (entry, None)

    def rule(g, node):
        operands, dtype = g.operands(node), node.inputs[-1].dtype
        if dtype == "bool" and bools is not None:
            return g.add(bools, *operands)
        wider = _WIDER.get(dtype, dtype)
        cast = [x if wider == dtype else g.cast(x, wider) for x in operands]
        result = g.add(numbers, *cast) if isinstance(numbers, str) else numbers(g, wider, *cast)
        return g.cast(result, dtype) if wider != dtype == node.dtype else result

    return rule


RULES = {name: _elementwise(entry) for name, entry in _OPERATORS.items()} | {
    "select": _select,
    "convert": lambda g, node: g.cast(g.operands(node)[0], node.dtype),
    "stop_gradient": lambda g, node: g.value(node.inputs[0]),
}

_NO_OPERATOR = "ONNX has no such operator"
_NO_COMPLEX = "ONNX has no complex arithmetic"
REFUSED = {name: _NO_OPERATOR for name in ("erf_inv", "lgamma", "digamma", "i0", "i1", "nextafter", "population_count", "bitcast")} | {
    name: _NO_COMPLEX for name in ("complex", "real", "imag", "conj")
}
