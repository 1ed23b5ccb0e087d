"""Memory that runs out while layers, metrics, losses and optimizers are built: the next `fit` is that of an untouched model."""

import keras
import numpy as np
import pytest
from keras import layers, metrics, optimizers

from keras_ocl import runtime
from keras_ocl.hooks.building import undone_on_error

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
Y = np.eye(3, dtype="float32")[np.arange(8) % 3]


class Block(layers.Layer):
    """A layer that builds its parts in its own build, as Keras's guide shows it."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = layers.Dense(4, activation="relu"), [layers.Dense(3)]

    def build(self, shape):
        self.scale = self.add_weight(shape=(1,), initializer="ones")
        self.first.build(shape)
        self.more = layers.Dense(2)
        self.rest[0].build((None, 4))

    def call(self, x):
        return self.rest[0](self.first(x)) * self.scale


class Attending(keras.Model):
    def __init__(self):
        super().__init__()
        self.expand, self.attend, self.end = layers.Reshape((3, 2)), layers.MultiHeadAttention(1, 2), layers.Dense(3, "softmax")

    def call(self, x):
        x = self.expand(x)
        return self.end(keras.ops.mean(self.attend(x, x), axis=1))


def dense():
    model = keras.Sequential([layers.Dense(4, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(3)])
    model.compile(optimizers.Adam(0.01, amsgrad=True), "mse", metrics=["mae"])
    return model


def convolution():
    model = keras.Sequential([layers.Reshape((6, 1)), layers.Conv1D(2, 3), layers.Flatten(), layers.Dense(3)])
    model.compile(optimizers.SGD(0.01, momentum=0.9, use_ema=True, gradient_accumulation_steps=2), "mse")
    return model


def recurrent():
    model = keras.Sequential([layers.Reshape((3, 2)), layers.Bidirectional(layers.LSTM(2)), layers.Dense(3)])
    model.compile(optimizers.RMSprop(0.01, momentum=0.9, centered=True), "mse")
    return model


def attention():
    model = Attending()
    model.compile("adam", "categorical_crossentropy", metrics=[metrics.AUC(5, name="auc", multi_label=True), metrics.F1Score(name="f1")])
    return model


def parts():
    model = keras.Sequential([Block()])
    model.compile(optimizers.LossScaleOptimizer(optimizers.Nadam(0.01), initial_scale=4.0), "mse", metrics=[metrics.R2Score(name="r2")])
    return model


class Counted:
    """Counts allocations of a device, and lets one of them fail."""

    def __init__(self, monkeypatch, fails=None):
        self.number, self.failed, self._fails = 0, False, fails
        memory = runtime.current_device().memory
        for name in ("allocate", "allocate_idle", "allocate_state"):
            monkeypatch.setattr(memory, name, self._counting(getattr(memory, name)))

    def _counting(self, allocate):
        def counting(*args, **kwargs):
            self.number += 1
            if self.number == self._fails:
                self.failed = True
                raise runtime.OutOfMemory("on purpose")
            return allocate(*args, **kwargs)

        return counting


def fit(model):
    keras.utils.set_random_seed(2)
    return model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history


def made(make):
    keras.utils.set_random_seed(1)
    return make()


def built(model):
    """How many of the parts that are built one by one are done."""
    parts = [*model._flatten_layers(), model.optimizer, model._compile_loss, model._compile_metrics]
    return sum(part is not None and part.built for part in parts)


@pytest.mark.filterwarnings("error:Layer .* looks like it has unbuilt state")
@pytest.mark.parametrize("make, stride", [(dense, 3), (convolution, 1), (recurrent, 5), (attention, 5), (parts, 1)])
def test_allocations_of_the_first_batch(make, stride, monkeypatch):
    untouched, model = made(make), made(make)
    expected, done, number, failures = fit(untouched), built(model), 1, 0
    while True:
        with monkeypatch.context() as patch:
            allocations = Counted(patch, number)
            try:
                keras.utils.set_random_seed(2)
                model._symbolic_build(data_batch=(X[:4], Y[:4]))
                break
            except Exception as error:
                assert allocations.failed and "on purpose" in str(error)
        failures += 1
        now = built(model)
        done, number = now, 2 if now > done else number + stride  # what is done stays done: the first of the rest has failed just now
    assert failures > 15
    shapes = [[v.shape for v in (*m.variables, *m.metrics_variables, *m.optimizer.variables)] for m in (untouched, model)]
    assert shapes[0] == shapes[1]
    found = fit(model)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_what_was_built_inside_is_undone_too():
    layer = Block()
    before = dict(vars(layer.first))
    with pytest.raises(KeyboardInterrupt), undone_on_error(layer):
        layer.build((None, 6))
        raise KeyboardInterrupt
    assert not layer.built and not layer.first.built and not layer.variables
    assert {**vars(layer.first), "_ocl_changes": 0} == {**before, "_ocl_changes": 0}
    layer.build((None, 6))
    assert len(layer.variables) == 5 and len(layer.first.trainable_variables) == 2
