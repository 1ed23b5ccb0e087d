"""Extents that vary: what is traced, and when a trace serves others."""

import functools
import gc
import threading

import numpy as np
import pytest

import keras_ocl
from keras_ocl import primitives as P
from keras_ocl.compiler import cache as caches
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core.dim import Dim

RNG = np.random.default_rng(5)


class Counted:
    """A function that remembers the shapes it was traced with."""

    def __init__(self, function, **options):
        self.shapes = []

        def counting(*xs):
            self.shapes.append([tuple(map(int.__int__, x.shape)) for x in xs])
            return function(*xs)

        self.jitted = Jitted(counting, **options)

    def __call__(self, *xs):
        """The results, and how many traces they took."""
        before = len(self.shapes)
        return self.jitted(*xs), len(self.shapes) - before


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def centred(x):
    mean = P.div(P.reduce_sum(x, (1,)), P.full((x.shape[0],), x.shape[1], x.dtype))
    return P.sub(x, P.broadcast(mean, x.shape, (0,)))


def test_from_the_third_extent_on_nothing_is_traced_or_built(built):
    function = Counted(centred)
    for n in (32, 37):
        function(normal(4, n))
    built.since()
    for n in (41, 5, 200, 33, 64, 37, 32, 6):
        x = normal(4, n)
        result, traces = function(x)
        np.testing.assert_allclose(to_numpy(result), x - x.mean(1, keepdims=True), rtol=1e-4, atol=1e-5)
        assert traces == 0, n
    assert built.since() == 0
    assert len(function.jitted.traces) == 2


def test_one_extent_stays_a_number():
    function = Counted(lambda x: P.exp(x))
    function(normal(4, 32))
    assert not any(isinstance(n, Dim) for t in function.jitted.traces for shape, _ in t._results for n in shape)


def test_unknown_at_once():
    function = Counted(centred, dynamic=True)
    function(normal(4, 32))
    _, traces = function(normal(7, 32))
    assert traces <= 1  # only to see that it is the same function
    assert len(function.jitted.traces) == 1


def test_an_axis_at_once_others_at_their_second_extent():
    function = Counted(centred, dynamic=(0,))
    for shape in ((4, 8), (6, 8), (3, 8)):
        function(normal(*shape))
    assert len(function.jitted.traces) == 1
    function(normal(3, 9))
    assert len(function.jitted.traces) == 2
    assert function(normal(5, 17))[1] == 0 and len(function.jitted.traces) == 2


def test_forbidden():
    function = Counted(centred, dynamic=False)
    for n in (8, 9, 10, 11):
        _, traces = function(normal(2, n))
        assert traces == 1


def branching(x):
    return P.exp(x) if x.shape[0] > 100 else P.neg(x)


def test_each_outcome_of_a_comparison_is_a_trace_of_its_own():
    function = Counted(branching)
    for n in (30, 40, 120, 35, 101, 100, 300, 99):
        x = normal(n)
        result, _ = function(x)
        np.testing.assert_allclose(to_numpy(result), np.exp(x) if n > 100 else -x, rtol=1e-5)
    assert len(function.jitted.traces) == 3  # with the first, which was of one extent
    for n in (55, 155):
        assert function(normal(n))[1] == 0


