"""Layouts of matrix units against their definitions, and products on units that are emulated on the current device."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from keras_ocl.core import dtypes
from keras_ocl.kernels import matrix_unit
from keras_ocl.kernels.matrix_contraction import MatrixTile
from keras_ocl.kernels.matrix_unit import EMULATED, Layout
from tests.kernels.gemm.test_gemm import multiply_all, random
from tests.kernels.units import REPLICATED, UNITS, bound, traits_with

names = [unit.name for unit in UNITS]


def places(unit, layout):
    return [layout.place(lane, element) for lane in range(unit.lanes) for element in range(layout.elements)]


@pytest.mark.parametrize("unit", UNITS, ids=names)
def test_fragments_hold_each_element_equally_often(unit):
    for layout, extents in ((unit.a, (unit.rows, unit.steps)), (unit.b, (unit.columns, unit.steps)), (unit.c, (unit.rows, unit.columns))):
        held = collections.Counter(places(unit, layout))
        copies = 2 if unit is REPLICATED and layout is not unit.c else 1
        assert held == dict.fromkeys(itertools.product(*map(range, extents)), copies)


def test_the_emulated_layouts_are_those_that_nvidia_documents():
    """Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": its formulas for a lane's elements."""
    for lane in range(32):
        group, member = lane // 4, lane % 4
        a = [(group + (8 if i in (2, 3, 6, 7) else 0), member * 2 + i % 2 + (8 if i >= 4 else 0)) for i in range(8)]
        b = [(group, member * 2 + i % 2 + (8 if i >= 2 else 0)) for i in range(4)]
        c = [(group + (8 if i >= 2 else 0), member * 2 + i % 2) for i in range(4)]
        for layout, wanted in ((EMULATED.a, a), (EMULATED.b, b), (EMULATED.c, c)):
            assert [layout.place(lane, i) for i in range(layout.elements)] == wanted


@pytest.mark.parametrize("unit", UNITS, ids=names)
def test_texts_are_the_places(unit):
    """C's and Python's operators agree on them."""
    for layout in (unit.a, unit.b, unit.c):
        for lane, element in itertools.product(range(unit.lanes), range(layout.elements)):
            assert tuple(eval(text, {"lane": lane}) for text in layout.texts(element)) == layout.place(lane, element)


@pytest.mark.parametrize("unit", UNITS, ids=names)
def test_sums_are_rows_and_columns_of_a_lane(unit):
    numbers = [unit.sums(r, c) for r in range(unit.lane_rows) for c in range(unit.lane_columns)]
    assert sorted(numbers) == list(range(unit.c.elements))
    for r, c in itertools.product(range(unit.lane_rows), range(unit.lane_columns)):
        row, column = unit.c.place(0, unit.sums(r, 0))[0], unit.c.place(0, unit.sums(0, c))[1]
        assert unit.c.place(0, unit.sums(r, c)) == (row, column)


def test_runs():
    assert [unit.a.run(1) for unit in UNITS] == [2, 4, 16, 1]
    assert [unit.b.run(1) for unit in UNITS] == [2, 4, 16, 16]
    assert [unit.c.run(1) for unit in UNITS] == [2, 1, 1, 1] and [unit.c.run(0) for unit in UNITS] == [1, 4, 1, 8]


