"""Functions and their gradients at denormal, tiny and huge numbers, eager and compiled, which flushes denormals: no NaN past a guard."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl

TINY = 2.0**-126
SIZES = [0.0, 1e-45, 1e-40, TINY, 1.5 * TINY, 1e-36, 1e-30, 1e-20, 1.0, 80.0, 1e18, 3e19, 1e30, 1e38, 3.4e38]
X = np.array([sign * size for size in SIZES for sign in (1, -1)], "float32")
UNARY = "sinc rsqrt cbrt i0 log_sigmoid softmax log_softmax".split()
BINARY = "divide_no_nan mod power arctan2 hypot logaddexp".split()
SINGULAR = {  # where a value or a gradient is 0 / 0 once denormals are 0
    "arctan2": lambda y, x: (y == 0) & (x == 0),
    "mod": lambda a, b: b == 0,
    "power": lambda a, b: (a == 0) & (b <= 0),
    "rsqrt": lambda x: x == 0,
}


@pytest.mark.parametrize("op", UNARY + BINARY)
def test_no_nan_past_a_guard(op):
    inputs = (np.repeat(X, len(X)), np.tile(X, len(X))) if op in BINARY else (X,)
    tensors = [ops.convert_to_tensor(x) for x in inputs]
    function = getattr(ops, op)
    gradient = keras_ocl.grad(lambda *x: ops.sum(function(*x)), argnums=tuple(range(len(inputs))))

    def everything(*x):
        return [function(*x), *keras.tree.flatten(gradient(*x))]

    flushed = [np.where(np.abs(x) < TINY, np.float32(0), x) for x in inputs]
    finite = np.isfinite(function(*[ops.convert_to_tensor(x) for x in flushed])) & np.isfinite(function(*tensors))
    if op in SINGULAR:
        finite &= ~SINGULAR[op](*flushed)
    for name, values in (("eager", everything(*tensors)), ("compiled", keras_ocl.jit(everything)(*tensors))):
        for k, value in enumerate(values):
            wrong = np.isnan(value) & finite
            places = list(zip(*(x[wrong].tolist() for x in inputs), strict=True))
            assert not places, f"{name}: {'value' if k == 0 else f'gradient by operand {k - 1}'} is NaN at {places[:5]}"
