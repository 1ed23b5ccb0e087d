"""Comparing primitives with NumPy, and gradients with central differences, in float64."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import eager, from_numpy, to_numpy  # noqa: F401  (eager runs primitives outside of traces)
from keras_ocl.core.autodiff import GradientTape


def need_float64():
    if not runtime.current_device().traits.fp64:
        pytest.skip("the device has no float64")


def same(result, expected, tolerance=1e-12):
    """Equal shapes, and values up to `tolerance` relative and absolute; NaN and infinities in the same places."""
    value, expected = to_numpy(result), np.asarray(expected)
    assert value.shape == expected.shape
    if value.dtype.kind in "fc" or value.dtype.name.startswith(("bfloat", "float8")):
        wide = "c16" if value.dtype.kind == "c" else "f8"
        np.testing.assert_allclose(value.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(value, expected)


def _parts(result):
    return list(result) if isinstance(result, tuple) else [result]


def _loss(function, tensors, weights):
    """A scalar that depends on every float result."""
    total = None
    floats = [r for r in _parts(function(*tensors)) if r.dtype == "float64"]
    for r, w in zip(floats, weights, strict=True):
        term = P.reduce_sum(P.mul(r, from_numpy(w)), tuple(range(len(r.shape))))
        total = term if total is None else P.add(total, term)
    return total


def _gradients(function, tensors, weights):
    with GradientTape() as tape:
        tape.watch(list(tensors))
        loss = _loss(function, tensors, weights)
    return [P.zeros_like(t) if g is None else g for t, g in zip(tensors, tape.gradient(loss, list(tensors)), strict=True)]


def _slope(evaluate, arrays, k, direction, step):
    moved = [[a + s * step * direction if i == k else a for i, a in enumerate(arrays)] for s in (1, -1)]
    ahead, behind = (evaluate([from_numpy(a) for a in m]) for m in moved)
    return [(to_numpy(x) - to_numpy(y)) / (2 * step) for x, y in zip(ahead, behind, strict=True)]


def check_gradient(function, *arrays, second=True, step=1e-5, tolerance=1e-6):
    """Gradients of the float64 `arrays` along random directions against central differences; with `second`, theirs too."""
    need_float64()
    rng = np.random.default_rng(7)
    arrays = [np.asarray(a, "f8") for a in arrays]
    tensors = [from_numpy(a) for a in arrays]
    weights = [rng.uniform(0.5, 1.5, tuple(r.shape)) for r in _parts(function(*tensors)) if r.dtype == "float64"]
    gradients = _gradients(function, tensors, weights)
    outer = [rng.uniform(0.5, 1.5, a.shape) for a in arrays]
    for k, a in enumerate(arrays):
        assert tuple(gradients[k].shape) == a.shape
        direction = rng.uniform(-1, 1, a.shape)
        (slope,) = _slope(lambda ts: [_loss(function, ts, weights)], arrays, k, direction, step)
        np.testing.assert_allclose(np.sum(to_numpy(gradients[k]) * direction), slope, rtol=tolerance, atol=tolerance)
        if second:
            slopes = _slope(lambda ts: _gradients(function, ts, weights), arrays, k, direction, step)
            expected = sum(np.sum(s * o) for s, o in zip(slopes, outer, strict=True))
            twice = _gradients(lambda *ts: tuple(_gradients(function, ts, weights)), tensors, outer)
            np.testing.assert_allclose(np.sum(to_numpy(twice[k]) * direction), expected, rtol=10 * tolerance, atol=10 * tolerance)
