"""Elementwise primitives: arithmetic, comparisons, selection and conversion.

Operands have equal shapes and dtypes; `keras_ocl.ops` promotes and broadcasts. Gradients follow TensorFlow
where a function is not differentiable (max and min give a tie to the first operand; relu is flat at 0).
"""

import math
import operator

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.access import same_place
from keras_ocl.core.dim import Dim
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.kernels import elementwise
from keras_ocl.primitives import algebra
from keras_ocl.primitives.batching import same_parameters

# ---- shapes


def joint_shape(name, operands):
    """The common shape of `operands`, with a Dim wherever one has it. ValueError when shapes differ."""
    shape = operands[0].shape
    for x in operands[1:]:
        if x.shape is shape:
            continue
        if tuple(x.shape) != tuple(shape):
            shapes = ", ".join(str(tuple(o.shape)) for o in operands)
            raise ValueError(f"{name}: operands have shapes {shapes}; broadcast them to one shape first.")
        shape = tuple(a if isinstance(a, Dim) else b for a, b in zip(shape, x.shape, strict=True))
    return shape


def _same_dtype(name, operands):
    dtype = operands[0].dtype
    for x in operands[1:]:
        if x.dtype != dtype:
            given = ", ".join(o.dtype for o in operands)
            raise TypeError(f"{name}: operands have dtypes {given}; convert them to one dtype first.")
    return dtype


def _shape(name, out=None):
    def rule(*operands):
        dtype = _same_dtype(name, operands)
        if not elementwise.has_form(name, out or dtype, (dtype,) * len(operands)):
            remedy = "take their real and imag parts" if dtypes.is_complex(dtype) else "cast them"
            raise TypeError(f"{name}: tensors of dtype {dtype} are not supported; {remedy} first.")
        return joint_shape(name, operands), out or dtype

    return rule


def _part_shape(x):
    """abs, real and imag of complex numbers have the dtype of a part."""
    return x.shape, dtypes.part(x.dtype)


def _sum_total(summed, stacked, inputs, params, number):
    parts = [summed(x) for x in inputs]
    return None if None in parts else lambda: P.add(*(part() for part in parts))


def _convert_total(summed, stacked, inputs, params, number):
    inner = summed(inputs[0])
    return None if inner is None else lambda: _convert(inner(), **params)


def _primitive(name, shape, vjp, **rules):
    """The elementwise primitive whose operation in OpenCL C goes by the same name."""

    def pointwise(gen, node, index):
        return gen.op(name, node.dtype, *[gen.value(i, index) for i in node.inputs])

    cost, batch = elementwise.OPS[name].cost, same_parameters(lambda: primitive)
    primitive = Primitive(name, shape, vjp, pointwise, kind=Kind.ELEMENTWISE, cost=cost, batch=batch, **rules)
    return primitive


# ---- gradients

_LN2, _LN10 = math.log(2), math.log(10)


def _like(value, x):
    return P.full(x.shape, value, x.dtype)


def _scaled(x, value):
    return P.mul(x, _like(value, x))


def _square(x):
    return P.mul(x, x)


def _conj(x):
    return P.conj(x) if dtypes.is_complex(x.dtype) else x


def _root(derivative):
    """VJP of a root from derivative(out), which is infinite at 0: there too, a cotangent of 0 gives a gradient of 0, as on TensorFlow.

    So a root behind a `where` or a `maximum` that does not pick it gives no NaN.
    """

    def vjp(ct, out, x):
        slope = derivative(out)
        gradient = P.mul(ct, _conj(slope))
        if dtypes.is_complex(x.dtype):
            return (gradient,)
        unused = P.and_(P.eq(ct, _like(0, ct)), P.not_(P.is_finite(slope)))
        return (P.select(unused, _like(0, gradient), gradient),)

    return vjp


def _abs_vjp(ct, out, x):
    if dtypes.is_complex(x.dtype):
        at_zero = P.eq(out, _like(0, out))
        scale = P.select(at_zero, _like(0, out), P.div(ct, P.select(at_zero, _like(1, out), out)))
        return (P.complex(P.mul(scale, P.real(x)), P.mul(scale, P.imag(x))),)
    return (P.mul(ct, P.sign(x)),)


