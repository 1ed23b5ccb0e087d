"""Devices whose sub-buffers may not overlap: kernels get whole buffers and how many bytes behind their begin to start."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
from keras import layers

from keras_ocl import runtime
from keras_ocl.kernels.spec import Args, Buffer


@pytest.fixture
def whole_buffers(monkeypatch):
    """The device without sub-buffers; what binds one all the same fails."""
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, sub_buffers=False))
    made = runtime.Storage.mem

    def mem(storage):
        assert storage.offset == 0, "a sub-buffer"
        return made.fget(storage)

    monkeypatch.setattr(runtime.Storage, "mem", property(mem))


def trained():
    """Weights after steps of two models in turn, whose intermediates take turns in the arena."""
    keras.utils.set_random_seed(3)
    x, y = np.random.default_rng(0).normal(size=(50, 9, 6)).astype("float32"), np.arange(50) % 3
    models = [
        keras.Sequential([layers.LSTM(7, return_sequences=True), layers.GRU(5), layers.Dense(3)]),
        keras.Sequential([layers.Conv1D(8, 3, activation="relu"), layers.Dropout(0.3), layers.Flatten(), layers.Dense(3)]),
    ]
    for model in models:
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _, model in itertools.product(range(2), models):
        model.fit(x, y, batch_size=16, verbose=0)
    return [w.numpy() for model in models for w in model.weights] + [models[1].predict(x, verbose=0)]


def test_training_is_the_same_to_the_last_bit(request):
    expected = trained()
    request.getfixturevalue("whole_buffers")
    for value, other in zip(trained(), expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_arguments_follow_the_memory(whole_buffers):
    """Kernels find their operands where another function's larger arena has moved them to."""
    from keras import ops

    import keras_ocl

    def function(x):
        return ops.sum(ops.softmax(ops.matmul(x, x)), axis=0)

    compiled = keras_ocl.jit(function)
    x, larger = (np.random.default_rng(1).normal(size=(n, n)).astype("float32") for n in (40, 300))
    first = ops.convert_to_numpy(compiled(x))
    np.testing.assert_allclose(ops.convert_to_numpy(keras_ocl.jit(function)(larger)), ops.convert_to_numpy(function(larger)), rtol=1e-4)
    np.testing.assert_array_equal(ops.convert_to_numpy(compiled(x)), first)


def test_parameters_of_the_text():
    args = Args()
    source, target = args.pointer(Buffer(8, "float32"), "float32"), args.pointer(Buffer(8, "bool"), "bool", out=True)
    i = args.place("global", 0)
    spec = args.kernel("copy", f"{target}[{i}] = {source}[{i}] != 0;\n", (8,), title="a copy")
    assert "k(__global const float* restrict p0, __global uchar* restrict p1) {" in spec.source("k")
    assert (
        "k(__global const float* restrict p0_whole, __global uchar* restrict p1_whole, const ulong p0_at, const ulong p1_at) {\n"
        "  __global const float* restrict p0 = (__global const float*)((__global const char*)p0_whole + p0_at);\n"
    ) in spec.source("k", offsets=True)
