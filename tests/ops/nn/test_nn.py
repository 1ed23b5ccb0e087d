"""keras.ops.nn: the backend's signatures, activations and encodings against NumPy."""

import inspect
import math

import keras
import numpy as np
import pytest
from keras.src import ops as keras_ops

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.ops import nn
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(10)
PUBLIC = [name for name, f in vars(nn).items() if inspect.isfunction(f)]


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures_are_those_of_keras(name):
    if hasattr(keras_ops.nn, f"_{name}") or name in ("multi_hot", "tanh"):
        return
    assert inspect.signature(getattr(nn, name)) == inspect.signature(getattr(keras_ops.nn, name))


def erf(x):
    return np.vectorize(math.erf)(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(x, 0)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": sigmoid,
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "tanh": np.tanh,
    "tanh_shrink": lambda x: x - np.tanh(x),
    "softplus": softplus,
    "softsign": lambda x: x / (1 + abs(x)),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(abs(x) - 0.5, 0),
    "sparse_plus": lambda x: np.where(x <= -1, 0, np.where(x < 1, (x + 1) ** 2 / 4, x)),
    "silu": lambda x: x * sigmoid(x),
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
    "log_sigmoid": lambda x: -softplus(-x),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_silu": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hard_shrink": lambda x: np.where(abs(x) > 0.5, x, 0),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "log_softmax": lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    "glu": lambda x: x[..., :3] * sigmoid(x[..., 3:]),
}
KINKED = {"relu", "relu6", "sparse_sigmoid", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "selu", "hard_shrink", "soft_shrink"}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    x = (RNG.normal(size=(5, 6)) * 3).astype("f4")
    function = getattr(nn, name)
    np.testing.assert_allclose(both(function, x), ACTIVATIONS[name](x.astype("f8")), rtol=2e-5, atol=2e-6)
    check_gradient(function, RNG.normal(size=(2, 6)), second=name not in KINKED)


