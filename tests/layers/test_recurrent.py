"""Recurrent layers inside compiled training: dropout of inputs and states, states kept from batch to batch, unrolling."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers

from keras_ocl import lowering, runtime
from keras_ocl.compiler.launch.loops import persistent
from tests.primitives.checking import need_float64

LAYERS = ["SimpleRNN", "GRU", "LSTM"]
UNITS = 64


class Seen(layers.Layer):
    """Hands on what it is given, and keeps it."""

    def build(self, shape):
        self.value = self.add_weight(shape=shape, initializer="zeros", trainable=False, name="value")

    def call(self, x):
        self.value.assign(x)
        return x


def accumulator(name, dropout, recurrent_dropout):
    """A layer that computes h = x + h_before without dropout: its gates are open and all else is linear."""
    options = {} if name == "SimpleRNN" else {"recurrent_activation": "linear"}
    layer = getattr(layers, name)(
        UNITS, activation="linear", dropout=dropout, recurrent_dropout=recurrent_dropout, return_sequences=True, seed=3, **options
    )
    layer.build((2, 5, UNITS))
    one, zero, eye, none = np.ones(UNITS), np.zeros(UNITS), np.eye(UNITS), np.zeros((UNITS, UNITS))
    bias = {"SimpleRNN": zero, "GRU": [[*zero, *one, *zero], [*zero, *zero, *zero]], "LSTM": [*one, *zero, *zero, *one]}[name]
    gates = {"SimpleRNN": [eye], "GRU": [none, none, eye], "LSTM": [none, none, eye, none]}[name]
    layer.set_weights([np.concatenate(gates, 1), np.concatenate(gates, 1), np.array(bias)])
    return layer


@pytest.mark.parametrize(
    ("name", "dropout", "recurrent_dropout"), [("SimpleRNN", 0.25, 0.5), ("GRU", 0.25, 0.0), ("LSTM", 0.25, 0.0), ("LSTM", 0.25, 0.5)]
)
def test_dropout_is_the_same_for_all_steps_of_a_batch(name, dropout, recurrent_dropout):
    seen = Seen()
    model = keras.Sequential([layers.Input(batch_shape=(2, 5, UNITS)), accumulator(name, dropout, recurrent_dropout), seen])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.ones((2, 5, UNITS), "float32")
    of_inputs, of_states = [], []
    for _ in range(4):
        model.train_on_batch(x, x)
        steps = np.moveaxis(keras.ops.convert_to_numpy(seen.value), 1, 0)
        first, on = steps[0], steps[0] != 0
        kept = (steps[1] - first)[on] / first[on]
        for before, after in zip(steps[1:], steps[2:], strict=False):
            np.testing.assert_allclose(after[on], first[on] + kept * before[on], rtol=1e-5)
        of_inputs.append(first)
        of_states.append(kept)
    for masks, rate in ((of_inputs, dropout), (of_states, recurrent_dropout)):
        values = np.unique(np.round(np.concatenate([m.ravel() for m in masks]), 4))
        np.testing.assert_allclose(values, np.round([0, 1 / (1 - rate)] if rate else [1], 4), rtol=1e-4)
        mean = np.mean(np.concatenate([m.ravel() for m in masks]) == 0)
        assert abs(mean - rate) < 4 * np.sqrt(rate * (1 - rate) / (8 * UNITS * 0.75)) + 1e-9
    assert len({m.tobytes() for m in of_inputs}) == 4
    np.testing.assert_allclose(model.predict(x, verbose=0), x.cumsum(1), rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_with_dropout(name):
    """What a step of SGD subtracts against central differences of its loss, with the same masks each time."""
    need_float64()
    layer = getattr(layers, name)(3, dropout=0.3, recurrent_dropout=0.4, seed=5, dtype="float64")
    model = keras.Sequential([layers.Input((6, 2), dtype="float64"), layer])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 6, 2)), rng.normal(size=(4, 3))
    start = [rng.normal(size=w.shape) * 0.5 for w in model.get_weights()]
    seed = keras.ops.convert_to_numpy(layer.cell.seed_generator.state)

    def loss(weights):
        layer.cell.seed_generator.state.assign(seed)
        model.set_weights(weights)
        return float(model.train_on_batch(x, y))

    loss(start)
    gradient = [before - after for before, after in zip(start, model.get_weights(), strict=True)]
    direction = [rng.uniform(0.5, 1.5, w.shape) * g for w, g in zip(start, gradient, strict=True)]
    ahead, behind = (loss([w + s * 1e-3 * d for w, d in zip(start, direction, strict=True)]) for s in (1, -1))
    expected = (ahead - behind) / 2e-3
    assert abs(expected) > 0.01
    np.testing.assert_allclose(sum(np.sum(g * d) for g, d in zip(gradient, direction, strict=True)), expected, rtol=1e-3)


@pytest.mark.parametrize("name", [*LAYERS, "ConvLSTM1D"])
def test_stateful_batches_make_one_long_sequence(name):
    def made(**options):
        extra = {"kernel_size": 2, "padding": "same"} if name == "ConvLSTM1D" else {}
        return getattr(layers, name)(3, return_sequences=True, **extra, **options)

    shape = (4, 2) if name == "ConvLSTM1D" else (2,)
    whole, parts = (keras.Sequential([layers.Input(batch_shape=(2, None, *shape)), made(stateful=s)]) for s in (False, True))
    parts.set_weights(whole.get_weights())
    x = np.random.default_rng(1).normal(size=(2, 15, *shape)).astype("float32")
    expected = whole.predict(x, verbose=0)
    for _ in range(2):
        found = [parts.predict(x[:, i : i + 5], verbose=0) for i in range(0, 15, 5)]
        np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=1e-4, atol=1e-5)
        parts.layers[0].reset_state()


@pytest.mark.parametrize("name", LAYERS)
def test_unrolled_as_rolled(name):
    """With a mask and from the end; both train to the same weights."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(3, 5, 2)).astype("float32"), rng.normal(size=(3, 5, 3)).astype("float32")
    x[::2, 4:] = 0
    x[1, 1] = 0
    results = []
    for unroll in (False, True):
        layer = getattr(layers, name)(3, return_sequences=True, go_backwards=True, unroll=unroll)
        model = keras.Sequential([layers.Input((5, 2)), layers.Masking(), layer])
        model.compile(keras.optimizers.SGD(0.5), "mse")
        model.set_weights([np.random.default_rng(3).normal(size=w.shape) * 0.5 for w in model.get_weights()])
        losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
        results.append([losses, *model.get_weights()])
    for rolled, unrolled in zip(*results, strict=True):
        np.testing.assert_allclose(unrolled, rolled, rtol=1e-4, atol=1e-6)


