"""fit, evaluate, predict and the batch methods: results, state between batches, and what is compiled when."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_ocl import GradientTape, runtime

SAMPLES, FEATURES = 50, 4


def make_data(samples=SAMPLES, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, FEATURES)).astype("float32")
    w = rng.normal(size=(FEATURES, 1)).astype("float32")
    return x, x @ w + 0.1


def make_model(optimizer="sgd", metrics=("mae",), seed=0, **options):
    model = keras.Sequential([keras.layers.Input((FEATURES,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(scale=0.5, size=w.shape).astype("float32") for w in model.weights])
    model.compile(optimizer=optimizer, loss="mse", metrics=list(metrics), **options)
    return model


class Reference:
    """The same model, trained by SGD on the mean squared error, in NumPy's float64."""

    def __init__(self, model):
        self.w = [w.astype("float64") for w in model.get_weights()]

    def forward(self, x):
        self.h = np.tanh(x @ self.w[0] + self.w[1])
        return self.h @ self.w[2] + self.w[3]

    def gradients(self, x, y, weight=None):
        x, y = x.astype("float64"), y.astype("float64")
        p = self.forward(x)
        weight = np.ones(len(x)) if weight is None else weight
        loss = np.mean(weight[:, None] * (p - y) ** 2)
        d = 2 * weight[:, None] * (p - y) / len(x)
        dh = d @ self.w[2].T * (1 - self.h**2)
        return loss, [x.T @ dh, dh.sum(0), self.h.T @ d, d.sum(0)]

    def step(self, x, y, weight=None, rate=0.01):
        loss, gradients = self.gradients(x, y, weight)
        self.w = [w - rate * g for w, g in zip(self.w, gradients, strict=True)]
        return loss

    def check(self, model, tolerance=1e-5):
        for ours, w in zip(model.get_weights(), self.w, strict=True):
            np.testing.assert_allclose(ours, w, rtol=tolerance, atol=tolerance)


class Steps(keras.callbacks.Callback):
    """Records the logs of every batch."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


MODES = pytest.mark.parametrize("mode", [{}, {"jit_compile": False}, {"run_eagerly": True}], ids=["jit", "no_jit", "eager"])


def batches(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


# ---- results


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


# ---- callbacks and state between batches


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


# ---- custom steps


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


# ---- optimizer features that assign under a condition


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


# ---- what is compiled


def convolutional():
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu", padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Conv2D(4, 3),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_other_batch_sizes_build_nothing(built):
    model = convolutional()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 8, 8, 3)).astype("float32"), rng.integers(0, 5, 70)
    model.fit(x[:64], y[:64], batch_size=32, verbose=0)
    model.evaluate(x[:64], y[:64], batch_size=32, verbose=0)
    model.predict(x[:64], batch_size=32, verbose=0)
    assert built.since() > 0
    builds = runtime.current_device().statistics.builds
    model.fit(x, y, batch_size=32, verbose=0)  # a last batch of 6
    model.fit(x, y, batch_size=17, verbose=0)
    model.evaluate(x, y, batch_size=13, verbose=0)
    model.predict(x, batch_size=70, verbose=0)
    model.predict_on_batch(x[:1])
    assert built.since() == 0
    assert runtime.current_device().statistics.builds == builds


def test_partial_batches_are_right():
    model = convolutional()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(11, 8, 8, 3)).astype("float32"), rng.integers(0, 5, 11)
    whole = model.predict(x, batch_size=11, verbose=0)
    for size in (1, 2, 3, 4, 8):
        np.testing.assert_allclose(model.predict(x, batch_size=size, verbose=0), whole, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.evaluate(x, y, batch_size=size, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-4)


def test_a_step_is_traced_once_a_signature():
    traces = []

    class Model(keras.Sequential):
        def train_step(self, data):
            traces.append(data[0].shape)
            return super().train_step(data)

    x, y = make_data(20)
    model = Model([keras.layers.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    assert len(traces) == 2  # batches of 8, and the last of 4
    model.layers[0].trainable = False
    model.layers[0].trainable = True
    model.fit(x, y, batch_size=8, verbose=0)
    assert len(traces) == 2
    model.compile("adam", "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    assert len(traces) == 4


def test_freezing_a_layer_between_calls():
    x, y = make_data()
    model = make_model()
    model.fit(x, y, verbose=0)
    before = model.get_weights()
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.any(before[2] != after[2])


def test_a_training_step_reads_nothing_back():
    x, y = make_data()
    model = make_model()
    model.fit(x, y, batch_size=10, epochs=2, verbose=0)
    statistics = runtime.current_device().statistics
    before = statistics.downloads
    model.fit(x, y, batch_size=10, epochs=1, verbose=0)
    once = statistics.downloads - before
    before = statistics.downloads
    model.fit(x, y, batch_size=5, epochs=1, verbose=0)
    assert statistics.downloads - before == once  # twice the steps


# ---- bad input


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


def test_strings_are_no_input():
    model = make_model()
    with pytest.raises((ValueError, TypeError), match="(?i)dtype|string|number|str"):
        model.fit(np.array([["a"] * FEATURES] * 4), np.ones((4, 1)), verbose=0)


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


def test_empty_input():
    model = make_model()
    with pytest.raises(ValueError):
        model.fit(np.ones((0, FEATURES), "float32"), np.ones((0, 1), "float32"), verbose=0)
