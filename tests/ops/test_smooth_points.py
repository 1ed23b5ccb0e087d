"""Gradients where the pieces of a formula meet: at ties, at 0, at thresholds.

There a derivative of first or second order lies between its limits from both sides. Where a function is smooth these are equal, though
the max, abs, select and sign that it is made of are not. Points at which a function is not continuous do not count.
"""

import keras
import numpy as np
import pytest
from keras import losses, ops

import keras_ocl
from keras_ocl.compiler import from_numpy
from keras_ocl.ops import numpy as k
from tests.primitives.checking import need_float64


def named(module, names):
    return {name: getattr(module, name) for name in names.split()}


def of_columns(loss):
    return lambda x, y: loss(x[:, None], y[:, None])


ACTIVATIONS = """celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid mish relu
    relu6 selu sigmoid silu soft_shrink softplus softsign sparse_plus sparse_sigmoid squareplus swish tanh tanh_shrink"""
OF_ROWS = {"glu", "log_softmax", "softmax", "sparsemax"}  # among the activations
POWERS = (0.0, 1.0, 2.0, 3.0, 4.0)


def on_powers(x):
    return ops.stack([ops.power(x, p) for p in POWERS], 1)


ONE = {
    **named(keras.activations, ACTIVATIONS),
    **named(k, "abs arcsinh arctan cbrt cosh exp2 expm1 i0 log1p sinc sinh sqrt square"),
    **named(ops, "erf erfc erfinv"),
    "celu_2": lambda x: ops.celu(x, 2.0),
    "gelu_erf": lambda x: ops.gelu(x, approximate=False),
    "threshold": lambda x: ops.threshold(x, 0.5, 0.5),
    "power": on_powers,
    "power_of_2": lambda x: ops.power(2.0, x),
}
TWO = {
    **named(k, "arctan2 divide_no_nan fmax fmin hypot logaddexp logaddexp2 maximum minimum power"),
    "binary_crossentropy": lambda x, y: ops.binary_crossentropy(x, y, from_logits=True),
}
for _name in "hinge huber log_cosh mean_absolute_error mean_squared_error poisson squared_hinge".split():
    TWO[_name] = of_columns(getattr(losses, _name))


def ctc(x):
    n = x.shape[0]
    labels, one, three = (from_numpy(np.full(shape, v, "i4")) for shape, v in (((n, 1), 1), (n, 1), (n, 3)))
    return ops.nn.ctc_loss(labels, ops.stack([x, 2 * x, 0 * x], 1), ops.reshape(one, (n,)), ops.reshape(three, (n,)))


ROWS = {
    **named(ops, "log_softmax softmax sparsemax"),
    "glu": lambda x: ops.glu(ops.concatenate([x, x], 1)),
    "logsumexp": lambda x: ops.logsumexp(x, 1),
    "logaddexp_of_3": lambda x: ops.logaddexp(ops.logaddexp(x[:, 0], x[:, 1]), x[:, 2]),
    "norm": lambda x: ops.norm(x + from_numpy(np.array([5.0, 0, -3])), axis=1),
    "normalize": ops.normalize,
    "var": lambda x: ops.var(x, 1),
    "layer_normalization": lambda x: ops.layer_normalization(x, epsilon=0.1),
    "prod": lambda x: ops.prod(x, 1),
    "cumprod": lambda x: ops.cumprod(x, 1),
    "sum_of_sorted": lambda x: ops.sum(ops.exp(ops.sort(x, 1)), 1),
    "categorical_crossentropy": lambda x: ops.categorical_crossentropy(0 * x + from_numpy(np.array([0.2, 0.3, 0.5])), x, from_logits=True),
}
AT_0 = np.array([-3, -2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 3, 6])
FEW = (-1, 0, 0.5, 1, 2)
TIES = [(0, 0, 0), (1, 1, 1), (1, 1, 2), (1, 2, 2), (-1, -1, -1), (0, 0, 1), (0, 1, 1), (-1, 0, 1)]
CASES = [(ONE, AT_0[:, None]), (TWO, np.array([(a, b) for a in FEW for b in FEW], float)), (ROWS, np.array(TIES, float))]


def test_every_activation_is_listed():
    others = {"deserialize", "get", "serialize", "threshold"}
    assert {name for name in dir(keras.activations) if not name.startswith("_")} == set(ACTIVATIONS.split()) | OF_ROWS | others


def along_lines(function, start, direction, steps):
    """The values of a weighted sum of function's results at start + t * direction for each t of `steps`, and its two derivatives by t."""
    columns = start.shape[1]
    places, directions = (from_numpy(np.tile(a, (len(steps), 1))) for a in (start, direction))
    t = from_numpy(np.repeat(steps, len(start)))

    def value(t):
        x = places + ops.expand_dims(t, 1) * directions
        y = function(x) if columns == 3 else function(*(x[:, i] for i in range(columns)))
        y = ops.reshape(y, (t.shape[0], -1))
        return ops.sum(y * from_numpy(1 + 0.37 * np.arange(int(y.shape[1]))), 1)

    slope = keras_ocl.grad(lambda t: ops.sum(value(t)))
    return [value(t), slope(t), keras_ocl.grad(lambda t: ops.sum(slope(t)))(t)]


@pytest.mark.parametrize("functions, points", CASES, ids=("one", "two", "rows"))
def test_derivatives_lie_between_their_limits(functions, points):
    need_float64()
    rng, step = np.random.default_rng(0), 1e-4
    direction = rng.uniform(0.3, 1, points.shape) * rng.choice([-1, 1], points.shape)
    steps = np.array([0, -2, -1, 1, 2]) * step
    found = keras_ocl.jit(lambda: {name: along_lines(f, points, direction, steps) for name, f in functions.items()})()
    wrong, judged = [], 0
    for name, orders in found.items():
        smooth = np.ones(len(points), bool)  # up to the order before
        for order, values in enumerate(orders):
            here, far_left, left, right, far_right = np.asarray(values).reshape(5, -1)
            limits = np.stack([2 * left - far_left, 2 * right - far_right])
            low, high = limits.min(0), limits.max(0)
            tolerance = 2e-4 * np.maximum(1, np.abs(limits).max(0))
            inside = (here >= low - tolerance) & (here <= high + tolerance)
            judged += np.sum(smooth & (order > 0))
            if order:
                outside = np.flatnonzero(smooth & ~inside)
                wrong += [f"{name}, order {order}, at {points[i]}: {here[i]}, limits {limits[:, i]}" for i in outside]
            smooth &= inside & (high - low < tolerance)
    assert not wrong
    assert judged > len(functions) * len(points)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_equal_arguments_share_the_gradient(name):
    both = np.array([3.0, -2.0, np.inf, -np.inf, np.inf, 5.0], "float32")
    other = np.array([3.0, -2.0, np.inf, -np.inf, 1.0, -np.inf], "float32")
    gradients = keras_ocl.grad(lambda pair: ops.sum(getattr(k, name)(*pair)))([from_numpy(both), from_numpy(other)])
    np.testing.assert_allclose(gradients[0], [0.5, 0.5, 0.5, 0.5, 1, 1])
    np.testing.assert_allclose(gradients[1], [0.5, 0.5, 0.5, 0.5, 0, 0])


def test_of_nan():
    gradients = keras_ocl.grad(lambda pair: ops.sum(k.logaddexp(*pair)))([from_numpy(np.float32([np.nan])), from_numpy(np.float32([1]))])
    assert np.isnan([np.asarray(g) for g in gradients]).all()
