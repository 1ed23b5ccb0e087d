"""Random chains of primitives, the same for the same seed: what fusion has to take apart."""

import numpy as np

from keras_ocl import primitives as P

_ELEMENTS = 1 << 21  # of a chain's input, about: enough to time


class Chain:
    """A function of one tensor of rank 4, float32, for `keras_ocl.jit`; `array` is an input for it.

    Steps are drawn from `seed`: functions cheap and dear, shared subexpressions, sums of shifted slices, pads, pooling and its gradients,
    reductions and broadcasts, concatenations, transposes and reshapes. Values stay between -4 and 4.
    """

    def __init__(self, seed, elements=_ELEMENTS):
        rng = np.random.default_rng(seed)
        channels, side = int(rng.choice([16, 24, 64])), int(rng.choice([12, 16, 30]))
        self.seed = seed
        self.shape = (max(1, elements // (channels * side * side)), side, side, channels)
        self.array = rng.uniform(-1, 1, self.shape).astype("float32")
        self.steps = [str(s) for s in rng.choice(list(_STEPS), int(rng.integers(4, 10)))]

    def __call__(self, x):
        rng = np.random.default_rng((self.seed, 1))
        values = [x]
        for step in self.steps:
            back = min(len(values), 1 + int(rng.geometric(0.6)))
            source = values[-back] if rng.random() < 0.4 else values[-1]
            result = _STEPS[step](rng, source)
            if result.shape == values[-1].shape and rng.random() < 0.5:  # a shared subexpression
                result = P.mul(P.add(result, values[-1]), _like(0.5, result))
            values.append(result)
        return values[-1]

    def __repr__(self):
        return f"seed {self.seed}: {'x'.join(map(str, self.shape))} {' '.join(self.steps)}"


def _like(value, x):
    return P.full(x.shape, value, x.dtype)


def _axis(rng, x, least=2):
    """A random axis of at least that extent, most often the last."""
    fit = [i for i, n in enumerate(x.shape) if n >= least]
    return fit[-1] if rng.random() < 0.5 else int(rng.choice(fit))


def _bell(rng, x):
    return P.exp(P.neg(P.mul(x, x)))


def _tanh(rng, x):
    return P.tanh(x)


def _power(rng, x):
    return P.pow(P.add(P.abs(x), _like(1, x)), _like(float(rng.choice([-0.75, 0.3, -1.3])), x))


def _polynomial(rng, x):
    for _ in range(int(rng.integers(1, 4))):
        x = P.mul(P.add(P.mul(x, _like(0.5, x)), _like(0.3, x)), _like(0.7, x))
    return x


def _quotient(rng, x):
    return P.div(x, P.add(_like(1, x), P.abs(x)))


def _shifts(rng, x):
    """The mean of neighbours along an axis, as a sum of slices of the padded tensor, or of pads of the tensor."""
    reach, axis = int(rng.integers(1, 5)), _axis(rng, x)
    padding = [reach if i == axis else 0 for i in range(4)]
    zero = P.constant(0.0, x.dtype)
    total = None
    if rng.random() < 0.5:
        padded = P.pad(x, zero, padding, padding)
        parts = [
            P.slice(padded, [k if i == axis else 0 for i in range(4)], [n + k if i == axis else n for i, n in enumerate(x.shape)])
            for k in range(2 * reach + 1)
        ]
    else:
        parts = [
            P.pad(x, zero, [k if i == axis else 0 for i in range(4)], [-k if i == axis else 0 for i in range(4)])
            for k in range(-reach, reach + 1)
        ]
    for part in parts:
        total = part if total is None else P.add(total, part)
    return P.mul(total, _like(1 / (2 * reach + 1), total))


def _window(rng):
    size, stride = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    low = (size - 1) // 2
    return (1, size, size, 1), (1, stride, stride, 1), ((0, 0), (low, size - 1 - low), (low, size - 1 - low), (0, 0)), (1, 1, 1, 1)


def _pool(rng, x):
    kind, geometry = str(rng.choice(["max", "sum"])), _window(rng)
    y = P.reduce_window(x, kind, *geometry)
    return P.mul(y, _like(0.1, y)) if kind == "sum" else y


def _pool_gradient(rng, x):
    """The gradient of max or sum pooling at `x`, where what comes from behind is a function of the pooled values."""
    kind, geometry = str(rng.choice(["max", "sum"])), _window(rng)
    y = P.reduce_window(x, kind, *geometry)
    behind = P.tanh(y)
    index = P.window_argmax(x, *geometry) if kind == "max" else None
    return P.mul(P.window_gather_sum(behind, index, x.shape, *geometry), _like(0.4, x))


def _normalise(rng, x):
    """Shifted by the mean along an axis, and broadcast back."""
    axis = _axis(rng, x)
    kept = tuple(i for i in range(4) if i != axis)
    mean = P.reduce_sum(x, (axis,))
    mean = P.mul(mean, _like(1 / x.shape[axis], mean))
    return P.mul(P.sub(x, P.broadcast(mean, x.shape, kept)), _like(0.5, x))


def _softmax(rng, x):
    axis = _axis(rng, x)
    kept = tuple(i for i in range(4) if i != axis)
    e = P.exp(P.sub(x, P.broadcast(P.reduce_max(x, (axis,)), x.shape, kept)))
    return P.div(e, P.broadcast(P.reduce_sum(e, (axis,)), x.shape, kept))


def _scaled_channels(rng, x):
    """Times a function of the mean over all other axes, one number per channel."""
    mean = P.reduce_sum(x, (0, 1, 2))
    gate = P.logistic(P.mul(mean, _like(1e-3, mean)))
    return P.mul(x, P.broadcast(gate, x.shape, (3,)))


def _joined(rng, x):
    """Halves of a tensor and of a function of it, joined."""
    axis = _axis(rng, x)
    half = x.shape[axis] // 2
    first = P.slice(x, (0,) * 4, [half if i == axis else n for i, n in enumerate(x.shape)])
    rest = P.slice(P.tanh(x), [half if i == axis else 0 for i in range(4)], x.shape)
    return P.concat((rest, first), axis)


def _transposed(rng, x):
    return P.transpose(x, (0, 2, 1, 3) if rng.random() < 0.7 else (0, 3, 1, 2))


def _reshaped(rng, x):
    """A function over another shape: axes merged, and taken apart in another way where that fits."""
    a, b, c, d = x.shape
    return P.reshape(x, (a, c, b, d)) if rng.random() < 0.5 or d % 2 else P.reshape(x, (a, b, c * 2, d // 2))


_STEPS = {
    f.__name__[1:]: f
    for f in (
        _bell, _tanh, _power, _polynomial, _quotient, _shifts, _pool, _pool_gradient, _normalise, _softmax, _scaled_channels, _joined,
        _transposed, _reshaped,
    )
}  # fmt: skip
