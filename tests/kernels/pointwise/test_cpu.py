"""Kernels of rows on CPUs against NumPy in float64: a row is reduced once, whatever loops are inside it, and its values are stored once."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.core.dim import Dim
from tests.compiler.graphs import graph_of
from tests.devices import another

EXTENTS = {"known": int, "unknown": lambda n: Dim(n, 100), "unknown, of a short hint": lambda n: Dim(n, 9)}


@pytest.fixture(scope="module")
def device():
    """A device with the schedule of CPUs, and so many units that a few rows are shared by several items."""
    device = another()
    device.traits = dataclasses.replace(device.traits, schedule="cpu", compute_units=4)
    return device


def run(device, function, *arrays, extents="known"):
    """(results, kernels' bodies) of a function of primitives whose first axes have unknown extents, or not (EXTENTS)."""
    shapes = [(EXTENTS[extents](a.shape[0]), *a.shape[1:]) if a.ndim > 1 else a.shape for a in arrays]
    graph, inputs = graph_of(function, *((shape, a.dtype.name) for shape, a in zip(shapes, arrays, strict=True)))
    executable = Executable(device, graph, inputs)
    results = executable.run([device.upload(a) for a in arrays])
    shapes = [tuple(map(int, node.shape)) for node in graph.outputs]
    got = [device.download(result, np.dtype("float32"), shape) for result, shape in zip(results, shapes, strict=True)]
    return got, [launch.body for launch in executable.launches]


def along(value, x):
    """A value per row for all elements of the rows of `x`."""
    return P.broadcast(value, x.shape, tuple(range(value.ndim)))


def normalised(axes):
    """Function of x and a vector: (x normalised along `axes` and scaled by the vector, the mean, 1 / the deviation)."""

    def function(x, scale):
        count = P.constant(float(np.prod([x.shape[a] for a in axes])), "float32")
        mean = P.div(P.reduce_sum(x, axes), P.broadcast(count, x.shape[: axes[0]], ()))
        centred = P.sub(x, along(mean, x))
        variance = P.div(P.reduce_sum(P.mul(centred, centred), axes), P.broadcast(count, mean.shape, ()))
        inverse = P.rsqrt(P.add(variance, P.broadcast(P.constant(1e-3, "float32"), mean.shape, ())))
        scaled = P.mul(P.mul(centred, along(inverse, x)), P.broadcast(scale, x.shape, (x.ndim - 1,)))
        return scaled, mean, inverse

    return function


def expected(x, scale, axes):
    x = x.astype("float64")
    mean, inverse = x.mean(axes), 1 / np.sqrt(x.var(axes) + 1e-3)
    shape = (*mean.shape, *(1 for _ in axes))
    return (x - mean.reshape(shape)) * inverse.reshape(shape) * scale, mean, inverse


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("shape", [(33, 7), (40, 8), (3, 129), (50, 1000), (1, 1000), (2, 65536)], ids=str)
def test_a_row_and_its_mean_and_deviation_are_one_launch(device, shape, extents):
    rng = np.random.default_rng(0)
    x, scale = rng.normal(size=shape).astype("float32"), rng.normal(size=shape[-1]).astype("float32")
    got, bodies = run(device, normalised((1,)), x, scale, extents=extents)
    assert len(bodies) == 1, bodies
    for g, e in zip(got, expected(x, scale, (1,)), strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(40, 5, 12), (2, 60, 33), (9, 16, 128)], ids=str)
def test_loops_inside_a_row_do_not_repeat_its_reductions(device, shape):
    rng = np.random.default_rng(0)
    x, scale = rng.normal(size=shape).astype("float32"), rng.normal(size=shape[-1]).astype("float32")
    got, bodies = run(device, normalised((1, 2)), x, scale)
    assert len(bodies) == 1, bodies
    for g, e in zip(got, expected(x, scale, (1, 2)), strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5)
    got, bodies = run(device, lambda x, s: normalised((1, 2))(x, s)[0], x, scale)  # without values per row
    assert len(bodies) == 1, bodies
    np.testing.assert_allclose(got[0], expected(x, scale, (1, 2))[0], rtol=2e-5, atol=2e-5)
    body = bodies[0]
    assert body.index("rsqrt") < body.rindex("for ("), body
    depth = body[: body.index("rsqrt")].count("{") - body[: body.index("rsqrt")].count("}")
    assert depth == 1, body  # in the loop over rows, and in no other


def test_a_large_mean_leaves_the_variance_accurate(device):
    x = (1e4 + np.random.default_rng(0).normal(size=(20, 1000))).astype("float32")
    (_, mean, inverse), _ = run(device, normalised((1,)), x, np.ones(1000, "float32"))
    _, exact_mean, exact_inverse = expected(x, 1, (1,))
    np.testing.assert_allclose(mean, exact_mean, rtol=1e-6)
    np.testing.assert_allclose(inverse, exact_inverse, rtol=1e-4)


def test_what_is_not_finite_stays_in_its_row(device):
    x = np.random.default_rng(0).normal(size=(6, 129)).astype("float32")
    x[1, 5], x[4, 128] = np.nan, np.inf
    (y, _, inverse), _ = run(device, normalised((1,)), x, np.ones(129, "float32"))
    rows = [1, 4]
    assert np.isnan(y[rows]).all() and np.isnan(inverse[rows]).all()
    others = np.delete(np.arange(6), rows)
    np.testing.assert_allclose(y[others], expected(x[others], 1, (1,))[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("shape", [(9, 40, 8, 8), (5, 31, 3, 10), (70, 6, 32, 5), (33, 20, 2, 32), (1, 50, 4, 7), (9, 40, 33, 8)], ids=str)
def test_values_of_short_runs(device, shape, extents):
    """As in group normalisation's gradient: a loop over the runs of a row, where a row has few, whose numbers no divisions tell."""

    def function(x, y):
        return P.mul(x, P.broadcast(y, x.shape, (0, 2)))

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype("float32") for s in (shape, shape[::2]))
    (got,), (body,) = run(device, function, x, y, extents=extents)
    np.testing.assert_allclose(got, x * y.astype("float64")[:, None, :, None], rtol=1e-6)
    assert (f"/ {shape[2]};" not in body) == (shape[2] <= 32), body
