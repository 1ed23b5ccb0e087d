"""Training steps and loops that the user writes, with our tape."""

import keras
import numpy as np
from keras import ops

from keras_ocl import GradientTape, jit
from tests.hooks.regression import FEATURES, MODES, Reference, batches, make_data, make_model


class CustomStep(keras.Model):
    """A train step written with our tape, as Keras's guide does with TensorFlow's."""

    def train_step(self, data):
        x, y = data
        with GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        self.calls = getattr(self, "calls", 0) + 1
        return {m.name: m.result() for m in self.metrics}


@MODES
def test_custom_train_step(mode):
    x, y = make_data()
    inner = make_model()
    model = CustomStep(inner.inputs, inner.outputs)
    model.compile("sgd", "mse", metrics=["mae"], **mode)
    reference = Reference(model)
    model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    for part in batches(x, y, 10) * 2:
        reference.step(*part)
    reference.check(model)
    assert model.calls == (1 if mode == {} else 10)


def test_custom_step_with_two_optimizers():
    """The pattern of a GAN: two losses and two optimizers in one step."""

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = keras.layers.Dense(1), keras.layers.Dense(1)
            self.second = keras.optimizers.SGD(0.1)

        def call(self, x):
            return self.one(x) + self.two(x)

        def train_step(self, data):
            x, y = data
            with GradientTape() as tape:
                loss = ops.mean(ops.square(self.one(x) - y))
            self.optimizer.apply(tape.gradient(loss, self.one.trainable_variables), self.one.trainable_variables)
            with GradientTape() as tape:
                other = ops.mean(ops.square(self.two(x) + self.one(x) - y))
            self.second.apply(tape.gradient(other, self.two.trainable_variables), self.two.trainable_variables)
            return {"one": loss, "two": other}

    x, y = make_data()
    for mode in ({}, {"run_eagerly": True}):
        model = Pair()
        model(x)
        one, b1, two, b2 = (w.astype("float64") for w in model.get_weights())
        model.compile(keras.optimizers.SGD(0.1), loss="mse", **mode)
        model.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0)
        for a, b in batches(x.astype("float64"), y, 10) * 3:
            d = 0.2 * (a @ one + b1 - b) / len(a)
            one, b1 = one - a.T @ d, b1 - d.sum(0)
            d = 0.2 * (a @ two + b2 + a @ one + b1 - b) / len(a)  # the first's new weights
            two, b2 = two - a.T @ d, b2 - d.sum(0)
        for ours, w in zip(model.get_weights(), (one, b1, two, b2), strict=True):
            np.testing.assert_allclose(ours, w, rtol=1e-4, atol=1e-5)


def test_custom_logs_need_not_be_tensors():
    class Model(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data) | {"constant": 3.0}

    model = Model([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.fit(*make_data(), verbose=0).history["constant"] == [3.0]


def test_a_compiled_step_builds_what_is_not_built():
    x, y = make_data()
    losses = []
    for build in (True, False):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        loss_function, optimizer = keras.losses.MeanSquaredError(), keras.optimizers.Adam(0.1)
        if build:
            model.build(x.shape)
            optimizer.build(model.trainable_variables)

        @jit
        def step(x, y, model=model, loss_function=loss_function, optimizer=optimizer):
            with GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        losses.append([float(step(x, y)) for _ in range(4)])
        assert int(optimizer.iterations) == 4
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][-1] < losses[0][0]


def test_custom_loop_without_fit():
    x, y = make_data()
    model = make_model()
    reference = Reference(model)
    loss_function, optimizer = keras.losses.MeanSquaredError(), keras.optimizers.SGD(0.01)
    for part in batches(x, y, 10):
        with GradientTape() as tape:
            loss = loss_function(part[1], model(part[0], training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        reference.step(*part)
    reference.check(model)