def _trigamma(x):
    """The derivative of digamma: reflected to x >= 1/2, shifted up by 8, then its asymptotic series (Abramowitz & Stegun 6.4.12)."""
    low = P.lt(x, _like(0.5, x))
    one = _like(1, x)
    y = P.select(low, P.sub(one, x), x)
    total = _like(0, x)
    for _ in range(8):
        total = P.add(total, P.div(one, _square(y)))
        y = P.add(y, one)
    inverse = P.div(one, y)
    square = _square(inverse)
    series = _like(-1 / 30, x)
    for coefficient in (1 / 42, -1 / 30, 1 / 6):
        series = P.add(P.mul(series, square), _like(coefficient, x))
    series = P.add(P.add(inverse, _scaled(square, 0.5)), P.mul(series, P.mul(square, inverse)))
    total = P.add(total, series)
    sine = P.sin(_scaled(x, math.pi))
    return P.select(low, P.sub(P.div(_like(math.pi**2, x), _square(sine)), total), total)


def _i1_derivative(out, x):
    """I0(x) - I1(x) / x; 1/2 at 0."""
    zero = P.eq(x, _like(0, x))
    one = _like(1, x)
    return P.select(zero, _like(0.5, x), P.sub(P.i0(x), P.div(out, P.select(zero, one, x))))


def _pow_vjp(ct, out, a, b):
    zero, one = _like(0, a), _like(1, a)
    # Only at 0 to the power of 0 is the derivative set to 0: beside it, b * a**(b - 1) has one by b, 1 / a.
    flat = P.and_(P.eq(b, zero), P.eq(a, zero))
    power = P.pow(a, P.select(flat, one, P.sub(b, one)))
    da = P.mul(ct, P.select(flat, zero, P.mul(b, power)))
    positive = P.gt(a, zero)
    log = P.select(positive, P.log(P.select(positive, a, one)), zero)
    return da, P.mul(ct, P.mul(out, log))


def _extreme_vjp(comparison):
    def vjp(ct, out, a, b):
        first, zero = getattr(P, comparison)(a, b), _like(0, ct)
        return P.select(first, ct, zero), P.select(first, zero, ct)

    return vjp


def _atan2_vjp(ct, out, y, x):
    size = P.hypot(x, y)  # whose square may overflow or be 0
    return P.div(P.mul(ct, P.div(x, size)), size), P.neg(P.div(P.mul(ct, P.div(y, size)), size))


def _hypot_vjp(ct, out, a, b):
    safe = P.select(P.eq(out, _like(0, out)), _like(1, out), out)
    return P.mul(ct, P.div(a, safe)), P.mul(ct, P.div(b, safe))


def _copysign_vjp(ct, out, a, b):
    one = _like(1, a)
    return P.mul(ct, P.mul(P.copysign(one, a), P.copysign(one, b))), None


def _div_vjp(ct, out, a, b):
    return P.div(ct, _conj(b)), P.neg(P.div(P.mul(ct, _conj(out)), _conj(b)))


def _select_vjp(ct, out, mask, a, b):
    zero = _like(0, ct)
    return None, P.select(mask, ct, zero), P.select(mask, zero, ct)


def _relu_vjp(ct, out, x):
    zero = _like(0, ct)
    return (P.select(P.gt(out, zero), ct, zero),)


# ---- the table


__all__ = ["bitcast", "complex", "convert", "joint_shape", "select", "stop_gradient"]


def _row(name, text, vjp=None, shape=None, **rules):
    """Defines an operation and its function: what it computes, its gradient, and other rules of its Primitive.

    Results without a VJP are not of a floating dtype, or are constant almost everywhere.
    """
    primitive = _primitive(name, shape or _shape(name), vjp, **rules)
    keyword = {"not": "not_", "and": "and_", "or": "or_"}.get(name, name)

    def function(*operands):
        return primitive(*operands)

    function.__name__ = function.__qualname__ = keyword
    function.__doc__ = f"{text}, elementwise."
    globals()[keyword] = function
    __all__.append(keyword)


def _smooth(name, text, derivative):
    """A function of one variable, from derivative(out, x)."""
    _row(name, text, lambda ct, out, x: (P.mul(ct, _conj(derivative(out, x))),))


def _predicate(name, text, **rules):
    _row(name, text, shape=_shape(name, "bool"), **rules)


