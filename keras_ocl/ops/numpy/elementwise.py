"""keras.ops.numpy, elementwise: arithmetic, rounding, exponentials, trigonometry, complex parts.

Every function takes tensors, arrays or Python numbers, promotes by Keras's rules and broadcasts by NumPy's.
"""

import math

import ml_dtypes
import numpy as np
from keras.src.backend.common.backend_utils import vectorize_impl

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.gradients import custom_gradient
from keras_ocl.ops.integer_arguments import number
from keras_ocl.ops.numpy import complex_numbers
from keras_ocl.ops.promotion import broadcast, floating, operand, promote, scalar_like
from keras_ocl.ops.result_types import dtype_of, result_type
from keras_ocl.ops.vectorization import mapped_over


def _float_unary(name, primitive):
    of_complex = getattr(complex_numbers, name, None)

    def op(x):
        x = floating(x)
        return of_complex(x) if of_complex and dtypes.is_complex(x.dtype) else primitive(x)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Elementwise {name}; integers and bool become floatx."
    return op


def _binary(name, primitive, extra=(), bool_as=None):
    def op(x1, x2):
        x1, x2 = promote(x1, x2, extra=extra)
        if bool_as and x1.dtype == "bool":
            x1, x2 = convert_to_tensor(x1, bool_as), convert_to_tensor(x2, bool_as)
        return primitive(*broadcast(name, x1, x2))

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Elementwise {name}, with promotion and broadcasting."
    return op


arccos = _float_unary("arccos", P.acos)
arccosh = _float_unary("arccosh", P.acosh)
arcsin = _float_unary("arcsin", P.asin)
arcsinh = _float_unary("arcsinh", P.asinh)
arctan = _float_unary("arctan", P.atan)
arctanh = _float_unary("arctanh", P.atanh)
cbrt = _float_unary("cbrt", P.cbrt)
ceil = _float_unary("ceil", P.ceil)
cos = _float_unary("cos", P.cos)
cosh = _float_unary("cosh", P.cosh)
exp = _float_unary("exp", P.exp)
exp2 = _float_unary("exp2", P.exp2)
expm1 = _float_unary("expm1", P.expm1)
fabs = _float_unary("fabs", P.abs)
floor = _float_unary("floor", P.floor)
i0 = _float_unary("i0", P.i0)
log = _float_unary("log", P.log)
log10 = _float_unary("log10", P.log10)
log1p = _float_unary("log1p", P.log1p)
log2 = _float_unary("log2", P.log2)
sin = _float_unary("sin", P.sin)
sinh = _float_unary("sinh", P.sinh)
sqrt = _float_unary("sqrt", P.sqrt)
tan = _float_unary("tan", P.tan)
tanh = _float_unary("tanh", P.tanh)

add = _binary("add", P.add)
multiply = _binary("multiply", P.mul)
subtract = _binary("subtract", P.sub, bool_as="int32")
divide = _binary("divide", P.div, extra=(float,))
floor_divide = _binary("floor_divide", P.floor_div, bool_as="int32")
maximum = _binary("maximum", P.max)
minimum = _binary("minimum", P.min)
mod = _binary("mod", P.mod, bool_as="int32")
fmod = _binary("fmod", P.rem, bool_as="int32")
arctan2 = _binary("arctan2", P.atan2, extra=(float,))
hypot = _binary("hypot", P.hypot, extra=(float,))
nextafter = _binary("nextafter", P.nextafter, extra=(float,))


def true_divide(x1, x2):
    """Elementwise quotient, always floating."""
    return divide(x1, x2)


def divide_no_nan(x1, x2):
    """Elementwise quotient, 0 where the divisor is 0 (its gradient too)."""
    x1, x2 = broadcast("divide_no_nan", *promote(x1, x2, extra=(float,)))
    zero = P.eq(x2, scalar_like(0, x2))
    safe = P.select(zero, scalar_like(1, x2), x2)
    return P.select(zero, scalar_like(0, x1), P.div(x1, safe))


def power(x1, x2):
    """Elementwise power. Small constant integer powers are products."""
    if isinstance(x2, int) and not isinstance(x2, bool) and x2 in (1, 2, 3):
        x = promote(x1, x2)[0]
        if x.dtype != "bool":
            square_ = x if x2 == 1 else P.mul(x, x)
            return P.mul(square_, x) if x2 == 3 else square_
    x1, x2 = promote(x1, x2)
    if x1.dtype == "bool":
        x1, x2 = convert_to_tensor(x1, "int32"), convert_to_tensor(x2, "int32")
    x1, x2 = broadcast("power", x1, x2)
    return complex_numbers.power(x1, x2) if dtypes.is_complex(x1.dtype) else P.pow(x1, x2)


