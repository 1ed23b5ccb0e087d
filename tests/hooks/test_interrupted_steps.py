"""A step of a compiled function is done or not done, wherever it is interrupted or fails: all variables are those before or those after."""

import _thread
import contextlib
import contextvars
import gc
import itertools
import signal
import sys
from functools import partial

import keras
import numpy as np
import pyopencl as cl
import pytest
from keras import layers, ops

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler.run.binding import Binding
from keras_ocl.runtime.memory import Storage


class Case:
    """A step with all variables that it changes. `at` is the number of steps done, `known` what the variables are after each."""

    def __init__(self, step, variables):
        self.step, self.variables, self.known, self.at = step, variables, [], 0
        step()
        self.start = self.state()
        self.rewind()
        for _ in range(60):
            self.known.append(self.state())
            step()
        self.rewind()

    def state(self):
        return [np.array(v.numpy()) for v in self.variables]

    def rewind(self):
        """Begin again, the variables in memory of their own."""
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)
        self.step()
        self.at = 0

    def look(self):
        """How many more steps were done, 0 or 1; fails where some variables are before and some behind."""
        found = self.state()
        done = [k for k in (0, 1) if all(map(np.array_equal, found, self.known[self.at + k]))]
        before = zip(self.variables, found, self.known[self.at], strict=True)
        assert done, f"torn: as before are {[v.path for v, a, b in before if (a == b).all()]}"
        self.at += done[0]
        if self.at + 2 > len(self.known):
            self.rewind()
        return done[0]

    def count(self, monkeypatch, owner, name):
        """How often the step calls a function."""
        with monkeypatch.context() as patch:
            replacement, calls = failing(getattr(owner, name), 1, [])
            patch.setattr(owner, name, replacement)
            self.step()
        self.rewind()
        return len(calls)


def trained(model, x, y, optimizer, loss="mse", metrics=()):
    model.compile(optimizer, loss, metrics=list(metrics))
    model.train_on_batch(x, y)
    data = (np.asarray(x, "float32"), y)
    found = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return partial(model.train_function, [data]), list({id(v): v for v in found}.values())


def dense():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(8, "tanh"), layers.Dropout(0.2), layers.Dense(1)])
    return trained(model, np.random.normal(size=(8, 2)), np.ones((8, 1), "float32"), "adam", metrics=["mae"])


def convolutional():
    model = keras.Sequential([keras.Input((8, 8, 2)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)])
    return trained(model, np.random.normal(size=(4, 8, 8, 2)), np.ones((4, 2), "float32"), keras.optimizers.SGD(0.01, momentum=0.9))


def recurrent():
    model = keras.Sequential([keras.Input((6, 3)), layers.LSTM(4, stateful=False), layers.Dense(1)])
    return trained(model, np.random.normal(size=(4, 6, 3)), np.ones((4, 1), "float32"), "rmsprop", metrics=["mae"])


def hosted():
    """A host operation and a loop whose end depends on values, after one state was updated and before others."""
    a, b, c = (keras.Variable(np.eye(3, dtype="float32"), name=name) for name in "abc")
    count = keras.Variable(0, dtype="int32", name="count")

    @keras_ocl.jit
    def step(x):
        count.assign_add(1)
        a.assign(a + 0.001 * x)
        q, _ = ops.linalg.qr(a + x)
        _, y = ops.while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, y + 0.001 * q), (0, b + 0.0))
        b.assign(y)
        c.assign(c * 0.99 + 0.01 * y)
        return ops.sum(q)

    return partial(step, np.random.normal(size=(3, 3)).astype("float32")), [a, b, c, count]


def shared():
    """One value for two variables and a result, and variables that change places."""
    a, b, c, d = (keras.Variable(np.full((4, 4), k, "float32"), name=f"v{k}") for k in range(4))

    @keras_ocl.jit
    def step(x):
        new = ops.matmul(a, x) + b
        first, second = c + 0.0, ops.transpose(d) * 1.001
        a.assign(new)
        b.assign(new)
        c.assign(second)
        d.assign(first)
        return new

    return partial(step, np.eye(4, dtype="float32") * 0.5), [a, b, c, d]


CASES = [dense, convolutional, recurrent, hosted, shared]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request):
    keras.utils.set_random_seed(3)
    return Case(*request.param())


class Interruption:
    """Raises KeyboardInterrupt in `step` at the `number`th chance that Python has: at calls, and after C code was called.

    Attributes:
        came: whether there was such a chance.
    """

    def __init__(self, step, number):
        self.came, self._left = False, number
        gc.disable()  # what it calls may swallow exceptions
        sys.setprofile(self._profile)
        try:
            contextvars.copy_context().run(step)  # NumPy's `errstate`, interrupted while it is entered, would stay
        except KeyboardInterrupt:
            pass
        else:
            assert not self.came, "swallowed"
        finally:
            sys.setprofile(None)
            gc.enable()

    def _profile(self, frame, event, argument):
        if event in ("call", "c_return") and frame.f_code is not Storage.__del__.__code__:  # where Python would only print it
            self._left -= 1
            if self._left == 0:
                self.came = True
                raise KeyboardInterrupt


