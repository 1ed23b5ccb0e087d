"""Gradients of order statistics where elements tie: as TensorFlow gives them, by the places of the sorted neighbours."""

import numpy as np
import pytest
from keras import ops

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import jit
from keras_ocl.core.autodiff import GradientTape

TIES = [[1, 2, 2, 3], [2, 2, 2], [1, 2, 2, 5, 7], [1, 1], [2, 1, 2, 1], [4, 4, 1, 4, 4, 0]]
FUNCTIONS = {
    "median": (ops.median, 0.5),
    "nanmedian": (ops.nanmedian, 0.5),
    "quantile": (lambda x: ops.quantile(x, 0.3), 0.3),
    "nanquantile": (lambda x: ops.nanquantile(x, 0.3), 0.3),
    "percentile": (lambda x: ops.percentile(x, 70), 0.7),
    "nanpercentile": (lambda x: ops.nanpercentile(x, 70), 0.7),
    "midpoint": (lambda x: ops.quantile(x, 0.5, method="midpoint"), 0.5),
}


def gradient(function, x):
    with GradientTape() as tape:
        tape.watch([x])
        y = function(x)
    return to_numpy(tape.gradient(y, [x])[0])


def expected(x, q):
    """The fraction of the rank goes to the upper neighbour, the rest to the lower, in the order of a stable sort."""
    rank, order = q * (len(x) - 1), np.argsort(x, kind="stable")
    low, result = int(np.floor(rank)), np.zeros(len(x))
    result[order[low]] += 1 - (rank - low)
    result[order[min(low + 1, len(x) - 1)]] += rank - low
    return result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ties_share_the_gradient(name):
    function, q = FUNCTIONS[name]
    for values in TIES:
        x = from_numpy(np.array(values, "f4"))
        np.testing.assert_allclose(gradient(function, x), expected(values, q), atol=1e-6, err_msg=str(values))
    np.testing.assert_allclose(gradient(jit(function), x), expected(values, q), atol=1e-6)


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
def test_extremes_share_the_gradient(name):
    sign = 1 if name.endswith("max") else -1
    for values in TIES:
        x = np.array(values, "f4") * sign
        ties = x == getattr(x, name[-3:])()
        np.testing.assert_allclose(gradient(getattr(ops, name), from_numpy(x)), ties / ties.sum(), atol=1e-6)


def test_equal_infinities_have_no_nan_in_their_gradient():
    x = from_numpy(np.array([np.inf, np.inf, 1.0], "f4"))
    np.testing.assert_array_equal(gradient(lambda x: ops.quantile(x, 0.75), x), [0.5, 0.5, 0.0])


def test_the_gradient_of_where_a_quantile_lies():
    x = from_numpy(np.array([3.0, 1.0, 1.0, 7.0], "f4"))
    for q, slope in ((0.2, 0.0), (0.5, 6.0), (0.9, 12.0)):
        np.testing.assert_allclose(gradient(lambda q: ops.quantile(x, q), from_numpy(np.float32(q))), slope, atol=1e-5)
