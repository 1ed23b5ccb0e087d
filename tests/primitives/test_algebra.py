"""Simplification of graphs: what rules make of what was traced, and that the values stay what they were. No device is needed."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from tests.compiler.graphs import evaluate_graph, evaluate_trace, graph_of, text_of

FLOAT, MATRIX = ((3, 4), "float32"), ((4, 5), "float32")
INF, NAN = float("inf"), float("nan")
SPECIAL = np.array([[0.0, -0.0, 1.0, -1.0], [INF, -INF, NAN, 2.5], [-2.5, 1e-30, -1e30, 3e38]], "float32")


def like(value, x):
    return P.full(x.shape, value, x.dtype)


def identical(got, want):
    """Equal up to the sign of zeros; NaN where NaN is wanted."""
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(want))


# ---- neutral elements

NEUTRAL = {
    "x * 1": lambda x: P.mul(x, like(1.0, x)),
    "1 * x": lambda x: P.mul(like(1.0, x), x),
    "x + 0": lambda x: P.add(x, like(0.0, x)),
    "0 + x": lambda x: P.add(like(0.0, x), x),
    "x - 0": lambda x: P.sub(x, like(0.0, x)),
    "x / 1": lambda x: P.div(x, like(1.0, x)),
    "x ** 1": lambda x: P.pow(x, like(1.0, x)),
    "x in float32": lambda x: P.convert(P.convert(x, "float32"), "float32"),
    "where(True, x, y)": lambda x: P.select(like(True, P.eq(x, x)), x, P.exp(x)),
    "where(False, y, x)": lambda x: P.select(like(False, P.eq(x, x)), P.exp(x), x),
    "where(mask, x, x)": lambda x: P.select(P.eq(x, x), x, x),
    "x + 0 + 0 * 1": lambda x: P.add(P.mul(P.add(x, like(0.0, x)), like(1.0, x)), P.mul(like(0.0, x), like(1.0, x))),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_elements_vanish(name):
    assert text_of(NEUTRAL[name], FLOAT) == "x0"


@pytest.mark.parametrize("name", sorted(set(NEUTRAL) - {"x + 0", "0 + x", "x + 0 + 0 * 1"}))
def test_zeros_of_both_signs_and_nan_stay(name):
    """The sum with 0.0 would make 0.0 of -0.0; that it does not is the one rule that changes a value."""
    identical(evaluate_graph(NEUTRAL[name], SPECIAL)[0], evaluate_trace(NEUTRAL[name], SPECIAL)[0])


KEPT = {
    "x + -0.0": lambda x: P.add(x, like(-0.0, x)),
    "x - -0.0": lambda x: P.sub(x, like(-0.0, x)),
    "0 - x": lambda x: P.sub(like(0.0, x), x),
    "1 / x": lambda x: P.div(like(1.0, x), x),
    "x * 0": lambda x: P.mul(x, like(0.0, x)),
    "x * -1": lambda x: P.mul(x, like(-1.0, x)),
    "x - x": lambda x: P.sub(x, x),
    "x / x": lambda x: P.div(x, x),
    "x ** 0": lambda x: P.pow(x, like(0.0, x)),
    "1 ** x": lambda x: P.pow(like(1.0, x), x),
    "max(x, -inf)": lambda x: P.max(x, like(-INF, x)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_only_looks_neutral_stays(name):
    graph, _ = graph_of(KEPT[name], FLOAT)
    assert graph.outputs[0].name in ("add", "sub", "div", "mul", "pow", "max")
    identical(evaluate_graph(KEPT[name], SPECIAL)[0], evaluate_trace(KEPT[name], SPECIAL)[0])


def test_integers():
    whole = ((3,), "int32")
    assert text_of(lambda x: P.add(P.mul(x, like(1, x)), like(0, x)), whole) == "x0"
    assert text_of(lambda x: P.pow(x, like(2, x)), whole) == "pow(x0, 2)"  # a rule of floats alone


def test_complex_numbers():
    numbers = ((3,), "complex64")
    assert text_of(lambda x: P.add(P.mul(x, like(1, x)), like(0, x)), numbers) == "x0"
    assert text_of(lambda x: P.mul(x, like(2, x)), numbers) == "mul(x0, 2)"


def test_an_unknown_extent_is_no_neutral_number():
    """An unknown extent that is 1 now: another call's is not."""
    one, none = Dim(1), Dim(2) - 2
    assert text_of(lambda x: P.mul(x, like(one, x)), FLOAT) == "mul(x0, Dim(1))"
    assert text_of(lambda x: P.div(x, like(one, x)), FLOAT) == "div(x0, Dim(1))"
    assert text_of(lambda x: P.pow(x, like(one, x)), FLOAT) == "pow(x0, Dim(1))"
    assert text_of(lambda x: P.add(x, like(none, x)), FLOAT).startswith("add(x0, ")


