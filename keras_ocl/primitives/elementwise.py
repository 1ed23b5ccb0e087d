"""Elementwise primitives: arithmetic, comparisons, selection and conversion.

Operands have equal shapes and dtypes; `keras_ocl.ops` promotes and broadcasts. Gradients follow TensorFlow
where a function is not differentiable (max and min give a tie to the first operand; relu is flat at 0).
"""

import math

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


def _part_shape(name):
    """abs, real and imag of complex numbers have the dtype of a part."""

    def rule(x):
        return x.shape, dtypes.part(x.dtype)

    return rule


def _bool_shape(name, check):
    def rule(x):
        if not check(x.dtype):
            raise TypeError(f"{name}: dtype {x.dtype} is not supported.")
        return x.shape, "bool"

    return rule


def _sum_total(summed, stacked, inputs, params, number):
    parts = [summed(x) for x in inputs]
    return None if None in parts else lambda: P.add(*(part() for part in parts))


def _convert_total(summed, stacked, inputs, params, number):
    inner = summed(inputs[0])
    return None if inner is None else lambda: _convert(inner(), **params)


_TOTALS = {"add": _sum_total, "convert": _convert_total}


def _primitive(name, shape, vjp):
    """The elementwise primitive whose operation in OpenCL C goes by the same name."""

    def pointwise(gen, node, index):
        return gen.op(name, node.dtype, *[gen.value(i, index) for i in node.inputs])

    primitive = Primitive(
        name,
        shape,
        vjp,
        pointwise,
        kind=Kind.ELEMENTWISE,
        cost=elementwise.OPS[name].cost,
        simplify=algebra.SIMPLIFY.get(name),
        fold=algebra.FOLD.get(name),
        batch=same_parameters(lambda: primitive),
        total=_TOTALS.get(name),
    )
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


def _holomorphic(derivative):
    """VJP of a function of one variable from derivative(out, x)."""

    def vjp(ct, out, x):
        return (P.mul(ct, _conj(derivative(out, x))),)

    return vjp


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


# name: (VJP, what it computes). Results without a VJP are not of a floating dtype, or are constant almost everywhere.
_UNARY = {
    "neg": (lambda ct, out, x: (P.neg(ct),), "-x"),
    "sign": (None, "-1, 0 or 1 by the sign of x; NaN stays"),
    "floor": (None, "The greatest integer not above x"),
    "ceil": (None, "The least integer not below x"),
    "round": (None, "The nearest integer, ties to even"),
    "trunc": (None, "x without its fraction"),
    "exp": (_holomorphic(lambda out, x: out), "e to the power x"),
    "exp2": (_holomorphic(lambda out, x: _scaled(out, _LN2)), "2 to the power x"),
    "expm1": (_holomorphic(lambda out, x: P.add(out, _like(1, out))), "exp(x) - 1, accurate near 0"),
    "log": (_holomorphic(lambda out, x: P.div(_like(1, x), x)), "Natural logarithm"),
    "log1p": (_holomorphic(lambda out, x: P.div(_like(1, x), P.add(_like(1, x), x))), "log(1 + x), accurate near 0"),
    "log2": (_holomorphic(lambda out, x: P.div(_like(1 / _LN2, x), x)), "Logarithm to base 2"),
    "log10": (_holomorphic(lambda out, x: P.div(_like(1 / _LN10, x), x)), "Logarithm to base 10"),
    "sqrt": (_root(lambda out: P.div(_like(0.5, out), out)), "Square root"),
    "rsqrt": (_root(lambda out: _scaled(P.mul(out, _square(out)), -0.5)), "1 / sqrt(x)"),
    "cbrt": (_holomorphic(lambda out, x: P.div(_like(1 / 3, out), _square(out))), "Cube root"),
    "sin": (_holomorphic(lambda out, x: P.cos(x)), "Sine"),
    "cos": (_holomorphic(lambda out, x: P.neg(P.sin(x))), "Cosine"),
    "tan": (_holomorphic(lambda out, x: P.add(_like(1, out), _square(out))), "Tangent"),
    "asin": (_holomorphic(lambda out, x: P.rsqrt(P.sub(_like(1, x), _square(x)))), "Inverse sine"),
    "acos": (_holomorphic(lambda out, x: P.neg(P.rsqrt(P.sub(_like(1, x), _square(x))))), "Inverse cosine"),
    "atan": (_holomorphic(lambda out, x: P.div(_like(1, x), P.add(_like(1, x), _square(x)))), "Inverse tangent"),
    "sinh": (_holomorphic(lambda out, x: P.cosh(x)), "Hyperbolic sine"),
    "cosh": (_holomorphic(lambda out, x: P.sinh(x)), "Hyperbolic cosine"),
    "tanh": (_holomorphic(lambda out, x: P.sub(_like(1, out), _square(out))), "Hyperbolic tangent"),
    "asinh": (_holomorphic(lambda out, x: P.rsqrt(P.add(_square(x), _like(1, x)))), "Inverse hyperbolic sine"),
    "acosh": (
        _holomorphic(lambda out, x: P.rsqrt(P.mul(P.sub(x, _like(1, x)), P.add(x, _like(1, x))))),
        "Inverse hyperbolic cosine",
    ),
    "atanh": (_holomorphic(lambda out, x: P.div(_like(1, x), P.sub(_like(1, x), _square(x)))), "Inverse hyperbolic tangent"),
    "erf": (_holomorphic(lambda out, x: _scaled(P.exp(P.neg(_square(x))), 2 / math.sqrt(math.pi))), "Error function"),
    "erfc": (_holomorphic(lambda out, x: _scaled(P.exp(P.neg(_square(x))), -2 / math.sqrt(math.pi))), "1 - erf(x)"),
    "erf_inv": (_holomorphic(lambda out, x: _scaled(P.exp(_square(out)), math.sqrt(math.pi) / 2)), "Inverse of erf"),
    "lgamma": (_holomorphic(lambda out, x: P.digamma(x)), "Logarithm of the absolute value of the gamma function"),
    "digamma": (_holomorphic(lambda out, x: _trigamma(x)), "Derivative of lgamma"),
    "logistic": (_holomorphic(lambda out, x: P.mul(out, P.sub(_like(1, out), out))), "1 / (1 + exp(-x))"),
    "relu": (_relu_vjp, "max(x, 0); its gradient is computed from the result and is 0 at 0"),
    "i0": (_holomorphic(lambda out, x: P.i1(x)), "Modified Bessel function of order 0"),
    "i1": (_holomorphic(_i1_derivative), "Modified Bessel function of order 1"),
    "not": (None, "Logical (bool) or bitwise (integers) complement"),
    "population_count": (None, "Number of set bits"),
    "conj": (lambda ct, out, x: (P.conj(ct),), "Complex conjugate"),
}