def absolute(x):
    """Elementwise absolute value; of complex numbers, their modulus."""
    x = convert_to_tensor(x)
    return x if x.dtype == "bool" or x.dtype.startswith("uint") else P.abs(x)


def abs(x):
    """Elementwise absolute value."""
    return absolute(x)


def negative(x):
    """Elementwise negation."""
    x = convert_to_tensor(x)
    if x.dtype == "bool":
        raise TypeError("negative: a bool tensor has no negative; use logical_not.")
    return P.neg(x)


def square(x):
    """Elementwise square."""
    x = convert_to_tensor(x)
    if x.dtype == "bool":
        x = P.convert(x, "int32")
    return P.mul(x, x)


def reciprocal(x):
    """Elementwise 1 / x in x's own dtype (of integers, truncated)."""
    x = convert_to_tensor(x)
    if dtypes.is_float(x.dtype) or dtypes.is_complex(x.dtype):
        return P.div(scalar_like(1, x), x)
    return P.select(P.eq(absolute(x), scalar_like(1, x)), x, scalar_like(0, x))


def sign(x):
    """Elementwise sign: -1, 0 or 1."""
    x = convert_to_tensor(x)
    if x.dtype == "bool":
        return x
    return complex_numbers.sign(x) if dtypes.is_complex(x.dtype) else P.sign(x)


def signbit(x):
    """Whether the sign bit is set (true of -0.0)."""
    x = convert_to_tensor(x)
    if not dtypes.is_float(x.dtype):
        if x.dtype == "bool" or x.dtype.startswith("uint"):
            return P.full(x.shape, False, "bool")
        return P.lt(x, scalar_like(0, x))
    return P.lt(P.copysign(scalar_like(1, x), x), scalar_like(0, x))


def round(x, decimals=0):
    """Round to `decimals` places, halves to even."""
    x = convert_to_tensor(x)
    if not dtypes.is_float(x.dtype):
        if decimals >= 0:
            return x
        return _rounded_integer(x, 10**-decimals)
    if decimals == 0:
        return P.round(x)
    factor = scalar_like(10.0 ** math.fabs(decimals), x)
    if decimals > 0:
        return P.div(P.round(P.mul(x, factor)), factor)
    return P.mul(P.round(P.div(x, factor)), factor)


def _rounded_integer(x, unit):
    """The nearest multiple of `unit`, halves to the even one; 0 when every number of the dtype is nearer to that."""
    if x.dtype == "bool" or unit > 2 * np.iinfo(dtypes.numpy_dtype(x.dtype)).max:
        return scalar_like(0, x)
    x, dtype = convert_to_tensor(x, "uint64" if x.dtype == "uint64" else "int64"), x.dtype
    step, one = scalar_like(unit, x), scalar_like(1, x)
    whole = P.floor_div(x, step)
    left = P.sub(x, P.mul(whole, step))
    missing = P.sub(step, left)
    odd = P.eq(P.and_(whole, one), one)
    up = P.or_(P.gt(left, missing), P.and_(P.eq(left, missing), odd))
    return convert_to_tensor(P.mul(P.select(up, P.add(whole, one), whole), step), dtype)


def trunc(x):
    """Round towards zero."""
    x = convert_to_tensor(x)
    return P.trunc(x) if dtypes.is_float(x.dtype) else x


def clip(x, x_min, x_max):
    """Limit to [x_min, x_max]; either bound may be None."""
    x = convert_to_tensor(x)
    if x.dtype == "bool":
        x = P.convert(x, "int32")
    for bound, limit in ((x_min, P.max), (x_max, P.min)):
        if bound is None:
            continue
        bound = operand(bound)
        if dtypes.is_integer(x.dtype) and (isinstance(bound, float) or dtypes.is_float(_name(bound))):
            x = convert_to_tensor(x, result_type(x.dtype, dtype_of(bound)))
        x = limit(*broadcast("clip", x, convert_to_tensor(bound, x.dtype)))
    return x


def _name(x):
    return "" if isinstance(x, (bool, int, float)) else x.dtype


def fmax(x1, x2):
    """Elementwise maximum; where one is NaN, the other."""
    return _ignoring_nan(P.max, "fmax", x1, x2)


def fmin(x1, x2):
    """Elementwise minimum; where one is NaN, the other."""
    return _ignoring_nan(P.min, "fmin", x1, x2)


def _ignoring_nan(primitive, name, x1, x2):
    x1, x2 = broadcast(name, *promote(x1, x2))
    if not dtypes.is_float(x1.dtype):
        return primitive(x1, x2)
    return P.select(P.is_nan(x1), x2, P.select(P.is_nan(x2), x1, primitive(x1, x2)))


def copy(x):
    """`x` as a tensor of its own identity (to differentiate by); the memory is shared, as tensors are immutable."""
    x = convert_to_tensor(x)
    return P.reshape(P.reshape(x, (1, *x.shape)), x.shape)