# ---- powers

QUARTERS = [k / 4 for k in range(-8, 9) if k]


@pytest.mark.parametrize("exponent", QUARTERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_by_quarters_are_products_and_roots(exponent, dtype):
    x = np.concatenate([SPECIAL.ravel().astype(dtype), np.linspace(-3, 9, 37, dtype=dtype), [INF, -INF]]).astype(dtype)

    def power(x):
        return P.pow(x, like(exponent, x))

    assert "pow" not in text_of(power, (x.shape, dtype))
    (got,) = evaluate_graph(power, x)
    (want,) = evaluate_trace(power, x)
    np.testing.assert_allclose(got, want, rtol=2e-6 if dtype == "float32" else 4e-15, atol=1e-37)
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(want[x == 0]))


@pytest.mark.parametrize("exponent", [0.0, -0.0, 3.0, 2.25, -2.25, 0.3, 1 / 3, INF, -INF, NAN])
def test_other_powers_stay(exponent):
    assert text_of(lambda x: P.pow(x, like(exponent, x)), FLOAT) == f"pow(x0, {exponent!r})"


# ---- constants


SOURCES = ["bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
TARGETS = [*SOURCES, "int8", "uint16", "uint32"]
VALUES = [0, 1, 3, 100, 300, 70000, -1, 0.1, 1.7, -2.6, 1e-9, 1e30, INF, NAN]


def held(value, dtype):
    """Whether a tensor of `dtype` may be filled with `value`."""
    if dtypes.is_float(dtype) or dtype == "bool":
        return dtypes.is_float(dtype) or value in (0, 1)
    limits = np.iinfo(dtypes.numpy_dtype(dtype))
    return value == value // 1 and limits.min <= value <= limits.max


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_convert_of_a_constant_is_a_constant(source, target):
    for given_value in (v for v in VALUES if held(v, source)):
        value = dtypes.numpy_dtype(source).type(given_value)
        graph, _ = graph_of(lambda v=given_value: P.convert(P.full((2,), v, source), target))
        (node,) = graph.outputs
        if node.name == "convert":  # what would wrap or saturate is left to kernels
            limits = np.iinfo(dtypes.numpy_dtype(target))
            assert not (limits.min <= float(value) <= min(limits.max, 2**31 - 1)), (given_value, source, target)
            continue
        (scalar,) = node.inputs
        assert (node.name, scalar.name, scalar.dtype, node.shape) == ("broadcast", "constant", target, (2,))
        got, want = (np.asarray(v).astype(dtypes.numpy_dtype(target)).astype("f8") for v in (scalar.params["value"], value))
        np.testing.assert_array_equal(got, want, err_msg=f"{given_value} of {source} in {target}")


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_a_constant_is_rounded_before_it_is_widened(source):
    """As it is where the convert is run."""
    (node,) = graph_of(lambda: P.convert(P.constant(0.1, source), "float32"))[0].outputs
    assert node.params["value"] == float(dtypes.numpy_dtype(source).type(0.1)) != float(np.float32(0.1))


def test_a_convert_of_an_unknown_extent_stays_unknown():
    n = Dim(5)
    graph, _ = graph_of(lambda: P.convert(P.constant(n, "int32"), "float32"))
    assert graph.outputs[0].params["value"] is n and graph.outputs[0].dtype == "float32"


def test_a_convert_precedes_reshapes():
    """The kernel of what is reshaped may store it as the other dtype."""
    assert text_of(lambda x: P.convert(P.reshape(P.exp(x), (2, 6)), "bfloat16"), ((3, 4), "float32")).startswith("reshape(convert(exp(")


def test_a_convert_of_a_count_stays():
    assert text_of(lambda: P.convert(P.iota((4,), 0, "int32"), "float32")).startswith("convert(iota(")


FOLDED = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "max": np.maximum, "min": np.minimum, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
numbers = st.one_of(st.sampled_from([0.0, -0.0, 1.0, INF, -INF, NAN, 0.1, 3e38]), st.floats(width=32))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FOLDED)), numbers, numbers)
def test_operations_on_constants_are_constants(name, a, b):
    def function():
        left, right = (P.full((2, 3), v, "float32") for v in (a, b))
        return getattr(P, name)(left, right)

    graph, _ = graph_of(function)
    assert graph.outputs[0].name == "broadcast"
    with np.errstate(all="ignore"):
        want = FOLDED[name](np.float32(a), np.float32(b))
    scalar = graph.outputs[0].inputs[0]
    np.testing.assert_array_equal(np.asarray(scalar.params["value"], dtypes.numpy_dtype(scalar.dtype)), want)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["add", "sub", "mul"]), *[st.integers(-(2**31), 2**31 - 1)] * 2)
