"""Callbacks: what they see, what they may change, how they end training; logs."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.hooks.regression import MODES, SAMPLES, Reference, Steps, batches, make_data, make_model


@MODES
def test_callbacks_see_the_state_of_their_batch(mode):
    x, y = make_data()
    model = make_model(**mode)
    reference = Reference(model)
    parts = batches(x, y, 10)

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            reference.check(self.model)
            assert int(self.model.optimizer.iterations) == batch

        def on_train_batch_end(self, batch, logs=None):
            reference.step(*parts[batch])
            reference.check(self.model)
            assert int(self.model.optimizer.iterations) == batch + 1

    model.fit(x, y, batch_size=10, shuffle=False, verbose=0, callbacks=[Look()])


@MODES
def test_callbacks_may_change_state_between_batches(mode):
    x, y = make_data()
    model = make_model(**mode)
    reference = Reference(model)
    parts = batches(x, y, 10)
    new = [w + 0.1 for w in model.get_weights()]

    class Change(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                self.model.set_weights(new)
            if batch == 3:
                self.model.optimizer.learning_rate = 0.1

        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.model.layers[0].bias.assign(np.zeros(3))

    model.fit(x, y, batch_size=10, shuffle=False, verbose=0, callbacks=[Change()])
    for i, part in enumerate(parts):
        if i == 2:
            reference.w = [w.astype("float64") for w in new]
        reference.step(*part, rate=0.1 if i >= 3 else 0.01)
        if i == 3:
            reference.w[1][:] = 0
    reference.check(model)


def test_a_weight_that_was_read_keeps_its_value():
    """Tensors that the user holds are not overwritten by steps that update variables in place."""
    x, y = make_data()
    model = make_model()
    model.fit(x, y, verbose=0)
    before = model.layers[0].kernel.value
    expected = ops.convert_to_numpy(before).copy()
    model.fit(x, y, verbose=0, epochs=2)
    np.testing.assert_array_equal(before, expected)
    assert np.any(model.get_weights()[0] != expected)


def test_set_weights_between_batches_builds_nothing(built):
    x, y = make_data(10)
    model = make_model()
    weights = model.get_weights()
    first = model.train_on_batch(x, y)
    second = model.train_on_batch(x, y)
    assert first != second
    model.set_weights(weights)
    built.since()
    assert model.train_on_batch(x, y) == first
    assert built.since() == 0


@MODES
def test_stop_training(mode):
    x, y = make_data()
    model = make_model(**mode)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.stop_training = True

    seen = Steps()
    history = model.fit(x, y, batch_size=5, epochs=5, verbose=0, callbacks=[Stop(), seen])
    assert len(seen.losses) == 3
    assert history.epoch == [0]
    assert int(model.optimizer.iterations) == 3


def test_stop_evaluating_and_stop_predicting():
    x, y = make_data()
    model = make_model()

    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = True

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = True

    np.testing.assert_allclose(
        model.evaluate(x, y, batch_size=10, verbose=0, callbacks=[Stop()])[0], Reference(model).gradients(x[:10], y[:10])[0], rtol=1e-5
    )
    assert model.predict(x, batch_size=10, verbose=0, callbacks=[Stop()]).shape == (10, 1)


def test_logs_of_callbacks_are_python_floats_of_the_running_mean():
    x, y = make_data(40)
    model = make_model()
    reference = Reference(model)
    seen = Steps()
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0, callbacks=[seen])
    losses = [reference.step(*part) for part in batches(x, y, 10)]
    assert all(isinstance(v, float) for v in seen.losses)
    np.testing.assert_allclose(seen.losses, np.cumsum(losses) / np.arange(1, 5), rtol=1e-5)


def test_standard_callbacks(tmp_path):
    x, y = make_data()
    model = make_model("adam")
    model.fit(
        x,
        y,
        validation_split=0.2,
        epochs=6,
        verbose=0,
        callbacks=[
            keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), save_best_only=True),
            keras.callbacks.EarlyStopping(patience=1, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0, factor=0.5),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            keras.callbacks.TerminateOnNaN(),
            keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        ],
    )
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3  # a head, and two epochs before it stopped early
    assert keras.models.load_model(tmp_path / "best.keras").predict(x, verbose=0).shape == (SAMPLES, 1)


def test_terminate_on_nan():
    x, y = make_data()
    model = make_model()
    y[7] = np.nan
    history = model.fit(x, y, batch_size=5, epochs=3, shuffle=False, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert history.epoch == [0]
    assert int(model.optimizer.iterations) == 2


HOOKS = {
    "fit": "train_begin epoch_begin train_batch_begin batch_begin train_batch_end batch_end epoch_end train_end test_begin test_batch_end",
    "evaluate": "test_begin test_batch_begin test_batch_end test_end",
    "predict": "predict_begin predict_batch_begin predict_batch_end predict_end",
}


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit, KeyError, RuntimeError])
@MODES
def test_what_a_callback_raises_reaches_the_caller_as_it_is(mode, error):
    x, y = make_data()
    model = make_model(**mode)
    for method, hooks in HOOKS.items():
        arguments = {"fit": (x, y), "evaluate": (x, y), "predict": (x,)}[method]
        options = {"validation_data": (x, y)} if method == "fit" else {}
        for hook in hooks.split():
            raised = error("enough")

            def fails(*_, raised=raised, **__):
                raise raised

            callback = keras.callbacks.Callback()
            setattr(callback, f"on_{hook}", fails)
            with pytest.raises(error) as caught:
                getattr(model, method)(*arguments, batch_size=20, verbose=0, callbacks=[callback], **options)
            assert caught.value is raised, hook
    assert len(model.predict(x, batch_size=20, verbose=0)) == SAMPLES  # all is well again


@MODES
def test_what_a_step_raises_reaches_the_caller_as_it_is(mode):
    class Model(keras.Sequential):
        def train_step(self, data):
            raise StopIteration("enough")

        test_step = predict_step = train_step

    x, y = make_data()
    model = Model([keras.Input(x.shape[1:]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **mode)
    for call in (lambda: model.fit(x, y, verbose=0), lambda: model.evaluate(x, y, verbose=0), lambda: model.predict(x, verbose=0)):
        with pytest.raises(StopIteration, match="enough"):
            call()
