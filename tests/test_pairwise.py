"""The choice of cases from a grid."""

import itertools

import pytest

from tests.pairwise import pairwise


def pairs(cases):
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


@pytest.mark.parametrize("sizes", [(2, 3), (3, 3, 3), (2, 9, 4), (1, 5, 3), (3, 8, 2, 2), (2, 2, 2, 2, 2)])
def test_any_two_values_meet(sizes):
    parameters = [[f"{k}{n}" for n in range(size)] for k, size in enumerate(sizes)]
    cases, most = pairwise(*parameters), sorted(sizes)[-2] * sorted(sizes)[-1]
    assert pairs(cases) == pairs(itertools.product(*parameters))
    assert most <= len(cases) == len(set(cases)) <= max(most, 1.6 * most), "two parameters alone need so many cases"
    assert cases == pairwise(*parameters)


def test_only_what_exists_is_chosen_and_what_meets_in_it_stays():
    parameters = ["add", "max"], ["bool", "int", "float"], [1, 2, 3]

    def allowed(mode, dtype, width):
        return (mode, dtype) != ("add", "bool") and not (dtype == "int" and width == 2)

    grid = [case for case in itertools.product(*parameters) if allowed(*case)]
    cases = pairwise(*parameters, allowed=allowed)
    assert set(cases) <= set(grid) and pairs(cases) == pairs(grid) and len(cases) < len(grid)


def test_values_need_not_be_hashable():
    assert pairwise([{}, []], [dict(padding=1)]) == [({}, {"padding": 1}), ([], {"padding": 1})]
