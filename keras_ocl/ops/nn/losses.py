"""Losses on class scores, and peak signal-to-noise ratio. Rows of scores become one fused kernel: no one-hot matrix, no gather."""

import warnings

from keras.src.backend import config
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core.dim import product
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.nn.activations import row_maximum
from keras_ocl.ops.promotion import floating, promote, scalar_like, spread


def _scores(output, from_logits, op):
    """The scores to compute from, and whether they are logits: those that keras.activations left on its result, where it did."""
    logits = getattr(output, "_keras_logits", None)
    if logits is None:
        return floating(output), from_logits
    if from_logits:
        warnings.warn(
            f"`{op}` received `from_logits=True`, but the `output` argument was produced by a Softmax or Sigmoid activation and thus does"
            " not represent logits. Was this intended?",
            stacklevel=3,
        )
    return floating(logits), True


def _same_shape(target, output):
    if target.shape != output.shape:
        raise ValueError(
            "Arguments `target` and `output` must have the same shape. "
            f"Received: target.shape={tuple(target.shape)}, output.shape={tuple(output.shape)}"
        )


def _log_sum(x, axis):
    """Row maximum, and log(sum(exp(x - maximum))), along `axis`."""
    top = row_maximum(x, (axis,))
    return top, P.log(P.reduce_sum(P.exp(P.sub(x, spread(top, x, (axis,)))), (axis,)))


def _clipped(x):
    epsilon = config.epsilon()
    return P.min(P.max(x, scalar_like(epsilon, x)), scalar_like(1 - epsilon, x))


def categorical_crossentropy(target, output, from_logits=False, axis=-1):
    """-sum(target * log(probability)) along `axis`; `output` holds probabilities (normalised first), or logits."""
    output, from_logits = _scores(output, from_logits, "categorical_crossentropy")
    target, output = promote(target, output)
    _same_shape(target, output)
    if output.ndim < 1:
        raise ValueError(
            "Arguments `target` and `output` must be at least rank 1. "
            f"Received: target.shape={tuple(target.shape)}, output.shape={tuple(output.shape)}"
        )
    axis = canonicalize_axis(axis, output.ndim)
    if from_logits:
        top, log_sum = _log_sum(output, axis)
        log_probability = P.sub(P.sub(output, spread(top, output, (axis,))), spread(log_sum, output, (axis,)))
    else:
        total = P.reduce_sum(output, (axis,))
        log_probability = P.log(_clipped(P.div(output, spread(total, output, (axis,)))))
    return P.neg(P.reduce_sum(P.mul(target, log_probability), (axis,)))


def sparse_categorical_crossentropy(target, output, from_logits=False, axis=-1):
    """-log(probability of class `target`), classes along `axis`; `target` has the shape of `output` without that axis, or with extent 1.

    A target outside the range of classes is as if no class were right: its loss and gradient are those of a row of zeros.
    """
    output, from_logits = _scores(output, from_logits, "sparse_categorical_crossentropy")
    target = convert_to_tensor(target, "int32")
    if output.ndim < 1:
        raise ValueError(f"Argument `output` must be at least rank 1. Received: output.shape={tuple(output.shape)}")
    axis = canonicalize_axis(axis, output.ndim)
    if target.ndim == output.ndim and target.shape[axis] == 1:
        target = P.reshape(target, (*target.shape[:axis], *target.shape[axis + 1 :]))
    if target.shape != (*output.shape[:axis], *output.shape[axis + 1 :]):
        raise ValueError(
            "Arguments `target` and `output` must have the same shape up until the last dimension: "
            f"target.shape={tuple(target.shape)}, output.shape={tuple(output.shape)}"
        )
    check_indices("sparse_categorical_crossentropy", target, output.shape[axis], wraps=False)
    others = tuple(a for a in range(output.ndim) if a != axis)
    right = P.eq(P.iota(output.shape, axis, "int32"), P.broadcast(target, output.shape, others))
    zero = scalar_like(0, output)
    if from_logits:
        top, log_sum = _log_sum(output, axis)
        of_target = P.reduce_sum(P.select(right, P.sub(output, spread(top, output, (axis,))), zero), (axis,))
        classes = output.shape[axis]
        known = P.and_(P.ge(target, scalar_like(0, target)), P.lt(target, scalar_like(classes, target)))
        return P.select(known, P.sub(log_sum, of_target), scalar_like(0, log_sum))
    total = P.reduce_sum(output, (axis,))
    log_probability = P.log(_clipped(P.div(output, spread(total, output, (axis,)))))
    return P.neg(P.reduce_sum(P.select(right, log_probability, zero), (axis,)))


def binary_crossentropy(target, output, from_logits=False):
    """-(target * log(p) + (1 - target) * log(1 - p)), elementwise; `output` holds the probabilities p, or logits."""
    output, from_logits = _scores(output, from_logits, "binary_crossentropy")
    target, output = promote(target, output)
    _same_shape(target, output)
    one = scalar_like(1, output)
    if not from_logits:
        p = _clipped(output)
        return P.neg(P.add(P.mul(target, P.log(p)), P.mul(P.sub(one, target), P.log(P.sub(one, p)))))
    # |x| times what the target lacks on x's side, plus log(1 + exp(-|x|)), written so that its derivative at 0 is right.
    zero = scalar_like(0, output)
    positive = P.ge(output, zero)
    magnitude = P.select(positive, P.neg(output), output)
    lacking = P.select(positive, P.sub(one, target), target)
    certain = P.and_(P.is_inf(output), P.eq(lacking, zero))
    linear = P.select(certain, zero, P.mul(magnitude, lacking))
    return P.sub(P.log1p(P.exp(magnitude)), linear)


def psnr(x1, x2, max_val):
    """Peak signal-to-noise ratio in decibels: 20 log10(max_val) - 10 log10(mean squared difference)."""
    x1, x2 = promote(x1, x2, extra=("float32",))
    if x1.shape != x2.shape:
        raise ValueError(f"Input shapes {tuple(x1.shape)} and {tuple(x2.shape)} must match for PSNR calculation. ")
    difference = P.sub(x1, x2)
    total = P.reduce_sum(P.mul(difference, difference), tuple(range(x1.ndim)))
    mean = P.div(total, scalar_like(product(x1.shape), total))
    peak = P.mul(scalar_like(20, mean), P.log10(convert_to_tensor(max_val, mean.dtype)))
    return P.sub(peak, P.mul(scalar_like(10, mean), P.log10(mean)))
