"""Loops whose steps are one launch on GPUs: results and gradients as on a CPU, which loops those are, and unknown batches and lengths."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.run import sources
from keras_ocl.runtime.traits import read_traits
from tests.compiler.launch.loops.test_loops import gradients, loops, normal, run
from tests.drivers import on_rusticl

UNITS = [64, 3]  # compute units: a row a group, or several


@pytest.fixture(params=UNITS, ids=lambda n: f"{n} units")
def gpu(monkeypatch, request):
    """The current device takes itself for a GPU."""
    device = runtime.current_device()
    if on_rusticl():
        pytest.skip("llvmpipe's code of loops around barriers reads what it has overwritten itself (Mesa 25.0); Oclgrind finds nothing")
    if device.platform == "Oclgrind":  # 21.10 does not know the scopes that LLVM makes of joined kernels' `restrict`
        for name in ("side_by_side", "in_one_group"):
            monkeypatch.setattr(sources, name, lambda launches, traits, resolve: launches)
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, kind="gpu", schedule="gpu", compute_units=request.param))


def is_persistent(compiled):
    found = loops(compiled)
    assert found
    return all([launch.name.endswith(", all steps") for launch in loop.launches] == [True] for loop in found)


def gated(c, h, xs, u, reverse=False, history=True):
    """An LSTM's step, or nearly: gates side by side, two carries of which one is a result of every step."""
    units = c.shape[1]

    def step(_, carries, slices):
        c, h = carries
        z = P.reshape(P.add(P.dot_general(h, u, ((1,), (0,))), slices[0]), (c.shape[0], 3, units))
        i, f, o = (P.reshape(P.slice(z, (0, k, 0), (c.shape[0], k + 1, units)), c.shape) for k in range(3))
        c = P.add(P.mul(P.logistic(f), c), P.tanh(i))
        h = P.mul(P.logistic(o), P.tanh(c))
        return [c, h], [h] if history else []

    carries, ys = P.scan(step, [c, h], [xs], xs.shape[0], reverse)
    return (*carries, *ys)


def arrays(batch, units, length):
    shapes = (batch, units), (batch, units), (length, batch, 3 * units), (units, 3 * units)
    return [normal(*shape).astype("f4") for shape in shapes]


def reference(c, h, xs, u, reverse=False):
    """`gated` in float64."""
    c, h, xs, u = (a.astype("f8") for a in (c, h, xs, u))
    ys = np.empty((len(xs), *h.shape))
    for k in range(len(xs))[:: -1 if reverse else 1]:
        i, f, o = np.split(h @ u + xs[k], 3, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(i)
        h = np.tanh(c) / (1 + np.exp(-o))
        ys[k] = h
    return c, h, ys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch, units, length", [(1, 2, 2), (5, 7, 2), (8, 32, 5), (29, 33, 6), (3, 130, 3), (17, 4, 4)])
def test_gates(gpu, batch, units, length, reverse):
    given = arrays(batch, units, length)
    compiled, found = run(lambda *a: gated(*a, reverse=reverse), *given)
    assert is_persistent(compiled)
    for f, e in zip(found, reference(*given, reverse), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)


def test_functions_keep_restrict_where_it_ends_with_the_call(gpu, monkeypatch):
    device, given = runtime.current_device(), arrays(8, 32, 5)
    for quirks in ({"restrict_outlives_calls"}, {}):
        monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, quirks=frozenset(quirks)))
        compiled, found = run(gated, *given)
        functions = [text for loop in loops(compiled) for launch in loop.launches for text in launch.functions]
        assert functions and any("restrict" in text for text in functions) == (not quirks)
        for f, e in zip(found, reference(*given), strict=True):
            np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch, units, length", [(1, 3, 4), (13, 20, 5), (6, 33, 2)])
