"""The same functions in compiled functions, many in one, so that fusion mixes them; and their gradients against finite differences."""

import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import runtime
from tests.ops.samples import BINARY, UNARY, A, same

# Their results' shapes depend on values, or they take a plain number.
EAGER_ONLY = {"nonzero", "unique", "bincount", "hanning", "hamming", "bartlett", "blackman"}
ONE = sorted(set(UNARY) - EAGER_ONLY)
TWO = sorted(BINARY)


@pytest.mark.parametrize("start", range(0, len(ONE), 12))
def test_functions_of_one_compile_together(start):
    names = ONE[start : start + 12]
    step = keras_ocl.jit(lambda *xs: [getattr(ops, name)(x) for name, x in zip(names, xs, strict=True)])
    for name, result in zip(names, step(*[ops.convert_to_tensor(UNARY[name]) for name in names]), strict=True):
        same(result, getattr(np, name)(UNARY[name]))


@pytest.mark.parametrize("start", range(0, len(TWO), 10))
def test_functions_of_two_compile_together(start):
    names = TWO[start : start + 10]
    step = keras_ocl.jit(lambda *xs: [getattr(ops, name)(*x) for name, x in zip(names, xs, strict=True)])
    arguments = [tuple(ops.convert_to_tensor(x) for x in BINARY[name]) for name in names]
    for name, result in zip(names, step(*arguments), strict=True):
        same(result, getattr(np, name)(*BINARY[name]))


DIFFERENTIABLE = [
    lambda k, x: k.take(x, [1, 0, 1], 0),
    lambda k, x: k.pad(x, ((1, 2), (2, 3)), mode="reflect"),
    lambda k, x: k.quantile(x, 0.3, axis=0),
    lambda k, x: k.cumprod(x, 1),
    lambda k, x: k.prod(x, 1),
    lambda k, x: k.max(x, 1),
    lambda k, x: x[::-1, 1:],
    lambda k, x: x[[0, 1, 1], :2],
    lambda k, x: k.tile(x, (2, 1)),
    lambda k, x: k.roll(x, 1, 1),
    lambda k, x: k.sort(x, 1),
    lambda k, x: k.einsum("ij,kj->ik", x, x),
    lambda k, x: k.std(x, 0),
    lambda k, x: k.linalg.norm(x, axis=1),
    lambda k, x: k.concatenate([x, x * 2], 1),
    lambda k, x: k.repeat(x, 2, 1),
    lambda k, x: k.clip(x, -0.5, 0.5),
    lambda k, x: k.where(x > 0, x * x, x),
    lambda k, x: k.logaddexp(x, x[::-1]),
    lambda k, x: k.arctan2(x, x[:, ::-1]),
    lambda k, x: k.sinc(x),
    lambda k, x: k.trapezoid(x, axis=1),
    lambda k, x: k.kron(x, x[:2, :1]),
    lambda k, x: k.diagonal(x, 1),
]


@pytest.mark.parametrize("i", range(len(DIFFERENTIABLE)))
def test_gradients(i):
    if not runtime.current_device().traits.fp64:
        pytest.skip("finite differences need float64")
    function, x = DIFFERENTIABLE[i], A.astype("float64")
    weights = np.random.default_rng(i).normal(size=np.shape(function(np, x)))
    expected = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        expected[place] = ((function(np, x + step) - function(np, x - step)) * weights).sum() / 2e-5
    weights = ops.convert_to_tensor(weights, "float64")
    gradient = keras_ocl.grad(lambda t: ops.sum(function(ops, t) * weights))(ops.convert_to_tensor(x, "float64"))
    assert gradient.dtype == "float64"
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=1e-4, atol=1e-5)