def test_integers_are_folded_unless_they_overflow(name, a, b):
    graph, _ = graph_of(lambda: getattr(P, name)(P.constant(a, "int32"), P.constant(b, "int32")))
    (node,) = graph.outputs
    want = FOLDED[name](a, b)
    fits = -(2**31) <= want < 2**31
    assert node.params.get("value") == (want if fits else None)


def test_no_root_of_a_negative_constant_and_no_fold_of_an_unknown():
    assert text_of(lambda: P.sqrt(P.constant(4.0, "float32"))) == "2.0"
    assert text_of(lambda: P.sqrt(P.constant(-4.0, "float32"))) == "sqrt(-4.0)"
    assert text_of(lambda: P.add(P.constant(Dim(3), "float32"), P.constant(1.0, "float32"))) == "add(Dim(3), 1.0)"


# ---- views


def test_transposes_compose():
    def thrice(x):
        return P.transpose(P.transpose(P.transpose(x, (1, 2, 0)), (2, 0, 1)), (0, 2, 1))

    assert text_of(thrice, ((2, 3, 4), "float32")) == "transpose(x0, perm=(0, 2, 1))"
    assert text_of(lambda x: P.transpose(P.transpose(x, (1, 2, 0)), (2, 0, 1)), ((2, 3, 4), "float32")) == "x0"


def test_reshapes_compose():
    assert text_of(lambda x: P.reshape(P.reshape(x, (4, 3)), (2, 6)), FLOAT) == "reshape(x0, shape=(2, 6))"
    assert text_of(lambda x: P.reshape(P.reshape(x, (12,)), (3, 4)), FLOAT) == "x0"


def test_broadcasts_compose():
    def twice(x):
        return P.broadcast(P.broadcast(x, (3, 4), (1,)), (5, 3, 2, 4), (1, 3))

    assert text_of(twice, ((4,), "float32")) == "broadcast(x0, shape=(5, 3, 2, 4), dims=(3,))"
    assert text_of(twice, ((1,), "float32")) == "broadcast(x0, shape=(5, 3, 2, 4), dims=(3,))"
    assert text_of(lambda x: P.broadcast(x, (3, 4), (0, 1)), FLOAT) == "x0"


def test_a_view_of_another_kind_does_not_compose():
    assert text_of(lambda x: P.reshape(P.transpose(x, (1, 0)), (3, 4)), FLOAT) == "reshape(transpose(x0, perm=(1, 0)), shape=(3, 4))"


def test_reshapes_that_join_the_last_axes_move_behind_elementwise_operations():
    def groups(x, scale):  # as of a normalisation in groups of channels
        return P.reshape(P.mul(x, P.broadcast(scale, x.shape, (1,))), (2, 12))

    given = ((2, 3, 4), "float32"), ((3,), "float32")
    scaled = "mul(x0, broadcast(x1, shape=(2, 3, 4), dims=(1,)))"
    assert text_of(lambda x, s: P.exp(groups(x, s)), *given) == f"reshape(exp({scaled}), shape=(2, 12))"

    def swish(x, scale):
        y = groups(x, scale)
        return P.mul(y, P.div(like(1.0, y), P.add(like(1.0, y), P.exp(P.neg(y)))))

    assert text_of(swish, *given).startswith("reshape(mul(") and text_of(swish, *given).count("reshape") == 1
    x, scale = (np.random.default_rng(0).normal(size=shape).astype("float32") for shape, _ in given)
    identical(evaluate_graph(swish, x, scale)[0], evaluate_trace(swish, x, scale)[0])