_BINARY = {
    "add": (lambda ct, out, a, b: (ct, ct), "a + b (bool: or)"),
    "sub": (lambda ct, out, a, b: (ct, P.neg(ct)), "a - b"),
    "mul": (lambda ct, out, a, b: (P.mul(ct, _conj(b)), P.mul(ct, _conj(a))), "a * b (bool: and)"),
    "div": (_div_vjp, "a / b; of integers truncated"),
    "floor_div": (None, "a / b rounded down"),
    "mod": (lambda ct, out, a, b: (ct, P.neg(P.mul(ct, P.floor_div(a, b)))), "Remainder with the sign of b"),
    "rem": (lambda ct, out, a, b: (ct, P.neg(P.mul(ct, P.round(P.div(P.sub(a, out), b))))), "Remainder with the sign of a"),
    "pow": (_pow_vjp, "a to the power b"),
    "max": (_extreme_vjp("ge"), "The greater of both; NaN if either is"),
    "min": (_extreme_vjp("le"), "The lesser of both; NaN if either is"),
    "atan2": (_atan2_vjp, "Angle of the point (b, a)"),
    "hypot": (_hypot_vjp, "sqrt(a**2 + b**2) without overflow"),
    "copysign": (_copysign_vjp, "The magnitude of a with the sign of b"),
    "nextafter": (lambda ct, out, a, b: (ct, None), "The next number after a towards b"),
    "and": (None, "Logical (bool) or bitwise and"),
    "or": (None, "Logical (bool) or bitwise or"),
    "xor": (None, "Logical (bool) or bitwise exclusive or"),
    "shift_left": (None, "a << b"),
    "shift_right": (None, "a >> b"),
}

_COMPARISONS = {"eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}


def _declare(name, shape, vjp, text):
    primitive = _primitive(name, shape, vjp)
    keyword = {"not": "not_", "and": "and_", "or": "or_"}.get(name, name)

    def function(*operands):
        return primitive(*operands)

    function.__name__ = function.__qualname__ = keyword
    function.__doc__ = f"{text}, elementwise."
    globals()[keyword] = function
    __all__.append(keyword)


__all__ = ["bitcast", "complex", "convert", "joint_shape", "select", "stop_gradient"]

for _name, (_vjp, _text) in {**_UNARY, **_BINARY}.items():
    _declare(_name, _shape(_name), _vjp, _text)
for _name, _text in _COMPARISONS.items():
    _declare(_name, _shape(_name, "bool"), None, _text)
_declare("abs", _part_shape("abs"), _abs_vjp, "Absolute value")
_declare("real", _part_shape("real"), lambda ct, out, x: (P.complex(ct, _like(0, ct)) if dtypes.is_complex(x.dtype) else ct,), "Real part")
_declare("imag", _part_shape("imag"), lambda ct, out, x: (P.complex(_like(0, ct), ct),), "Imaginary part of a complex tensor")
for _name, _text in (("is_finite", "Neither infinite nor NaN"), ("is_nan", "Not a number"), ("is_inf", "Infinite")):
    _declare(_name, _bool_shape(_name, lambda dtype: True), None, _text)


# ---- operations with a signature of their own


def _select_shape(mask, a, b):
    if mask.dtype != "bool":
        raise TypeError(f"select: the mask has dtype {mask.dtype}; it must be bool.")
    return joint_shape("select", (mask, a, b)), _same_dtype("select", (a, b))


_select = _primitive("select", _select_shape, _select_vjp)


def select(mask, on_true, on_false):
    """`on_true` where the bool `mask` holds, else `on_false`; three tensors of one shape."""
    return _select(mask, on_true, on_false)


def _convert_vjp(ct, out, x, *, dtype):
    if dtypes.is_complex(ct.dtype) and not dtypes.is_complex(x.dtype):
        ct = P.real(ct)
    return (P.convert(ct, x.dtype) if dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype) else None,)


_convert = _primitive("convert", lambda x, *, dtype: (x.shape, dtype), _convert_vjp)


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
