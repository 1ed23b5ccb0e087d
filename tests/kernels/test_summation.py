"""Sums of many terms: the error of n positive ones is below 2e-7 * log2(n), eagerly and fused, with all schedules."""

import dataclasses
import math

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import eager, from_numpy, to_numpy
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.jit import jit
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.kernels import summation

SCHEDULES = ("cpu", "gpu", "reference")
RANDOM = np.random.default_rng(5)
REDUCED = (
    ((600_000,), (0,)), ((3, 150_001), (1,)), ((40_000, 17), (0,)), ((5, 40, 3000), (0, 2)), ((3000, 7, 30), (0, 1)),
    ((7, 20_011, 2), (1, 2)),
)  # fmt: skip
PRODUCTS = (  # m, k, n, and which operand lies transposed
    (1, 300_000, 1, ""), (2, 30_000, 70, ""), (20, 20_000, 33, ""), (20, 20_000, 33, "a"), (20, 20_000, 33, "b"), (70, 9000, 40, ""),
)  # fmt: skip
ALIKE = 8  # times the bound for products all alike, whose tiles have long chains: seldom met, and cheap


@pytest.fixture(params=SCHEDULES)
def schedule(request, monkeypatch):
    """Everything is lowered for this schedule."""
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule=request.param))
    monkeypatch.setattr(eager, "_cache", Cache())
    return request.param


def positive(shape):
    """Some between 0.5 and 1.5, or all alike, where roundings go the same way."""
    return RANDOM.uniform(0.5, 1.5, shape).astype("f4"), np.full(shape, 0.1, "f4")


def near(result, expected, terms, times=1):
    value, allowed = to_numpy(result).astype("f8"), 2e-7 * math.log2(terms) * times
    assert value.shape == np.shape(expected)
    error = float(np.max(np.abs(value - expected) / np.abs(expected)))
    assert error <= allowed, f"{error:.2e}, allowed are {allowed:.2e} for {terms} terms"


@pytest.mark.parametrize(("shape", "axes"), REDUCED, ids=lambda v: "x".join(map(str, v)))
def test_reductions(schedule, shape, axes):
    terms = math.prod(shape[a] for a in axes)
    squares = jit(lambda x: P.reduce_sum(P.mul(x, x), axes))
    for x in positive(shape):
        near(P.reduce_sum(from_numpy(x), axes), x.astype("f8").sum(axes), terms)
        near(squares(from_numpy(x)), np.square(x.astype("f8")).sum(axes), terms)


@pytest.mark.parametrize("shape", [(1 << 12, 1 << 12), (3, 1 << 22), (1 << 21, 5)], ids=lambda v: "x".join(map(str, v)))
def test_what_is_never_in_memory(schedule, shape):
    total = jit(lambda x: P.reduce_sum(P.broadcast(x, shape, ()), (0, 1)))
    near(total(from_numpy(np.float32(0.1))), np.float64(np.float32(0.1)) * math.prod(shape), math.prod(shape))


def test_windows(schedule):
    for x in positive((1, 400, 500, 2)):
        found = P.reduce_window(from_numpy(x), "sum", (1, 400, 500, 1), (1,) * 4, ((0, 0),) * 4, (1,) * 4)
        near(found, x.astype("f8").sum((1, 2), keepdims=True), 200_000)


@pytest.mark.parametrize(("m", "k", "n", "turned"), PRODUCTS)
def test_products(schedule, m, k, n, turned):
    contract = (0 if turned == "a" else 1,), (1 if turned == "b" else 0,)
    multiply = jit(lambda a, b: P.dot_general(a, b, contract))
    for times, a, b in zip((1, ALIKE), positive((m, k)), positive((k, n)), strict=True):
        left, right = (from_numpy(np.ascontiguousarray(x.T if name == turned else x)) for name, x in (("a", a), ("b", b)))
        near(multiply(left, right), a.astype("f8") @ b.astype("f8"), k, times)
        if not turned:
            near(P.dot_general(left, right, contract), a.astype("f8") @ b.astype("f8"), k, times)


