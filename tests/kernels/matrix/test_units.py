"""Layouts of matrix units against the vendors' formulas, and products on units that are emulated on the current device."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from keras_ocl.core import dtypes
from keras_ocl.core.precision import PRECISIONS
from keras_ocl.kernels.matrix import units
from keras_ocl.kernels.matrix.contraction import MatrixTile
from keras_ocl.kernels.matrix.expansion import TF32 as TF32_TERM
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import TF32, in_memory
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
        assert {dtypes.itemsize(in_memory(dtype)) for dtype in unit.dtypes} == {unit.size}


def _mma(lane):
    """Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16 (mma.m16n8k8) with floating point type"."""
    group, member = lane // 4, lane % 4
    return (
        lambda i: (group + (8 if i in (2, 3, 6, 7) else 0), member * 2 + i % 2 + (8 if i >= 4 else 0)),
        lambda i: (group, member * 2 + i % 2 + (8 if i >= 2 else 0)),
        lambda i: (group + (8 if i >= 2 else 0), member * 2 + i % 2),
    )


def _tf32(lane):
    """The same document, "Matrix Fragments for mma.m16n8k8" with .tf32."""
    group, member = lane // 4, lane % 4
    return (
        lambda i: (group + (8 if i in (1, 3) else 0), member + (4 if i >= 2 else 0)),
        lambda i: (group, member + (4 if i else 0)),
        lambda i: (group + (8 if i >= 2 else 0), member * 2 + i % 2),
    )


def _mma_i8(lane):
    """The same document, "Matrix Fragments for mma.m16n8k32" with .s8."""
    group, member = lane // 4, lane % 4
    return (
        lambda i: (group + (8 if 4 <= i < 8 or i >= 12 else 0), member * 4 + i % 4 + (16 if i >= 8 else 0)),
        lambda i: (group, member * 4 + i % 4 + (16 if i >= 4 else 0)),
        lambda i: (group + (8 if i >= 2 else 0), member * 2 + i % 2),
    )


def _mma_i8_sm_75(lane):
    """The same document, "Matrix Fragments for mma.m8n8k16"."""
    group, member = lane // 4, lane % 4
    return (*[lambda i: (group, member * 4 + i)] * 2, lambda i: (group, member * 2 + i))


