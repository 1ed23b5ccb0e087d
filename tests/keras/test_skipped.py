"""Ops and layers that Keras's own tests try only on the backends that they name."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl

COMPILED = pytest.mark.parametrize("compile", [lambda f: f, keras_ocl.jit], ids=["eager", "jit"])


@COMPILED
def test_gradients_of_divide_no_nan(compile):
    gradient = compile(keras_ocl.grad(lambda a, b: ops.sum(ops.divide_no_nan(a, b)), argnums=(0, 1)))
    by_a, by_b = gradient(np.array([1.0, 2.0], "float32"), np.array([0.0, 2.0], "float32"))
    np.testing.assert_array_equal(by_a, [0, 0.5])
    np.testing.assert_array_equal(by_b, [0, -0.5])


@COMPILED
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("mode, expected", [("constant", 0), ("nearest", 7)])
def test_static_shapes_of_map_coordinates(compile, dtype, mode, expected):
    image = np.full((1, 1, 3), 7, dtype)
    coordinates = np.array([-1.0, 0.0, 0.0], "float32")[:, None, None]
    shapes = []

    def sample(image, coordinates):
        out = ops.image.map_coordinates(image, coordinates, order=1, fill_mode=mode)
        shapes.append(tuple(out.shape))
        return out

    out = compile(sample)(image, coordinates)
    assert shapes == [(1, 1)] and out.dtype == dtype
    np.testing.assert_array_equal(out, [[expected]])


def test_synchronized_statistics():
    x = np.arange(24, dtype="float32").reshape(2, 3, 4) ** 2
    mean, variance = ops.moments(x, axes=[0, 1], synchronized=True)
    np.testing.assert_allclose(mean, x.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(variance, x.var((0, 1)), rtol=1e-5)
    layer = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
    expected = (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-3)
    np.testing.assert_allclose(layer(x, training=True), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, x.mean((0, 1)) / 2, rtol=1e-5)


def test_spectrogram_of_signals_of_any_length():
    options = {"mode": "magnitude", "frame_length": 64, "frame_step": 25, "fft_length": 64}
    model = keras.Sequential([keras.Input((None, 1)), keras.layers.STFTSpectrogram(**options)])
    assert model.output_shape == (None, None, 33)
    window = np.hanning(64)
    rng = np.random.default_rng(0)
    for batch, length in ((2, 400), (3, 225)):
        x = rng.normal(size=(batch, length, 1)).astype("float32")
        frames = np.stack([x[:, i : i + 64, 0] for i in range(0, length - 63, 25)], 1).astype("float64")
        expected = np.abs(np.fft.rfft(frames * window / np.sqrt(np.sum(window**2))))
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-3, atol=1e-3)
