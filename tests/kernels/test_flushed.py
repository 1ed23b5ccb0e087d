"""Elementwise ops at the ends of the range where denormal numbers are flushed, as compiled code does: no NaN and nothing far off by that.

What is right is what NumPy gives for the operands, or for the operands flushed, and near 0 either.
"""

import numpy as np
import pytest

from keras_ocl import runtime
from tests.elementwise import BINARY, UNARY
from tests.kernels.test_elementwise import Case, quiet, run

SIMPLE = set("neg abs sign relu floor ceil round trunc add sub mul max min copysign".split())  # one instruction
# An exponent's part of the range of numbers; 0 and infinity beside.
PLACES = [-1.18, -1.05, -1.01, -1, -0.995, -0.98, -0.95, -0.8, -0.52, -0.49, 0, 0.01, 0.48, 0.52, 0.8, 0.95, 0.98, 0.998, 1]


def values(dtype):
    limit = np.finfo(dtype)
    sizes = [2.0 ** (-place * limit.minexp if place >= 0 else place * -limit.minexp) * 1.125 for place in PLACES[:-1]]
    sizes += [0.0, float(limit.smallest_subnormal), float(limit.tiny), 3.0, float(limit.max), np.inf]
    return np.array([sign * size for size in sizes for sign in (1, -1)], dtype)


class Widest(Case):
    """At vector width alone, where there is one: compilers take long for these functions."""

    @property
    def widths(self):
        return super().widths[-1:]


def flushed(x):
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def cases(dtype):
    x = values(dtype)
    a, b = np.repeat(x, len(x)), np.tile(x, len(x))
    for op, row in {**UNARY, **BINARY}.items():
        if (
            op in SIMPLE or op in ("digamma", "lgamma", "nextafter") or dtype == "float64" and op in ("sin", "cos", "tan")
        ):  # steep, or huge arguments
            continue
        inputs = [x] if op in UNARY else [a, b]
        wide = [i.astype(row.wide(dtype)) for i in inputs]
        case = Widest(op, dtype, inputs, [dtype] * len(inputs), quiet(row.floats, *wide).astype(dtype))
        case.of_flushed = np.resize(quiet(row.floats, *map(flushed, wide if dtype == "float64" else inputs)).astype(dtype), case.count)
        yield case


def near(found, expected, tolerance):
    with np.errstate(all="ignore"):
        close = np.abs(found - expected) <= tolerance * np.abs(expected) + 4 * np.finfo(found.dtype).tiny
        return (found == expected) | np.isnan(found) & np.isnan(expected) | close


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ends_of_the_range(dtype):
    device = runtime.current_device()
    if dtype == "float64" and not device.traits.fp64:
        pytest.skip("no float64")
    tried = list(cases(dtype))
    run(device, tried, "-cl-denorms-are-zero")
    wrong = []
    for case in tried:
        for width, found in case.results.items():
            right = near(found, case.expected, 1e-5) | near(found, case.of_flushed, 1e-5)
            if case.op in ("mod", "rem", "floor_div"):  # a remainder that is flushed changes all; so NaN is what is wrong
                divisor = np.abs(case.inputs[1]) > np.finfo(dtype).tiny * 2.0**24
                right |= ~divisor & (~np.isnan(found) | np.isnan(case.of_flushed))
            for k in np.flatnonzero(~right)[:3]:
                wrong.append((case.op, width, *[float(x[k]) for x in case.inputs], float(found[k]), float(case.expected[k])))
    assert not wrong, f"(op, width, operands, found, expected): {wrong}"
