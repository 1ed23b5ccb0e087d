"""Moments, batch normalization and Keras's layers on them against NumPy in float64."""

import keras
import ml_dtypes
import numpy as np
import pytest

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.ops.nn.normalization import batch_normalization, moments
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("shape", "axes"), [((7, 3), (0,)), ((5, 3, 4, 9), (0, 1, 2)), ((2, 6, 5), (-1,)), ((33,), (0,)), ((1, 17), (1,))])
@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16])
def test_moments(shape, axes, dtype):
    x = (RNG.normal(size=shape) * 2 + 30).astype(dtype)
    tolerance = 2e-5 if dtype == "f4" else 2e-2
    for keepdims in (False, True):
        mean, variance = both(lambda x, k=keepdims: moments(x, axes, keepdims=k), x)
        assert mean.dtype == variance.dtype == x.dtype
        wide = x.astype("f8")
        np.testing.assert_allclose(mean.astype("f8"), wide.mean(axes, keepdims=keepdims), rtol=tolerance)
        np.testing.assert_allclose(variance.astype("f8"), wide.var(axes, keepdims=keepdims), rtol=tolerance, atol=tolerance)


def test_variance_of_a_small_spread_about_a_large_mean():
    x = (1e4 + RNG.normal(size=(1000, 2))).astype("f4")
    _, variance = moments(from_numpy(x), (0,))
    np.testing.assert_allclose(to_numpy(variance), x.astype("f8").var(0), rtol=1e-3)


def test_float16_moments_do_not_overflow():
    _, variance = moments(from_numpy(np.array([-6e4, 6e4], "f2")), (0,))
    assert np.isfinite(to_numpy(variance))


@pytest.mark.parametrize(("shape", "axis"), [((4, 5), -1), ((3, 4, 6, 5), 3), ((2, 7, 3, 3), 1)])
def test_batch_normalization(shape, axis):
    n = shape[axis]
    x, mean, offset, scale = (RNG.normal(size=s).astype("f4") for s in (shape, n, n, n))
    variance = RNG.uniform(0.5, 2, n).astype("f4")
    view = [1] * len(shape)
    view[axis] = n
    m, v, o, s = (a.reshape(view).astype("f8") for a in (mean, variance, offset, scale))
    plain = (x - m) / np.sqrt(v + 1e-3)
    found = both(lambda *a: batch_normalization(a[0], a[1], a[2], axis, a[3], a[4]), x, mean, variance, offset, scale)
    np.testing.assert_allclose(found, plain * s + o, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both(lambda *a: batch_normalization(*a, axis), x, mean, variance), plain, rtol=1e-5, atol=1e-5)


def test_gradients():
    x, mean, offset, scale = (RNG.normal(size=s) for s in ((4, 3, 2), 3, 3, 3))
    variance = RNG.uniform(0.5, 2, 3)
    check_gradient(lambda *a: batch_normalization(a[0], a[1], a[2], 1, a[3], a[4], 0.1), x, mean, variance, offset, scale)
    check_gradient(lambda x: moments(x, (0, 2)), x)

    def trained(x, offset, scale):
        return batch_normalization(x, *moments(x, (0, 2)), 1, offset, scale, 0.1)

    check_gradient(trained, x, offset, scale)


def test_errors():
    x = from_numpy(np.ones((2, 3), "f4"))
    with pytest.raises(ValueError, match="batch_normalization: `mean` has shape"):
        batch_normalization(x, from_numpy(np.ones(2, "f4")), from_numpy(np.ones(3, "f4")), -1)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda: keras.layers.LayerNormalization(), lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)),
        (lambda: keras.layers.RMSNormalization(), lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)),
        (
            lambda: keras.layers.GroupNormalization(2),
            lambda x: (
                (g := x.reshape(5, 7, 2, 3)),
                ((g - g.mean((1, 3), keepdims=True)) / np.sqrt(g.var((1, 3), keepdims=True) + 1e-3)).reshape(x.shape),
            )[1],
        ),
        (lambda: keras.layers.UnitNormalization(), lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)),
    ],
    ids=["layer", "rms", "group", "unit"],
)
def test_layers(layer, expected):
    x = RNG.normal(size=(5, 7, 6)).astype("f4")
    layer = layer()
    layer.build(x.shape)
    np.testing.assert_allclose(both(lambda x: layer(x), x), expected(x.astype("f8")), rtol=1e-4, atol=1e-4)


def test_batch_normalization_of_one_masked_channel():
    layer = keras.layers.BatchNormalization(epsilon=0.5, momentum=0.9)
    x, mask = np.array([[[1.0], [3.0], [100.0]]], "float32"), np.array([[True, True, False]])
    got = layer(x, training=True, mask=mask)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(got), (x - 2) / np.sqrt(1.5), rtol=1e-5)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer.moving_mean), [0.2], rtol=1e-5)


def test_batch_normalization_layer_trains_its_averages():
    x = (RNG.normal(size=(64, 3)) * 3 + 5).astype("f4")
    layer = keras.layers.BatchNormalization(momentum=0.5)
    found = layer(x, training=True)
    np.testing.assert_allclose(to_numpy(found), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), atol=1e-4)
    np.testing.assert_allclose(to_numpy(layer.moving_mean.value), x.mean(0) / 2, rtol=1e-5)
    np.testing.assert_allclose(to_numpy(layer.moving_variance.value), 0.5 + x.var(0) / 2, rtol=1e-4)
