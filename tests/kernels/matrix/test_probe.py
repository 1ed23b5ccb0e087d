"""The probe of each unit, emulated on the current device: right rows pass, and each wrong entry of a table is noticed."""

import dataclasses
import itertools

import numpy as np
import pytest

from keras_ocl.compiler.matrix_units import outcome
from keras_ocl.kernels.matrix.probe import probe
from keras_ocl.kernels.matrix.units import EMULATED
from tests.kernels.matrix.emulated import EMULATED_UNITS

CASES = [(unit, dtype) for unit in EMULATED_UNITS.values() for dtype in unit.dtypes]


@pytest.mark.parametrize(("unit", "dtype"), CASES, ids=[f"{unit.name} {dtype}" for unit, dtype in CASES])
def test_a_right_unit_passes(device, unit, dtype):
    given = probe(unit, dtype)
    assert outcome(device, given) == ""
    sums = given.wanted[np.isfinite(given.wanted)]
    assert len(np.unique(sums)) > 0.3 * len(sums)
    assert dtype == "int8" or np.isinf(given.wanted).any() and np.isnan(given.wanted).any()


def turned(bits):
    return bits[1:] + bits[:1]


@pytest.mark.parametrize(("side", "what"), list(itertools.product("abc", ("lane", "element"))))
def test_a_wrong_layout_is_refused(device, side, what):
    layout = getattr(EMULATED, side)
    wrong = dataclasses.replace(EMULATED, **{side: dataclasses.replace(layout, **{what: turned(getattr(layout, what))})})
    assert outcome(device, probe(wrong, "float16")) == "its probe computes wrong values"


FLUSHED = """
float flushed(int i, const __local half* p) { const float v = vload_half(i, p); return fabs(v) < 0x1p-14f ? 0 : v; }
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("= vload_half(", "= flushed(", "its probe computes wrong values"),
        ("c0 = fma(x0, y0, c0)", "c0 = fma(x0, y0, 0)", "its probe computes wrong values"),
        ("#pragma unroll 1", "unknown_instruction(lane);", "the driver does not compile it: "),
    ],
    ids=["subnormal numbers are flushed, as CDNA2 does", "a sum begins again", "an unknown instruction"],
)
def test_a_unit_that_does_something_else_is_refused(device, old, new, reason):
    given = probe(EMULATED, "float16")
    assert old in given.source
    assert outcome(device, given._replace(source=FLUSHED + given.source.replace(old, new))).startswith(reason)
