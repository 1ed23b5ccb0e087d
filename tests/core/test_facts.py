"""What Python code learns of unknown extents is noted; numbers made of them are computed again."""

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_ocl.core.dim import Dim, ceil_div, maximum, minimum, noting, present
from keras_ocl.core.facts import Code, Facts, formulas, function_of


def unknowns(*values):
    return [Dim(n, 33 + k, 1500450271 + 2 * k) for k, n in enumerate(values)]


def noted(function, n=32):
    """(what the function returns of an unknown, the values from 1 to 99 where what it learnt still holds)."""
    (unknown,) = unknowns(n)
    facts = Facts([unknown])
    with noting(facts):
        result = function(unknown)
    return result, [k for k in range(1, 100) if facts.hold((k,))]


ALL = list(range(1, 100))


@pytest.mark.parametrize(
    ("function", "result", "holds"),
    [
        (lambda n: n > 10, True, range(11, 100)),
        (lambda n: n <= 10, False, range(11, 100)),
        (lambda n: 10 < n, True, range(11, 100)),
        (lambda n: n == 32, True, [32]),
        (lambda n: n != 1, True, range(2, 100)),
        (lambda n: n in (1, 2, 3), False, range(4, 100)),
        (lambda n: (n, 3) == (32, 3), True, [32]),
        (lambda n: max(n, 40), 40, range(1, 40)),
        (lambda n: n % 2 == 0, True, range(2, 100, 2)),
        (lambda n: bool(n - 32), False, [32]),
        (lambda n: n == n + 0, True, ALL),
        (lambda n: n * 2 // 2 == n, True, ALL),
    ],
)
def test_comparisons_are_facts(function, result, holds):
    assert noted(function) == (result, list(holds))


@pytest.mark.parametrize(
    "function",
    [int, float, lambda n: f"{n}", lambda n: n / 2, lambda n: n * 1.5, lambda n: [0] * n, lambda n: 2**n]
    + [round, math.floor, lambda n: n >> 1, lambda n: n & 7, lambda n: n.bit_length(), lambda n: np.ones(3) * n, lambda n: divmod(n, 5)],
)
def test_who_reads_the_number_gets_a_fact(function):
    _, holds = noted(function)
    assert holds == [32]


@pytest.mark.parametrize("function", [repr, lambda n: n + 1, lambda n: maximum(n, 40), lambda n: n // 7, lambda n: -n, lambda n: {n: 1}])
def test_arithmetic_is_no_fact(function):
    _, holds = noted(function)
    assert holds == ALL


@pytest.mark.parametrize(
    ("function", "holds"),
    [
        (lambda n: minimum(n, 2), range(2, 100)),  # collapses to 2
        (lambda n: n // 1000000000000, ALL),
        (lambda n: maximum(n - 5, 0), range(5, 100)),  # has the key of n - 5
    ],
)
def test_what_shadows_agree_on_is_a_fact_unless_it_is_an_identity(function, holds):
    assert noted(function)[1] == list(holds)


def test_nothing_is_noted_outside():
    (n,) = unknowns(32)
    facts = Facts([n])
    assert n == 32 and len(list(facts)) == 1  # that it is not 0


def test_an_empty_extent_is_not_like_others():
    assert noted(lambda n: None)[1] == ALL
    empty = Facts(unknowns(0))
    assert empty.hold((0,)) and not empty.hold((1,))


STEPS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod}


@given(
    st.lists(st.tuples(st.sampled_from([*STEPS, "min", "max", "ceil"]), st.integers(0, 9), st.integers(0, 9)), max_size=10),
    st.tuples(st.integers(1, 50), st.integers(1, 50)),
    st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_formulas_give_what_the_arithmetic_would_have_given(steps, before, after):
    """Where the facts hold: they tell of quotients that were exact and of extremes that were one of their operands."""

    def compute(n, m):
        found = [n, m, 2, 7]
        for name, i, j in steps:
            a, b = found[i % len(found)], found[j % len(found)]
            if name in ("floordiv", "mod", "ceil") and b == 0:
                continue
            found.append({"min": minimum, "max": maximum, "ceil": ceil_div, **STEPS}[name](a, b))
        return found

    symbols = unknowns(*before)
    facts = Facts(symbols)
    with noting(facts):
        results = compute(*symbols)
    if facts.hold(after):
        assert formulas(symbols, results)(*after) == tuple(compute(*after))


def test_formulas_of_foreign_unknowns():
    n, m = unknowns(3, 4)
    with pytest.raises(KeyError, match="none of the function's own"):
        formulas([n], [m + 1])


def test_code_computes_each_formula_once():
    n, m = unknowns(4, 5)
    code = Code([n, m])
    assert [code.name(e) for e in (7, m, n * 2, 2 * n, n * 2 + m)] == ["7", "u1", "v0", "v0", "v1"]
    assert code.lines == ["v0 = u0 * 2", "v1 = v0 + u1"]
    assert function_of(2, code.lines)(3, 10) == {"u0": 3, "u1": 10, "v0": 6, "v1": 16}


def test_present_is_silent():
    assert noted(present) == (32, ALL)
    assert present(np.int64(7)) == 7 and type(present(np.int64(7))) is int
