"""Dim: integer arithmetic that tells extents apart and remembers how they were made."""

import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_ocl.core.dim import Dim, ceil_div, hint, key, maximum, minimum, noting, product, same, size_hint
from keras_ocl.core.facts import Facts

FUNCTIONS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}


def unknown(value, k=0):
    return Dim(value, 33, 1299709 + 2 * k)


def again(n, values):
    """What `n` is for other values {key: value} of its unknowns."""
    if not isinstance(n, Dim):
        return n
    if n.made is None:
        return values[n.key]
    name, a, b = n.made
    return FUNCTIONS[name](again(a, values), again(b, values))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod"])
def test_arithmetic_is_that_of_ints(name):
    function = FUNCTIONS[name]
    n, m = unknown(32), unknown(5, 1)
    for a, b in [(n, m), (n, 7), (100, n), (0, n), (n, n)]:
        assert function(a, b) == function(int(a), int(b))
    assert -n == -32 and ceil_div(n, 5) == 7 and minimum(n, 9) == 9 and maximum(n, m) == 32


def test_what_does_not_depend_on_the_unknown_is_an_int():
    n = unknown(32)
    for result in [n * 10 // n, n - n, n * 0, n + 1 - n, (n * 6) % 6, minimum(n, 3), 3 // (n + 9)]:
        assert type(result) is int


def test_same_extents_have_one_key():
    n, m = unknown(32), unknown(32, 1)
    pairs = [
        (n * 10 // 10, n),
        (n + m, m + n),
        ((n + 1) * (n - 1), n * n - 1),
        (n * m // m, n),
        (n // 3 * 3 + n % 3, n),
        (maximum(n - 3, 0), n - 3),
        (unknown(7) + 1, n + 1),
    ]
    for a, b in pairs:
        assert key(a) == key(b) and same((a,), (b,))


def test_different_extents_have_different_keys():
    n, m = unknown(32), unknown(32, 1)
    extents = [n, m, n + 1, n * m, n // 2, m // 2, n % 3, m % 3, n % 5, n // 2 % 5, m // 2 % 5, 32]
    extents += [maximum(n % 4 - 2, 0), maximum(m % 4 - 2, 0)]
    assert len({key(e) for e in extents}) == len(extents)


@pytest.mark.parametrize("apart", [1, 2, 10])
def test_unknowns_a_number_apart_are_not_each_other_plus_that_number(apart):
    n, m = Dim(7, 7, 1500450271), Dim(7 + apart, 7 + apart, 1500450271 + apart)
    assert key(m - apart) != key(n) and not same((m - apart,), (n,))
    assert key(n + m) != key(2 * n + apart)


@given(st.lists(st.tuples(st.sampled_from(sorted(FUNCTIONS)), st.integers(0, 9), st.integers(0, 9)), max_size=8), st.integers(1, 99))
def test_an_extent_knows_how_it_was_made(steps, value):
    n, m = unknown(value), unknown(value + 3, 1)
    found = [n, m, 2, 3]
    for name, i, j in steps:
        a, b = found[i % len(found)], found[j % len(found)]
        if name in ("floordiv", "mod") and 0 in (b, getattr(b, "hint", b), getattr(b, "probe", b)):
            continue
        found.append({"min": minimum, "max": maximum}.get(name, FUNCTIONS[name])(a, b))
    for extent in found:
        copied = pickle.loads(pickle.dumps(extent))
        assert key(copied) == key(extent) and again(copied, {n.key: value, m.key: value + 3}) == int(extent)


def test_the_hint_of_a_size_is_that_of_the_product_and_notes_no_facts():
    unknown = Dim(5, hint=32)
    for shape in ((), (7,), (unknown,), (unknown, 3, unknown + 1), (unknown, 0, 4)):
        assert size_hint(shape) == hint(product(shape))
        assert type(size_hint(shape)) is int
    with noting(Facts([unknown])) as facts:
        before = len(list(facts))
        assert size_hint((unknown, 2)) == 64
        assert len(list(facts)) == before
