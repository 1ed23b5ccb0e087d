"""Bad input to training: the messages, and that the model still works."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from tests.hooks.regression import FEATURES, SAMPLES, make_data, make_model


def test_not_compiled():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    for call in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match="compile"):
            call(np.ones((2, 2)), np.ones((2, 1)))


def test_wrong_shapes_are_named_and_leave_the_model_usable():
    x, y = make_data()
    model = make_model()
    weights = model.get_weights()
    with pytest.raises(ValueError, match="shape"):
        model.fit(np.ones((10, FEATURES + 1)), np.ones((10, 1)), verbose=0)
    with pytest.raises(ValueError, match="(?i)cardinality|sizes"):
        model.fit(x, y[:-1], verbose=0)
    with pytest.raises(ValueError, match=r"\(.*4.*\)|shape"):
        model.fit(x, np.ones((SAMPLES, 4, 7)), verbose=0)
    for a, b in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    model.fit(x, y, verbose=0)


def test_unknown_arguments():
    x, y = make_data()
    model = make_model()
    with pytest.raises(ValueError, match="not recognized"):
        model.evaluate(x, y, colour="red")
    with pytest.raises(ValueError, match="cannot be specified at the same time"):
        model.train_on_batch(x, y, sample_weight=np.ones(SAMPLES), class_weight={0: 1.0})
    with pytest.raises(ValueError, match="(?i)optimizer"):
        model.compile("no_such_optimizer", "mse")
    with pytest.raises(ValueError):
        model.compile("sgd", "no_such_loss")
        model.fit(x, y, verbose=0)


STRINGS = [["a"] * FEATURES] * 4
NO_NUMBERS = {
    "strings": np.array(STRINGS),
    "bytes": np.array(STRINGS, "S"),
    "objects": np.array(STRINGS, object),
    "numbers as objects": np.ones((4, FEATURES)).astype(object),
    "lists": STRINGS,
    "dates": np.full((4, FEATURES), np.datetime64("2020-01-01")),
}


class Source(keras.utils.PyDataset):
    def __init__(self, *batch):
        super().__init__()
        self.batch = batch

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.batch


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("what", NO_NUMBERS)
def test_what_is_no_number_is_no_input(what, eagerly):
    bad, x, y = NO_NUMBERS[what], np.ones((4, FEATURES), "float32"), np.ones((4, 1), "float32")
    model = make_model(run_eagerly=eagerly)
    model.fit(x, y, verbose=0)
    fresh = make_model(run_eagerly=eagerly)
    array = np.asarray(bad)
    for call in (
        lambda: model.fit(bad, y, verbose=0),
        lambda: fresh.fit(bad, y, verbose=0),
        lambda: model.fit(x, bad, verbose=0),
        lambda: model.fit({"a": x, "b": bad}, y, verbose=0),
        lambda: model.fit(x, y, validation_data=(bad, y), verbose=0),
        lambda: model.fit(Source(array, y), verbose=0),
        lambda: fresh.fit(Source(array, y), verbose=0),
        lambda: fresh.fit((batch for batch in [(array, y)] * 2), verbose=0),  # noqa: B023
        lambda: model.evaluate(x, bad, verbose=0),
        lambda: model.predict(bad, verbose=0),
        lambda: model.train_on_batch(bad, y),
        lambda: model.test_on_batch(x, bad),
        lambda: model.predict_on_batch(bad),
        lambda: model(array),
        lambda: ops.convert_to_tensor(bad),
        lambda: keras_ocl.jit(ops.sin)(array),
    ):
        with pytest.raises(TypeError, match="holds [A-z ]*, (and tensors of [a-z]+ are|which are) not supported") as caught:
            call()
        if what != "dates":
            assert "tf.data or a preprocessing layer such as StringLookup or TextVectorization" in str(caught.value)
    assert model.fit(x, y, verbose=0).history["loss"][0] < 100


def test_reading_a_value_in_a_compiled_step_says_what_to_do():
    class Model(keras.Sequential):
        def train_step(self, data):
            float(ops.sum(data[0]))
            return super().train_step(data)

    x, y = make_data()
    model = Model([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="run_eagerly=True"):
        model.fit(x, y, verbose=0)
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(x, y, verbose=0)


def test_a_failed_trace_leaves_state_and_the_next_call_as_they_were():
    class Model(keras.Sequential):
        fail = True

        def train_step(self, data):
            logs = super().train_step(data)
            if self.fail:
                raise KeyError("on purpose")
            return logs

    x, y = make_data()
    model = Model([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    weights = model.get_weights()
    with pytest.raises(KeyError):
        model.fit(x, y, verbose=0)
    for a, b in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(model.optimizer.iterations) == 0
    model.fail = False
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])


def test_a_model_with_no_trainable_weights():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Rescaling(2.0)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)


EMPTY = np.ones((0, FEATURES), "float32"), np.ones((0, 1), "float32")


class NoBatches(keras.utils.PyDataset):
    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError(index)


def no_batches_of_unknown_number():
    dataset = pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices(EMPTY).batch(2)
    return dataset.filter(lambda x, y: True)


@pytest.mark.parametrize("eagerly", [False, True])
def test_no_rows(eagerly):
    x, y = make_data()
    model = make_model(run_eagerly=eagerly)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = {"fit": model.fit, "evaluate": model.evaluate, "predict": lambda x, y, **kwargs: model.predict(x, **kwargs)}
        for name, call in told.items():
            with pytest.raises(ValueError, match=rf"^{name}: x has no rows \(shape \(0, {FEATURES}\)\); pass at least one\.$"):
                call(*EMPTY, verbose=0)
            for data in (NoBatches(), NoBatches(workers=2)):
                with pytest.raises(ValueError, match=rf"^{name}: x \(NoBatches\) has no batches; pass at least one\.$"):
                    call(data, None, verbose=0)
            with pytest.raises(ValueError, match=rf"^{name}: x holds no arrays; pass at least one\.$"):
                call([], None, verbose=0)
        weights = model.get_weights()
        with pytest.raises(ValueError, match=r"^fit: the validation data has no rows \(shape \(0, \d+\)\); pass at least one\.$"):
            model.fit(x, y, validation_data=EMPTY, verbose=0)
    for a, b in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)  # it is told before the first epoch
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])


def test_no_batches_of_a_dataset_of_unknown_size():
    model = make_model()
    for name in ("evaluate", "predict", "fit"):
        with pytest.raises(ValueError, match=rf"^{name}: x \(\w+\) has no batches; pass at least one\.$"):
            getattr(model, name)(no_batches_of_unknown_number(), verbose=0)


def test_no_inputs():
    x, y = make_data()
    model = make_model()
    calls = {
        "fit": lambda: model.fit(None, y, verbose=0),
        "evaluate": lambda: model.evaluate(None, y, verbose=0),
        "predict": lambda: model.predict(None, verbose=0),
        "train_on_batch": lambda: model.train_on_batch(None, y),
        "test_on_batch": lambda: model.test_on_batch(None, y),
        "predict_on_batch": lambda: model.predict_on_batch(None),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"^{name}: x is None; pass the model's inputs, as arrays, a dataset or a generator\\.$"):
            call()
    with pytest.raises(ValueError, match="^fit: x is None"):
        model.fit(verbose=0)
    model.fit(x, y, verbose=0)


def test_a_step_of_ones_own_may_do_without_inputs():
    class Model(keras.Model):
        def train_step(self, data):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            assert x is None
            return {"mean": ops.mean(y)}

    model = Model()
    model.compile()
    assert model.fit(None, np.full((4, 1), 3.0), verbose=0).history["mean"] == [3.0]
    assert model.train_on_batch(None, np.full((4, 1), 3.0), return_dict=True)["mean"] == 3.0
