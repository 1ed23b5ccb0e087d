"""What is released: by `clear_session`, and with models that go out of scope."""

import collections
import gc
import itertools
import weakref

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler.jit import Compiled
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.compiler.trace.ir import Node
from keras_ocl.core.trace import Trace
from keras_ocl.kernels.spec import KernelSpec
from keras_ocl.runtime import programs

_numbers = itertools.count()
X, Y = np.ones((32, 8), "float32"), np.zeros((32, 1), "float32")


def trained(units=16):
    layers = [keras.Input((8,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers, name=f"session_{next(_numbers)}")  # by which its functions are found
    model.compile("adam", "mse", metrics=["mae"])
    model.train_on_batch(X, Y)
    model.predict_on_batch(X)
    return model


def executables(model):
    """Weak references to what the compiled functions of a model run."""
    names = (f"{model.name}.train_step", f"{model.name}.predict_step")
    return [weakref.ref(o) for o in gc.get_objects() if type(o) is Executable and o.name in names]


def test_clear_session_forgets_what_was_compiled():
    model = trained(256)
    compiled = executables(model)
    assert len(compiled) == 2
    expected = model.predict_on_batch(X)
    keras.utils.clear_session()
    assert [function() for function in compiled] == [None, None]
    assert not runtime.current_device().arena.storages
    np.testing.assert_array_equal(model.predict_on_batch(X), expected)
    model.train_on_batch(X, Y)
    assert len(executables(model)) == 2


def test_clear_session_gives_memory_back():
    keras.utils.clear_session()
    before = keras_ocl.memory_info()["reserved"]  # variables that others still hold may keep a slab
    big = keras.ops.ones((1 << 20,))
    assert keras_ocl.memory_info()["reserved"] >= before + (4 << 20)
    del big
    keras.utils.clear_session()
    assert keras_ocl.memory_info()["reserved"] <= before


def test_clear_session_that_frees_no_memory():
    model = trained()
    compiled = executables(model)
    keras.utils.clear_session(free_memory=False)
    assert all(function() is not None for function in compiled)


@pytest.mark.parametrize("eagerly", [False, True])
def test_dropped_models_release_everything(eagerly):
    held = []
    device = runtime.current_device()
    for _ in range(12):
        model = trained()
        model.run_eagerly = eagerly
        model.fit(X, Y, epochs=1, verbose=0, validation_data=(X, Y))
        model.compile("adam", "mse", run_eagerly=eagerly)
        model.fit(X, Y, epochs=1, verbose=0)
        of_model = executables(model)
        del model
        device.release_unused()
        held.append((device.memory.current, device.memory.reserved))
        assert all(function() is None for function in of_model)
    for kind in zip(*held, strict=True):
        assert max(kind[6:]) <= max(kind[:6])


def test_dropped_functions_release_everything():
    device, held = runtime.current_device(), []
    for _ in range(10):
        constant = keras.ops.ones((1 << 16,))
        function = keras_ocl.jit(lambda x, constant=constant: x * constant)
        function(X[:1, :1])
        del function, constant
        device.release_unused()
        held.append(device.memory.current)
    assert max(held[5:]) <= max(held[:5])


def test_a_search_over_models_levels_off(monkeypatch):
    """What many different models leave behind in one process, each followed by clear_session."""
    device, bound, held = runtime.current_device(), 1 << 20, []
    monkeypatch.setattr(programs, "IN_MEMORY", bound)
    keras.utils.clear_session()
    before = collections.Counter(map(type, gc.get_objects()))  # of other tests
    for units in range(1, 13):
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units)])
        model.predict_on_batch(X)
        del model
        keras.utils.clear_session()
        counted = collections.Counter(map(type, gc.get_objects()))
        assert not any(counted[kind] > before[kind] for kind in (Compiled, Executable, KernelSpec, Node, Trace))
        held.append((counted[programs.Program], device.programs.held_bytes))
    assert max(nbytes for _, nbytes in held) <= bound
    assert max(count for count, _ in held[6:]) <= max(count for count, _ in held[:6]) + 2  # programs differ in size