class Deaf:
    """A profiler that notes nothing."""

    def ignore(self, *args, **kwargs):
        return contextlib.nullcontext()

    add = copied = ran = drain = span = operation = step = ignore


@pytest.mark.parametrize("profiler", [None, Deaf()], ids=["", "profiled"])
def test_interrupted_anywhere(case, profiler):
    device = runtime.current_device()
    if profiler:
        device.add_profiler(profiler)
    try:
        done, number = [], 1
        while Interruption(case.step, number).came:
            number += 1
            done.append(case.look())
            case.step()  # there is memory again for the next one, which takes as many chances
            assert case.look() == 1
    finally:
        if profiler:
            device.remove_profiler(profiler)
    assert len(done) > 50 and set(done) == {0, 1}


@pytest.mark.usefixtures("ctrl_c")
def test_a_signal_between_launches(case, monkeypatch):
    """All of them are made before its handler runs."""
    device = runtime.current_device()
    done, turn, interrupt = [], device._turns[0], partial(_thread.interrupt_main, signal.SIGINT)
    for number in itertools.count(1):
        with monkeypatch.context() as patch:
            patch.setattr(device, "_turns", [turn] * number + [interrupt] + [turn] * 1000)
            try:
                case.step()
            except KeyboardInterrupt:
                done.append(case.look())
            else:
                break
    assert done


def failing(function, number, errors):
    """`function`, and a list of its calls so far; from the `number`th on they fail with the exceptions `errors`, as many as there are."""
    calls, errors = [], iter(errors)

    def replacement(*args, **kwargs):
        calls.append(args)
        if len(calls) >= number and (found := next(errors, None)) is not None:
            raise found
        return function(*args, **kwargs)

    return replacement, calls


def refused(code):
    return cl.RuntimeError(cl._cl._ErrorRecord(msg="on purpose", code=code, routine="clEnqueue"))


PLACES = {
    "an upload": lambda device: (device.transfer, "upload"),
    "a download": lambda device: (device.transfer, "download"),
    "an allocation": lambda device: (device.memory, "allocate"),
    "memory for an upload": lambda device: (device.memory, "allocate_idle"),
    "memory for a state": lambda device: (device.memory, "allocate_state"),
    "a copy": lambda device: (device, "copy"),
    "binding": lambda device: (Binding, "bind"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_anywhere(case, place, monkeypatch):
    owner, name = PLACES[place](runtime.current_device())
    held = [v.value for v in case.variables]  # so that the step begins with copies
    calls = case.count(monkeypatch, owner, name)
    for number in range(1, calls + 1):
        held[:] = [v.value for v in case.variables]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing(getattr(owner, name), number, [runtime.OutOfMemory("on purpose")])[0])
            with pytest.raises(runtime.OutOfMemory, match="on purpose"):
                case.step()
        assert case.look() == 0


def test_a_build_that_fails(monkeypatch):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    before = [v.numpy() for v in variables]
    programs = runtime.current_device().programs
    with monkeypatch.context() as patch:
        patch.setattr(programs, "build", failing(programs.build, 1, [ValueError("on purpose")])[0])
        with pytest.raises(ValueError, match="on purpose"):
            model.train_function = None
            model.make_train_function()
            model.train_function([(np.ones((2, 3), "float32"), np.ones((2, 1), "float32"))])
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_launch_that_fails_once_is_made_again(case, monkeypatch):
    driver = runtime.current_device().driver
    for number in range(1, case.count(monkeypatch, driver, "launch") + 1):
        case.rewind()
        with monkeypatch.context() as patch:
            launch = failing(driver.launch, number, [refused(cl.status_code.OUT_OF_RESOURCES)])[0]
            patch.setattr(driver, "launch", launch)
            case.step()
            assert case.look() == 1


@pytest.mark.parametrize(
    ("code", "kind"), [("INVALID_WORK_GROUP_SIZE", RuntimeError), ("MEM_OBJECT_ALLOCATION_FAILURE", runtime.OutOfMemory)]
)
def test_a_launch_that_fails_again(case, code, kind, monkeypatch):
    """Where a variable was begun to be overwritten the device is lost, else nothing has happened."""
    device = runtime.current_device()
    driver = device.driver
    monkeypatch.setattr(device, "lose", lambda why: runtime.DeviceLost("lost"))  # others need the device
    found = []
    for number in range(1, case.count(monkeypatch, driver, "launch") + 1):
        case.rewind()
        with monkeypatch.context() as patch:
            launch = failing(driver.launch, number, [refused(getattr(cl.status_code, code))] * 100)[0]
            patch.setattr(driver, "launch", launch)
            with pytest.raises((kind, runtime.DeviceLost)) as caught:
                case.step()
        found.append(type(caught.value))
        if found[-1] is runtime.DeviceLost:
            case.rewind()
        else:
            assert case.look() == 0
    assert found[0] is kind
