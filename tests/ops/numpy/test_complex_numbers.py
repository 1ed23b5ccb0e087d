"""Complex tensors of both widths against NumPy: round trips, arithmetic, elementary functions, promotion, gradients."""

import warnings

import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import primitives as P
from keras_ocl import runtime
from tests.ops.samples import same
from tests.primitives.checking import check_gradient, need_float64

RNG = np.random.default_rng(5)
Z = 2 * RNG.normal(size=(2, 3, 4)) + 2j * RNG.normal(size=(2, 3, 4))
W = RNG.normal(size=(2, 3, 4)) + 1j * RNG.normal(size=(2, 3, 4))
Z[0, 0] = [0.5, -3, 2j, -0.25]  # on axes, where branch cuts lie
WIDTHS = pytest.mark.parametrize("dtype", ["complex64", "complex128"])


def tensors(dtype):
    if dtype == "complex128":
        need_float64()
    return [ops.convert_to_tensor(z, dtype) for z in (Z, W)]


def close(ours, reference, dtype):
    value = np.asarray(ops.convert_to_numpy(ours))
    assert value.shape == np.shape(reference)
    tolerance = 2e-5 if dtype == "complex64" else 2e-13
    np.testing.assert_allclose(value, reference, rtol=tolerance, atol=tolerance)


@WIDTHS
def test_arithmetic(dtype):
    z, w = tensors(dtype)
    assert z.dtype == dtype
    np.testing.assert_array_equal(ops.convert_to_numpy(z), Z.astype(dtype))
    for function in (
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
        lambda a, b: a**b,
        lambda a, b: 0.1j - a,
        lambda a, b: a[0] @ b[0].T,
    ):
        ours = function(z, w)
        assert ours.dtype == dtype
        close(ours, function(Z, W), dtype)
    close(z == z, Z == Z, dtype)
    for name in ("real", "imag", "angle", "absolute", "var", "std"):
        ours = getattr(ops, name)(z)
        assert ours.dtype == ("float32" if dtype == "complex64" else "float64")
        close(ours, getattr(np, name)(Z), dtype)


ELEMENTARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh sign conj square"
    " reciprocal sum prod mean cumsum cumprod sinc"
)


@WIDTHS
@pytest.mark.parametrize("name", ELEMENTARY.split())
def test_functions(name, dtype):
    z, _ = tensors(dtype)
    ours = getattr(ops, name)(z)
    assert ours.dtype == dtype
    close(ours, getattr(np, name)(Z), dtype)
    if name in ("sum", "prod", "mean", "cumsum", "cumprod"):
        close(getattr(ops, name)(z, axis=1), getattr(np, name)(Z, axis=1), dtype)


@WIDTHS
def test_activations_and_spaced_values(dtype):
    z, w = tensors(dtype)
    logistic = 1 / (1 + np.exp(-Z))
    close(ops.sigmoid(z), logistic, dtype)
    close(ops.silu(z), Z * logistic, dtype)
    close(ops.rsqrt(z), 1 / np.sqrt(Z), dtype)
    close(ops.linspace(z, w, 5), np.linspace(Z, W, 5), dtype)
    close(ops.linspace(z, 2, 4, endpoint=False, axis=1), np.linspace(Z, 2, 4, endpoint=False, axis=1), dtype)
    close(ops.linspace(1j, 2 - 1j, 3), [1j, 1, 2 - 1j], "complex64")
    close(ops.logspace(z / 4, w / 4, 3), np.logspace(Z / 4, W / 4, 3), dtype)


@WIDTHS
def test_comparisons_and_correlation(dtype):
    z, w = tensors(dtype)
    near = np.where(np.abs(Z) > 1, Z * (1 + 1e-6j), Z + 1)
    close(ops.isclose(z, near), np.isclose(Z, near), dtype)
    close(ops.isclose(z, Z.real), np.isclose(Z, Z.real), dtype)
    assert bool(ops.allclose(z, z * (1 + 1e-6j))) and not bool(ops.allclose(z, w))
    hole = ops.convert_to_tensor([complex(np.nan, 1), 1j], dtype)
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.isclose(hole, hole, equal_nan=True)), [True, True])
    close(ops.corrcoef(z[0]), np.corrcoef(Z[0]), dtype)
    close(ops.tanh_shrink(z), Z - np.tanh(Z), dtype)


def test_running_products_have_gradients():
    def function(x, y):
        product, total = P.cumprod(P.complex(x, y), 1), P.cumsum(P.complex(x, y), 0)
        return P.real(product), P.imag(product), P.real(total), P.imag(total)

    check_gradient(function, Z.real, Z.imag)


@WIDTHS
def test_an_extent_that_varies_is_a_real_number(dtype):
    z, _ = tensors(dtype)
    mean = keras_ocl.jit(ops.mean, dynamic=True)
    close(mean(z), Z.astype(dtype).mean(), dtype)


@WIDTHS
def test_near_zero(dtype):
    tensors(dtype)
    tiny = np.array([1e-9 + 2e-9j, 2e-8 - 3e-9j])
    same(ops.real(ops.log1p(ops.convert_to_tensor(tiny, dtype))), tiny.real, 1e-6, 0)
    same(ops.imag(ops.expm1(ops.convert_to_tensor(tiny, dtype))), tiny.imag, 1e-6, 0)
    close(ops.sqrt(ops.convert_to_tensor([0j, 0j], dtype)), [0, 0], dtype)
    close(ops.power(ops.convert_to_tensor([0j, 0j], dtype), ops.convert_to_tensor([0j, 1j], dtype)), [1, 0], dtype)


def test_promotion():
    need_float64()
    z, _ = tensors("complex128")
    assert ops.convert_to_tensor(Z).dtype == "complex64"
    assert ops.add(z, ops.ones((4,), "complex64")).dtype == "complex128"
    assert ops.add(ops.ones((4,), "complex64"), ops.ones((4,), "float64")).dtype == "complex128"
    for dtype in ("complex64", "float64", "float32", "bool"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            np.testing.assert_array_equal(ops.convert_to_numpy(ops.cast(z, dtype)), Z.astype(dtype))
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.cast(ops.real(z), "complex128")), Z.real + 0j)


def test_gradient_follows_both_parts():
    """For a real function, d/dx + i d/dy."""
    z, w = tensors("complex64")

    def function(z):
        return ops.sum(ops.real(ops.log(z) * w) + ops.absolute(ops.sqrt(z)))

    gradient = keras_ocl.grad(function)(w)
    expected = np.conj(W / W) + 0.5 * W / np.abs(W) ** 1.5
    close(gradient, expected, "complex64")


def test_a_device_without_float64_says_so():
    if runtime.current_device().traits.fp64:
        pytest.skip("the device has float64")
    with pytest.raises(TypeError, match="no complex128.*complex64"):
        ops.convert_to_tensor(Z, "complex128")
    with pytest.raises(TypeError, match="convert: .*no complex128.*complex64"):
        keras_ocl.jit(lambda x: ops.cast(x, "complex128") * 2)(ops.ones(3))