READERS = {
    "range": lambda x: functools.reduce(P.add, (P.mul(x, P.full(x.shape, float(k), x.dtype)) for k in range(x.shape[0])), x),
    "array": lambda x: P.mul(x, from_numpy(np.arange(x.shape[0], dtype="float32"))),
    "float": lambda x: P.mul(x, P.full(x.shape, 1.0 / x.shape[0], x.dtype)),
    "part": lambda x: P.mul(x, P.full(x.shape, float(len(range(x.shape[0] // 4))), x.dtype)),
}


@pytest.mark.parametrize("name", READERS)
def test_who_reads_the_number_behind_our_back_gets_a_trace_for_each(name):
    function = Counted(READERS[name])
    for n in (32, 33, 34, 50, 7, 34):
        x = normal(n)
        result, _ = function(x)
        expected = {
            "range": x + x * sum(range(n)),
            "array": x * np.arange(n),
            "float": x / n,
            "part": x * (n // 4),
        }[name]
        np.testing.assert_allclose(to_numpy(result), expected, rtol=1e-5, atol=1e-5)


def test_the_function_that_refuses_far_extents_serves_those_between():
    table = from_numpy(normal(64, 3))

    def looked_up(x):
        return P.add(x, P.slice(table, (0, 0), (x.shape[0], 3)))

    function = Counted(looked_up)
    for n in (20, 60, 40, 50, 21):
        x = normal(n, 3)
        np.testing.assert_allclose(to_numpy(function(x)[0]), x + to_numpy(table)[:n], rtol=1e-6)
    assert len(function.jitted.traces) == 2
    with pytest.raises(ValueError):
        function(normal(65, 3))
    assert to_numpy(function(normal(40, 3))[0]).shape == (40, 3)


def test_equal_extents_are_one_until_they_differ():
    function = Counted(lambda x, y: P.reduce_sum(P.concat((x, y), 0), (0,)))
    for n, m in ((5, 5), (8, 8), (9, 9), (6, 7), (4, 11), (3, 3)):
        x, y = normal(n), normal(m)
        np.testing.assert_allclose(to_numpy(function(x, y)[0]), x.sum() + y.sum(), rtol=1e-5)
    assert len(function.jitted.traces) == 3


def test_a_batch_that_equals_the_features_is_a_batch():
    function = Counted(lambda x, w: P.dot_general(x, w, ((1,), (0,))), dynamic=(0,))
    w = normal(16, 3)
    for n in (16, 5, 16, 9):
        x = normal(n, 16)
        np.testing.assert_allclose(to_numpy(function(x, w)[0]), x @ w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(7, 9, 11), (8, 8, 8), (9, 7, 5), (5, 10, 20)])
def test_unknowns_are_told_apart_whatever_their_first_extents(sizes):
    function = Counted(lambda x: (P.slice(x, (1, 0, 2), x.shape), P.reduce_sum(x, (1,)), P.concat((x, x), 0)), dynamic=True)
    for shape in (sizes, (6, 13, 4), (3, 3, 9), (12, 5, 5), (4, 6, 8)):
        x = normal(*shape)
        for got, expected in zip(function(x)[0], (x[1:, :, 2:], x.sum(1), np.concatenate((x, x))), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-4, atol=1e-5)


def test_an_extent_far_beyond_the_first_gets_kernels_of_its_own():
    function = Counted(centred)
    for n in (4, 5, 6, 4000, 4001, 3999):
        x = normal(2, n)
        np.testing.assert_allclose(to_numpy(function(x)[0]), x - x.mean(1, keepdims=True), rtol=1e-3, atol=1e-4)
    assert len(function.jitted.traces) == 3


def test_empty_and_single():
    function = Counted(lambda x: P.reduce_sum(P.exp(x), (0,)))
    for n in (3, 4, 0, 1, 5, 0, 2):
        x = normal(n, 2)
        np.testing.assert_allclose(to_numpy(function(x)[0]), np.exp(x).sum(0), rtol=1e-5)


def test_numbers_among_the_results():
    function = Counted(lambda x: {"n": x.shape[0], "x": P.neg(x), "pair": (2 * x.shape[0] + 1, "text")})
    for n in (3, 4, 7, 9):
        result, _ = function(normal(n))
        assert result["n"] == n and result["pair"] == (2 * n + 1, "text") and result["x"].shape == (n,)
        assert type(result["n"]) is int and type(result["x"].shape[0]) is int


def scanned(x):
    def step(i, carries, slices):
        a, b = carries
        return [P.add(P.mul(b, P.full(b.shape, 0.5, b.dtype)), slices[0]), a], [a]

    zeros = P.full((x.shape[1],), 0, x.dtype)
    (a, b), (ys,) = P.scan(step, [zeros, zeros], [x], x.shape[0])
    return a, b, ys


def test_loops_of_any_length_and_width():
    """Two carries that change places: the first step may begin with either buffer."""
    function = Counted(scanned)
    for n, width in ((12, 3), (13, 3), (17, 3), (4, 3), (9, 5), (10, 6), (3, 4)):
        x = normal(n, width)
        a = b = np.zeros(width, "float32")
        ys = []
        for row in x:
            ys.append(a)
            a, b = b * 0.5 + row, a
        for got, expected in zip(function(x)[0], (a, b, np.stack(ys)), strict=True):
            np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-5, atol=1e-6)
    assert len(function.jitted.traces) == 3


def test_host_operations():
    function = Counted(lambda x: P.cholesky(P.add(P.dot_general(x, x, ((0,), (0,))), from_numpy(np.eye(4, dtype="f4")))))
    square = Counted(lambda x: P.qr(x)[1])
    for n in (8, 9, 30, 12):
        x = normal(n, 4)
        np.testing.assert_allclose(to_numpy(function(x)[0]), np.linalg.cholesky(x.T @ x + np.eye(4)), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(np.abs(to_numpy(square(x.T.copy())[0])), np.abs(np.linalg.qr(x.T)[1]), rtol=1e-3, atol=1e-4)


def test_memory_follows_the_extents():
    function = Counted(lambda x: P.reduce_sum(P.sort((P.exp(x),), 1)[0], (0, 1)))
    for n in (100, 110, 50, 800, 120):
        x = normal(30, n)
        np.testing.assert_allclose(to_numpy(function(x)[0]), np.exp(x).sum(dtype="f8"), rtol=1e-4)
        requested = sum(nbytes for _, nbytes, _ in function.jitted.compiled(x).executable.requested())
        assert 30 * n * 4 <= requested <= 12 * 30 * n * 4


def test_what_is_known_of_values_goes_with_what_was_compiled_for_them(monkeypatch):
    monkeypatch.setattr(caches, "MOST", 4)
    function = Jitted(lambda x, k: P.mul(x, P.full(x.shape, k, x.dtype)))
    for k in range(20):
        np.testing.assert_array_equal(to_numpy(function(np.ones(3, "f4"), float(k))), np.full(3, k))
    gc.collect()
    assert len(function._families) <= 4


@pytest.mark.parametrize("dynamic", [0, 1, "all", (0, -1), [0], (0.5,)])
def test_axes_that_are_none(dynamic):
    with pytest.raises(TypeError, match="keras_ocl.jit: dynamic is .*; it is None, True, False or a tuple of numbers of axes"):
        keras_ocl.jit(lambda x: x, dynamic=dynamic)


def test_threads_with_other_extents():
    function = keras_ocl.jit(centred)
    for n in (32, 37, 41):
        function(normal(4, n))
    failed = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            x = rng.normal(size=(4, rng.integers(5, 90))).astype("float32")
            got = to_numpy(function(x))
            if got.shape != x.shape or not np.allclose(got, x - x.mean(1, keepdims=True), rtol=1e-4, atol=1e-4):
                failed.append(x.shape)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_what_is_forgotten_is_traced_again():
    function = Counted(centred)
    for n in (8, 9, 10):
        function(normal(2, n))
    function.jitted._compiled.clear()
    gc.collect()
    assert not function.jitted._families
    x = normal(2, 11)
    np.testing.assert_allclose(to_numpy(function(x)[0]), x - x.mean(1, keepdims=True), rtol=1e-4, atol=1e-5)
