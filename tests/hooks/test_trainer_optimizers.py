"""Features of optimizers that assign under a condition, scale, clip or constrain."""

import keras
import numpy as np

from tests.hooks.regression import MODES, Reference, batches, make_data, make_model


@MODES
def test_gradient_accumulation(mode):
    x, y = make_data(40)
    model = make_model(keras.optimizers.SGD(0.01, gradient_accumulation_steps=2), **mode)
    reference = Reference(model)
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0)
    for i in (0, 20):
        both = [reference.gradients(x[j : j + 10], y[j : j + 10])[1] for j in (i, i + 10)]
        reference.w = [w - 0.01 * (a + b) / 2 for w, a, b in zip(reference.w, *both, strict=True)]
    reference.check(model)


@MODES
def test_ema(mode):
    x, y = make_data(40)
    model = make_model(keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3), **mode)
    reference = Reference(model)
    average = None
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0)
    for step, part in enumerate(batches(x, y, 10)):
        reference.step(*part)
        momentum = 0.5 if average is not None else 0.0
        average = [momentum * a + (1 - momentum) * w for a, w in zip(average or reference.w, reference.w, strict=True)]
        if (step + 1) % 3 == 0:
            reference.w = [a.copy() for a in average]
    reference.w = average  # fit ends by writing the averages
    reference.check(model)


@MODES
def test_loss_scaling(mode):
    x, y = make_data(40)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**15, dynamic_growth_steps=2)
    model = make_model(scaled, **mode)
    reference = Reference(model)
    poisoned = x.copy()
    poisoned[10] = np.inf  # the second batch overflows: no update, and half the scale
    model.fit(poisoned, y, batch_size=10, shuffle=False, verbose=0)
    for i in (0, 20, 30):
        reference.step(x[i : i + 10], y[i : i + 10])
    reference.check(model)
    assert float(scaled.dynamic_scale) == 2.0**15
    assert int(scaled.inner_optimizer.iterations) == 3


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x, y = make_data()
        model = make_model("adam")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        history = model.fit(x, y, batch_size=10, epochs=5, verbose=0).history
        assert history["loss"][-1] < history["loss"][0]
        assert all(w.dtype == "float32" for w in model.get_weights())
        assert model.predict(x, verbose=0).dtype == "float16"
    finally:
        keras.config.set_dtype_policy("float32")


def test_clipping_and_weight_decay():
    x, y = make_data()
    for options in ({"clipnorm": 0.01}, {"global_clipnorm": 0.01}, {"clipvalue": 0.001}):
        model = make_model(keras.optimizers.SGD(1.0, **options))
        before = model.get_weights()
        model.train_on_batch(x, y)
        changes = [np.abs(a - b) for a, b in zip(before, model.get_weights(), strict=True)]
        assert max(c.max() for c in changes) <= max(options.values()) * 1.001
    model = make_model(keras.optimizers.SGD(0.0, weight_decay=0.5))
    before = model.get_weights()
    model.train_on_batch(x, y)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_constraints():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, kernel_constraint="non_neg", bias_constraint="max_norm")])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(np.ones((8, 4)), -np.ones((8, 3)), epochs=2, verbose=0)
    assert model.get_weights()[0].min() >= 0
