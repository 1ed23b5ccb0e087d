"""Equal layers: their kernels are made once, and are what each would have become by itself."""

import keras
import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.compiler.launch import lower
from keras_ocl.compiler.launch.alike import Alike
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.compiler.launch.lower import HostCall, HostEnd, buffers, function_name

L = keras.layers


def convolutions(count):
    inputs = x = keras.Input((8, 8, 4))
    for _ in range(count):
        h = L.LayerNormalization()(L.Conv2D(4, 3, padding="same", activation="gelu")(x))
        x = L.Add()([x, h])
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


def dense(count):
    layers = [part for _ in range(count) for part in (L.Dense(16, "relu"), L.Dropout(0.3), L.BatchNormalization())]
    return keras.Sequential([keras.Input((16,)), *layers, L.Dense(1)])


def recurrent(count):
    return keras.Sequential([keras.Input((5, 8)), *(L.GRU(8, return_sequences=True) for _ in range(count)), L.Flatten(), L.Dense(1)])


def attention(count):
    inputs = x = keras.Input((6, 8))
    for _ in range(count):
        x = L.Add()([x, L.MultiHeadAttention(2, 4)(x, x)])
    return keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))


MAKERS = [convolutions, dense, recurrent, attention]


def launches(make, count, record):
    """(The launches of a model's training step, traits)."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    traits = runtime.read_record(record)
    with runtime.device_scope(runtime.RecordDevice(record, traits)):
        model = make(count)
        model.compile(keras.optimizers.Adam(clipnorm=1.0), "mse")
        data = np.zeros((4, *model.input_shape[1:]), "float32"), np.zeros((4, 1), "float32")
        model._symbolic_build(data_batch=data)
        model._refresh_trace_context()
        return model._step_function(model.train_step).compiled(data).executable.launches, traits


def described(found, traits, number):
    """All that tells launches apart, with `number` (a dict that grows) for each buffer."""
    for launch in found:
        if isinstance(launch, Loop):
            yield launch.name, *described(launch.launches, traits, number)
            continue
        places = [(number.setdefault(b, len(number)), b.nbytes, b.dtype) for b in buffers(launch)]
        if isinstance(launch, (HostCall, HostEnd)):
            yield launch.name, places
            continue
        numbers = [a.value for a in launch.args if not a.is_pointer]
        about = launch.grid, launch.group, launch.overwrites, launch.operations, launch.provenance.shares
        yield launch.name, function_name(launch, traits), places, numbers, *about


@pytest.mark.parametrize("record", ["intel-cpu", "sm_86"])
@pytest.mark.parametrize("make", MAKERS)
def test_they_are_what_each_would_be_by_itself(make, record, monkeypatch):
    shared = list(described(*launches(make, 3, record), {}))
    monkeypatch.setattr(Alike, "form", lambda alike, region: None)
    assert shared == list(described(*launches(make, 3, record), {}))


@pytest.mark.parametrize("make", [convolutions, dense, attention])  # a loop's body is lowered with each loop
def test_more_of_them_take_no_more_lowering(make, monkeypatch):
    made, lower_region = [], lower._lower_region
    monkeypatch.setattr(lower, "_lower_region", lambda *rest: made.append(1) or lower_region(*rest))
    counts = []
    for count in (3, 6):
        made.clear()
        launches(make, count, "intel-cpu")
        counts.append(len(made))
    assert counts[1] - counts[0] <= 3  # but for small ones that share a kernel, of which as many join as fit