@pytest.mark.parametrize("shape", [(300_000,), (3, 50_000), (20_000, 5)], ids=lambda v: "x".join(map(str, v)))
def test_running_sums(schedule, shape):
    axis = int(np.argmax(shape))
    for x in positive(shape):
        near(P.cumsum(from_numpy(x), axis), np.cumsum(x.astype("f8"), axis), shape[axis], 1.5)
        backward = np.flip(np.cumsum(np.flip(x.astype("f8"), axis), axis), axis)
        near(P.cumsum(from_numpy(x), axis, reverse=True), backward, shape[axis], 1.5)


@pytest.mark.parametrize("shape", [(200_000,), (100_000, 18)], ids=lambda v: "x".join(map(str, v)))
def test_segments(schedule, shape):
    segments = RANDOM.integers(0, 3, shape[0]).astype("i4")
    for times, x in zip((1, ALIKE), positive(shape), strict=True):
        sums = P.scatter_new((3, *shape[1:]), (from_numpy(segments),), from_numpy(x), (0,))
        near(sums, np.stack([x.astype("f8")[segments == k].sum(0) for k in range(3)]), shape[0] // 3, times)


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (16, 16)])
def test_gradients_of_filters(schedule, channels, groups):
    from keras import ops

    for times, x in zip((1, ALIKE), positive((4, 66, 66, channels)), strict=True):
        kernel = from_numpy(np.ones((3, 3, channels // groups, 16), "f4"))
        convolve = jit(lambda x, w: P.reduce_sum(ops.conv(x, w), (0, 1, 2, 3)))
        with GradientTape() as tape:
            tape.watch([kernel])
            total = convolve(from_numpy(x), kernel)
        (gradient,) = tape.gradient(total, [kernel])
        windows = np.lib.stride_tricks.sliding_window_view(x.astype("f8"), (64, 64), (1, 2)).sum((0, 4, 5))
        expected = np.repeat(windows[..., None], 16, -1) if groups == 1 else windows[:, :, None, :]
        near(gradient, expected, 4 * 64 * 64, times)


def test_moments_of_what_lies_far_from_zero(schedule):
    """As timestamps do: a deviation of a millionth of the mean, which other frameworks lose."""
    from keras import ops

    steps = np.resize(np.float32([0, 1, 2]), 210_000)
    for far in (1e4, 1e5, 1e6):
        x = (steps * (far / 1e6) + far).astype("f4")
        for shape, axes in (((210_000,), (0,)), ((210_000, 1), (0,)), ((1, 210_000), (1,)), ((21_000, 10), (0, 1)), ((700, 300), (0, 1))):
            mean, variance = ops.moments(from_numpy(x.reshape(shape)), axes)
            exact = x.astype("f8")
            assert abs(np.mean(to_numpy(mean)) - exact.mean()) < 0.5 * exact.std()
            assert abs(np.mean(to_numpy(variance)) / exact.var() - 1) < 0.25


def test_short_sums_are_one_chain():
    assert summation.blocks([summation.ALONE]) == [((), False)]
    assert summation.cut("float32", "float", ["s"], lambda start, stop: f"{start} {stop}", "0", "n", summation.PRODUCT_ALONE) == "0 n"
    assert summation.cut("int32", "int", ["s"], lambda start, stop: f"{start} {stop}", "0", "n", 10**9) == "0 n"


@pytest.mark.parametrize("steps", [(49,), (100,), (5000,), (10**8,), (300, 7), (7, 300), (17, 17, 17), (10**4, 10**4), (3, 3, 10**6)])
def test_no_chain_is_long(steps):
    inside = 1  # terms of the chain that goes on in the loop around
    for n, (sizes, fresh) in zip(steps[::-1], summation.blocks(steps)[::-1], strict=True):
        around = [n, *sizes, 1]
        links = [-(-larger // smaller) for larger, smaller in zip(around, around[1:], strict=False)]
        chains = [*links[:-1], links[-1] * (1 if fresh else inside)]
        assert max(chains) <= summation.ALONE
        inside = chains[0]