def test_gradients(gpu, batch, units, length, monkeypatch):
    given = arrays(batch, units, length)

    def loss(c, h, xs, u):
        last, _, ys = gated(c, h, xs, u)
        return P.add(P.reduce_sum(P.mul(ys, ys), (0, 1, 2)), P.reduce_sum(last, (0, 1)))

    compiled, found = run(lambda *a: gradients(loss, *a), *given)
    assert is_persistent(compiled) and len(loops(compiled)) == 2
    monkeypatch.undo()  # the device as it is
    _, expected = run(lambda *a: gradients(loss, *a), *given)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-4, atol=1e-5)


def test_other_batches_and_lengths_build_nothing(gpu):
    compiled, statistics = Jitted(gated, dynamic=(0, 1, 2)), runtime.current_device().statistics
    for batch, length in ((9, 4), (9, 3), (30, 7), (1, 6), (17, 5), (4, 1), (4, 0)):
        given = arrays(batch, 12, length)
        for f, e in zip(compiled(*given), reference(*given), strict=True):
            np.testing.assert_allclose(to_numpy(f), e, rtol=1e-5, atol=1e-5)
        if (batch, length) == (9, 4):
            assert is_persistent(compiled)
            builds = statistics.builds
        assert statistics.builds == builds or length < 2  # those are traced by themselves


def test_carries_that_are_no_products(gpu):
    """A scan without weights, of three axes and two dtypes."""
    x, counts = normal(4, 6, 5, 3).astype("f4"), np.arange(30, dtype="i4").reshape(6, 5)

    def step(_, carries, slices):
        total, n = carries
        n = P.add(n, P.full((6, 5), 2, "int32"))
        return [P.add(P.mul(total, P.full((6, 5, 3), 0.5, "float32")), slices[0]), n], []

    compiled, (total, n) = run(lambda x, n: P.scan(step, [P.full((6, 5, 3), 1.0, "float32"), n], [x], 4)[0], x, counts)
    assert is_persistent(compiled)
    expected = np.ones((6, 5, 3))
    for k in range(4):
        expected = expected * 0.5 + x[k]
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(n, counts + 8)


def turned(c, x):
    return P.add(P.transpose(c, (1, 0)), x)


OTHERS = {
    "a mean over the batch": lambda c, x: P.sub(x, P.broadcast(P.reduce_sum(c, (0,)), c.shape, (1,))),
    "a transpose": turned,
    "a transpose and back": lambda c, x: P.transpose(turned(P.tanh(c), x), (1, 0)),
    "the batch reversed": lambda c, x: P.add(P.reverse(c, (0,)), x),
    "a neighbour's row": lambda c, x: P.add(P.concat((P.slice(c, (1, 0), c.shape), P.slice(c, (0, 0), (1, c.shape[1]))), 0), x),
    "rows looked up": lambda c, x: P.add(P.gather(c, (P.reverse(P.iota((8,), 0, "int32"), (0,)),), (0,)), x),
    "a product over the batch": lambda c, x: P.add(P.dot_general(c, x, ((0,), (0,))), x),
    "a running sum over the batch": lambda c, x: P.cumsum(P.add(c, x), 0),
    "axes run together": lambda c, x: P.add(P.reshape(P.transpose(P.reshape(c, (2, 4, 8)), (1, 0, 2)), (8, 8)), x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_depend_on_others_are_not_persistent(gpu, name, monkeypatch):
    c, xs = normal(8, 8).astype("f4"), normal(3, 8, 8).astype("f4")

    def function(c, xs):
        return P.scan(lambda i, carries, slices: ([P.tanh(OTHERS[name](carries[0], slices[0]))], []), [c], [xs], 3)[0]

    compiled, found = run(function, c, xs)
    assert not is_persistent(compiled)
    monkeypatch.undo()
    np.testing.assert_allclose(found[0], run(function, c, xs)[1][0], rtol=1e-5, atol=1e-6)


def test_what_a_group_does_slower_than_launches_is_not_held(gpu):
    """Weights of eight megabytes, which every group would read in every step."""
    c, u = normal(4, 1400).astype("f4"), (normal(1400, 1400) / 40).astype("f4")

    def function(c, u):
        return P.scan(lambda i, carries, _: ([P.tanh(P.dot_general(carries[0], u, ((1,), (0,))))], []), [c], [], 3)[0]

    compiled, (found,) = run(function, c, u)
    assert not is_persistent(compiled)
    expected = c.astype("f8")
    for _ in range(3):
        expected = np.tanh(expected @ u)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def group(units, batch=4):
    """Work-items of the group that does all steps of a product and its tanh, None where each step is launched."""

    def function(c, u):
        return P.scan(lambda i, carries, _: ([P.tanh(P.dot_general(carries[0], u, ((1,), (0,))))], []), [c], [], 3)[0]

    compiled = Jitted(function)
    compiled.compiled(*(np.zeros(shape, "float32") for shape in ((batch, units), (units, units))))
    return loops(compiled)[0].launches[0].group[0] if is_persistent(compiled) else None


def test_weights_beyond_a_units_own_cache_are_read_by_more_items(monkeypatch):
    device = runtime.current_device()
    changes = dict(kind="gpu", schedule="gpu", compute_units=64, max_group=1024)
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, **changes))
    assert [group(units) for units in (30, 250, 300, 400, 900)] == [256, 256, 512, 512, None]
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, max_group=256))
    assert group(300) == 256


