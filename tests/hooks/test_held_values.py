"""Compiled steps overwrite a variable's memory, but never a value that somebody holds; and they copy none that nobody holds."""

import functools
import threading
import time
import typing

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl.compiler import jit as compiled
from keras_ocl.core.variable import Owned, Variable, is_variable

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X[:, :1] * 2 - X[:, 1:2]


def network(optimizer="adam"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def train(model, **options):
    model.fit(X, Y, batch_size=16, verbose=0, **options)


def everything(model):
    return [*model.variables, *model.optimizer.variables]


@pytest.fixture
def copied(monkeypatch):
    """The variables that steps have copied, as they go."""
    found, own_copy = [], compiled.own_copy

    def noting(variable, device):
        found.append(variable)
        own_copy(variable, device)

    monkeypatch.setattr(compiled, "own_copy", noting)
    return found


@pytest.fixture
def slow_looks(monkeypatch):
    """Time for other threads between a step's look at who holds a value and its overwriting."""
    is_held = Owned.is_held

    def slowly(owned):
        held = is_held(owned)
        time.sleep(0.001)
        return held

    monkeypatch.setattr(Owned, "is_held", slowly)


WAYS = {
    "value": lambda v: v.value,
    "raw value": lambda v: v._value,
    "convert_to_tensor": ops.convert_to_tensor,
    "reshape": lambda v: ops.reshape(v, (-1,)),
    "reshape of reshape": lambda v: ops.reshape(ops.reshape(v.value, (1, -1)), (-1,)),
    "stop_gradient": lambda v: ops.stop_gradient(v),
    "read under a tape": lambda v: under_a_tape(v),
    "assigned elsewhere": lambda v: other_variable(v),
}


def under_a_tape(v):
    with keras_ocl.GradientTape():
        return v.value


def other_variable(v):
    other = keras.Variable(np.zeros(v.shape, v.dtype))
    other.assign(v)
    return other


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_stays(way):
    model = network()
    train(model)
    variables = everything(model)
    held = [WAYS[way](v) for v in variables]
    before = [np.array(v.numpy()) for v in variables]
    train(model, epochs=2)
    for h, b, v in zip(held, before, variables, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(h).reshape(b.shape), b, err_msg=v.path)
    changed = [not np.array_equal(v.numpy(), b) for v, b in zip(variables, before, strict=True) if v.dtype == "float32" and v.shape]
    assert all(changed)


def test_a_fit_copies_no_state(copied):
    model = network()
    train(model)
    copied.clear()
    train(model, epochs=3, validation_data=(X, Y))
    assert [v.path for v in copied if v.shape] == []
    assert {v.path.rpartition("/")[2] for v in copied} <= {"total", "count"}  # metrics, to which each epoch assigns a new 0


def test_what_was_read_and_dropped_is_not_copied(copied):
    model = network()
    train(model)
    read = [v.numpy() for v in everything(model)]
    for v in everything(model):
        ops.reshape(v.value, (-1,))
    copied.clear()
    train(model)
    assert [v.path for v in copied if v.shape] == []
    assert not np.array_equal(read[0], everything(model)[0].numpy())  # numpy() is a copy, which holds nothing


def test_what_is_held_is_copied_once(copied):
    model = network()
    train(model)
    (kernel,) = (v for v in model.trainable_variables if v.shape == (6, 8))
    held = kernel.value
    copied.clear()
    train(model, epochs=2)
    assert [v.path for v in copied if v.shape] == [kernel.path]
    assert held is not kernel.value


def test_a_read_gives_the_same_tensor_while_it_is_held():
    v = keras.Variable(np.ones(3, "float32"))
    value = v.value
    assert v.value is value and v._value is value
    v.assign(value)
    assert v.value is value


def test_weights_kept_by_a_callback_at_every_batch():
    model, kept, copies = network(), [], []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept.append([v.value for v in everything(model)])
            copies.append([np.array(v.numpy()) for v in everything(model)])

    train(model, epochs=2, callbacks=[Keep()])
    assert len(kept) == 8
    for values, numbers in zip(kept, copies, strict=True):
        for value, number in zip(values, numbers, strict=True):
            np.testing.assert_array_equal(ops.convert_to_numpy(value), number)


def test_an_assigned_tensor_stays():
    model = network("sgd")
    kernel = model.trainable_variables[0]
    given = ops.convert_to_tensor(np.full(kernel.shape, 0.25, "float32"))
    kernel.assign(given)
    train(model)
    assert (ops.convert_to_numpy(given) == 0.25).all()
    assert not (kernel.numpy() == 0.25).all()


def test_variables_that_were_assigned_to_each_other_go_their_own_ways():
    first, second = network("sgd"), network("sgd")
    train(first)
    for a, b in zip(first.variables, second.variables, strict=True):
        b.assign(a)
    before = [np.array(v.numpy()) for v in first.variables]
    train(second)
    for v, b in zip(first.variables, before, strict=True):
        np.testing.assert_array_equal(v.numpy(), b)
    after = [np.array(v.numpy()) for v in second.variables]
    train(first)
    for v, a in zip(second.variables, after, strict=True):
        np.testing.assert_array_equal(v.numpy(), a)


def test_averages_are_not_overwritten_through_the_weights_they_were_assigned_to():
    model = network(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5))
    train(model)  # ends with the weights taking the averages' values
    averages = model.optimizer._model_variables_moving_average
    held = [v.value for v in averages]
    before = [np.array(v.numpy()) for v in averages]
    for v, b in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(v.numpy(), b)
    train(model)
    for h, b, v, average in zip(held, before, model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(h), b)
        assert not np.array_equal(v.numpy(), b)
        np.testing.assert_array_equal(v.numpy(), average.numpy())