OTHERS = {  # operands and a function of them that stays as it is
    "of an argument": lambda x, b: P.exp(P.reshape(x, (2, 12))),
    "axes of extent 1": lambda x, b: P.exp(P.reshape(P.neg(x), (2, 3, 4, 1))),
    "the last axis stays": lambda x, b: P.exp(P.reshape(P.neg(x), (6, 4))),
    "another operand": lambda x, b: P.add(P.reshape(P.neg(x), (2, 12)), b),
    "more axes": lambda x, b: P.exp(P.reshape(P.neg(b), (2, 3, 4))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_reshapes_stay_before_elementwise_operations(name):
    assert not text_of(OTHERS[name], ((2, 3, 4), "float32"), ((2, 12), "float32")).startswith("reshape")


def test_stop_gradient_is_nothing_in_a_graph():
    assert text_of(P.stop_gradient, FLOAT) == "x0"


def test_unknown_extents_that_are_equal_by_chance_are_two():
    """Views between shapes whose extents are equal now, but need not be in the next call."""
    a, b = Dim(4), Dim(4)
    swapped = (((a, b), "float32"), lambda x: P.reshape(x, (b, a)))
    known = (((a, 3), "float32"), lambda x: P.reshape(x, (4, 3)))
    spread = (((a,), "float32"), lambda x: P.broadcast(x, (b,), (0,)))
    for spec, function in (swapped, known, spread):
        graph, inputs = graph_of(function, spec)
        assert graph.outputs[0] is not inputs[0]
    graph, inputs = graph_of(lambda x: P.reshape(P.reshape(x, (a * 3,)), (a, 3)), ((a, 3), "float32"))
    assert graph.outputs[0] is inputs[0]
    graph, inputs = graph_of(lambda x: P.broadcast(P.broadcast(x, (3, b), (1,)), (2, 3, b), (1, 2)), ((a,), "float32"))
    assert graph.outputs[0].inputs[0] is not inputs[0]  # x was stretched to b first: that must not be skipped


def test_an_unknown_extent_of_one_is_not_spread():
    """A broadcast from an extent that is 1 by chance is not one from an axis of extent 1."""
    n = Dim(1)
    graph, inputs = graph_of(lambda x: P.broadcast(P.broadcast(x, (n, 3), (0,)), (2, n, 3), (1, 2)), ((n,), "float32"))
    assert graph.outputs[0].inputs[0] is inputs[0]  # the same unknown: composes
    with pytest.raises(ValueError, match="does not broadcast"):
        graph_of(lambda x: P.broadcast(x, (5,), (0,)), ((n,), "float32"))


# ---- pads side by side


def around(x, axis, before, after, value=0.0, interior=0):
    def along(n):
        return tuple(n if i == axis else 0 for i in range(len(x.shape)))

    return P.pad(x, P.constant(value, x.dtype), along(before), along(after), along(interior))


def test_neighbours_in_zeros_are_a_concat():
    def neighbours(x, y):
        return P.add(around(x, 1, 0, 5), around(y, 1, 4, 0))

    two = ((3, 4), "float32"), ((3, 5), "float32")
    assert text_of(neighbours, *two) == "concat(x0, x1, axis=1)"
    assert text_of(lambda x, y: P.add(around(y, 1, 4, 0), around(x, 1, 0, 5)), *two) == "concat(x0, x1, axis=1)"


def test_three_neighbours_and_what_remains_of_the_zeros():
    def pieces(x):
        return P.add(P.add(around(x, 0, 7, 1), around(x, 0, 1, 7)), around(x, 0, 4, 4))

    def in_order(x):
        return P.add(P.add(around(x, 0, 1, 7), around(x, 0, 4, 4)), around(x, 0, 7, 1))

    want = "pad(concat(x0, x0, x0, axis=0), 0.0, low=(1, 0), high=(1, 0), interior=(0, 0))"
    assert text_of(in_order, FLOAT) == want
    assert "add(" in text_of(pieces, FLOAT)  # the first two are no neighbours
    x = np.arange(12, dtype="f4").reshape(3, 4)
    for function in (pieces, in_order):
        np.testing.assert_array_equal(evaluate_graph(function, x)[0], evaluate_trace(function, x)[0])


APART = {
    "overlapping": lambda x: P.add(around(x, 0, 0, 2), around(x, 0, 2, 0)),
    "with a gap": lambda x: P.add(around(x, 0, 0, 4), around(x, 0, 4, 0)),
    "along two axes": lambda x: P.add(P.slice(around(around(x, 0, 0, 3), 1, 0, 1), (0, 0), (6, 4)), around(x, 0, 3, 0)),
    "in ones": lambda x: P.add(around(x, 0, 0, 3, 1.0), around(x, 0, 3, 0, 1.0)),
    "in minus zeros": lambda x: P.add(around(x, 0, 0, 3, -0.0), around(x, 0, 3, 0, -0.0)),
    "with gaps inside": lambda x: P.add(around(x, 0, 0, 3, 0.0, 1), around(x, 0, 3, 0, 0.0, 1)),
    "the same twice": lambda x: P.add(around(x, 0, 0, 3), around(x, 0, 0, 3)),
}


@pytest.mark.parametrize("name", APART)
def test_other_pads_are_added(name):
    assert text_of(APART[name], FLOAT).startswith("add(")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-2, 6), min_size=4, max_size=4), st.integers(1, 4), st.integers(1, 4))
