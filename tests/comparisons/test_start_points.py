"""Starting weights drawn by NumPy have the distributions that Keras's initializers promise."""

import keras
import numpy as np
import pytest

from comparisons import start_points

SHAPE = (5, 5, 24, 64)
RULES = [
    keras.initializers.GlorotUniform(),
    keras.initializers.GlorotNormal(),
    keras.initializers.HeNormal(),
    keras.initializers.HeUniform(),
    keras.initializers.LecunNormal(),
    keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal"),
    keras.initializers.VarianceScaling(0.5, "fan_out", "uniform"),
    keras.initializers.RandomUniform(-0.05, 0.05),
    keras.initializers.RandomNormal(0.1, 0.02),
    keras.initializers.TruncatedNormal(0.0, 0.04),
]


@pytest.mark.parametrize("initializer", RULES, ids=lambda i: f"{type(i).__name__}{len(i.get_config())}")
def test_moments_and_limits_are_kerass(initializer):
    ours = start_points.draw(np.random.default_rng(0), initializer, SHAPE)
    seeded = type(initializer).from_config({**initializer.get_config(), "seed": 1})
    theirs = keras.ops.convert_to_numpy(seeded(SHAPE))
    assert ours.dtype == np.float32 and ours.shape == SHAPE
    assert ours.std() == pytest.approx(theirs.std(), rel=0.02)
    assert ours.mean() == pytest.approx(theirs.mean(), abs=0.02 * float(theirs.std()))
    normal = isinstance(initializer, keras.initializers.RandomNormal) or "untruncated_normal" in initializer.get_config().values()
    assert np.abs(ours).max() == pytest.approx(np.abs(theirs).max(), rel=0.4 if normal else 0.02)  # a normal one has no limit


def test_orthogonal_weights_are_orthogonal():
    tall = start_points.draw(np.random.default_rng(0), keras.initializers.Orthogonal(2.0), (30, 7))
    assert np.allclose(tall.T @ tall, 4 * np.eye(7), atol=1e-5)
    wide = start_points.draw(np.random.default_rng(0), keras.initializers.Orthogonal(), (7, 30))
    assert np.allclose(wide @ wide.T, np.eye(7), atol=1e-5)


def test_each_weight_follows_its_own_initializer():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 10)),
            layers.LSTM(8, kernel_initializer=keras.initializers.RandomUniform(2.0, 3.0)),
            layers.Dense(5, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(0.5)),
        ]
    )
    drawn = start_points.weights(model, [np.array(w) for w in model.get_weights()], seed=1)
    kernel, recurrent, unit_bias, dense, bias = drawn
    assert 2 <= kernel.min() and kernel.max() <= 3
    assert np.allclose(recurrent @ recurrent.T, np.eye(8), atol=1e-5)
    assert np.array_equal(unit_bias, np.repeat([0, 1, 0, 0], 8)) and not dense.any() and (bias == 0.5).all()


def test_an_unknown_initializer_is_named():
    with pytest.raises(NotImplementedError, match="IdentityInitializer|Identity"):
        start_points.draw(np.random.default_rng(0), keras.initializers.Identity(), (3, 3))
