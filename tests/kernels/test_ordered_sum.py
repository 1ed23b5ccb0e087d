"""Sums of parts, with an item or a team per element and in vectors along rows: equal to NumPy's sums in the same order, to the last bit."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import runtime
from keras_ocl.core.dim import Dim, product
from keras_ocl.kernels import ordered_sum
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.spec import Sink
from tests.kernels.launching import launch, named
from tests.pairwise import pairwise

SHAPES = [(1,), (19,), (1, 1), (33, 1), (1, 33), (5, 16), (7, 3), (2, 3, 5, 21), (70, 40)]


def summed(write, parts, wrap=lambda n: n):
    """What the kernel of `write(name, buffer, count, shape, dtype, sink)` makes of `parts`."""
    device, shape, dtype = runtime.current_device(), parts.shape[1:], str(parts.dtype)
    given_shape = tuple(map(wrap, shape))
    spec = write("sum", named("x"), wrap(len(parts)), given_shape, dtype, Sink(named("y"), given_shape, dtype))
    buffers = {"x": device.upload(parts), "y": device.upload(np.full(shape, 77, dtype))}
    launch(device, [spec], buffers)
    return device.download(buffers["y"], dtype, shape)


WRITERS = {"items": ordered_sum.kernel} | {
    f"vectors of {width}, {least} per item": functools.partial(ordered_sum.in_vectors, width=width, least=least)
    for width in (1, 4, 16)
    for least in (1, 64)
}

TEAMS = {f"teams of {team}": functools.partial(ordered_sum.kernel, team=team) for team in (2, 16)}
SMALL = {"teams of 8 in groups of 32": functools.partial(ordered_sum.kernel, team=8, group=32)}


EXTENTS = {"literal": lambda n: n, "unknown": lambda n: Dim(n, 8, 1009 + 2 * n)}


@pytest.mark.parametrize("writer,shape,extents", pairwise(WRITERS, SHAPES, EXTENTS))
def test_sums_are_those_of_numpy_in_order(writer, shape, extents):
    parts = np.random.default_rng(len(shape)).standard_normal((5, *shape)).astype("float32")
    want = parts[0].copy()
    for part in parts[1:]:
        want += part
    np.testing.assert_array_equal(summed(WRITERS[writer], parts, EXTENTS[extents]), want)


@pytest.mark.parametrize("count,shape,extents", pairwise([1, 7, 37], SHAPES, EXTENTS))
def test_members_of_a_team_sum_neighbouring_parts(count, shape, extents):
    parts = np.random.default_rng(count).standard_normal((count, *shape)).astype("float32")
    each, want = -(-count // 4), 0
    for first in range(0, count, each):
        of_member = parts[first].copy()
        for part in parts[first + 1 : first + each]:
            of_member += part
        want = want + of_member
    np.testing.assert_array_equal(summed(functools.partial(ordered_sum.kernel, team=4), parts, EXTENTS[extents]), want)


def test_teams_fill_a_device_and_no_more():
    assert [ordered_sum.team(count, 1000, 2**15) for count in (1, 15, 16, 64, 1000)] == [1, 2, 4, 16, 16]
    assert [ordered_sum.team(1000, elements, 2**15) for elements in (1, 2**12, 2**14, 2**15)] == [16, 8, 2, 1]


def test_groups_of_teams_can_be_joined_with_those_of_other_reductions():
    of_others = tuning_of(runtime.read_record("sm_90")).team
    for write in TEAMS.values():
        spec = write("sum", named("x"), 40, (1000,), "float32", Sink(named("y"), (1000,), "float32"))
        assert product(spec.group) == of_others


@pytest.mark.parametrize("write", (WRITERS | TEAMS | SMALL).values(), ids=WRITERS | TEAMS | SMALL)
def test_all_extents_may_be_arguments(write):
    parts = np.random.default_rng(0).integers(-9, 9, (4, 9, 13)).astype("int32")
    np.testing.assert_array_equal(summed(functools.partial(write, all_arguments=True), parts), parts.sum(0))


@pytest.mark.parametrize("write", (WRITERS | TEAMS | SMALL).values(), ids=WRITERS | TEAMS | SMALL)
def test_nan_and_infinities(write):
    parts = np.zeros((3, 4, 18), "float32")
    parts[1, 0, 0], parts[0, 3, 17], parts[2, 1, 16], parts[1, 1, 16] = np.nan, np.inf, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(summed(write, parts), parts.sum(0))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(1, 20), min_size=1, max_size=3), st.sampled_from([1, 2, 8]), st.integers(1, 99))
def test_any_shape(count, shape, width, least):
    parts = np.random.default_rng(count).integers(-9, 9, (count, *shape)).astype("int32")
    write = functools.partial(ordered_sum.in_vectors, width=width, least=least)
    np.testing.assert_array_equal(summed(write, parts), parts.sum(0))