def test_sums_of_pads_keep_their_values(edges, n, m):
    """Crops included."""
    low, other, high, _ = edges
    length = n + low + high
    other_high = length - m - other
    if length < 1 or low + n < 0 or n + high < 0 or m + other < 0 or m + other_high < 0:
        return

    def total(x, y):
        return P.add(around(x, 0, low, high), around(y, 0, other, other_high))

    x, y = np.arange(1, n + 1, dtype="f4"), np.arange(101, m + 101, dtype="f4")
    np.testing.assert_array_equal(evaluate_graph(total, x, y)[0], evaluate_trace(total, x, y)[0])


def test_neighbours_with_unknown_extents():
    """They meet where the same unknown says so, and not where two are equal by chance."""
    n, m = Dim(4), Dim(4)
    spec = ((n,), "float32"), ((3,), "float32")
    assert text_of(lambda x, y: P.add(around(x, 0, 0, 3), around(y, 0, n, 0)), *spec) == "concat(x0, x1, axis=0)"
    assert text_of(lambda x, y: P.add(around(x, 0, 0, 3), around(y, 0, m, 0)), *spec).startswith("add(")
    assert text_of(lambda x, y: P.add(around(x, 0, 0, 3), around(y, 0, 4, 0)), *spec).startswith("add(")


# ---- products


def product(a, b, contract, batch=((), ())):
    return P.dot_general(a, b, contract, batch)


def test_transposed_operands_are_operands_with_their_axes_renamed():
    def transposed(a, b):
        return product(P.transpose(a, (1, 0)), P.transpose(b, (1, 0)), ((0,), (1,)))

    assert (
        text_of(transposed, FLOAT, MATRIX) == "dot_general(x0, x1, contract=((1,), (0,)), batch=((), ()), dtype=float32, precision=float32)"
    )


def test_batches_move_too():
    def scores(q, k):
        q, k = P.transpose(q, (1, 0, 2)), P.transpose(k, (1, 2, 0))
        return product(q, k, ((2,), (1,)), ((0,), (0,)))

    spec = ((5, 2, 3), "float32")
    assert text_of(scores, spec, spec) == "dot_general(x0, x1, contract=((2,), (2,)), batch=((1,), (1,)), dtype=float32, precision=float32)"


def test_axes_without_a_joint_stride_stay_transposed():
    """Two batch axes with another between them are no one axis of a matrix product."""

    def heads(q, k):
        q, k = (P.transpose(x, (0, 2, 1, 3)) for x in (q, k))
        return product(q, k, ((3,), (3,)), ((0, 1), (0, 1)))

    spec = ((2, 5, 3, 4), "float32")
    assert text_of(heads, spec, spec).startswith("dot_general(transpose(x0, perm=(0, 2, 1, 3)), transpose(x1, ")


