"""Ctrl-C ends `fit`, `evaluate` and their kin, wherever it comes; what one goes on with is whole."""

import itertools
import signal
import sys
import threading
import time

import keras
import numpy as np
import pytest
from keras.src.utils.python_utils import pythonify_logs

from keras_ocl import runtime
from keras_ocl.runtime import memory
from tests.hooks.regression import make_data, make_model


class Listening(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        assert isinstance(logs["loss"], float)


class Aside(keras.callbacks.Callback):
    """Called by another thread."""

    async_safe = True

    def on_train_batch_end(self, batch, logs=None):
        assert isinstance(logs["loss"], float)


CALLS = {
    "fit": lambda model, x, y: model.fit(x, y, verbose=0),
    "fit with a bar": lambda model, x, y: model.fit(x, y, verbose=1),
    "fit with a callback": lambda model, x, y: model.fit(x, y, verbose=0, callbacks=[Listening()]),
    "fit with a validation": lambda model, x, y: model.fit(x, y, verbose=2, validation_data=(x, y)),
    "evaluate": lambda model, x, y: model.evaluate(x, y, verbose=0),
    "train_on_batch": lambda model, x, y: model.train_on_batch(x, y),
    "test_on_batch": lambda model, x, y: model.test_on_batch(x, y),
    "predict": lambda model, x, y: model.predict(x, verbose=0),
}


@pytest.mark.parametrize("name", CALLS)
def test_while_something_waits_for_the_device(name, monkeypatch, capsys):
    (x, y), model, call = make_data(), make_model(), CALLS[name]
    call(model, x, y)
    transfer = runtime.current_device().transfer
    download = transfer.download
    for number in itertools.count(1):
        left = [number]

        def interrupted(storage, out, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            download(storage, out)

        with monkeypatch.context() as patch:
            patch.setattr(transfer, "download", interrupted)
            if number > 1:
                try:
                    call(model, x, y)
                except KeyboardInterrupt:
                    continue
                assert left[0] > 0, f"download {number} swallowed it"
                break
            with pytest.raises(KeyboardInterrupt):
                call(model, x, y)


def test_logs_that_are_no_numbers():
    class Odd:
        def __float__(self):
            raise ValueError("odd")

    odd = Odd()
    logs = {"b": keras.ops.ones(()), "a": {"d": np.float32(2), "c": "text"}, "f": odd, "g": keras.ops.ones((2,))}
    found = pythonify_logs(logs)
    assert list(found) == ["c", "d", "b", "f", "g"]
    assert found["b"] == 1.0 and type(found["b"]) is float and type(found["d"]) is float
    assert found["c"] == "text" and found["f"] is odd and found["g"].tolist() == [1, 1]
    assert pythonify_logs(None) == {}


def test_callbacks_in_another_thread_get_numbers():
    x, y = make_data()
    make_model().fit(x, y, verbose=0, callbacks=[Aside()])


@pytest.mark.usefixtures("ctrl_c")
def test_while_memory_is_given_back(monkeypatch):
    """A Storage's end is Python code that nobody called: an exception in it could only be printed."""
    device = runtime.current_device()
    end = memory.Storage.__del__.__code__
    for event in ("call", "c_return"):
        for allocate in (device.allocate, device.allocate_state):
            monkeypatch.setattr(sys, "unraisablehook", memory._not_swallowed)
            storage, before = allocate(1000), device.memory.current

            def interrupt(frame, what, argument, event=event):
                if what == event and frame.f_code is end:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                sys.setprofile(interrupt)
                del storage
                sys.setprofile(None)
                time.sleep(1)
            assert before - device.memory.current >= 1000
            again = allocate(1000)
            assert device.memory.current == before
            del again


@pytest.mark.usefixtures("ctrl_c")
def test_real_signals(monkeypatch):
    """None vanishes, and one can go on after each."""
    monkeypatch.setattr(sys, "unraisablehook", memory._not_swallowed)
    x, y = make_data()
    model = make_model()
    model.fit(x, y, batch_size=5, verbose=0)
    rng = np.random.default_rng(0)
    main, vanished = threading.main_thread().ident, []

    def send(after, caught):
        time.sleep(after)
        signal.pthread_kill(main, signal.SIGINT)
        while not caught.wait(2):
            vanished.append(after)
            signal.pthread_kill(main, signal.SIGINT)

    for _ in range(100):
        caught = threading.Event()
        sender = threading.Thread(target=send, args=(rng.uniform(0.005, 0.05), caught))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            sender.start()
            model.fit(x, y, batch_size=5, epochs=10**6, verbose=0, callbacks=[Listening()])
        caught.set()
        sender.join()
        assert np.isfinite(model.evaluate(x, y, verbose=0)).all()
    assert not vanished
