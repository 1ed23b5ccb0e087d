"""Elementwise primitives: checks of arguments and gradients (values are tested with the templates, in tests/kernels)."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.kernels.elementwise import OPS
from tests.elementwise import OWN_SIGNATURE, ROWS
from tests.primitives.checking import check_gradient, need_float64, same

RNG = np.random.default_rng(0)

SMOOTH = [name for name, row in ROWS.items() if row.smooth]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradient(name):
    operands = [RNG.uniform(*limits, (3, 5)) for limits in ROWS[name].smooth]
    check_gradient(getattr(P, name), *operands, tolerance=2e-6)


def test_every_operation_has_its_rows():
    primitives = {name for name, primitive in Primitive.registry.items() if primitive.kind is Kind.ELEMENTWISE}
    operations = set(OPS) - {"threefry"}  # random_bits, which is no elementwise primitive, calls that
    assert primitives == operations, "the tables in keras_ocl/primitives/elementwise.py and keras_ocl/kernels/elementwise.py differ"
    assert primitives == set(ROWS) | OWN_SIGNATURE - {"threefry"}, "give each operation a row in tests/elementwise.py"
    for name, row in ROWS.items():
        for numbers in ("floats", "integers", "bools", "complexes"):
            have, tested = (getattr(r, numbers) is not None for r in (OPS[name], row))
            assert have == tested, f"{name}: its rows in tests/elementwise.py and keras_ocl/kernels/elementwise.py differ in `{numbers}`"


def test_each_gradient_is_tested():
    have = {name for name, row in ROWS.items() if row.floats and Primitive.registry[name].vjp}
    assert have == set(SMOOTH), "give them a range `smooth` in tests/elementwise.py"


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
