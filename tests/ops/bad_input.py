"""Calls that must be refused: the exception's type, its message, that nothing was enqueued, and that the process works after it."""

import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import runtime


def array(*shape, dtype="float32"):
    """Distinct numbers of that shape."""
    return (np.arange(int(np.prod(shape))).reshape(shape) % 100).astype(dtype)


def function(name):
    found = ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def identity(case):
    """What pytest calls a case: its op and the shapes it is given."""
    name, args = case[0], case[1]
    return f"{name}-{'-'.join('x'.join(map(str, a.shape)) + a.dtype.name if isinstance(a, np.ndarray) else str(a)[:20] for a in args)}"


def refused(call, error, words):
    """`call()` raises `error` with all `words` in one line of message, before any kernel is enqueued."""
    statistics = runtime.current_device().statistics
    before = statistics.launches
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert statistics.launches == before, "kernels were enqueued before the error"
    np.testing.assert_array_equal(np.asarray(ops.add(array(3), 1)), [1, 2, 3])


def check_eager(case):
    name, args, error, words = case
    refused(lambda: function(name)(*args), error, words)


def check_compiled(case):
    """The same call in a compiled function whose arguments are the arrays; the function compiles for good arguments afterwards."""
    name, args, error, words = case
    places = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]

    def call(*arrays):
        filled = list(args)
        for i, a in zip(places, arrays, strict=True):
            filled[i] = a
        return function(name)(*filled)

    tensors = [ops.convert_to_tensor(args[i]) for i in places]
    refused(lambda: keras_ocl.jit(call)(*tensors), error, words)