def test_activations_elsewhere():
    x = np.array([-2.0, 0.0, 3.0], "f4")
    np.testing.assert_allclose(to_numpy(nn.gelu(from_numpy(x), approximate=False)), x / 2 * (1 + erf(x / np.sqrt(2))), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(to_numpy(nn.celu(from_numpy(x), 2.0)), np.where(x > 0, x, 2 * np.expm1(x / 2)), rtol=1e-6)
    np.testing.assert_allclose(to_numpy(nn.threshold(from_numpy(x), 1, -5)), [-5, -5, 3])
    assert nn.sigmoid(from_numpy(np.array([1, 2], "i4"))).dtype == keras.config.floatx()
    rows = np.array([[-np.inf, 0, -np.inf], [1e30, 1e30, 0]], "f4")
    np.testing.assert_allclose(to_numpy(nn.softmax(from_numpy(rows))), [[0, 1, 0], [0.5, 0.5, 0]])
    sparse = to_numpy(nn.sparsemax(from_numpy(np.array([[1.0, 0.9, -3.0], [0.0, 0.0, 0.0]], "f4"))))
    np.testing.assert_allclose(sparse, [[0.55, 0.45, 0], [1 / 3] * 3], rtol=1e-6)
    np.testing.assert_allclose(to_numpy(nn.softmax(from_numpy(np.ones((2, 2), "f4")), axis=None)), np.full((2, 2), 0.25))


@pytest.mark.parametrize(("name", "bounds"), [("relu6", (0, 6)), ("hard_sigmoid", (-3, 3))])
def test_slope_at_bounds(name, bounds):
    x = from_numpy(np.array(bounds, "f4"))
    with GradientTape() as tape:
        tape.watch(x)
        y = getattr(nn, name)(x)
    np.testing.assert_array_equal(to_numpy(tape.gradient(y, x)), 0)


def test_zero_vectors_normalized_have_finite_gradients():
    zeros = from_numpy(np.zeros((2, 3), "f4"))
    for function in (
        keras_ops.normalize,
        keras.layers.UnitNormalization(),
        lambda x: keras.losses.cosine_similarity(x, np.ones((2, 3), "f4")),
    ):
        with GradientTape() as tape:
            tape.watch(zeros)
            y = function(zeros)
        assert np.isfinite(to_numpy(tape.gradient(y, zeros))).all()


@pytest.mark.parametrize(("name", "slope"), [("softplus", 0.5), ("log_sigmoid", 0.5), ("elu", 1), ("celu", 1), ("silu", 0.5), ("relu", 0)])
def test_slope_at_zero(name, slope):
    zero = from_numpy(np.float32(0))
    with GradientTape() as tape:
        tape.watch(zero)
        y = getattr(nn, name)(zero)
    assert to_numpy(tape.gradient(y, zero)) == slope


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    labels = np.array([[0, 2, -1], [3, 4, 1]], "i4")
    expected = np.moveaxis((labels[..., None] == np.arange(4)).astype("f4"), -1, axis)
    found = both(lambda x: nn.one_hot(x, 4, axis=axis), labels)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    for dtype in ("uint8", "int64"):
        assert np.array_equal(to_numpy(nn.one_hot(from_numpy(np.maximum(labels, 0).astype(dtype)), 4, axis=axis, dtype="bool")).sum(), 5)
    with pytest.raises(ValueError, match="sparse=True"):
        nn.one_hot(from_numpy(labels), 4, sparse=True)


def test_multi_hot():
    found = both(lambda x: nn.multi_hot(x, 5), np.array([[0, 2, 2], [4, -1, 4]], "i4"))
    np.testing.assert_array_equal(found, [[1, 0, 1, 0, 0], [0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(to_numpy(nn.multi_hot(from_numpy(np.array([1, 3], "i4")), 4, dtype="int32")), [0, 1, 0, 1])


UNFOLDINGS = [{}, {"stride": 2}, {"padding": (1, 2)}, {"dilation": 2}, {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}]


@pytest.mark.parametrize("options", UNFOLDINGS)
def test_unfold_and_its_adjoint(options):
    x = RNG.normal(size=(2, 3, 7, 6)).astype("f4")
    found = both(lambda x: nn.unfold(x, (2, 3), **options), x)

    def pair(name, default):
        value = options.get(name, default)
        return (value, value) if isinstance(value, int) else value

    (s0, s1), (p0, p1), (d0, d1) = pair("stride", 1), pair("padding", 0), pair("dilation", 1)
    wide = np.pad(x, ((0, 0), (0, 0), (p0, p0), (p1, p1)))
    rows, columns = (wide.shape[2] - d0 - 1) // s0 + 1, (wide.shape[3] - 2 * d1 - 1) // s1 + 1
    starts = [(i * s0, j * s1) for i in range(rows) for j in range(columns)]
    patches = [wide[:, :, i : i + d0 + 1 : d0, j : j + 2 * d1 + 1 : d1].reshape(2, -1) for i, j in starts]
    np.testing.assert_array_equal(found, np.stack(patches, -1))
    other = RNG.normal(size=found.shape).astype("f4")
    folded = both(lambda y: nn.fold(y, (7, 6), (2, 3), **options), other)
    np.testing.assert_allclose(np.sum(found * other), np.sum(x * folded), rtol=1e-4)
    check_gradient(lambda x: nn.unfold(x, (2, 3), **options), x[:1, :1], second=False)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_depth_and_space(data_format):
    x = RNG.normal(size=(2, 3, 5, 12)).astype("f4")
    expected = x.reshape(2, 3, 5, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 6, 10, 3)
    if data_format == "channels_first":
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        # Channels-first blocks are the slowest part of the channels in neither format: compare through the inverse only.
        spread = both(lambda x: nn.depth_to_space(x, 2, data_format), x)
        assert spread.shape == (2, 3, 6, 10)
        np.testing.assert_array_equal(spread[:, 1, 2::2, 1::2][:, 0, 0], x[:, 1 * 4 + 1, 1, 0])
    else:
        spread = both(lambda x: nn.depth_to_space(x, 2, data_format), x)
        np.testing.assert_array_equal(spread, expected)
    np.testing.assert_array_equal(both(lambda x: nn.space_to_depth(x, 2, data_format), spread), x)


def test_errors():
    with pytest.raises(ValueError, match="even extent"):
        nn.glu(from_numpy(np.ones((2, 3), "f4")))
    with pytest.raises(ValueError, match="larger than the padded extent"):
        nn.unfold(from_numpy(np.ones((1, 1, 2, 2), "f4")), 3)
    with pytest.raises(ValueError, match="does not fit output_size"):
        nn.fold(from_numpy(np.ones((1, 4, 5), "f4")), 3, 2)