def test_the_unit_of_a_product():
    assert matrix_unit.fitting((), "float16", "float32") is None
    assert matrix_unit.fitting(("emulated",), "float16", "float32") is matrix_unit.fitting(("emulated",), "bfloat16", "float32") is EMULATED
    for dtype, accumulator in (
        ("float32", "float32"),
        ("float64", "float64"),
        ("int8", "int32"),
        ("float16", "float64"),
        ("float8_e5m2", "float32"),
    ):
        assert matrix_unit.fitting(("emulated",), dtype, accumulator) is None, dtype
    with pytest.raises(ValueError, match="there is no matrix unit 'tensor'; the units are emulated"):
        matrix_unit.fitting(("emulated", "tensor"), "float16", "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("unit", UNITS, ids=names)
def test_products_by_each_unit(device, unit, dtype):
    """Of all loads of fragments: of several registers, of one, and of halves of one."""
    rng, problems = np.random.default_rng(20), []
    for (m, k, n), (down, across, tall, wide, depth) in (
        ((37, 43, 29), (1, 1, 1, 1, 16)),
        ((65, 80, 72), (2, 1, 1, 2, 32)),
        ((40, 17, 95), (1, 2, 2, 1, 16)),
    ):
        tile = MatrixTile.of(unit, down, across, tall, wide, depth)
        assert (tile.height, tile.width) == (down * tall * unit.rows, across * wide * unit.columns)
        assert (tile.waves, tile.waves_across, tile.tall, tile.wide) == (down * across, across, tall, wide)
        problems.append((random(rng, (1, m, k), dtype), random(rng, (1, k, n), dtype), dtype, dict(tile=tile)))
    for (a, b, _, options), found in zip(problems, multiply_all(device, traits_with(device), problems), strict=True):
        wanted = a.astype("f8") @ b.astype("f8")
        assert (abs(found - wanted) <= bound(a, b)).all(), (a.shape, b.shape, options)


def turned(bits):
    return bits[1:] + bits[:1]


WRONG = {
    f"{side}, {what}": {side: dataclasses.replace(getattr(EMULATED, side), **{what: turned(getattr(getattr(EMULATED, side), what))})}
    for side, what in itertools.product("abc", ("lane", "element"))
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_layout_is_noticed(device, wrong):
    """The emulated instruction has layouts of its own, as hardware has: a product by a table with other ones is wrong."""
    rng = np.random.default_rng(21)
    a, b = random(rng, (1, 16, 16), "float16"), random(rng, (1, 16, 8), "float16")
    units = EMULATED, dataclasses.replace(EMULATED, **wrong)
    problems = [(a, b, "float16", dict(tile=MatrixTile.of(unit, 1, 1, 1, 1, 16))) for unit in units]
    right, other = (abs(found - a.astype("f8") @ b.astype("f8")) for found in multiply_all(device, traits_with(device), problems))
    assert (right <= bound(a, b)).all() and (other > 100 * bound(a, b)).mean() > 0.3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_are_exact(device, dtype):
    """Sums of integers, whose float32 sums are exact, and the largest, smallest and infinite numbers of the dtype."""
    limits = dtypes.numpy_dtype(dtype)
    rng, largest = np.random.default_rng(22), {"float16": 65504, "bfloat16": 2.0**60}[dtype]
    whole = [rng.integers(-128, 128, shape).astype(limits) for shape in ((1, 33, 64), (1, 64, 17))]
    row = np.array([[largest, 1, 2.0**-14, 0, 3, -2]], limits)
    column = np.array([[2.0**-14, 3, 2.0**-14, 5, -1, 0.5]], limits)
    special = np.array([[np.inf, -np.inf, np.nan, 1, 0, 0]], limits)
    tile = MatrixTile.of(EMULATED, 1, 1, 1, 1, 16)
    problems = [(*whole, dtype, dict(tile=tile))]
    problems += [(a.T[None], b[None], dtype, dict(tile=tile)) for a, b in ((row, column), (special, column), (row, special))]
    found = multiply_all(device, traits_with(device), problems)
    np.testing.assert_array_equal(found[0], whole[0].astype("f8") @ whole[1].astype("f8"))
    for (a, b, *_), product in zip(problems[1:], found[1:], strict=True):
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(product, (a.astype("f4") @ b.astype("f4")), err_msg=f"{a} {b}")


def test_a_layout_moves_lines_or_steps():
    layout = Layout(((0, 4), (1, 0)), ((0, 1), (2, 0), (0, 2)))
    assert layout.texts(0) == ("(lane >> 1 & 1)", "(lane >> 0 & 1) * 4") and layout.texts(7)[1] == "(lane >> 0 & 1) * 4 + 3"
