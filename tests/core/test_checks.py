"""`keras_ocl.checks()`: what is on when, and that what was compiled with checks and without does not mix."""

import os
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from tests.fixtures import built, seeded  # noqa: F401
from tests.plugin.process import WITHOUT_EXTRAS

TABLE = np.arange(10, dtype="float32").reshape(5, 2)


def test_compiled_functions_check_inside_only():
    looked_up = keras_ocl.jit(lambda i: ops.take(TABLE, i, 0))
    wrong = np.array([9], "int32")
    np.testing.assert_array_equal(looked_up(wrong), TABLE[[4]])
    with keras_ocl.checks(), pytest.raises(IndexError, match=r"take: index 9 at \(0,\) is out of range; allowed are from -5 to 4"):
        looked_up(wrong)
    np.testing.assert_array_equal(looked_up(wrong), TABLE[[4]])


def test_contexts_nest_and_end_with_an_error():
    wrong = np.array([9], "int32")
    with keras_ocl.checks():
        with keras_ocl.checks():
            pass
        with pytest.raises(IndexError):
            ops.take(TABLE, wrong, 0)
    with pytest.raises(KeyError), keras_ocl.checks():
        raise KeyError
    np.testing.assert_array_equal(ops.take(TABLE, wrong, 0), TABLE[[4]])


def test_other_threads_check_too():
    caught = []

    def look():
        try:
            ops.take(TABLE, np.array([9], "int32"), 0)
        except IndexError as error:
            caught.append(str(error))

    with keras_ocl.checks():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert len(caught) == 1 and "index 9" in caught[0]


def test_without_checks_nothing_is_recorded(built, apart):  # noqa: F811
    """The same kernels, and as many launches, before and after."""
    function = keras_ocl.jit(lambda i: ops.sum(ops.take(TABLE, i, 0)))
    indices = np.array([1, 2, 3], "int32")
    before = function.compiled(indices)
    with keras_ocl.checks():
        function(indices)
        assert len(function.compiled(indices).executable.launches) > len(before.executable.launches)
    built.since()
    assert function.compiled(indices) is before
    function(indices)
    assert built.since() == 0


@pytest.mark.parametrize("value, raises", [("1", True), ("0", False), ("", False)])
def test_the_environment_turns_them_on(value, raises):
    code = "from keras import ops; import keras_ocl\nf = keras_ocl.jit(lambda x: ops.log(x))\nf(ops.zeros(3))\nprint('done')"
    environment = {**os.environ, "KERAS_BACKEND": "ocl", "KERAS_OCL_CHECK": value}
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS + code], env=environment, capture_output=True, text=True, timeout=120)
    assert ("done" in done.stdout) is not raises
    assert ("Log gave an infinity" in done.stderr) is raises


def test_the_process_goes_on_after_an_error():
    layers = keras.layers.Embedding(5, 2), keras.layers.Flatten(), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    model.compile("sgd", "mse")
    x, y = np.array([[0, 1, 2], [2, 3, 4]]), np.zeros((2, 1), "float32")
    with keras_ocl.checks():
        model.train_on_batch(x, y)
        with pytest.raises(IndexError, match=r"take in .*embedding: index -6 at \(0, 0\) is out of range; allowed are from -5 to 4"):
            model.train_on_batch(x - 6, y)
        assert np.isfinite(model.train_on_batch(x, y))
    assert np.isfinite(model.train_on_batch(x - 6, y))
