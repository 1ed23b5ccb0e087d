"""keras.ops.numpy, comparisons, logic and bits."""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.promotion import as_bool, axes_of, broadcast, keep, operand, promote, scalar_like
from keras_ocl.ops.result_types import dtype_of, result_type


def _comparison(name, primitive):
    def op(x1, x2):
        return primitive(*broadcast(name, *promote(x1, x2)))

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Elementwise {name}: a bool tensor."
    return op


equal = _comparison("equal", P.eq)
not_equal = _comparison("not_equal", P.ne)
less = _comparison("less", P.lt)
less_equal = _comparison("less_equal", P.le)
greater = _comparison("greater", P.gt)
greater_equal = _comparison("greater_equal", P.ge)


def _logical(name, primitive):
    def op(x1, x2):
        return primitive(*broadcast(name, as_bool(x1), as_bool(x2)))

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Elementwise {name} of what is not zero: a bool tensor."
    return op


logical_and = _logical("logical_and", P.and_)
logical_or = _logical("logical_or", P.or_)
logical_xor = _logical("logical_xor", P.xor)


def logical_not(x):
    """Whether each element is zero."""
    return P.not_(as_bool(x))


def _bitwise(name, primitive):
    def op(x, y):
        x, y = broadcast(name, *promote(x, y))
        if dtypes.is_float(x.dtype):
            raise TypeError(f"{name}: integer or bool tensors are needed, got {x.dtype}.")
        return primitive(x, y)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Elementwise {name} of integers."
    return op


bitwise_and = _bitwise("bitwise_and", P.and_)
bitwise_or = _bitwise("bitwise_or", P.or_)
bitwise_xor = _bitwise("bitwise_xor", P.xor)


def _shift(name, primitive):
    def op(x, y):
        x = convert_to_tensor(x)
        y = operand(y)
        dtype = x.dtype if isinstance(y, int) and not isinstance(y, bool) else result_type(x.dtype, dtype_of(y))
        if dtype == "bool":
            dtype = "int32"
        return primitive(*broadcast(name, convert_to_tensor(x, dtype), convert_to_tensor(y, dtype)))

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Elementwise {name} of integers."
    return op


bitwise_left_shift = _shift("bitwise_left_shift", P.shift_left)
bitwise_right_shift = _shift("bitwise_right_shift", P.shift_right)


def left_shift(x, y):
    """Bits of x moved y places up."""
    return bitwise_left_shift(x, y)


def right_shift(x, y):
    """Bits of x moved y places down."""
    return bitwise_right_shift(x, y)


def bitwise_invert(x):
    """Every bit flipped (of bool, logical not)."""
    x = convert_to_tensor(x)
    if dtypes.is_float(x.dtype):
        raise TypeError(f"bitwise_invert: integer or bool tensors are needed, got {x.dtype}.")
    return P.not_(x)


def bitwise_not(x):
    """Every bit flipped."""
    return bitwise_invert(x)


def isfinite(x):
    """Whether neither infinite nor NaN."""
    return P.is_finite(convert_to_tensor(x))


def isnan(x):
    """Whether NaN."""
    return P.is_nan(convert_to_tensor(x))


def isinf(x):
    """Whether infinite."""
    return P.is_inf(convert_to_tensor(x))


def _infinity(x, compare):
    x = convert_to_tensor(x)
    if dtypes.is_complex(x.dtype):
        raise TypeError("isposinf/isneginf: complex numbers have no sign.")
    if not dtypes.is_float(x.dtype):
        return P.full(x.shape, False, "bool")
    return P.and_(P.is_inf(x), compare(x, scalar_like(0, x)))


def isposinf(x):
    """Whether +infinity."""
    return _infinity(x, P.gt)


def isneginf(x):
    """Whether -infinity."""
    return _infinity(x, P.lt)


def isreal(x):
    """Whether the imaginary part is zero."""
    x = convert_to_tensor(x)
    if not dtypes.is_complex(x.dtype):
        return P.full(x.shape, True, "bool")
    imaginary = P.imag(x)
    return P.eq(imaginary, scalar_like(0, imaginary))


def isclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Whether |x1 - x2| <= atol + rtol |x2|; equal infinities are close, NaNs if `equal_nan`."""
    x1, x2 = broadcast("isclose", *promote(x1, x2, extra=(float,)))
    size = P.abs(x2)
    bound = P.add(scalar_like(atol, size), P.mul(scalar_like(rtol, size), size))
    close = P.and_(P.le(P.abs(P.sub(x1, x2)), bound), P.is_finite(x2))
    close = P.or_(close, P.eq(x1, x2))
    if equal_nan:
        close = P.or_(close, P.and_(P.is_nan(x1), P.is_nan(x2)))
    return close


def allclose(x1, x2, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Whether all elements are close: a bool scalar."""
    return all(isclose(x1, x2, rtol, atol, equal_nan))


def _reduce(primitive, x, axis, keepdims):
    x = as_bool(x)
    axes = axes_of(axis, x.ndim)
    result = primitive(x, axes) if axes else x
    return P.reshape(result, keep(x.shape, axes)) if keepdims else result


def all(x, axis=None, keepdims=False):
    """Whether all elements along `axis` are not zero."""
    return _reduce(P.reduce_and, x, axis, keepdims)


def any(x, axis=None, keepdims=False):
    """Whether any element along `axis` is not zero."""
    return _reduce(P.reduce_or, x, axis, keepdims)
