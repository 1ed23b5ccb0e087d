"""Reductions by teams of work-items against NumPy in float64: rows and columns of all lengths, and what is computed from them."""

import dataclasses
import re

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.core.dim import Dim
from tests.compiler.graphs import graph_of
from tests.devices import another
from tests.pairwise import pairwise

LENGTHS = (0, 1, 3, 8, 17, 64, 129, 1000)
EXTENTS = {"known": int, "unknown": lambda n: Dim(n, 100), "unknown, of a short hint": lambda n: Dim(n, 9), "arguments": int}


WIDTHS = (1, 4)  # of vectors


@pytest.fixture(params=WIDTHS)
def device(request):
    """A device that takes itself for a GPU of many units, without and with vectors."""
    device = another()
    device.traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=64, vector_width=request.param)
    return device


def run(device, function, *arrays, extents="known"):
    """(result, or list of several, and the Executable) of a function of primitives. extents: one of EXTENTS, or the like of them."""
    shapes = [tuple(map(EXTENTS.get(extents, extents), a.shape)) for a in arrays]
    graph, inputs = graph_of(function, *((shape, a.dtype.name) for shape, a in zip(shapes, arrays, strict=True)))
    executable = Executable(device, graph, inputs, all_arguments=extents == "arguments")
    results = executable.run([device.upload(a if a.size else np.zeros(1, a.dtype)) for a in arrays])
    shapes = [tuple(map(int, node.shape)) for node in graph.outputs]
    got = [device.download(result, np.dtype(arrays[0].dtype), shape) for result, shape in zip(results, shapes, strict=True)]
    return got if len(got) > 1 else got[0], executable


