"""Index expressions: the printed text is compiled and run, and compared with the numbers that it stands for."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from keras_ocl.compiler.codegen import Analysis, Generator
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import Affine, Var, linear
from keras_ocl.kernels.spec import Args
from tests.compiler.codegen.printing import numbers, printed
from tests.kernels.launching import named

EXTENTS = (3, 4, 5)
# Each draws many expressions for one kernel; to look for the least failing ones would take minutes of building.
few = settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
expressions = st.tuples(st.tuples(*[st.one_of(st.just(0), st.integers(-12, 12))] * 3), st.integers(-20, 20))


def affine(variables, expression):
    """The index expression of coefficients for `variables` and a constant."""
    coefficients, constant = expression
    result = Affine.of(constant)
    for v, c in zip(variables, coefficients, strict=True):
        result = result + Affine.of(v) * c
    return result


def truth(expression):
    coefficients, constant = expression
    return constant + sum(c * i for c, i in zip(coefficients, np.indices(EXTENTS), strict=True))


def not_negative(expression):
    """The expression with a constant by which its least value is what the constant was, or 0."""
    coefficients, constant = expression
    return coefficients, abs(constant) - int(truth((coefficients, 0)).min())


@few
@given(st.lists(expressions, min_size=20, max_size=20))
def test_text(drawn):
    got = numbers(EXTENTS, lambda evaluator, vs: [affine(vs, e) for e in drawn], len(drawn))
    for k, e in enumerate(drawn):
        np.testing.assert_array_equal(got[..., k], truth(e))


@settings(max_examples=200, deadline=None)
@given(expressions)
def test_bounds_are_the_least_and_the_greatest_value(drawn):
    values = truth(drawn)
    variables = [Var(f"v{n}", n) for n in EXTENTS]
    assert affine(variables, drawn).bounds() == (values.min(), values.max())


@few
@given(st.lists(st.tuples(expressions, st.integers(1, 14)), min_size=15, max_size=15))
def test_divmod(drawn):
    drawn = [(not_negative(e), n) for e, n in drawn]

    def evaluate(gen, variables):
        pairs = [gen.divmod(affine(variables, e), n) for e, n in drawn]
        for (quotient, rest), (e, n) in zip(pairs, drawn, strict=True):
            values = truth(e)
            for part, real in zip((quotient, rest), np.divmod(values, n), strict=True):
                low, high = part.bounds()
                assert low <= real.min() and real.max() <= high, (e, n)
        return [part for pair in pairs for part in pair]

    got = numbers(EXTENTS, evaluate, 2 * len(drawn))
    for k, (e, n) in enumerate(drawn):
        quotient, rest = np.divmod(truth(e), n)
        np.testing.assert_array_equal(got[..., 2 * k], quotient, err_msg=f"{e} / {n}")
        np.testing.assert_array_equal(got[..., 2 * k + 1], rest, err_msg=f"{e} % {n}")


def test_divmod_divides_only_what_is_not_known():
    """Multiples of the divisor, and what stays below it, cost nothing."""

    def evaluate(gen, vs):
        assert gen.divmod(affine(vs, ((20, 5, 1), 0)), 5)[0].key == affine(vs, ((4, 1, 0), 0)).key
        assert gen.divmod(affine(vs, ((20, 5, 1), 0)), 5)[1].key == affine(vs, ((0, 0, 1), 0)).key
        quotient, rest = gen.divmod(affine(vs, ((20, 5, 1), 3)), 20)
        assert quotient.terms.pop(vs[0]) == 1 and len(quotient.terms) == 1 and vs[0] not in rest.terms
        assert gen.divmod(Affine.of(vs[1]), 1)[1].key == Affine().key

    gen, _, _ = printed(EXTENTS, evaluate)
    assert gen.top.render().count(" / ") == 1  # of 5 b + c + 3


def test_divmod_by_an_unknown_extent():
    n = Dim(4)

    def evaluate(gen, vs):
        quotient, rest = gen.divmod(linear(vs, (3, n, 5)), n * 5)
        assert quotient.key == Affine.of(vs[0]).key and rest.key == linear(vs[1:], (n, 5)).key
        assert set(gen.divmod(linear(vs, (3, 4, 5)), n)[0].terms) != {vs[0]}  # 4 by chance

    printed((3, n, 5), evaluate)


@few
@given(st.lists(st.tuples(expressions, st.integers(-5, 5), st.integers(0, 12)), min_size=15, max_size=15))
def test_inside_and_safe(drawn):
    """No mask means always; `safe` gives the index where the mask holds, else the fallback."""
    fallbacks = [k % 3 for k in range(len(drawn))]

    def evaluate(gen, variables):
        found = []
        for (e, low, length), fallback in zip(drawn, fallbacks, strict=True):
            index, values = affine(variables, e), truth(e)
            mask = gen.inside(index, low, low + length)
            if mask is None:
                assert ((low <= values) & (values < low + length)).all()
            place = gen.safe(index, mask, length, fallback)
            where = values[(low <= values) & (values < low + length)]
            least, greatest = place.bounds()
            assert isinstance(gen, Analysis) or where.size == 0 or least <= max(0, where.min()) and where.max() <= greatest
            found += [mask, place]
        return found

    got = numbers(EXTENTS, evaluate, 2 * len(drawn))
    for k, ((e, low, length), fallback) in enumerate(zip(drawn, fallbacks, strict=True)):
        values = truth(e)
        inside = (low <= values) & (values < low + length)
        np.testing.assert_array_equal(got[..., 2 * k], inside, err_msg=f"{low} <= {e} < {low + length}")
        np.testing.assert_array_equal(got[..., 2 * k + 1], np.where(inside, values, fallback))


def test_only_the_open_side_is_tested():
    def evaluate(gen, vs):
        (a, b, c) = map(Affine.of, vs)
        assert gen.inside(b, 0, 4) is None
        gen.inside(b - 1, 0, 4)
        gen.inside(c + 1, 0, 5)

    def emit(gen, vs, _):
        gen.emit(f"{gen.args.pointer(named('y'), 'int32', out=True)}[{gen.text(linear(vs, EXTENTS))}] = 0;")

    text = printed(EXTENTS, evaluate, emit)[0].top.render()
    assert text.count(">= 0") == 1 and text.count("< 5") == 2  # one of them the loop's
    assert "< 4" not in text.replace("< 4; ++", "")


def test_an_unknown_extent_is_inside_where_every_value_is():
    n, m = Dim(4), Dim(4)

    def evaluate(gen, vs):
        index = Affine.of(vs[0])
        assert gen.inside(index, 0, n) is None and gen.inside(index, 0, n + 1) is None
        assert gen.inside(index, 0, m) is not None or m.probe >= n.probe  # another unknown, whose probe may be the greater
        assert gen.inside(index, 0, 4) is not None and gen.inside(index, 0, n - 1) is not None

    printed((n,), evaluate)


def test_extents_are_arguments_where_the_kernel_is_for_any():
    n = Dim(7)
    gen = Generator(Args(), set(), 1, {})
    v = Var("v", 3)
    assert gen.text(Affine.of(v) * n + 2) == "v * n0 + 2" and gen.text(Affine.of(v) * n + n) == "v * n0 + n0"
    assert [a.value for a in gen.args.args] == [7]
    eager = Generator(Args(True), set(), 1, {})
    assert eager.text(Affine.of(v) * 5 + 1) == "v * n0 + 1"
    assert Generator(Args(), set(), 1, {}).text(Affine()) == "0"


@pytest.mark.parametrize("shape,strides,groups", [
    ((3, 4, 5), [(20, 5, 1)], [[0, 1, 2]]),
    ((3, 4, 5), [(20, 5, 1), (0, 0, 1)], [[0, 1], [2]]),
    ((3, 4, 5), [(20, 5, 1), (5, 0, 1)], [[0], [1], [2]]),
    ((3, 4, 5), [(20, 5, 1), (4, 1, 0)], [[0, 1], [2]]),
    ((3, 4, 5), [(20, 5, 1), (0, 5, 1)], [[0], [1, 2]]),
    ((3, 4, 5), [], [[0, 1, 2]]),
])  # fmt: skip
def test_dimensions_that_all_indices_walk_together_are_one_loop(shape, strides, groups):
    gen, _, _ = printed(shape, lambda _, vs: [affine(vs, (s, 0)) for s in strides])
    assert gen.nests["root"].groups == groups
    assert gen.top.render().count("for (") == len(groups)