def test_the_setting_that_launches_each_step(gpu, monkeypatch):
    device = runtime.current_device()
    assert device.traits.persistent_loops and group(30)
    monkeypatch.setenv("KERAS_OCL_LOOPS", "launched")
    assert not read_traits(device.driver.handle).persistent_loops
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, persistent_loops=False))
    assert group(30) is None


@pytest.mark.parametrize("length, persistent", [(2**12, True), (2**20, False)])
def test_so_many_steps_that_a_watchdog_would_look_are_not_persistent(gpu, length, persistent):
    def function(x):
        return P.scan(lambda i, carries, _: ([P.mul(carries[0], P.full((4, 300), 0.5, "float32"))], []), [x], [], length)[0]

    compiled = Jitted(function)
    compiled.compiled(normal(4, 300).astype("f4"))  # nothing runs
    assert is_persistent(compiled) == persistent


@pytest.mark.parametrize("batch, persistent", [(20, True), (60_000, False)])
def test_batches_of_many_rounds_are_not_persistent(gpu, batch, persistent):
    """Each unit would do some hundred groups' steps, one after the other."""

    def function(c, u):
        return P.scan(lambda i, carries, _: ([P.tanh(P.dot_general(carries[0], u, ((1,), (0,))))], []), [c], [], 3)[0]

    compiled = Jitted(function)
    compiled.compiled(*(np.zeros(shape, "float32") for shape in ((batch, 100), (100, 100))))
    assert is_persistent(compiled) == persistent


def test_carries_of_different_leading_extents_are_not_persistent(gpu):
    a, b = normal(4, 3).astype("f4"), normal(5, 3).astype("f4")
    step = lambda i, carries, _: ([P.tanh(c) for c in carries], [])  # noqa: E731
    compiled, found = run(lambda a, b: P.scan(step, [a, b], [], 2)[0], a, b)
    assert not is_persistent(compiled)
    for f, x in zip(found, (a, b), strict=True):
        np.testing.assert_allclose(f, np.tanh(np.tanh(x)), rtol=1e-5)


def test_what_every_step_computes_of_its_number(gpu):
    """The number is the kernel's own; what is made of it alone belongs to no row."""

    def function(x):
        def step(i, carries, _):
            return [P.add(carries[0], P.broadcast(P.convert(i, "float32"), (5, 4), ()))], []

        return P.scan(step, [x], [], 6)[0]

    x = normal(5, 4).astype("f4")
    compiled, (found,) = run(function, x)
    assert is_persistent(compiled)
    np.testing.assert_allclose(found, x + 15, rtol=1e-5)