def test_gradients_of_values_that_have_been_trained_since():
    model = network("sgd")
    train(model)
    kernel = model.layers[0].kernel
    before = kernel.numpy().astype("float64")
    with keras_ocl.GradientTape() as tape:
        loss = ops.sum(kernel * kernel * kernel)
    train(model)
    gradient = tape.gradient(loss, kernel)
    np.testing.assert_allclose(ops.convert_to_numpy(gradient), 3 * before**2, rtol=1e-5)


def test_constants_and_arguments_of_compiled_functions():
    v = keras.Variable(np.full(5, 1.0, "float32"))
    constant = keras_ocl.jit(functools.partial(ops.add, v.value), name="constant")
    ones = np.ones(5, "float32")
    assert ops.convert_to_numpy(constant(ones)).tolist() == [2] * 5

    @keras_ocl.jit
    def step(x):
        v.assign(v * 2)
        return x + v

    for _ in range(2):
        argument = v.numpy()
        assert ops.convert_to_numpy(step(v.value)).tolist() == (3 * argument).tolist()
    assert v.numpy().tolist() == [4] * 5
    assert ops.convert_to_numpy(constant(ones)).tolist() == [2] * 5


def test_results_of_a_compiled_function_are_not_the_state():
    v = keras.Variable(np.zeros((2, 3), "float32"))

    @keras_ocl.jit
    def step():
        old = v.value
        v.assign_add(ops.ones((2, 3)))
        return old, v.value, ops.reshape(v.value, (3, 2)), ops.reshape(v.value, (6,))

    results = [step() for _ in range(3)]
    for k, (old, new, *reshaped) in enumerate(results):
        assert (ops.convert_to_numpy(old) == k).all()
        for r in (new, *reshaped):
            assert (ops.convert_to_numpy(r) == k + 1).all()


def test_a_reading_thread_sees_whole_values_that_stay(slow_looks):
    size = 20000
    v = keras.Variable(np.zeros(size, "float32"))
    w = keras.Variable(np.zeros(size, "float32"))

    @keras_ocl.jit
    def step():
        v.assign(v + 1)
        w.assign(w + 2)

    @keras_ocl.jit
    def both():
        return v * 2 - w

    step(), both()
    storages = v._owned.storage, w._owned.storage
    step()
    assert storages == (v._owned.storage, w._owned.storage)  # both are updated in place
    failures, done = [], threading.Event()

    def read():
        try:
            while not done.is_set():
                value = v.value
                first, second = ops.convert_to_numpy(value), ops.convert_to_numpy(ops.reshape(value, (-1,)))
                if not (first == first[0]).all() or not (first == second).all():
                    failures.append((first.min(), first.max(), second.min(), second.max()))
                if ops.convert_to_numpy(both()).any():  # a step's updates are seen all or not at all
                    failures.append("between two updates")
        except Exception as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        step()
    done.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert (v.numpy() == 102).all()


def test_a_tensor_of_a_finished_trace_is_not_assigned():
    v, leaked = keras.Variable(np.zeros(3, "float32")), []
    keras_ocl.jit(lambda x: leaked.append(ops.exp(x)) or x)(np.ones(3, "float32"))
    with pytest.raises(RuntimeError, match="finished trace .*shape .3,.* cannot be assigned"):
        v.assign(leaked[0])
    assert v.numpy().tolist() == [0, 0, 0]


def test_keras_variables_offer_what_the_protocol_asks():
    v = keras.Variable(np.zeros(3, "float32"))
    assert is_variable(v) and not is_variable(v.value)
    asked = {*typing.get_type_hints(Variable), *(n for n in vars(Variable) if callable(getattr(Variable, n)) and not n.startswith("__"))}
    assert {"trainable", "path", "_owned", "_tape_value"} <= asked
    assert not [name for name in asked - {"_abc_impl", "_no_init_or_replace_init", "_proto_hook"} if not hasattr(v, name)]