def test_free_axes_out_of_order_stay():
    """The product's axes come in the order of its operands' free ones."""

    def swapped(a, b):
        return product(P.transpose(a, (1, 0, 2)), b, ((2,), (0,)))

    assert text_of(swapped, ((2, 3, 4), "float32"), MATRIX).startswith("dot_general(transpose(x0, perm=(1, 0, 2)), x1")


def test_outer_products_are_elementwise():
    graph, _ = graph_of(lambda a, b: product(a, b, ((1,), (0,))), ((3, 1), "float32"), ((1, 5), "float32"))
    assert graph.outputs[0].name == "mul"
    graph, _ = graph_of(lambda a, b: product(a, b, ((1,), (0,))), ((3, Dim(1)), "float32"), ((Dim(1), 5), "float32"))
    assert graph.outputs[0].name == "dot_general"  # one term by chance
    graph, _ = graph_of(lambda a, b: product(a, b, ((1,), (0,))), ((3, 1), "int8"), ((1, 5), "int8"))
    assert graph.outputs[0].name == "dot_general"  # integers are summed in 32 bits


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_products_of_transposed_operands_keep_their_values(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    extents = {"b": 2, "i": 3, "j": data.draw(st.sampled_from([1, 4])), "k": data.draw(st.sampled_from([1, 5])), "l": 2}
    names = ["bikl"[: data.draw(st.integers(2, 4))], "bjkl"[: data.draw(st.integers(2, 4))]]
    stored = ["".join(data.draw(st.permutations(n))) for n in names]
    used = ["".join(data.draw(st.permutations(n))) for n in names]
    shared = [c for c in "kl" if c in names[0] and c in names[1]]
    batched = ["b"] if data.draw(st.booleans()) else []
    contracted = shared if batched else [*shared, "b"]

    def function(a, b):
        a, b = (P.transpose(x, [s.index(c) for c in u]) for x, s, u in zip((a, b), stored, used, strict=True))
        return product(a, b, *[[[u.index(c) for c in axes] for u in used] for axes in (contracted, batched)])

    arrays = [rng.integers(-4, 5, [extents[c] for c in s]).astype("f4") for s in stored]
    np.testing.assert_array_equal(evaluate_graph(function, *arrays)[0], evaluate_trace(function, *arrays)[0])


# ---- everything at once

_UNARY = {
    "neutral": lambda x: P.mul(P.add(x, like(0.0, x)), like(1.0, x)),
    "minus 0": lambda x: P.sub(x, like(0.0, x)),
    "square": lambda x: P.pow(x, like(2.0, x)),
    "root": lambda x: P.pow(x, like(0.5, x)),
    "transposed": lambda x: P.transpose(x, (1, 0)),
    "reversed": lambda x: P.reverse(x, (0,)),
    "flattened": lambda x: P.reshape(P.reshape(x, (x.shape[0] * x.shape[1],)), x.shape[::-1]),
    "spread": lambda x: P.reduce_sum(P.broadcast(P.broadcast(x, (2, *x.shape), (1, 2)), (2, 2, *x.shape), (1, 2, 3)), (0, 1)),
    "selected": lambda x: P.select(like(True, P.ne(x, x)), x, P.neg(x)),
    "halves": lambda x: P.add(around(P.slice(x, (0, 0), (1, x.shape[1])), 0, 0, x.shape[0] - 1),
                              around(P.slice(x, (1, 0), x.shape), 0, 1, 0)),
    "constant": lambda x: P.add(x, P.mul(like(3.0, x), P.sub(like(0.5, x), like(1.0, x)))),
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(_UNARY)), min_size=1, max_size=7), st.integers(2, 4), st.integers(2, 4))
def test_random_chains_keep_their_values(steps, n, m):
    def chain(x):
        for step in steps:
            x = _UNARY[step](x)
        return x

    x = np.resize(SPECIAL.ravel()[:10], (n, m)).astype("f4")
    np.testing.assert_allclose(evaluate_graph(chain, x)[0], evaluate_trace(chain, x)[0], rtol=1e-5, atol=1e-37)