_SINC = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(7))  # its power series, exact to float64 up to an angle of 1/2


def sinc(x):
    """sin(pi x) / (pi x), 1 at 0."""
    x = floating(x)
    angle_ = P.mul(x, scalar_like(math.pi, x))
    if dtypes.is_complex(x.dtype):
        zero = P.eq(x, scalar_like(0, x))
        return P.select(zero, scalar_like(1, x), P.div(sin(angle_), P.select(zero, scalar_like(1, x), angle_)))
    # Near 0 the quotient's derivatives cancel, and at 0 it has none.
    near = P.lt(P.abs(angle_), scalar_like(0.5, x))
    small, large = (P.select(near, *pair) for pair in ((angle_, scalar_like(0, x)), (scalar_like(1, x), angle_)))
    squared, series = P.mul(small, small), scalar_like(_SINC[-1], x)
    for coefficient in reversed(_SINC[:-1]):
        series = P.add(P.mul(series, squared), scalar_like(coefficient, x))
    return P.select(near, series, P.div(P.sin(large), large))


def deg2rad(x):
    """Degrees to radians."""
    x = floating(x)
    return P.mul(x, scalar_like(math.pi / 180, x))


def rad2deg(x):
    """Radians to degrees."""
    x = floating(x)
    return P.mul(x, scalar_like(180 / math.pi, x))


def heaviside(x1, x2):
    """0 where x1 < 0, x2 where it is 0, 1 where it is greater."""
    x1, x2 = broadcast("heaviside", *promote(x1, x2, extra=(float,)))
    zero = scalar_like(0, x1)
    step = P.select(P.eq(x1, zero), x2, P.select(P.lt(x1, zero), zero, scalar_like(1, x1)))
    return P.select(P.is_nan(x1), x1, step)


def ldexp(x1, x2):
    """x1 * 2**x2. TypeError unless x2 is of an integer dtype."""
    x2 = convert_to_tensor(x2)
    if not dtypes.is_integer(x2.dtype):
        raise TypeError(f"ldexp exponent must be an integer type. Received: x2 dtype={x2.dtype}")
    x1 = convert_to_tensor(x1)
    x1, x2 = broadcast("ldexp", *promote(x1, x2, extra=(float,)))
    half = P.trunc(P.mul(x2, scalar_like(0.5, x2)))  # in two factors, so that neither overflows before the product does
    return P.mul(P.mul(x1, P.exp2(half)), P.exp2(P.sub(x2, half)))


def logaddexp(x1, x2):
    """log(exp(x1) + exp(x2)) without overflow. Equal arguments share the gradient, infinite ones too."""
    return _logaddexp("logaddexp", 1, x1, x2)


def logaddexp2(x1, x2):
    """log2(2**x1 + 2**x2) without overflow. Equal arguments share the gradient, infinite ones too."""
    return _logaddexp("logaddexp2", math.log(2), x1, x2)


def _logaddexp(name, log_base, x1, x2):
    """The logarithm of the sum of two powers of a base, from that base's natural logarithm."""
    x1, x2 = broadcast(name, *promote(x1, x2, extra=(float,)))

    def scaled(x, factor):
        return x if factor == 1 else P.mul(x, scalar_like(factor, x))

    # Smooth where x1 == x2, which max and abs are not: so it has a gradient of its own.
    @custom_gradient
    def log_of_sum(x1, x2):
        difference = P.sub(x1, x2)
        tail = P.log1p(P.exp(scaled(P.neg(P.abs(difference)), log_base)))
        total = P.add(P.max(x1, x2), scaled(tail, 1 / log_base))

        def grad(upstream):
            alike = P.and_(P.is_inf(x1), P.eq(x1, x2))
            excess = scaled(P.select(alike, scalar_like(0, x1), P.sub(x1, x2)), log_base)
            return P.mul(upstream, P.logistic(excess)), P.mul(upstream, P.logistic(P.neg(excess)))

        # Equal infinities have no difference; a NaN stays one.
        return P.select(P.is_nan(difference), P.add(x1, x2), total), grad

    return log_of_sum(x1, x2)


def gcd(x1, x2):
    """Elementwise greatest common divisor of integers, by Euclid's algorithm."""
    x1, x2 = broadcast("gcd", *promote(x1, x2))
    if not dtypes.is_integer(x1.dtype):
        raise TypeError(f"gcd: integer tensors are needed, got {x1.dtype}.")
    return _gcd(x1, x2)


def _gcd(x1, x2):
    a, b = absolute(x1), absolute(x2)
    zero = scalar_like(0, a)
    # Lamé: a pair of n-bit integers takes at most 1.44 n + 1 divisions.
    for _ in range(math.ceil(1.4405 * 8 * dtypes.itemsize(a.dtype)) + 1):
        done = P.eq(b, zero)
        remainder = P.rem(a, P.select(done, scalar_like(1, b), b))
        a, b = P.select(done, a, b), P.select(done, zero, remainder)
    return a


