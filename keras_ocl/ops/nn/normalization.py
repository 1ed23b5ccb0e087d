"""Moments and batch normalization. 16-bit floats are computed in float32, gradients in as few reductions as possible."""

from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core.dim import product
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.gradients import custom_gradient
from keras_ocl.ops.promotion import axes_of, floating, keep, scalar_like, spread
from keras_ocl.ops.result_types import result_type

_FLOAT16_MAX = 65504.0


def _mean(x, axes):
    total = P.reduce_sum(x, axes)
    return P.div(total, scalar_like(product(x.shape[a] for a in axes), total))


def variance_about(x, mean, axes):
    """Mean of (x - mean)**2 along `axes`, where `mean` is that of x.

    That the mean depends on x adds nothing to the gradient (deviations sum to zero), so its part, a reduction of its own, is left out.
    """

    @custom_gradient
    def variance(x, mean):
        deviation = P.sub(x, spread(mean, x, axes))

        def grad(upstream):
            scale = P.mul(upstream, scalar_like(2, upstream))
            scale = P.div(scale, scalar_like(product(x.shape[a] for a in axes), scale))
            return P.mul(spread(scale, x, axes), P.sub(x, spread(mean, x, axes))), None

        return _mean(P.mul(deviation, deviation), axes), grad

    return variance(x, mean)


def moments(x, axes, keepdims=False, synchronized=False):
    """(mean, variance) of `x` along `axes`, in its dtype; float16 results are kept within its range.

    `synchronized` changes nothing: where a distribution shares a batch, a step's tensors are the whole batch's (distribution/partition.py).
    In a loop of one's own each rank has the statistics of its own data.
    """
    x = floating(x)
    dtype = x.dtype
    x = convert_to_tensor(x, result_type(dtype, "float32"))
    axes = axes_of(axes, x.ndim)
    mean = _mean(x, axes)
    results = [mean, variance_about(x, mean, axes)]
    if keepdims:
        results = [P.reshape(r, keep(x.shape, axes)) for r in results]
    if dtype == "float16":
        results = [P.max(P.min(r, scalar_like(_FLOAT16_MAX, r)), scalar_like(-_FLOAT16_MAX, r)) for r in results]
    return tuple(convert_to_tensor(r, dtype) for r in results)


def batch_normalization(x, mean, variance, axis, offset=None, scale=None, epsilon=1e-3):
    """(x - mean) / sqrt(variance + epsilon) * scale + offset; the statistics are vectors along `axis`."""
    x = floating(x)
    dtype = x.dtype
    given = [convert_to_tensor(v) for v in (mean, variance, offset, scale) if v is not None]
    result = result_type(dtype, *[v.dtype for v in given])
    compute = result_type(result, "float32")
    x = convert_to_tensor(x, compute)
    axis = canonicalize_axis(axis, x.ndim)
    mean, variance, offset, scale = [None if v is None else convert_to_tensor(v, compute) for v in (mean, variance, offset, scale)]
    if x.shape[axis] == 1:  # of one channel with a mask, Keras's layer gives statistics without an axis
        mean, variance = [P.reshape(v, (1,)) if v.ndim == 0 else v for v in (mean, variance)]
    for name, v in (("mean", mean), ("variance", variance), ("offset", offset), ("scale", scale)):
        if v is not None and tuple(v.shape) != (x.shape[axis],):
            raise ValueError(
                f"batch_normalization: `{name}` has shape {tuple(v.shape)}, expected ({x.shape[axis]},), the extent of axis {axis} of x,"
                f" whose shape is {tuple(x.shape)}."
            )
    factor = P.rsqrt(P.add(variance, scalar_like(epsilon, variance)))
    if scale is not None:
        factor = P.mul(factor, scale)
    if offset is None:
        offset = scalar_like(0, mean)
    return convert_to_tensor(_scaled(x, mean, factor, offset, axis), result)


def _scaled(x, mean, factor, offset, axis):
    """(x - mean) * factor + offset with vectors along `axis`; its gradient takes two reductions of x's size."""
    others = tuple(a for a in range(x.ndim) if a != axis)

    @custom_gradient
    def scaled(x, mean, factor, offset):
        def along(v):
            return P.broadcast(v, x.shape, (axis,))

        def grad(upstream):
            total = P.reduce_sum(upstream, others)
            by_factor = P.reduce_sum(P.mul(upstream, P.sub(x, along(mean))), others)
            return P.mul(upstream, along(factor)), P.neg(P.mul(total, factor)), by_factor, total

        return P.add(P.mul(P.sub(x, along(mean)), along(factor)), along(offset)), grad

    return scaled(x, mean, factor, offset)