def array(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("f4")


def teams(executable):
    """How many kernels fold through local memory."""
    return sum(any(a.kind == "local" for a in launch.args) for launch in executable.launches)


@pytest.mark.parametrize("device,axes,length,extents", pairwise(WIDTHS, [(1,), (0,), (0, 1)], LENGTHS, EXTENTS), indirect=["device"])
def test_sums(device, axes, length, extents):
    for other in (1, 5, 70):
        x = array(*((other, length) if 1 in axes else (length, other)))
        got, _ = run(device, lambda x: P.reduce_sum(x, axes), x, extents=extents)
        np.testing.assert_allclose(got, x.astype("f8").sum(axes), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("shape,axes", [((3, 40, 5, 7), (1, 3)), ((3, 40, 5, 7), (0, 2)), ((6, 2, 300), (0, 2)), ((300, 2, 6), (0, 2))])
def test_axes_that_do_not_merge(device, shape, axes):
    x = array(*shape)
    for extents in EXTENTS:
        got, _ = run(device, lambda x: P.reduce_sum(x, axes), x, extents=extents)
        np.testing.assert_allclose(got, x.astype("f8").sum(axes), rtol=1e-5, atol=2e-4)


def test_items_leave_a_loop_around_others_together_where_one_by_one_is_miscompiled(device):
    """A second loop, inside the shared one, runs under a condition then; without the quirk the shared loop's own condition is enough."""
    x, texts = array(3, 40, 5, 7), []
    for quirks in (frozenset({"divergent_loops"}), frozenset()):
        device.traits = dataclasses.replace(device.traits, quirks=quirks)
        graph, inputs = graph_of(lambda x: P.reduce_sum(x, (1, 3)), (x.shape, "float32"))
        (launch,) = Executable(device, graph, inputs).launches
        texts.append(launch.text())
        if quirks or device.platform != "Portable Computing Language":
            got, _ = run(device, lambda x: P.reduce_sum(x, (1, 3)), x)
            np.testing.assert_allclose(got, x.astype("f8").sum((1, 3)), rtol=1e-5, atol=2e-4)
    together, alone = (re.search(r"for \(int (\w+) = 0( \+ part)?.*\n(.*)", text) for text in texts)
    assert together[2] is None and f"= {together[1]} + part" in together[3]
    assert alone[2] == " + part"


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinities(device, axis, name):
    """Wherever in a row they are."""
    for place in (0, 7, 100, 256, 299):
        for value in (np.nan, np.inf, -np.inf):
            x = np.ones((300, 300), "f4")
            x[place] = x[:, place] = value
            x[3] = x[:, 3] = 1
            with np.errstate(invalid="ignore"):
                want = getattr(np, name)(x.astype("f8"), axis)
            np.testing.assert_array_equal(run(device, lambda x: getattr(P, f"reduce_{name}")(x, (axis,)), x)[0], want)


def softmax(x):
    kept = tuple(range(len(x.shape) - 1))
    powers = P.exp(P.sub(x, P.broadcast(P.reduce_max(x, (len(kept),)), x.shape, kept)))
    return P.div(powers, P.broadcast(P.reduce_sum(powers, (len(kept),)), x.shape, kept))


def softmax_reference(x):
    powers = np.exp(x.astype("f8") - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


ROWS = [(1, 1), (1, 3000), (5, 7), (3, 64), (9, 100), (2, 3, 130), (33, 257)]


@pytest.mark.parametrize("device,shape,extents", pairwise(WIDTHS, ROWS, EXTENTS), indirect=["device"])
def test_rows_are_reduced_and_computed_by_one_kernel(device, shape, extents):
    x = 5 * array(*shape)
    got, executable = run(device, softmax, x, extents=extents)
    np.testing.assert_allclose(got, softmax_reference(x), atol=1e-6)
    if extents == "known":
        assert len(executable.launches) == 1 and teams(executable) == (shape[-1] >= 8)


def test_a_row_without_a_finite_element(device):
    x = array(4, 100)
    x[1], x[2, 30] = -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        want = softmax_reference(x)
    np.testing.assert_allclose(run(device, softmax, x)[0], want, atol=1e-6)


def stored_softmax(x):
    """What a gradient asks for as well: the exponentials, and the sum of each row, once with an axis of extent 1."""
    kept = tuple(range(len(x.shape) - 1))
    powers = P.exp(P.sub(x, P.broadcast(P.reduce_max(x, (len(kept),)), x.shape, kept)))
    total = P.reduce_sum(powers, (len(kept),))
    column = P.reshape(P.neg(total), (*total.shape, 1))
    shares = P.div(powers, P.broadcast(total, x.shape, kept))
    return P.add(shares, P.broadcast(column, x.shape, (*kept, len(kept)))), powers, total, column


STORED_ROWS = [(1, 1), (5, 7), (1, 400), (9, 100), (2, 3, 130), (3, 1, 130), (33, 257), (3, 9001)]


@pytest.mark.parametrize("device,shape,extents", pairwise(WIDTHS, STORED_ROWS, EXTENTS), indirect=["device"])
def test_what_there_is_once_for_a_row_is_stored_with_the_rows(device, shape, extents):
    x = array(*shape)
    (got, powers, total, column), executable = run(device, stored_softmax, x, extents=extents)
    want = np.exp(x.astype("f8") - x.max(-1, keepdims=True))
    np.testing.assert_allclose(powers, want, rtol=1e-5)
    np.testing.assert_allclose(total, want.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(column, -want.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(got, softmax_reference(x) - want.sum(-1, keepdims=True), rtol=1e-5)
    if extents == "known" and 64 < shape[-1] < 8192:
        assert len(executable.launches) == 1


def test_results_of_rows_without_elements(device):
    for shape in ((0, 300), (4, 0)):
        (got, powers, total, _), _ = run(device, lambda x: stored_softmax(P.add(x, x)), np.zeros(shape, "f4"))
        assert got.shape == powers.shape == shape
        np.testing.assert_array_equal(total, np.zeros(shape[0]))


def test_rows_of_two_lengths_have_kernels_of_their_own(device):
    """In one, the longer ones would be reduced again for each of the shorter."""
    x = array(4, 70, 90)

    def normalised(x):
        outer, inner = P.reduce_sum(x, (1, 2)), P.reduce_max(x, (2,))
        return P.mul(P.sub(x, P.broadcast(outer, x.shape, (0,))), P.broadcast(inner, x.shape, (0, 1))), outer, inner

    (got, outer, inner), executable = run(device, normalised, x)
    np.testing.assert_allclose(outer, x.astype("f8").sum((1, 2)), atol=1e-3)
    np.testing.assert_array_equal(inner, x.max(2))
    np.testing.assert_allclose(got, (x - outer[:, None, None]) * inner[..., None], rtol=1e-4, atol=1e-4)
    assert len(executable.launches) == 2


def test_few_long_rows_are_cut_where_little_is_reduced(device):
    """Each part of a row has groups of its own, which reduce again."""
    x, w = array(3, 20001), array(64, 3)

    def scaled(x, w):
        return P.mul(x, P.broadcast(P.reduce_sum(w, (0,)), x.shape, (0,)))

    for extents in EXTENTS:
        got, executable = run(device, scaled, x, w, extents=extents)
        np.testing.assert_allclose(got, x * w.astype("f8").sum(0)[:, None], rtol=1e-4, atol=1e-4)
        if extents == "known":
            (launch,) = executable.launches
            assert np.prod(launch.grid) > 20 * np.prod(launch.group)


def test_a_scalar_is_reduced_by_every_group(device):
    x, w = array(70, 301), array(1000)
    got, executable = run(device, lambda x, w: P.mul(x, P.broadcast(P.reduce_max(w, (0,)), x.shape, ())), x, w)
    np.testing.assert_allclose(got, x * w.max(), rtol=1e-6)
    (launch,) = executable.launches
    assert teams(executable) and np.prod(launch.grid) > np.prod(launch.group)


def test_what_is_computed_from_columns(device):
    x, y = array(1000, 37), array(37)
    got, executable = run(device, lambda x, y: P.add(P.exp(y), P.mul(P.reduce_sum(x, (0,)), P.reduce_max(x, (0,)))), x, y)
    np.testing.assert_allclose(got, np.exp(y) + x.astype("f8").sum(0) * x.max(0), rtol=1e-4, atol=1e-3)
    assert teams(executable) == len(executable.launches)


def test_long_reductions_inside_one_another_have_kernels_of_their_own(device):
    """In one, an item would go through the inner ones alone."""
    x = array(40, 500)
    got, executable = run(device, lambda x: P.reduce_sum(P.exp(P.reduce_max(x, (1,))), (0,)), x)
    np.testing.assert_allclose(got, np.exp(x.max(1).astype("f8")).sum(), rtol=1e-5)
    assert teams(executable) == len(executable.launches) == 2


@pytest.mark.parametrize("axis", [0, 1])
def test_booleans_and_small_dtypes(device, axis):
    x = np.random.default_rng(0).integers(0, 100, (60, 90)).astype("i1")
    got, _ = run(device, lambda x: P.convert(P.reduce_and(P.lt(x, P.full(x.shape, 99, "int8")), (axis,)), "int8"), x)
    np.testing.assert_array_equal(got, (x < 99).all(axis))
    np.testing.assert_array_equal(run(device, lambda x: P.reduce_sum(x, (axis,)), x)[0], x.astype("i8").sum(axis).astype("i1"))


COUNTS = {"float32": 4, "float16": 4, "int8": 4, "int64": 2}


@pytest.mark.parametrize("device,length,dtype,extents", pairwise(WIDTHS, [16, 36, 60], COUNTS, ["known", "arguments"]), indirect=["device"])
def test_items_take_aligned_vectors_of_short_rows(device, length, dtype, extents):
    """So that those beside one another read whole lines; where rows begin anywhere they take single elements."""
    count = COUNTS[dtype]
    x = np.random.default_rng(length).integers(0, 2, (70, length)).astype(dtype)
    wide = "int64" if dtype == "int64" else "float32"

    def dot(x):
        return P.reduce_sum(P.convert(P.mul(x, x), wide), (1,))

    got, executable = run(device, lambda x: P.convert(dot(x), dtype), x, extents=extents)
    np.testing.assert_array_equal(got, (x.astype("i8") ** 2).sum(1).astype(dtype))
    assert f"part * {count}" in executable.launches[0].body
    got, executable = run(device, lambda x: P.convert(dot(P.slice(x, (0, 1), x.shape)), dtype), x, extents=extents)
    np.testing.assert_array_equal(got, (x.astype("i8")[:, 1:] ** 2).sum(1).astype(dtype))


def test_results_are_the_same_from_run_to_run(device):
    x = array(3000, 33)
    first, executable = run(device, lambda x: P.reduce_sum(x, (0,)), x)
    for _ in range(3):
        (again,) = executable.run([device.upload(x)])
        np.testing.assert_array_equal(device.download(again, np.dtype("f4"), (33,)), first)
