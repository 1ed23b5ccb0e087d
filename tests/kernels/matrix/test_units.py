"""Layouts of matrix units against the vendors' formulas, and products on units that are emulated on the current device."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from keras_ocl.core import dtypes
from keras_ocl.kernels.matrix import units
from keras_ocl.kernels.matrix.contraction import MatrixTile
from keras_ocl.kernels.matrix.emulation import emulated
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.units import EMULATED, UNITS
from tests.kernels.gemm.test_gemm import multiply_all, random
from tests.kernels.matrix.emulated import EMULATED_UNITS, bound, traits_with

every_unit = pytest.mark.parametrize("unit", EMULATED_UNITS.values(), ids=EMULATED_UNITS)


def places(unit, layout):
    return [layout.place(lane, element) for lane in range(unit.lanes) for element in range(layout.elements)]


@every_unit
def test_fragments_hold_each_element_equally_often(unit):
    for layout, extents in ((unit.a, (unit.rows, unit.steps)), (unit.b, (unit.columns, unit.steps)), (unit.c, (unit.rows, unit.columns))):
        held = collections.Counter(places(unit, layout))
        assert held == dict.fromkeys(itertools.product(*map(range, extents)), unit.replicas if layout is not unit.c else 1)
        assert {dtypes.itemsize(dtype) for dtype in unit.dtypes} == {unit.size}


def _mma(k):
    """Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16 (mma.m16n8k8) with floating point type"."""
    a = lambda l, i: (l // 4 + (8 if (i & 2) else 0), l % 4 * 2 + i % 2 + (8 if i >= 4 else 0))  # noqa: E731
    return a, lambda l, i: (l // 4, l % 4 * 2 + i % 2 + (8 if i >= 2 else 0)), lambda l, i: (l // 4 + (8 if i >= 2 else 0), l % 4 * 2 + i % 2)


def _mfma(side, each):
    """Matrix Instruction Calculator: of the operands, lanes below `side` hold the first `each` steps, those behind them the next. Of the
    sums, a lane has four rows of a column, then the four that lie behind those of the other lanes."""
    operand = lambda l, i: (l % side, l // side * each + i)  # noqa: E731
    return operand, operand, lambda l, i: (i // 4 * (256 // side) + l // side * 4 + i % 4, l % side)


def _wmma(steps, apart):
    """"RDNA3" and "RDNA4" manuals, "Wave Matrix Multiply Accumulate": `steps` of k in the second half of a wave, rows `apart` in a lane."""
    operand = lambda l, i: (l % 16, l // 16 * steps + i)  # noqa: E731
    return operand, operand, lambda l, i: (apart * i + l // 16 * (1 if apart == 2 else 8), l % 16)


def _dpas(lanes):
    """cl_intel_subgroup_matrix_multiply_accumulate: a work-item of eight has an int of two steps of each row, one of sixteen a short."""
    a = (lambda l, i: (i // 2, 2 * l + i % 2)) if lanes == 8 else (lambda l, i: (i, l))
    return a, lambda l, i: (l, i), lambda l, i: (i, l)


DOCUMENTED = {
    "mma_m16n8k16": _mma(16),
    "mma_m16n8k8": _mma(8),
    "wmma_gfx11": _wmma(0, 2),
    "wmma_gfx12": _wmma(8, 1),
    "mfma_16x16x16": _mfma(16, 4),
    "mfma_32x32x8": _mfma(32, 4),
    "mfma_32x32x2": _mfma(32, 1),
    "dpas_8": _dpas(8),
    "dpas_16": _dpas(16),
    "emulated": _mma(16),
}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_layouts_are_those_that_vendors_document(unit):
    for layout, formula in zip((unit.a, unit.b, unit.c), DOCUMENTED[unit.name], strict=True):
        for lane, element in itertools.product(range(unit.lanes), range(layout.elements)):
            assert layout.place(lane, element) == formula(lane, element), (lane, element)


@every_unit
def test_texts_are_the_places(unit):
    """C's and Python's operators agree on them."""
    for layout in (unit.a, unit.b, unit.c):
        for lane, element in itertools.product(range(unit.lanes), range(layout.elements)):
            assert tuple(eval(text, {"lane": lane}) for text in layout.texts(element)) == layout.place(lane, element)


@every_unit
def test_sums_are_rows_and_columns_of_a_lane(unit):
    numbers = [unit.sums(r, c) for r in range(unit.lane_rows) for c in range(unit.lane_columns)]
    assert sorted(numbers) == list(range(unit.c.elements))
    for r, c in itertools.product(range(unit.lane_rows), range(unit.lane_columns)):
        row, column = unit.c.place(0, unit.sums(r, 0))[0], unit.c.place(0, unit.sums(0, c))[1]
        assert unit.c.place(0, unit.sums(r, c)) == (row, column)


def test_runs():
    """Elements of a register side by side: all loads of fragments, of several registers, of one, of halves of one, and of whole ones."""
    runs = {name: (unit.a.run(1), unit.b.run(1), unit.c.run(1), unit.c.run(0)) for name, unit in UNITS.items()}
    assert runs == {
        "mma_m16n8k16": (2, 2, 2, 1),
        "mma_m16n8k8": (2, 2, 2, 1),
        "wmma_gfx11": (16, 16, 1, 1),
        "wmma_gfx12": (8, 8, 1, 8),
        "mfma_16x16x16": (4, 4, 1, 4),
        "mfma_32x32x8": (4, 4, 1, 4),
        "mfma_32x32x2": (1, 1, 1, 4),
        "dpas_8": (2, 16, 1, 8),
        "dpas_16": (1, 16, 1, 8),
        "emulated": (2, 2, 2, 1),
    }


def test_the_unit_of_a_product():
    assert units.fitting((), "float16", "float32") is None
    assert units.fitting(("emulated",), "float16", "float32") is units.fitting(("emulated",), "bfloat16", "float32") is EMULATED
    assert units.fitting(("mma_m16n8k8", "mma_m16n8k16"), "bfloat16", "float32") is UNITS["mma_m16n8k16"]
    for dtype, accumulator in (
        ("float32", "float32"),
        ("float64", "float64"),
        ("int8", "int32"),
        ("float16", "float64"),
        ("float8_e5m2", "float32"),
    ):
        assert units.fitting(("emulated",), dtype, accumulator) is None, dtype
    with pytest.raises(ValueError, match="there is no matrix unit 'tensor'; the units are mma_m16n8k16, .*, emulated"):
        units.fitting(("emulated", "tensor"), "float16", "float32")


UNITS_AND_DTYPES = [(unit, dtype) for unit in EMULATED_UNITS.values() for dtype in unit.dtypes]


@pytest.mark.parametrize(("unit", "dtype"), UNITS_AND_DTYPES, ids=[f"{unit.name} {dtype}" for unit, dtype in UNITS_AND_DTYPES])
def test_products_by_each_unit(device, unit, dtype):
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
