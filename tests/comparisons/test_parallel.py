"""Data parallelism: on any devices, the losses and weights of one device."""

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
    if device.traits.compute_units < count or not device.driver.handle.partition_properties:
        pytest.skip(f"{device} cannot be split into {count} parts")
    return [f"{device.name}/{k + 1}of{count}" for k in range(count)]


@pytest.fixture(scope="module")
def start():
    generator = np.random.default_rng(1)
    return [generator.normal(scale=0.2, size=weight.shape).astype("float32") for weight in build().get_weights()]


def on_one_device(weights, epochs=3, **options):
    """Losses of the first epoch's steps and of the other epochs, and the weights of Keras's own training."""
    model = build(**options)
    model.set_weights(weights)
    losses = [float(model.train_on_batch(X[first : first + BATCH], Y[first : first + BATCH])) for first in range(0, len(X), BATCH)]
    losses += model.fit(X, Y, batch_size=BATCH, epochs=epochs - 1, shuffle=False, verbose=0).history["loss"]
    return losses, model.get_weights()


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


def test_several_runtimes(start):
    names = [info.name for info in runtime.devices() if info.usable]
    if len(names) < 2:
        pytest.skip("there is one device only")
    losses, _ = on_one_device(start)
    for variables in parallel.KINDS:
        found = parallel.train(build, start, [(X, Y)] * 3, BATCH, names, variables)
        np.testing.assert_allclose(found["losses"], losses, rtol=TOLERANCE)


def test_batch_statistics_and_dropout_are_those_of_one_device():
    def stateful():
        layers = keras.layers
        stack = [keras.Input((6,)), layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(4, "softmax")]
        model = keras.Sequential(stack)
        model.compile("sgd", "categorical_crossentropy", metrics=["mae"])
        return model

    data = [(X[:, 0, :2, :].reshape(41, 6), Y)] * 2
    weights, device = stateful().get_weights(), runtime.current_device().name
    alone = parallel.train(stateful, weights, data, BATCH, [device])
    for variables in parallel.KINDS:
        found = parallel.train(stateful, weights, data, BATCH, several(2), variables)
        np.testing.assert_allclose(found["losses"], alone["losses"], rtol=TOLERANCE)


def test_other_kinds_are_refused_and_no_distribution_is_left(start):
    with pytest.raises(ValueError, match="variables are mirrored or central, not 'both'"):
        parallel.train(build, start, [(X, Y)], BATCH, several(2), "both")
    with pytest.raises(ZeroDivisionError):
        parallel.train(lambda: 1 / 0, start, [(X, Y)], BATCH, several(2))
    assert keras.distribution.distribution() is None


def test_ways():
    settings = {"parts": [2], "devices": [["a", "b"]], "alone": True, "variables": ["central"]}
    names = [["d"], ["d/1of2"], ["d/2of2"], ["a"], ["b"], ["d/1of2", "d/2of2"], ["a", "b"]]
    assert parallel.ways(settings, "d") == [(each, "mirrored" if len(each) == 1 else "central") for each in names]


def test_unlike_devices():
    usable = [info for info in runtime.devices() if info.usable]
    found = parallel.unlike(usable[0].name)
    if len({(info.platform, info.model) for info in usable}) < 2:
        assert found == []
    else:
        one, two = (runtime.find_device(name) for name in found)
        assert (one.platform, one.model) != (two.platform, two.model)


def test_a_row_compares_ways():
    several(2)
    row = types.SimpleNamespace(settings={"parts": [2], "variables": ["central"]})
    subject = Subject(X, Y, X, Y, build, BATCH)
    result = parallel.measure(Context(row, Extent(epochs=1), subject, lambda *text: None, ""))["parallel"]
    name = runtime.current_device().name
    assert [(way["devices"], way["variables"]) for way in result] == [([name], "mirrored"), ([f"{name}/1of2", f"{name}/2of2"], "central")]
    assert result[0]["loss_difference"] == result[0]["weight_difference"] == 0
    assert 0 <= result[1]["loss_difference"] < TOLERANCE
    assert all(len(way["losses"]) == 4 and is_spread(way["epoch_s"]) for way in result)