def launches_of_a_step(record, layer, features=20, hold=False):
    """Numbers of launches of a step of training, forward and backward; with `hold`, of all steps where they are one launch."""

    def made():
        model = keras.Sequential([layers.Input((7, features)), layer(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    with pytest.MonkeyPatch.context() as patch:
        if not hold:
            patch.setattr(persistent, "allowed", lambda traits: False)
        train, _ = lowering.lower(made, runtime.read_record(record), name=record)
    assert all(steps == 1 for launch in train.launches if hold for _, steps in launch.loops)
    return [len(list(launches)) for loops, launches in itertools.groupby(train.launches, lambda launch: launch.loops) if loops]


@pytest.mark.parametrize("record", ["sm_86", "gfx1100", "dg2"])
@pytest.mark.parametrize("name", LAYERS)
def test_all_steps_are_one_launch_each_way_on_gpus(name, record):
    assert launches_of_a_step(record, lambda: getattr(layers, name)(32), hold=True) == [1, 1]


@pytest.mark.parametrize("record", ["sm_86", "gfx1100", "intel-cpu"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_training_is_two_launches_each_way(name, record):
    """What the gradient needs of a step is stored by the kernels that compute it, parts of a product too."""
    steps = launches_of_a_step(record, lambda: getattr(layers, name)(32))
    assert len(steps) == 2 and max(steps) <= 2, steps


@pytest.mark.parametrize("record", ["sm_86", "gfx1100"])
@pytest.mark.parametrize("name", LAYERS)
def test_long_sums_of_a_step_are_not_cut_for_less_than_a_launch(name, record):
    steps = launches_of_a_step(record, lambda: getattr(layers, name)(128))
    assert len(steps) == 2 and max(steps) <= 2, steps


@pytest.mark.parametrize(("record", "most"), [("sm_86", [2, 2]), ("gfx1100", [2, 2]), ("intel-cpu", [3, 3])])
@pytest.mark.parametrize("units", [32, 37, 128])
def test_two_products_in_turn_are_two_launches_on_a_gpu(units, record, most):
    """The second computes its operand where it reads it; CPUs' products compute no left operand."""
    steps = launches_of_a_step(record, lambda: layers.GRU(units, reset_after=False))
    assert len(steps) == 2 and all(n <= m for n, m in zip(steps, most, strict=True)), steps


def test_a_cell_of_two_products_in_turn():
    """Keras's own: nothing asks which layer it is."""
    steps = launches_of_a_step("sm_86", lambda: layers.RNN(layers.GRUCell(32, reset_after=False)))
    assert len(steps) == 2 and max(steps) <= 2, steps
