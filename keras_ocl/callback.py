"""Python functions called with values from inside compiled code."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras.src import backend

from keras_ocl.core.primitive import Primitive, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.conversion import convert_to_tensor


def _called(arrays: list[np.ndarray], targets: list[np.ndarray], *, function: Callable[..., object]) -> np.ndarray:
    function(*map(np.array, arrays))  # copies, which the function may keep and change
    return arrays[0]


_callback = Primitive(
    "callback",
    lambda x, *others, function: (tuple(x.shape), x.dtype),
    lambda ct, out, x, *others, function: [ct, *(None for _ in others)],
    host=_called,
    registered=False,
)


def callback(function: Callable[..., object], x: Any, *others: Any) -> Tensor:
    """Calls a Python function with the values of tensors, from inside compiled code too, and returns the first tensor.

        class Shown(keras_hub.samplers.TopKSampler):
            def get_next_token(self, probabilities):
                return keras_ocl.callback(print, super().get_next_token(probabilities))

    In compiled functions (`fit`, `predict`, `generate`, `keras_ocl.jit`) the call happens in each run, and in a loop in each step, after
    waiting for the device to compute the values. It depends on the returned tensor: if nothing uses that, the function is not called. An
    exception ends the run; variables then hold their values from before it.

    Args:
        function: takes one NumPy array per tensor; its result is ignored.
        x: array, Tensor or Variable of any shape and dtype.
        *others: further tensors for the function.

    Returns:
        A Tensor with the values of `x`, through which gradients pass unchanged.

    Raises:
        TypeError: `function` cannot be called or hashed, or a tensor is the symbolic input of a Functional model.
    """
    if not callable(function) or type(function).__hash__ is None:
        raise TypeError(f"keras_ocl.callback takes a function first, which can be hashed, not {type(function).__name__}.")
    if any(isinstance(t, backend.KerasTensor) for t in (x, *others)):
        raise TypeError("keras_ocl.callback cannot take a KerasTensor: call it in the `call` method of a layer.")
    tensors = [convert_to_tensor(t) for t in (x, *others)]
    if current_trace.get() is not None:
        return _callback(*tensors, function=function)
    function(*map(np.asarray, tensors))
    return tensors[0]
