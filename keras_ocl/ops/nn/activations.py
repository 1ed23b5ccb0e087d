"""keras.ops.nn, activations: elementwise functions and the softmax family. Float dtypes are kept; integers become floatx()."""

import math

from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops import numpy as knp
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy import complex_numbers
from keras_ocl.ops.promotion import axes_of, floating, scalar_like, spread


def _real(op, x):
    """`x` as a Tensor of a real floating dtype. TypeError for complex numbers, which have no order."""
    x = floating(x)
    if dtypes.is_complex(x.dtype):
        raise TypeError(f"{op}: tensors of dtype {x.dtype} are not supported; take their real and imag parts, or abs, first.")
    return x


def relu(x):
    """max(x, 0), in x's own dtype."""
    return P.relu(convert_to_tensor(x))


def relu6(x):
    """min(max(x, 0), 6), in x's own dtype."""
    x = convert_to_tensor(x)
    return P.min(scalar_like(6, x), P.relu(x))  # of equal ones the first has the gradient: none at 6


def sigmoid(x):
    """1 / (1 + exp(-x))."""
    x = floating(x)
    return complex_numbers.sigmoid(x) if dtypes.is_complex(x.dtype) else P.logistic(x)


def sparse_sigmoid(x):
    """(x + 1) / 2 limited to [0, 1]."""
    x = _real("sparse_sigmoid", x)
    half = P.mul(P.add(x, scalar_like(1, x)), scalar_like(0.5, x))
    return P.min(scalar_like(1, x), P.max(scalar_like(0, x), half))  # of equal ones the first has the gradient: none at -1 and 1


def tanh(x):
    """Hyperbolic tangent."""
    return knp.tanh(x)


def tanh_shrink(x):
    """x - tanh(x)."""
    x = floating(x)
    return P.sub(x, knp.tanh(x))


def softplus(x):
    """log(1 + exp(x)) without overflow."""
    # As max(x, 0) + log1p(exp(-|x|)), written so that its derivative at 0 is right.
    x = _real("softplus", x)
    positive = P.ge(x, scalar_like(0, x))
    magnitude = P.select(positive, P.neg(x), x)
    return P.add(P.select(positive, x, scalar_like(0, x)), P.log1p(P.exp(magnitude)))


def softsign(x):
    """x / (1 + |x|)."""
    x = floating(x)
    return P.div(x, P.add(P.abs(x), scalar_like(1, x)))


def soft_shrink(x, threshold=0.5):
    """x moved by `threshold` towards 0, and 0 where that would pass it."""
    x = _real("soft_shrink", x)
    t = scalar_like(threshold, x)
    zero = scalar_like(0, x)
    return P.select(P.gt(x, t), P.sub(x, t), P.select(P.lt(x, P.neg(t)), P.add(x, t), zero))


def sparse_plus(x):
    """0 up to -1, x from 1 on, (x + 1)^2 / 4 between."""
    x = _real("sparse_plus", x)
    one, zero = scalar_like(1, x), scalar_like(0, x)
    square = P.mul(P.add(x, one), P.add(x, one))
    middle = P.mul(square, scalar_like(0.25, x))
    return P.select(P.le(x, P.neg(one)), zero, P.select(P.lt(x, one), middle, x))


def silu(x):
    """x * sigmoid(x)."""
    x = floating(x)
    return P.mul(x, sigmoid(x))


def squareplus(x, b=4):
    """(x + sqrt(x^2 + b)) / 2."""
    x = _real("squareplus", x)
    root = P.sqrt(P.add(P.mul(x, x), scalar_like(b, x)))
    return P.mul(P.add(x, root), scalar_like(0.5, x))


def log_sigmoid(x):
    """log(sigmoid(x)) without overflow."""
    return P.neg(softplus(P.neg(floating(x))))


def leaky_relu(x, negative_slope=0.2):
    """x where it is positive, else negative_slope * x."""
    x = _real("leaky_relu", x)
    return P.select(P.gt(x, scalar_like(0, x)), x, P.mul(x, scalar_like(negative_slope, x)))


def hard_sigmoid(x):
    """(x + 3) / 6 limited to [0, 1]."""
    x = _real("hard_sigmoid", x)
    return P.div(relu6(P.add(x, scalar_like(3, x))), scalar_like(6, x))


def hard_silu(x):
    """x * hard_sigmoid(x)."""
    x = _real("hard_silu", x)
    return P.mul(x, hard_sigmoid(x))


def elu(x, alpha=1.0):
    """x where it is positive, else alpha * (exp(x) - 1)."""
    x = _real("elu", x)
    zero = scalar_like(0, x)
    negative = P.mul(scalar_like(alpha, x), P.expm1(P.min(x, zero)))
    return P.select(P.gt(x, zero), x, negative)