_row("neg", "-x", lambda ct, out, x: (P.neg(ct),), fold=operator.neg, vanishes=(0,))
_row("sign", "-1, 0 or 1 by the sign of x; NaN stays")
_row("floor", "The greatest integer not above x")
_row("ceil", "The least integer not below x")
_row("round", "The nearest integer, ties to even")
_row("trunc", "x without its fraction")
_smooth("exp", "e to the power x", lambda out, x: out)
_smooth("exp2", "2 to the power x", lambda out, x: _scaled(out, _LN2))
_smooth("expm1", "exp(x) - 1, accurate near 0", lambda out, x: P.add(out, _like(1, out)))
_smooth("log", "Natural logarithm", lambda out, x: P.div(_like(1, x), x))
_smooth("log1p", "log(1 + x), accurate near 0", lambda out, x: P.div(_like(1, x), P.add(_like(1, x), x)))
_smooth("log2", "Logarithm to base 2", lambda out, x: P.div(_like(1 / _LN2, x), x))
_smooth("log10", "Logarithm to base 10", lambda out, x: P.div(_like(1 / _LN10, x), x))
_row("sqrt", "Square root", _root(lambda out: P.div(_like(0.5, out), out)), fold=math.sqrt, vanishes=(0,))
_row("rsqrt", "1 / sqrt(x)", _root(lambda out: _scaled(P.mul(out, _square(out)), -0.5)))
_smooth("cbrt", "Cube root", lambda out, x: P.div(_like(1 / 3, out), _square(out)))
_smooth("sin", "Sine", lambda out, x: P.cos(x))
_smooth("cos", "Cosine", lambda out, x: P.neg(P.sin(x)))
_smooth("tan", "Tangent", lambda out, x: P.add(_like(1, out), _square(out)))
_smooth("asin", "Inverse sine", lambda out, x: P.rsqrt(P.sub(_like(1, x), _square(x))))
_smooth("acos", "Inverse cosine", lambda out, x: P.neg(P.rsqrt(P.sub(_like(1, x), _square(x)))))
_smooth("atan", "Inverse tangent", lambda out, x: P.div(_like(1, x), P.add(_like(1, x), _square(x))))
_smooth("sinh", "Hyperbolic sine", lambda out, x: P.cosh(x))
_smooth("cosh", "Hyperbolic cosine", lambda out, x: P.sinh(x))
_smooth("tanh", "Hyperbolic tangent", lambda out, x: P.sub(_like(1, out), _square(out)))
_smooth("asinh", "Inverse hyperbolic sine", lambda out, x: P.rsqrt(P.add(_square(x), _like(1, x))))
_smooth("acosh", "Inverse hyperbolic cosine", lambda out, x: P.rsqrt(P.mul(P.sub(x, _like(1, x)), P.add(x, _like(1, x)))))
_smooth("atanh", "Inverse hyperbolic tangent", lambda out, x: P.div(_like(1, x), P.sub(_like(1, x), _square(x))))
_smooth("erf", "Error function", lambda out, x: _scaled(P.exp(P.neg(_square(x))), 2 / math.sqrt(math.pi)))
_smooth("erfc", "1 - erf(x)", lambda out, x: _scaled(P.exp(P.neg(_square(x))), -2 / math.sqrt(math.pi)))
_smooth("erf_inv", "Inverse of erf", lambda out, x: _scaled(P.exp(_square(out)), math.sqrt(math.pi) / 2))
_smooth("lgamma", "Logarithm of the absolute value of the gamma function", lambda out, x: P.digamma(x))
_smooth("digamma", "Derivative of lgamma", lambda out, x: _trigamma(x))
_smooth("logistic", "1 / (1 + exp(-x))", lambda out, x: P.mul(out, P.sub(_like(1, out), out)))
_row("relu", "max(x, 0); its gradient is computed from the result and is 0 at 0", _relu_vjp)
_smooth("i0", "Modified Bessel function of order 0", lambda out, x: P.i1(x))
_smooth("i1", "Modified Bessel function of order 1", _i1_derivative)
_row("not", "Logical (bool) or bitwise (integers) complement")
_row("population_count", "Number of set bits")
_row("conj", "Complex conjugate", lambda ct, out, x: (P.conj(ct),))
_row("add", "a + b (bool: or)", lambda ct, out, a, b: (ct, ct), fold=operator.add, simplify=algebra.add, total=_sum_total)
_row("sub", "a - b", lambda ct, out, a, b: (ct, P.neg(ct)), fold=operator.sub, simplify=algebra.neutral(0))
_row(
    "mul",
    "a * b (bool: and)",
    lambda ct, out, a, b: (P.mul(ct, _conj(b)), P.mul(ct, _conj(a))),
    fold=operator.mul,
    simplify=algebra.neutral(1, commutes=True),
    vanishes=(0, 1),
)
_row("div", "a / b; of integers truncated", _div_vjp, simplify=algebra.neutral(1), vanishes=(0,))
_row("floor_div", "a / b rounded down")
_row("mod", "Remainder with the sign of b", lambda ct, out, a, b: (ct, P.neg(P.mul(ct, P.floor_div(a, b)))))
_row("rem", "Remainder with the sign of a", lambda ct, out, a, b: (ct, P.neg(P.mul(ct, P.round(P.div(P.sub(a, out), b))))))
_row("pow", "a to the power b", _pow_vjp, simplify=algebra.power)
_row("max", "The greater of both; NaN if either is", _extreme_vjp("ge"), fold=algebra.extreme(operator.gt))
_row("min", "The lesser of both; NaN if either is", _extreme_vjp("le"), fold=algebra.extreme(operator.lt))
_row("atan2", "Angle of the point (b, a)", _atan2_vjp)
_row("hypot", "sqrt(a**2 + b**2) without overflow", _hypot_vjp)
_row("copysign", "The magnitude of a with the sign of b", _copysign_vjp)
_row("nextafter", "The next number after a towards b", lambda ct, out, a, b: (ct, None))
_row("and", "Logical (bool) or bitwise and")
_row("or", "Logical (bool) or bitwise or")
_row("xor", "Logical (bool) or bitwise exclusive or")
_row("shift_left", "a << b")
_row("shift_right", "a >> b")
_predicate("eq", "a == b", fold=operator.eq)
_predicate("ne", "a != b", fold=operator.ne)
_predicate("lt", "a < b")
_predicate("le", "a <= b")
_predicate("gt", "a > b")
_predicate("ge", "a >= b")
_row("abs", "Absolute value", _abs_vjp, _part_shape, vanishes=(0,))
_row("real", "Real part", lambda ct, out, x: (P.complex(ct, _like(0, ct)) if dtypes.is_complex(x.dtype) else ct,), _part_shape)
_row("imag", "Imaginary part of a complex tensor", lambda ct, out, x: (P.complex(_like(0, ct), ct),), _part_shape)
_predicate("is_finite", "Neither infinite nor NaN", fold=math.isfinite)
_predicate("is_nan", "Not a number")
_predicate("is_inf", "Infinite")


