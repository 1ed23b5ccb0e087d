"""Horizontal fusion: kernels side by side are one launch, and compute what they compute one by one, to the last bit."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.kernels import schedule

RNG = np.random.default_rng(5)


def normal(*shape):
    return (RNG.normal(size=shape) * 0.5).astype("float32")


@pytest.fixture
def on_gpu(monkeypatch):
    """Kernels are those for GPUs, whatever the device is."""
    device = runtime.current_device()
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=68, max_groups=(2**24 - 1, 2**16 - 1, 2**16 - 1))
    monkeypatch.setattr(device, "traits", traits)
    return device


@pytest.fixture
def one_by_one(monkeypatch):
    """A function that runs another with a schedule in which a launch costs nothing."""

    def run(function):
        with monkeypatch.context() as patched:
            patched.setitem(schedule._KNOWN, "gpu", dataclasses.replace(schedule.get("gpu"), joined=0))
            return function()

    return run


def launches(device, function):
    before = device.statistics.launches
    function()
    return device.statistics.launches - before


def model(optimizer):
    """With elements, reductions by teams of work-items, products and Dims."""
    keras.utils.set_random_seed(2)
    dense = keras.layers.Dense
    layers = [keras.Input((20,)), dense(40, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), dense(3, "softmax")]
    found = keras.Sequential(layers)
    found.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return found


def trained(optimizer):
    x, y = normal(40, 20), RNG.integers(0, 3, 40)

    def run():
        network = model(optimizer)
        logs = [network.train_on_batch(x[:n], y[:n]) for n in (16, 16, 40, 3)]  # all with the kernels of the first
        number = launches(runtime.current_device(), lambda: network.train_on_batch(x[:16], y[:16]))
        return number, [*map(np.asarray, logs), *network.get_weights(), *(np.asarray(v) for v in network.optimizer.variables)]

    return run


def test_training_is_the_same_to_the_last_bit(on_gpu, one_by_one):
    run = trained("lion")
    (number, joined), (more, separate) = run(), one_by_one(run)
    assert number <= more - 8
    for a, b in zip(joined, separate, strict=True):
        np.testing.assert_array_equal(a, b)
