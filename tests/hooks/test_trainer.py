"""fit, evaluate, predict and the batch methods: results for all kinds of input, in all modes."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.hooks.regression import MODES, Reference, Steps, batches, make_data, make_model


@MODES
def test_fit_is_gradient_descent(mode):
    x, y = make_data()
    model = make_model(**mode)
    reference = Reference(model)
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    losses = []
    for _ in range(2):
        parts = batches(x, y, 16)
        losses.append(sum(reference.step(*b) * len(b[0]) for b in parts) / len(x))
    reference.check(model)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-5)
    assert history.epoch == [0, 1]
    assert set(history.history) == {"loss", "mae"}


@MODES
def test_evaluate_and_predict(mode):
    x, y = make_data()
    model = make_model(**mode)
    expected = Reference(model).forward(x.astype("float64"))
    np.testing.assert_allclose(model.predict(x, batch_size=16, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict_on_batch(x), expected, rtol=1e-5, atol=1e-6)
    loss, mae = model.evaluate(x, y, batch_size=16, verbose=0)
    np.testing.assert_allclose(loss, np.mean((expected - y) ** 2), rtol=1e-5)
    np.testing.assert_allclose(mae, np.mean(np.abs(expected - y)), rtol=1e-5)
    logs = model.test_on_batch(x, y, return_dict=True)
    np.testing.assert_allclose(logs["loss"], loss, rtol=1e-5)


@MODES
def test_train_on_batch_reports_its_own_batch(mode):
    x, y = make_data()
    model = make_model(**mode)
    reference = Reference(model)
    for part in batches(x, y, 25):
        loss = reference.step(*part)
        np.testing.assert_allclose(model.train_on_batch(*part, return_dict=True)["loss"], loss, rtol=1e-5)
    reference.check(model)


@MODES
def test_sample_weight(mode):
    x, y = make_data(20)
    weight = np.linspace(0, 2, 20).astype("float32")
    model = make_model(**mode)
    reference = Reference(model)
    model.fit(x, y, sample_weight=weight, batch_size=10, shuffle=False, verbose=0)
    for i in (0, 10):
        reference.step(x[i : i + 10], y[i : i + 10], weight[i : i + 10])
    reference.check(model)
    loss, _ = model.evaluate(x, y, sample_weight=weight, batch_size=20, verbose=0)
    np.testing.assert_allclose(loss, reference.gradients(x, y, weight)[0], rtol=1e-5)


def test_class_weight():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4)).astype("float32")
    y = rng.integers(0, 3, 30)
    weights = {0: 1.0, 1: 0.0, 2: 3.0}

    def trained(**options):
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, kernel_initializer="ones")])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, y, batch_size=10, shuffle=False, verbose=0, **options)
        return model

    by_class = trained(class_weight=weights).get_weights()
    by_sample = trained(sample_weight=np.array([weights[k] for k in y], "float32")).get_weights()
    for a, b in zip(by_class, by_sample, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    model = trained()
    logs = model.train_on_batch(x, y, class_weight={0: 0.0, 1: 0.0, 2: 0.0}, return_dict=True)
    assert logs["loss"] == 0.0


def test_validation_split_takes_the_last_samples():
    x, y = make_data()
    model = make_model()
    reference = Reference(model)
    history = model.fit(x, y, batch_size=16, validation_split=0.2, shuffle=False, verbose=0)
    for part in batches(x[:40], y[:40], 16):
        reference.step(*part)
    reference.check(model)
    np.testing.assert_allclose(history.history["val_loss"][0], reference.gradients(x[40:], y[40:])[0], rtol=1e-5)


def test_validation_data_and_frequency():
    x, y = make_data()
    history = make_model().fit(x, y, epochs=4, validation_data=make_data(10, 1), validation_freq=2, verbose=0)
    assert len(history.history["val_loss"]) == 2
    assert len(history.history["loss"]) == 4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("per_execution", [2, 3, 100])
def test_steps_per_execution(per_execution):
    x, y = make_data()
    model = make_model(steps_per_execution=per_execution)
    reference = Reference(model)
    seen = Steps()
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[seen])
    for part in batches(x, y, 8):
        reference.step(*part)
    reference.check(model)
    assert len(seen.losses) == -(-7 // per_execution)
    assert int(model.optimizer.iterations) == 7
    expected = reference.forward(x.astype("float64"))
    np.testing.assert_allclose(model.predict(x, batch_size=8, verbose=0), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.evaluate(x, y, batch_size=8, verbose=0)[0], np.mean((expected - y) ** 2), rtol=1e-5)


@pytest.mark.parametrize(("batch_count", "warnings"), [(5, 1), (7, 0)])
def test_data_that_do_run_out_are_told_once(batch_count, warnings, recwarn):
    x, y = make_data()
    model = make_model(steps_per_execution=2)
    model.fit(iter_of(batches(x, y, 5)[:batch_count]), steps_per_epoch=7, verbose=0)
    assert sum("ran out of data" in str(w.message) for w in recwarn) == warnings
    assert int(model.optimizer.iterations) == batch_count


def iter_of(parts):
    yield from parts


def test_generators_and_steps():
    x, y = make_data()

    def generator():
        while True:
            yield from batches(x, y, 10)

    model = make_model()
    reference = Reference(model)
    model.fit(generator(), steps_per_epoch=3, epochs=2, verbose=0)
    for part in (batches(x, y, 10) * 2)[:6]:
        reference.step(*part)
    reference.check(model)
    assert model.predict(generator(), steps=2, verbose=0).shape == (20, 1)
    assert len(model.evaluate(generator(), steps=5, verbose=0)) == 2


def test_py_dataset():
    x, y = make_data()

    class Dataset(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return x[i * 10 : i * 10 + 10], y[i * 10 : i * 10 + 10]

    model = make_model()
    reference = Reference(model)
    model.fit(Dataset(workers=2), shuffle=False, verbose=0)
    for part in batches(x, y, 10):
        reference.step(*part)
    reference.check(model)


def test_nested_inputs_and_outputs():
    rng = np.random.default_rng(0)
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    hidden = keras.layers.Concatenate()([a, b])
    model = keras.Model({"a": a, "b": b}, {"sum": keras.layers.Dense(1)(hidden), "class": keras.layers.Dense(2)(hidden)})
    model.compile(
        "adam",
        loss={"sum": "mse", "class": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"sum": 0.5, "class": 2.0},
        metrics={"sum": ["mae"], "class": ["accuracy"]},
    )
    x = {"a": rng.normal(size=(20, 3)).astype("float32"), "b": rng.normal(size=(20, 2)).astype("float32")}
    y = {"sum": x["a"].sum(1, keepdims=True), "class": (x["b"].sum(1) > 0).astype("int32")}
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    assert {"loss", "sum_loss", "class_loss", "sum_mae", "class_accuracy"} == set(history)
    logs = model.evaluate(x, y, return_dict=True, verbose=0)
    np.testing.assert_allclose(logs["loss"], 0.5 * logs["sum_loss"] + 2 * logs["class_loss"], rtol=1e-5)
    outputs = model.predict(x, batch_size=8, verbose=0)
    assert {k: v.shape for k, v in outputs.items()} == {"sum": (20, 1), "class": (20, 2)}


def test_arrays_may_be_refilled_after_a_call():
    x, y = make_data(10)
    model = make_model()
    reference = Reference(model)
    buffer = x.copy()
    model.train_on_batch(buffer, y)
    buffer[:] = np.nan
    reference.step(x, y)
    reference.check(model)


def test_add_loss_regularizers_and_dropout_seed():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1), kernel_initializer="ones")
            self.dropout = keras.layers.Dropout(0.5, seed=3)

        def call(self, x, training=False):
            x = self.dropout(x, training=training)
            y = self.dense(x)
            self.add_loss(0.01 * ops.mean(ops.square(y)))
            return y

    x, y = np.ones((8, 4), "float32"), np.zeros((8, 2), "float32")
    model = Model()
    model.compile("sgd", "mse")
    loss = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(loss, 16.0 + 0.1 * 8 + 0.16, rtol=1e-5)
    first, second = model.train_on_batch(x, y), model.train_on_batch(x, y)
    assert first != second
    seeds = [ops.convert_to_numpy(model.dropout.seed_generator.state).tolist()]
    model.train_on_batch(x, y)
    assert ops.convert_to_numpy(model.dropout.seed_generator.state).tolist() not in seeds
