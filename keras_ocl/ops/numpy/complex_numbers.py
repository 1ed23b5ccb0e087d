"""Elementary functions of complex tensors, from functions of their parts and from one another.

Principal values, with the branch cuts that NumPy has.
"""

import math

from keras_ocl import primitives as P
from keras_ocl.ops.promotion import scalar_like


def _polar(modulus, angle):
    return P.complex(P.mul(modulus, P.cos(angle)), P.mul(modulus, P.sin(angle)))


def _parts(z):
    return P.real(z), P.imag(z)


def _turned(z):
    """i z."""
    re, im = _parts(z)
    return P.complex(P.neg(im), re)


def _turned_back(z):
    """-i z."""
    re, im = _parts(z)
    return P.complex(im, P.neg(re))


def _half(x):
    return P.mul(x, scalar_like(0.5, x))


def argument(z):
    """The angle of each number, in (-pi, pi]."""
    re, im = _parts(z)
    return P.atan2(im, re)


def log(z):
    """Natural logarithm."""
    return P.complex(P.log(P.abs(z)), argument(z))


def _log_to_base(base):
    def function(z):
        logarithm = log(z)
        return P.mul(logarithm, scalar_like(1 / math.log(base), logarithm))

    return function


def log1p(z):
    """log(1 + z), accurate near 0: |1 + z|^2 - 1 = x (2 + x) + y^2."""
    re, im = _parts(z)
    excess = P.add(P.mul(re, P.add(re, scalar_like(2, re))), P.mul(im, im))
    shifted = P.add(re, scalar_like(1, re))
    near = P.lt(P.abs(excess), scalar_like(0.5, excess))
    size = P.select(near, _half(P.log1p(P.select(near, excess, scalar_like(0, excess)))), P.log(P.hypot(shifted, im)))
    return P.complex(size, P.atan2(im, shifted))


def expm1(z):
    """exp(z) - 1, accurate near 0: cos y - 1 = -2 sin(y / 2)^2."""
    re, im = _parts(z)
    sine = P.sin(_half(im))
    drop = P.mul(scalar_like(2, sine), P.mul(sine, sine))
    grown = P.expm1(re)
    return P.complex(P.sub(P.mul(grown, P.cos(im)), drop), P.mul(P.exp(re), P.sin(im)))


def exp2(z):
    """2 to the power z."""
    return P.exp(P.mul(z, scalar_like(math.log(2), z)))


def sqrt(z):
    """Square root: its greater part is found first, the other one by division (no cancellation)."""
    re, im = _parts(z)
    zero, one = scalar_like(0, re), scalar_like(1, re)
    at_zero = P.and_(P.eq(re, zero), P.eq(im, zero))
    modulus = P.select(at_zero, one, P.hypot(re, im))
    greater = P.sqrt(_half(P.add(modulus, P.abs(re))))
    lesser = P.div(_half(im), greater)
    right = P.ge(re, zero)
    real = P.select(right, greater, P.abs(lesser))
    imaginary = P.select(right, lesser, P.copysign(greater, im))
    return P.complex(P.select(at_zero, zero, real), P.select(at_zero, im, imaginary))


def sinh(z):
    """Hyperbolic sine."""
    re, im = _parts(z)
    return P.complex(P.mul(P.sinh(re), P.cos(im)), P.mul(P.cosh(re), P.sin(im)))


def cosh(z):
    """Hyperbolic cosine."""
    re, im = _parts(z)
    return P.complex(P.mul(P.cosh(re), P.cos(im)), P.mul(P.sinh(re), P.sin(im)))


def tanh(z):
    """Hyperbolic tangent, by that of the real part and the tangent of the imaginary one: no overflow."""
    re, im = _parts(z)
    t, u = P.tanh(re), P.tan(im)
    one = scalar_like(1, z)
    return P.div(P.complex(t, u), P.add(one, P.complex(scalar_like(0, t), P.mul(t, u))))


def sigmoid(z):
    """1 / (1 + exp(-z)), by the hyperbolic tangent: no overflow."""
    return _half(P.add(scalar_like(1, z), tanh(_half(z))))


def sin(z):
    """Sine."""
    return _turned_back(sinh(_turned(z)))


def cos(z):
    """Cosine."""
    return cosh(_turned(z))


def tan(z):
    """Tangent."""
    return _turned_back(tanh(_turned(z)))


# Inverse functions as W. Kahan gives them ("Branch cuts for complex elementary functions", 1987).


def _around(z):
    """The roots of 1 - z and 1 + z."""
    one = scalar_like(1, z)
    return sqrt(P.sub(one, z)), sqrt(P.add(one, z))


def arcsin(z):
    """Inverse sine."""
    low, high = _around(z)
    return P.complex(P.atan2(P.real(z), P.real(P.mul(low, high))), P.asinh(P.imag(P.mul(P.conj(low), high))))


def arccos(z):
    """Inverse cosine."""
    low, high = _around(z)
    angle = P.atan2(P.real(low), P.real(high))
    return P.complex(P.add(angle, angle), P.asinh(P.imag(P.mul(P.conj(high), low))))


def arccosh(z):
    """Inverse hyperbolic cosine."""
    one = scalar_like(1, z)
    low, high = sqrt(P.sub(z, one)), sqrt(P.add(z, one))
    angle = P.atan2(P.imag(low), P.real(high))
    return P.complex(P.asinh(P.real(P.mul(P.conj(low), high))), P.add(angle, angle))


def arctanh(z):
    """Inverse hyperbolic tangent."""
    return P.mul(P.sub(log1p(z), log1p(P.neg(z))), scalar_like(0.5, z))


def arcsinh(z):
    """Inverse hyperbolic sine."""
    return _turned_back(arcsin(_turned(z)))


def arctan(z):
    """Inverse tangent."""
    return _turned_back(arctanh(_turned(z)))


log2 = _log_to_base(2)
log10 = _log_to_base(10)


def sign(z):
    """z / |z|, and 0 of 0."""
    modulus = P.abs(z)
    none = P.eq(modulus, scalar_like(0, modulus))
    modulus = P.select(none, scalar_like(1, modulus), modulus)
    re, im = _parts(z)
    return P.complex(P.div(re, modulus), P.div(im, modulus))


def power(a, b):
    """exp(b log a); 0 to the power of 0 is 1."""
    modulus, zero = P.abs(a), scalar_like(0, P.real(a))
    one = scalar_like(1, zero)
    no_base = P.eq(modulus, zero)
    logarithm = P.log(P.select(no_base, one, modulus))
    re, im = _parts(b)
    angle = argument(a)
    size = P.exp(P.sub(P.mul(re, logarithm), P.mul(im, angle)))
    turn = P.add(P.mul(re, angle), P.mul(im, logarithm))
    of_zero = P.select(P.eq(P.abs(b), zero), one, zero)
    value = _polar(size, turn)
    return P.complex(P.select(no_base, of_zero, P.real(value)), P.select(no_base, zero, P.imag(value)))