def _mfma(side, each):
    """Matrix Instruction Calculator: the first `side` lanes hold the operands' first `each` steps, those behind them the next. Of the sums,
    a lane has four rows of a column, then the four that lie behind those of the other lanes."""
    return lambda lane: (
        *[lambda i: (lane % side, lane // side * each + i)] * 2,
        lambda i: (i // 4 * (256 // side) + lane // side * 4 + i % 4, lane % side),
    )


def _gfx11(lane):
    """ "RDNA3" manual, "Wave Matrix Multiply Accumulate": every lane holds a line, and every other row of a column of the sums."""
    return (*[lambda i: (lane % 16, i)] * 2, lambda i: (2 * i + lane // 16, lane % 16))


def _gfx12(lane):
    """ "RDNA4" manual: half a line, and half a column of the sums."""
    return (*[lambda i: (lane % 16, lane // 16 * 8 + i)] * 2, lambda i: (lane // 16 * 8 + i, lane % 16))


def _dpas_8(lane):
    """cl_intel_subgroup_matrix_multiply_accumulate: a work-item of eight has an int, of two steps, of each row."""
    return lambda i: (i // 2, 2 * lane + i % 2), lambda i: (lane, i), lambda i: (i, lane)


def _dpas_16(lane):
    """The same: a work-item of sixteen has a short of each row."""
    return lambda i: (i, lane), lambda i: (lane, i), lambda i: (i, lane)


def _dpas_8_i8(lane):
    """The same: an int has four steps of a row."""
    return lambda i: (i // 4, 4 * lane + i % 4), lambda i: (lane, i), lambda i: (i, lane)


DOCUMENTED = {
    "mma_m16n8k16": _mma,
    "mma_m16n8k8": _mma,
    "mma_m16n8k8_tf32": _tf32,
    "wmma_gfx11": _gfx11,
    "wmma_gfx12": _gfx12,
    "mfma_16x16x16": _mfma(16, 4),
    "mfma_32x32x8": _mfma(32, 4),
    "mfma_32x32x2": _mfma(32, 1),
    "mfma_16x16x8_xf32": _mfma(16, 2),
    "mfma_32x32x4_xf32": _mfma(32, 2),
    "dpas_8": _dpas_8,
    "dpas_16": _dpas_16,
    "mma_m16n8k32_i8": _mma_i8,
    "mma_m8n8k16_i8": _mma_i8_sm_75,
    "wmma_gfx11_i8": _gfx11,
    "wmma_gfx12_i8": _gfx12,
    "mfma_32x32x16_i8": _mfma(32, 8),
    "mfma_16x16x32_i8": _mfma(16, 8),
    "mfma_32x32x8_i8": _mfma(32, 4),
    "mfma_16x16x16_i8": _mfma(16, 4),
    "dpas_8_i8": _dpas_8_i8,
    "emulated_i8": _mma_i8,
    "emulated": _mma,
    "emulated_tf32": _tf32,
}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_layouts_are_those_that_vendors_document(unit):
    for lane in range(unit.lanes):
        for layout, formula in zip((unit.a, unit.b, unit.c), DOCUMENTED[unit.name](lane), strict=True):
            assert [layout.place(lane, i) for i in range(layout.elements)] == [formula(i) for i in range(layout.elements)], lane


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
        "mma_m16n8k8_tf32": (1, 1, 2, 1),
        "wmma_gfx11": (16, 16, 1, 1),
        "wmma_gfx12": (8, 8, 1, 8),
        "mfma_16x16x16": (4, 4, 1, 4),
        "mfma_32x32x8": (4, 4, 1, 4),
        "mfma_32x32x2": (1, 1, 1, 4),
        "mfma_16x16x8_xf32": (2, 2, 1, 4),
        "mfma_32x32x4_xf32": (2, 2, 1, 4),
        "dpas_8": (2, 16, 1, 8),
        "dpas_16": (1, 16, 1, 8),
        "mma_m16n8k32_i8": (4, 4, 2, 1),
        "mma_m8n8k16_i8": (4, 4, 2, 1),
        "wmma_gfx11_i8": (16, 16, 1, 1),
        "wmma_gfx12_i8": (8, 8, 1, 8),
        "mfma_32x32x16_i8": (8, 8, 1, 4),
        "mfma_16x16x32_i8": (8, 8, 1, 4),
        "mfma_32x32x8_i8": (4, 4, 1, 4),
        "mfma_16x16x16_i8": (4, 4, 1, 4),
        "dpas_8_i8": (4, 32, 1, 8),
        "emulated_i8": (4, 4, 2, 1),
        "emulated": (2, 2, 2, 1),
        "emulated_tf32": (1, 1, 2, 1),
    }


def test_the_units_of_a_product():
    assert units.fitting((), "float16", "float32") == ()
    assert units.fitting(("emulated",), "float16", "float32") == units.fitting(("emulated",), "bfloat16", "float32") == (EMULATED,)
    several = "mma_m16n8k8", "mma_m16n8k16"
    assert units.fitting(several, "bfloat16", "float32") == (UNITS["mma_m16n8k16"],)
    assert units.fitting(several, "float16", "float32") == tuple(UNITS[name] for name in several)
    for dtype, accumulator in (
        ("float32", "float32"),
        ("float64", "float64"),
        ("int8", "int32"),
        ("uint8", "uint32"),
        ("float16", "float64"),
        ("float8_e5m2", "float32"),
    ):
        assert units.fitting(("emulated",), dtype, accumulator) == (), dtype
    with pytest.raises(ValueError, match="there is no matrix unit 'tensor'; the units are mma_m16n8k16, .*, emulated"):
        units.fitting(("emulated", "tensor"), "float16", "float32")


def test_integers_are_not_mixed_with_floats():
    there = "emulated", "emulated_i8"
    assert units.fitting(there, "int8", "int32") == (UNITS["emulated_i8"],)
    for dtype, accumulator in (("int8", "float32"), ("uint8", "uint32"), ("int32", "int32"), ("int16", "int32")):
        assert units.fitting(there, dtype, accumulator) == (), dtype


def test_the_methods_of_a_product():
    def names(units_there, *product):
        return [(unit.name, how.name if how else "") for unit, how in units.methods(units_there, *product)]

    there = "mma_m16n8k16", "mma_m16n8k8_tf32"
    six, three, one = (("mma_m16n8k16", name) for name in ("bf16x6", "bf16x3", "bf16"))
    assert names(there, "float32", "float32", "float32") == [six]
    assert names(there, "float32", "float32", "tf32") == [("mma_m16n8k8_tf32", "tf32"), three, six]
    assert names(there, "float32", "float32", "bfloat16") == [one, ("mma_m16n8k8_tf32", "tf32"), three, six]
    for dtype in ("float16", "bfloat16"):
        for precision in PRECISIONS:
            assert names(there, dtype, "float32", precision) == [("mma_m16n8k16", "")]
    assert names(("mma_m16n8k8",), "float32", "float32", "bfloat16") == [], "it takes no bfloat16"
    exact = ("mfma_32x32x2", "")
    assert names(("mfma_32x32x8", "mfma_32x32x2"), "float32", "float32", "float32") == [exact, ("mfma_32x32x8", "bf16x6")]
    assert names(there, "float64", "float64", "tf32") == names((), "float32", "float32", "tf32") == []


UNITS_AND_DTYPES = [(unit, dtype) for unit in EMULATED_UNITS.values() for dtype in unit.dtypes]


def whole(rng, shape):
    """All numbers of int8."""
    return rng.integers(-128, 128, shape, np.int8)


def check_products(device, unit, dtype, expansion=None):
    """expansion: of float32 operands that are multiplied as terms."""
    if dtype == TF32:
        expansion = TF32_TERM
    rng, problems, stored = np.random.default_rng(20), [], "float32" if expansion else dtype
    for (m, k, n), (down, across, tall, wide, depth), transposed in (
        ((37, 43, 29), (1, 1, 1, 1, 16), (False, False)),
        ((65, 80, 72), (2, 1, 1, 2, 32), (True, False)),
        ((40, 17, 95), (1, 2, 2, 1, 16), (False, True)),
    ):
        tile = MatrixTile.of(unit, down, across, tall, wide, max(depth, unit.steps), expansion)
        assert (tile.height, tile.width) == (down * tall * unit.rows, across * wide * unit.columns)
        assert (tile.waves, tile.waves_across, tile.tall, tile.wide) == (down * across, across, tall, wide)
        options = dict(tile=tile, transposed=transposed)
        operands = (whole(rng, shape) if stored == "int8" else random(rng, shape, stored) for shape in ((1, m, k), (1, k, n)))
        problems.append((*operands, stored, options))
    for (a, b, _, options), found in zip(problems, multiply_all(device, traits_with(device), problems), strict=True):
        wanted = a.astype("f8") @ b.astype("f8")
        if stored == "int8":
            np.testing.assert_array_equal(found, wanted, err_msg=f"{unit.name} {options}")
            continue
        assert (abs(found - wanted) <= bound(a, b, expansion)).all(), (unit.name, a.shape, b.shape, options)


@pytest.mark.parametrize(("unit", "dtype"), UNITS_AND_DTYPES, ids=[f"{unit.name} {dtype}" for unit, dtype in UNITS_AND_DTYPES])
def test_products_by_each_unit(device, unit, dtype):
    check_products(device, unit, dtype)


def test_products_by_the_devices_units(device):
    """By their own instructions."""
    if not device.traits.matrix_units:
        pytest.skip("the device has no matrix unit")
    for unit in map(units.named, device.traits.matrix_units):
        for dtype in unit.dtypes:
            check_products(device, unit, dtype)


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