def selu(x):
    """The elu that keeps mean 0 and variance 1 (Klambauer et al., "Self-Normalizing Neural Networks", 2017)."""
    x = floating(x)
    return P.mul(scalar_like(1.0507009873554805, x), elu(x, 1.6732632423543772))


def gelu(x, approximate=True):
    """x times the normal distribution function of x; `approximate` computes that by tanh (Hendrycks & Gimpel, 2016)."""
    x = _real("gelu", x)
    half, one = scalar_like(0.5, x), scalar_like(1, x)
    if approximate:
        cubic = P.mul(P.mul(x, x), P.mul(x, scalar_like(0.044715, x)))
        inner = P.mul(scalar_like(math.sqrt(2 / math.pi), x), P.add(x, cubic))
        return P.mul(P.mul(half, x), P.add(one, P.tanh(inner)))
    return P.mul(P.mul(half, x), P.add(one, P.erf(P.mul(x, scalar_like(math.sqrt(0.5), x)))))


def celu(x, alpha=1.0):
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    x = _real("celu", x)
    zero = scalar_like(0, x)
    negative = P.mul(scalar_like(alpha, x), P.expm1(P.div(P.min(x, zero), scalar_like(alpha, x))))
    return P.add(P.relu(x), negative)


def glu(x, axis=-1):
    """The first half of x along `axis` times the sigmoid of the second. ValueError for an odd extent."""
    x = _real("glu", x)
    axis = canonicalize_axis(axis, x.ndim)
    if x.shape[axis] % 2 != 0:
        raise ValueError(f"glu: axis {axis} of shape {tuple(x.shape)} must have an even extent.")
    a, b = knp.split(x, 2, axis=axis)
    return P.mul(a, P.logistic(b))


def hard_tanh(x):
    """x limited to [-1, 1]."""
    x = _real("hard_tanh", x)
    return P.max(P.min(x, scalar_like(1, x)), scalar_like(-1, x))


def hard_shrink(x, threshold=0.5):
    """x where |x| is greater than `threshold`, else 0."""
    x = _real("hard_shrink", x)
    return P.select(P.gt(P.abs(x), scalar_like(threshold, x)), x, scalar_like(0, x))


def threshold(x, threshold, default_value):
    """x where it is greater than `threshold`, else `default_value`."""
    x = convert_to_tensor(x)
    return P.select(P.gt(x, scalar_like(threshold, x)), x, scalar_like(default_value, x))


def _shifted(x, axis):
    """x minus its (constant) maximum along `axis`: exponentials stay finite; rows of -inf stay -inf, those with inf or NaN become NaN."""
    axes = axes_of(axis, x.ndim)
    return P.sub(x, spread(row_maximum(x, axes), x, axes)), axes


def row_maximum(x, axes):
    """The maximum along `axes` as a constant; 0 in rows of nothing but -inf, where the difference would be NaN."""
    top = P.stop_gradient(P.reduce_max(x, axes))
    return P.select(P.eq(top, scalar_like(-math.inf, top)), scalar_like(0, top), top)


def softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) along `axis` (an int, a sequence, or None for all) without overflow."""
    x = _real("softmax", x)
    shifted, axes = _shifted(x, axis)
    e = P.exp(shifted)
    return P.div(e, spread(P.reduce_sum(e, axes), x, axes))


def log_softmax(x, axis=-1):
    """log(softmax(x)) along `axis` (an int, a sequence, or None for all) without overflow."""
    x = _real("log_softmax", x)
    shifted, axes = _shifted(x, axis)
    return P.sub(shifted, spread(P.log(P.reduce_sum(P.exp(shifted), axes)), x, axes))


def sparsemax(x, axis=-1):
    """Martins & Astudillo, "From Softmax to Sparsemax" (2016)."""
    x = _real("sparsemax", x)
    axis = canonicalize_axis(axis, x.ndim)
    ordered = knp.flip(knp.sort(x, axis=axis), axis=axis)
    total = knp.cumsum(ordered, axis=axis)
    rank = P.add(P.iota(x.shape, axis, x.dtype), scalar_like(1, x))
    support = P.gt(P.sub(ordered, P.div(P.sub(total, scalar_like(1, x)), rank)), scalar_like(0, x))
    zero = scalar_like(0, x)
    count = P.reduce_sum(P.select(support, scalar_like(1, x), zero), (axis,))
    mass = P.reduce_sum(P.select(support, ordered, zero), (axis,))
    tau = P.div(P.sub(mass, scalar_like(1, mass)), count)
    return P.relu(P.sub(x, spread(tau, x, (axis,))))
