"""The prelude where division and OpenCL's functions are as inexact as OpenCL 1.2 allows: every function ends and gives what it should."""

import re

import numpy as np
import pytest
from scipy import special

from keras_ocl.kernels import elementwise
from keras_ocl.kernels.prelude import draws, floats, integers, library, transcendentals
from tests.elementwise import BINARY, UNARY
from tests.kernels.interpreter import WIDTH, Machine
from tests.kernels.test_elementwise import quiet

TINY = 2.0**-126
ERRORS = {
    "exact": lambda rng: np.zeros,
    "above": lambda rng: np.ones,
    "below": lambda rng: lambda shape: -np.ones(shape),
    "any": lambda rng: lambda shape: rng.uniform(-1, 1, shape),
    "either end": lambda rng: lambda shape: rng.choice([-1.0, 1.0], shape),
}
OPS = {op: row for op, row in {**UNARY, **BINARY}.items() if op not in ("lgamma", "nextafter")}


def machine(error, flush=False):
    rng = np.random.default_rng(5)
    return Machine(ERRORS[error](rng), flush, joins=error != "below")


def values(count):
    rng = np.random.default_rng(9)
    edge = [0.0, 1.0, 0.5, 1.5, 2.0, 3.0, 41.0, 0.999, 88.5, 103.0, np.inf, np.nan, 3.4e38, TINY, 1.5 * TINY, 1e-40, 1e-45]
    found = np.concatenate([edge, 10.0 ** rng.uniform(-44, 38, count // 2), rng.normal(size=count // 2 - len(edge)) * 5])
    return (found * rng.choice([-1, 1], count)).astype(np.float32)


def operands(op):
    """Each value and others; for remainders equal numbers and quotients that are integers too, where a division may miss by one."""
    if op in UNARY:
        return (values(480).reshape(WIDTH, -1),)
    rng = np.random.default_rng(11)
    a, b = rng.choice(values(480), (2, WIDTH, 60))
    whole = rng.integers(1, 1 << 12, (2, WIDTH, 60)).astype(np.float32)
    return np.concatenate([a, whole[0], whole[0], whole[0] * whole[1]], 1), np.concatenate([b, whole[0], whole[1], whole[1]], 1)


def flushed(x):
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


@pytest.mark.parametrize("flush", [False, True], ids=["denormals", "flushed"])
@pytest.mark.parametrize("op", OPS)
def test_elementwise(op, flush):
    row = OPS[op]
    exact, inputs = row.computed_in == "float32", operands(op)
    text, _ = elementwise.emit(op, WIDTH, "float32", ["float32"] * len(inputs), ["x", "y"][: len(inputs)])
    known = [flushed(x) if flush else x for x in inputs]
    expected = quiet(row.floats, *[x.astype(row.wide("float32")) for x in known]).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = np.where(np.abs(expected) > np.finfo(np.float32).max, np.copysign(np.inf, expected), expected)
        tolerance = 0 if exact else 4 * max(row.ulps, 4) * 2.0**-23 * np.abs(expected) + (16 * 2.0**-20 if op == "digamma" else 0)
        tolerance = tolerance + (4 * TINY if flush or not exact else 0)
        if flush and exact:  # near the least number a remainder of almost all of the divisor is as good as 0
            tolerance = np.where(np.abs(inputs[1]) < 2.0**-100, np.inf, tolerance)
    for error in ERRORS:
        found = np.asarray(machine(error, flush).evaluate(text, **dict(zip("xy", inputs, strict=False))), np.float64)
        with np.errstate(all="ignore"):
            right = (found == expected) | (np.isnan(found) & np.isnan(expected)) | (np.abs(found - expected) <= tolerance)
            right |= np.isinf(found) & (np.abs(expected) > 3.4e38) & (np.sign(found) == np.sign(expected))  # as it may round
        wrong = [[float(v) for v in row] for row in zip(*(x[~right] for x in (*inputs, found, expected)), strict=True)]
        assert not wrong, f"{op}, {error}: {len(wrong)} wrong, such as (operands, found, expected) {wrong[:3]}"


@pytest.mark.parametrize("error", ERRORS)
def test_quotients_of_all_sizes_are_numpys(error):
    rng = np.random.default_rng(3)
    a = (10.0 ** rng.uniform(-38, 38, (WIDTH, 1000))).astype(np.float32)
    b = rng.choice([1, 3, 7.1, 0.1, 1e-37, 1e30, 1e-20], a.shape).astype(np.float32)
    denormal = rng.choice([1e-45, 1e-40], a.shape).astype(np.float32)
    for name, reference in (("rem", np.fmod), ("mod", np.mod), ("floor_div", np.floor_divide)):
        for x, y in ((a, b), (-a, b), (a, denormal))[: 2 if name == "floor_div" else 3]:
            np.testing.assert_array_equal(machine(error).call(f"{name}_float_{WIDTH}", x, y), quiet(reference, x, y))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("alpha", [1e-3, 0.3, 1.0, 7.5, 1e4])
def test_gamma_draws(alpha, error):
    index = np.arange(WIDTH * 250, dtype=np.uint32).reshape(WIDTH, -1)
    key = np.uint32(7), np.uint32(9)
    found = machine(error).call(f"log_gamma_draw_float_{WIDTH}", *key, index, np.full(index.shape, alpha, np.float32)).astype(np.float64)
    deviation = np.sqrt(special.polygamma(1, alpha) / found.size)  # of the mean of logarithms
    assert np.isfinite(found).all() and abs(found.mean() - special.digamma(alpha)) < 5 * deviation


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("trials", [(1, 0.5), (30, 0.3), (19, 0.5), (1e6, 3e-6), (1e6, 0.9), (3e38, 2e-38), (7, 0.0), (7, 1.0)])
def test_binomial_draws(trials, error):
    count, probability = trials
    index = np.arange(WIDTH * 200, dtype=np.uint32).reshape(WIDTH, -1)
    key = np.uint32(7), np.uint32(9)
    n, p = (np.full(index.shape, x, np.float32) for x in (count, probability))
    found = machine(error).call(f"binomial_draw_float_{WIDTH}", *key, index, n, p).astype(np.float64)
    deviation = np.sqrt(count * probability * (1 - probability) / found.size)
    assert ((found >= 0) & (found <= count) & (found == np.floor(found))).all()
    assert abs(found.mean() - count * probability) <= 5 * deviation


def test_every_loop_has_a_bound():
    tables = (draws.BOTH, draws.FLOAT, draws.DOUBLE, floats.BOTH, floats.FLOAT, floats.DOUBLE, transcendentals.FLOAT)
    for table in (*tables, integers.SIGNED, integers.UNSIGNED, integers.BOTH, integers.SINGLE):
        for name, text in table.items():
            loops = re.findall(r"\b(?:while|do|for|goto)\b[^;]*;?[^;]*", text)
            assert all(re.search(r"^for \([^;]*; [^;]*\b\w+ < (\d+|\$[BN])$", loop) for loop in loops), f"{name}: {loops}"


def test_a_loop_without_end_is_found():
    """By the interpreter: what the remainder was, which is taken off by a truncated quotient."""
    was = "$T $name($T a, $T b) {\n  $T r = a;\n  while ($ANY(r >= b)) {\n    r = fma(-trunc(r / b), b, r);\n  }\n  return r;\n}\n"
    x = np.full((WIDTH, 1), 41, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(floats.FLOAT, "was", was)
        assert machine("exact").call(f"was_float_{WIDTH}", x, x).max() == 0
        with pytest.raises(RecursionError, match="does not end"):
            machine("below").call(f"was_float_{WIDTH}", x, x)
    library.helper.cache_clear()