# ---- operations with a signature of their own


def _select_shape(mask, a, b):
    if mask.dtype != "bool":
        raise TypeError(f"select: the mask has dtype {mask.dtype}; it must be bool.")
    return joint_shape("select", (mask, a, b)), _same_dtype("select", (a, b))


_select = _primitive("select", _select_shape, _select_vjp, simplify=algebra.select)


def select(mask, on_true, on_false):
    """`on_true` where the bool `mask` holds, else `on_false`; three tensors of one shape."""
    return _select(mask, on_true, on_false)


def _convert_vjp(ct, out, x, *, dtype):
    if dtypes.is_complex(ct.dtype) and not dtypes.is_complex(x.dtype):
        ct = P.real(ct)
    return (P.convert(ct, x.dtype) if dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype) else None,)


_convert = _primitive("convert", lambda x, *, dtype: (x.shape, dtype), _convert_vjp, simplify=algebra.convert, total=_convert_total)


def convert(x, dtype):
    """`x` as `dtype`: floats to integers truncate and saturate (NaN gives 0), integers wrap, anything but 0 is True, complex numbers lose
    their imaginary part."""
    dtype = dtypes.canonical(dtype)
    return x if x.dtype == dtype else _convert(x, dtype=dtype)


def _bitcast_shape(x, *, dtype):
    if dtypes.itemsize(x.dtype) != dtypes.itemsize(dtype):
        raise TypeError(f"bitcast: {x.dtype} and {dtype} differ in size; reshape and convert instead.")
    return x.shape, dtype


_bitcast = _primitive("bitcast", _bitcast_shape, None)


def bitcast(x, dtype):
    """The bits of `x` as a dtype of the same size."""
    return _bitcast(x, dtype=dtypes.canonical(dtype))


stop_gradient_p = Primitive(
    "stop_gradient",
    lambda x: (x.shape, x.dtype),
    kind=Kind.VIEW,
    cost=0,
    access=lambda node, position: same_place(len(node.shape)),
    flat=True,
    shares_memory=lambda node: True,
    batch=same_parameters(lambda: stop_gradient_p),
    simplify=lambda graph, inputs, params, origin: inputs[0],
)


def stop_gradient(x):
    """`x`, through which no gradient flows."""
    return stop_gradient_p(x)


def _complex_shape(re, im):
    dtype = {"float32": "complex64", "float64": "complex128"}.get(_same_dtype("complex", (re, im)))
    if dtype is None:
        raise TypeError(f"complex: the parts have dtype {re.dtype}; complex numbers are made of float32 or float64.")
    return joint_shape("complex", (re, im)), dtype


_complex = _primitive("complex", _complex_shape, lambda ct, out, re, im: (P.real(ct), P.imag(ct)))


def complex(re, im):
    """The complex64 (complex128) tensor with these float32 (float64) parts."""
    return _complex(re, im)
