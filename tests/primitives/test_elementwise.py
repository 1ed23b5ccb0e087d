"""Elementwise primitives: checks of arguments and gradients (values are tested with the templates, in tests/kernels)."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy
from keras_ocl.core.autodiff import GradientTape
from tests.primitives.checking import check_gradient, need_float64, same

RNG = np.random.default_rng(0)

# name: range in which the function is smooth
UNARY = {
    **{name: (-2, 2) for name in "neg exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh erf erfc logistic".split()},
    **{name: (0.3, 3) for name in "abs log log1p log2 log10 sqrt rsqrt cbrt lgamma digamma relu".split()},
    "tan": (-1, 1),
    "asin": (-0.8, 0.8),
    "acos": (-0.8, 0.8),
    "atanh": (-0.8, 0.8),
    "erf_inv": (-0.8, 0.8),
    "acosh": (1.3, 3),
}
BINARY = {
    **{name: ((-2, 2), (-2, 2)) for name in "add sub mul max min".split()},
    "div": ((-2, 2), (0.5, 2)),
    "pow": ((0.5, 2), (-2, 2)),
    "mod": ((2.1, 2.9), (1.1, 1.4)),
    "rem": ((2.1, 2.9), (1.1, 1.4)),
    "atan2": ((0.5, 2), (0.5, 2)),
    "hypot": ((0.5, 2), (0.5, 2)),
    "copysign": ((0.5, 2), (-2, -1)),
}


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_gradient(name):
    check_gradient(getattr(P, name), RNG.uniform(*UNARY[name], (3, 5)), tolerance=2e-6)


@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_gradient(name):
    a, b = BINARY[name]
    check_gradient(getattr(P, name), RNG.uniform(*a, 7), RNG.uniform(*b, 7))


def test_digamma_gradient_of_negatives():
    check_gradient(P.digamma, np.array([-0.4, -1.3, 0.1, 5.0, 40.0]), second=False)


def _gradient_at(function, *values):
    tensors = [from_numpy(np.array(v)) for v in values]
    with GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors)
    return tape.gradient(result, tensors)


def test_ties_as_tensorflow():
    need_float64()
    first, second = _gradient_at(P.max, [1.0, 2.0], [1.0, 3.0])
    same(first, [1.0, 0.0])
    same(second, [0.0, 1.0])
    same(_gradient_at(P.relu, [-1.0, 0.0, 2.0])[0], [0.0, 0.0, 1.0])
    same(_gradient_at(P.abs, [0.0, -2.0])[0], [0.0, -1.0])


def test_pow_is_safe_at_zero():
    need_float64()
    base, exponent = _gradient_at(P.pow, [0.0, 0.0, 0.0], [0.0, 1.0, 2.0])
    same(base, [0.0, 1.0, 0.0])
    same(exponent, [0.0, 0.0, 0.0])


def test_roots_that_nothing_depends_on_leave_no_nan():
    need_float64()
    cut = from_numpy(np.full(3, 0.5))
    same(_gradient_at(lambda x: P.select(P.gt(x, cut), P.sqrt(x), x), [-2.0, 0.0, 4.0])[0], [1.0, 1.0, 0.25])
    same(_gradient_at(lambda x: P.max(P.sqrt(x), cut), [0.0, 0.04, 4.0])[0], [0.0, 0.0, 0.25])
    same(_gradient_at(lambda x: P.min(P.rsqrt(x), cut), [0.0, 1.0, 16.0])[0], [0.0, 0.0, -1 / 128])
    same(_gradient_at(P.sqrt, [0.0, 0.25, 1.0])[0], [np.inf, 1.0, 0.5])


def test_select_gradient_and_convert():
    mask = from_numpy(np.array([True, False, True]))
    check_gradient(lambda a, b: P.select(mask, a, b), RNG.normal(size=3), RNG.normal(size=3))
    check_gradient(lambda a: P.convert(P.mul(P.convert(a, "float64"), a), "float64"), RNG.normal(size=3))


def test_complex_parts():
    re, im = RNG.normal(size=(2, 5)).astype("f4")
    value = P.complex(from_numpy(re), from_numpy(im))
    same(value, re + 1j * im, 1e-6)
    same(P.abs(value), np.abs(re + 1j * im), 1e-6)
    same(P.conj(value), re - 1j * im, 1e-6)

    def magnitude(a, b):
        c = P.complex(a, b)
        return P.real(P.mul(c, P.conj(c)))

    a, b = _gradient_at(magnitude, re, im)
    same(a, 2 * re, 1e-5)
    same(b, 2 * im, 1e-5)


def test_argument_errors():
    a, b, c = from_numpy(np.zeros(3, "f4")), from_numpy(np.zeros(4, "f4")), from_numpy(np.zeros(3, "i4"))
    with pytest.raises(ValueError, match="add.*shapes"):
        P.add(a, b)
    with pytest.raises(TypeError, match="mul.*dtypes"):
        P.mul(a, c)
    with pytest.raises(TypeError, match="select.*bool"):
        P.select(c, a, a)
    with pytest.raises(TypeError, match="bitcast"):
        P.bitcast(a, "int64")