def lcm(x1, x2):
    """Elementwise least common multiple of integers."""
    x1, x2 = broadcast("lcm", *promote(x1, x2))
    if not dtypes.is_integer(x1.dtype):
        raise TypeError(f"lcm: integer tensors are needed, got {x1.dtype}.")
    divisor = _gcd(x1, x2)
    safe = P.max(divisor, scalar_like(1, divisor))
    return P.mul(P.floor_div(absolute(x1), safe), absolute(x2))


def nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    """NaN replaced by `nan`, infinities by `posinf` and `neginf` (None: the dtype's extremes)."""
    x = convert_to_tensor(x)
    if not dtypes.is_float(x.dtype):
        return x
    given = {"nan": nan, "posinf": posinf, "neginf": neginf}
    nan, posinf, neginf = (v if v is None else number(v, "nan_to_num", name) for name, v in given.items())
    limits = _limits(x.dtype)
    zero = scalar_like(0, x)
    infinite = P.is_inf(x)
    high = scalar_like(limits[1] if posinf is None else posinf, x)
    low = scalar_like(limits[0] if neginf is None else neginf, x)
    x = P.select(infinite, P.select(P.gt(x, zero), high, low), x)
    return P.select(P.is_nan(x), scalar_like(nan, x), x)


def _limits(dtype):
    info = ml_dtypes.finfo(dtypes.numpy_dtype(dtype))
    return float(info.min), float(info.max)


def real(x):
    """The real part."""
    x = convert_to_tensor(x)
    return P.real(x) if dtypes.is_complex(x.dtype) else x


def imag(x):
    """The imaginary part; zeros of a real tensor."""
    x = convert_to_tensor(x)
    return P.imag(x) if dtypes.is_complex(x.dtype) else scalar_like(0, x)


def conjugate(x):
    """The complex conjugate."""
    x = convert_to_tensor(x)
    return P.conj(x) if dtypes.is_complex(x.dtype) else x


def conj(x):
    """The complex conjugate."""
    return conjugate(x)


def angle(x):
    """The argument of a complex number: 0 or pi of a real one."""
    x = floating(x)
    if dtypes.is_complex(x.dtype):
        return complex_numbers.argument(x)
    turned = P.select(P.lt(x, scalar_like(0, x)), scalar_like(math.pi, x), scalar_like(0, x))
    return P.select(P.is_nan(x), x, turned)


def view(x, dtype=None):
    """The same bytes as another dtype; the last axis shrinks or grows when their sizes differ."""
    x = convert_to_tensor(x)
    if dtype is None:
        return x
    dtype = dtypes.canonical(dtype)
    old, new = dtypes.itemsize(x.dtype), dtypes.itemsize(dtype)
    if old == new:
        return P.bitcast(x, dtype)
    return _resized_view(x, dtype, old, new)


def _resized_view(x, dtype, old, new):
    """Bytes regrouped: integers of the smaller size are cut out of, or shifted together into, the larger one."""
    if not x.shape or (x.shape[-1] * old) % new:
        raise ValueError(f"view: the last axis of a {x.dtype} tensor of shape {tuple(x.shape)} does not divide into {dtype} elements.")
    large, small, ratio = max(old, new), min(old, new), max(old, new) // min(old, new)
    wide, narrow = f"uint{8 * large}", f"uint{8 * small}"
    if new < old:
        bits = P.bitcast(x, wide) if x.dtype != wide else x
        parts = [P.convert(P.shift_right(bits, scalar_like(8 * small * i, bits)), narrow) for i in range(ratio)]
        stacked = P.concat([P.reshape(p, (*p.shape, 1)) for p in parts], len(x.shape))
        flat = P.reshape(stacked, (*x.shape[:-1], x.shape[-1] * ratio))
        return flat if dtype == narrow else P.bitcast(flat, dtype)
    bits = P.bitcast(x, narrow) if x.dtype != narrow else x
    groups = P.reshape(bits, (*x.shape[:-1], x.shape[-1] // ratio, ratio))
    total = None
    for i in range(ratio):
        starts = (0,) * (len(groups.shape) - 1) + (i,)
        piece = P.reshape(P.slice(groups, starts, (*groups.shape[:-1], i + 1)), groups.shape[:-1])
        piece = P.convert(piece, wide)
        piece = P.shift_left(piece, scalar_like(8 * small * i, piece))
        total = piece if total is None else P.or_(total, piece)
    return total if dtype == wide else P.bitcast(total, dtype)


def vectorize(pyfunc, *, excluded=None, signature=None):
    """`pyfunc` applied over leading axes, as `numpy.vectorize`."""
    return vectorize_impl(pyfunc, mapped_over, excluded=excluded, signature=signature)
