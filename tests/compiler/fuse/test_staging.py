"""Staged values: a kernel of rows computes exp(x - max) once, stores it, and loads it in its later loops; on CPUs only."""

import dataclasses

import numpy as np
import pytest
from keras import ops

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.jit import Jitted
from tests.compiler.fuse.test_rows import CPU, GPU, launches, regions, with_gradient
from tests.devices import another
from tests.kernels.pointwise.test_cpu import EXTENTS, along, run

ROWS = [8, 33, 128, 1000, 65_536]


@pytest.fixture(scope="module")
def device():
    """A device with the schedule of CPUs, and so few units that a few rows are enough for them."""
    device = another()
    device.traits = dataclasses.replace(device.traits, schedule="cpu", compute_units=2)
    return device


def entropy(logits, target):
    return ops.categorical_crossentropy(target, logits, from_logits=True)


def softmax(x):
    """In primitives: of the last axis."""
    rows = tuple(range(x.ndim - 1))
    e = P.exp(P.sub(x, P.broadcast(P.reduce_max(x, (x.ndim - 1,)), x.shape, rows)))
    return P.div(e, P.broadcast(P.reduce_sum(e, (x.ndim - 1,)), x.shape, rows))


def expected(x):
    x = x.astype("float64")
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("length", ROWS)
@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax, entropy], ids=["softmax", "log_softmax", "entropy"])
def test_a_softmax_is_one_launch_on_cpus(function, length):
    arrays = [(512, length)] * (2 if function is entropy else 1)
    assert len(launches(CPU, function if function is entropy else lambda x: function(x), *arrays)) == 1


@pytest.mark.parametrize("length", ROWS)
def test_softmax_and_its_gradient_are_two_launches_on_cpus(length):
    assert len(launches(CPU, with_gradient(lambda x: ops.softmax(x)), (512, length), (512, length))) <= 2


def test_only_work_items_that_compute_whole_rows_stage():
    assert [len(r.staged) for r in regions(CPU, softmax, (512, 1000))] == [1]
    assert not any(r.staged for r in regions(GPU, softmax, (512, 1000)))
    assert not any(r.staged for r in regions(CPU, softmax, (1, 1000)))  # items share the row
    assert not any(r.staged for r in regions(CPU, softmax, (512, 1 << 20)))  # the row leaves the cache
    assert not any(r.staged for r in regions(CPU, softmax, (1 << 16, 16)))  # two kernels are faster


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("shape", [(9, 48), (40, 129), (50, 1000), (5, 65_536), (3, 7, 101)], ids=str)
def test_values(device, shape, extents):
    x = (5 * np.random.default_rng(0).normal(size=shape)).astype("float32")
    (got,), bodies = run(device, softmax, x, extents=extents)
    assert len(bodies) == 1, bodies
    np.testing.assert_allclose(got, expected(x), rtol=1e-5)


def test_special_values(device):
    x = np.random.default_rng(0).normal(size=(6, 101)).astype("float32")
    x[0, 3], x[1, 100], x[2, 50], x[3] = np.nan, np.inf, -np.inf, -np.inf
    (got,), bodies = run(device, softmax, x)
    assert len(bodies) == 1
    np.testing.assert_allclose(got, expected(x), rtol=1e-5)


def test_several_reductions_and_a_result_read_a_staged_value(device):
    """Whichever loop ends first stores it: a sum inside of another one's terms does."""

    def function(x, y):
        e = P.exp(P.sub(x, along(P.reduce_max(x, (1,)), x)))
        weighted = P.reduce_sum(P.mul(P.div(e, along(P.reduce_sum(e, (1,)), x)), y), (1,))
        return P.mul(P.sub(y, along(weighted, x)), e)

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(33, 150)).astype("float32") for _ in range(2))
    (got,), bodies = run(device, function, x, y)
    assert len(bodies) == 1
    e, p = np.exp(x - x.max(1, keepdims=True).astype("float64")), expected(x)
    np.testing.assert_allclose(got, (y - (p * y).sum(1, keepdims=True)) * e, rtol=1e-4, atol=1e-5)


def test_a_staged_value_may_be_a_result_too(device):
    """It is loaded from the result's memory, in which no operand may lie that is read later."""

    def function(x, y):
        z = P.tanh(y)
        e = P.exp(P.sub(x, along(P.reduce_max(x, (1,)), x)))
        return e, P.mul(P.div(e, along(P.reduce_sum(e, (1,)), x)), z)

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(700, 511)).astype("float32") for _ in range(2))
    (e, product), bodies = run(device, function, x, y)
    assert len(bodies) == 1
    np.testing.assert_allclose(e, np.exp(x - x.max(1, keepdims=True).astype("float64")), rtol=1e-5)
    np.testing.assert_allclose(product, expected(x) * np.tanh(y.astype("float64")), rtol=1e-4, atol=1e-9)


def test_a_row_is_as_precise_as_registers():
    """Half floats are computed in float32: storing exp(x - max) as one would round it; only the sum and the result are rounded."""
    x = (3 * np.random.default_rng(0).normal(size=(64, 200))).astype("float16")
    got = ops.convert_to_numpy(Jitted(softmax)(from_numpy(x))).astype("float64")
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    wanted = e / e.sum(1, keepdims=True).astype("float16").astype("float64")
    normal = wanted > np.finfo("float16").tiny
    assert np.abs(got / wanted - 1)[normal].max() < 1.02 * 2**-11


def test_gradients(device):
    rng = np.random.default_rng(0)
    x, upstream = (rng.normal(size=(40, 333)).astype("float32") for _ in range(2))
    with runtime.device_scope(device):
        y, (gradient,) = Jitted(with_gradient(lambda x: ops.softmax(x)))(from_numpy(upstream), from_numpy(x))
        y, gradient = ops.convert_to_numpy(y), ops.convert_to_numpy(gradient)
    p = expected(x)
    np.testing.assert_allclose(y, p, rtol=1e-5)
    np.testing.assert_allclose(gradient, p * (upstream - (p * upstream).sum(1, keepdims=True)), rtol=1e-4, atol=1e-6)


def test_in_a_loop():
    """Each step's kernel has rows of its own in memory."""
    x = np.random.default_rng(0).normal(size=(6, 64, 77)).astype("float32")
    scanned = Jitted(lambda x: ops.scan(lambda carry, row: (carry + ops.softmax(row), ops.softmax(carry + row)), x[0] * 0, x))
    total, each = map(ops.convert_to_numpy, scanned(from_numpy(x)))
    carry = np.zeros(x.shape[1:])
    for step, row in zip(each, x, strict=True):
        np.testing.assert_allclose(step, expected(carry + row), rtol=1e-4)
        carry += expected(row)
    np.testing.assert_allclose(total, carry, rtol=1e-4)


def test_rows_of_an_unknown_batch_share_a_kernel():
    f = Jitted(lambda x: ops.softmax(x))
    for count in (64, 1, 3, 200, 0):
        x = np.random.default_rng(count).normal(size=(count, 91)).astype("float32")
        np.testing.assert_allclose(ops.convert_to_numpy(f(from_numpy(x))), expected(x) if count else x, rtol=1e-5)
