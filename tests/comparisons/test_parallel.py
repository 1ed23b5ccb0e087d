"""Data parallelism: on any devices, the losses and weights of one device; what each device would have of its own is refused."""

import types

import keras
import numpy as np
import pytest

from comparisons.measures import Context, is_spread
from comparisons.studies import parallel
from comparisons.study import Extent
from comparisons.subject import Subject
from keras_ocl import runtime

TOLERANCE = 1e-5  # relative, of float32 sums in another order, over a few steps
BATCH = 16
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(41, 8, 8, 3)).astype("float32")  # the last mini-batch has 9 examples
Y = np.eye(4, dtype="float32")[GENERATOR.integers(0, 4, 41)]


def build(shape=X.shape[1:], optimizer="adam", **options):
    layers = keras.layers
    convolution = layers.Conv2D(6, 3, padding="same", activation="relu", **options)
    model = keras.Sequential([keras.Input(shape), convolution, layers.MaxPooling2D(), layers.Flatten(), layers.Dense(4, "softmax")])
    model.compile(optimizer, "categorical_crossentropy")
    return model


def several(count):
    """Names of so many devices, parts of the current one, or skip."""
    device = runtime.current_device()
    if device.traits.compute_units < count or not device.handle.partition_properties:
        pytest.skip(f"{device} cannot be split into {count} parts")
    return [f"{device.name}/{k + 1}of{count}" for k in range(count)]


@pytest.fixture(scope="module")
def start():
    generator = np.random.default_rng(1)
    return [generator.normal(scale=0.2, size=weight.shape).astype("float32") for weight in build().get_weights()]


def on_one_device(weights, epochs=3, **options):
    """Losses of every step and the weights of Keras's own training."""
    model = build(**options)
    model.set_weights(weights)
    losses = []
    for _ in range(epochs):
        for first in range(0, len(X), BATCH):
            model.reset_metrics()
            losses.append(float(model.train_on_batch(X[first : first + BATCH], Y[first : first + BATCH])))
    return losses, model.get_weights()


def test_shares():
    assert [(s.start, s.stop) for s in parallel.shares(10, 3)] == [(0, 4), (4, 7), (7, 10)]
    assert [s.stop - s.start for s in parallel.shares(1, 3)] == [1, 0, 0]


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd"}, {"kernel_regularizer": "l2"}], ids=["adam", "sgd", "l2"])
@pytest.mark.parametrize("variables", parallel.KINDS)
def test_two_parts_train_as_one_device(variables, options, start):
    devices = several(2)
    losses, weights = on_one_device(start, **options)
    launches = [runtime.find_device(name).statistics.launches for name in devices]
    found = parallel.train(lambda: build(**options), start, [(X, Y)] * 3, BATCH, devices, variables)
    np.testing.assert_allclose(found["losses"], losses, rtol=TOLERANCE)
    assert parallel.difference(found["weights"], weights) < 1e-3 and len(found["epoch_seconds"]) == 3
    assert all(runtime.find_device(name).statistics.launches - before >= 9 for name, before in zip(devices, launches, strict=True))


def test_difference():
    assert parallel.difference([[1.0, 2.0], [4.5]], [[1.0, 2.0], [4.0]]) == 0.125 and parallel.difference([1.0], [1.0]) == 0


def test_mirrored_variables_stay_equal_bit_for_bit():
    with parallel.DataParallel(build, several(2)) as replicas:
        replicas.epoch(X, Y, BATCH)
        one, two = replicas.models
        assert [v.value.storage.device.name for v in (one.weights[0], two.weights[0])] == list(replicas.devices)
        for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_central_variables_stay_on_the_first_device():
    with parallel.DataParallel(build, several(2), "central") as replicas:
        replicas.epoch(X, Y, BATCH)
        variables = replicas.model.variables + replicas.model.optimizer.variables
        assert {v.value.storage.device.name for v in variables} == {replicas.devices[0]}


def test_several_runtimes(start):
    names = [info.name for info in runtime.devices() if info.usable]
    if len(names) < 2:
        pytest.skip("there is one device only")
    losses, _ = on_one_device(start)
    for variables in parallel.KINDS:
        found = parallel.train(build, start, [(X, Y)] * 3, BATCH, names, variables)
        np.testing.assert_allclose(found["losses"], losses, rtol=TOLERANCE)


def test_more_devices_than_examples(start):
    name = runtime.current_device().name
    found = parallel.train(build, start, [(X[:3], Y[:3])], 2, [name] * 3, "central")
    assert len(found["losses"]) == 2 and np.isfinite(found["losses"]).all()


def test_what_cannot_be_trained_so():
    name = runtime.current_device().name
    for layer in (keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)):

        def stateful(layer=layer):
            model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        with pytest.raises(ValueError, match="state that is not trained, and each device its own: .*(moving_mean|seed)"):
            parallel.DataParallel(stateful, [name])
    with pytest.raises(ValueError, match="variables are mirrored or central, on one device or more, not 'both'"):
        parallel.DataParallel(build, [name], "both")
    with pytest.raises(ValueError, match=r"one device or more, not 'mirrored' on \[\]"):
        parallel.DataParallel(build, [])


def test_a_row_compares_ways():
    several(2)
    row = types.SimpleNamespace(settings={"parts": [2], "variables": ["central"]})
    subject = Subject(X, Y, X, Y, build, BATCH)
    result = parallel.measure(Context(row, Extent(epochs=1), subject, lambda *text: None, ""))["parallel"]
    name = runtime.current_device().name
    assert [(way["devices"], way["variables"]) for way in result] == [([name], "mirrored"), ([f"{name}/1of2", f"{name}/2of2"], "central")]
    assert result[0]["loss_difference"] == result[0]["weight_difference"] == 0
    assert 0 <= result[1]["loss_difference"] < TOLERANCE
    assert all(len(way["losses"]) == 6 and is_spread(way["epoch_s"]) for way in result)
