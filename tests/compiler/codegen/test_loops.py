"""Loops in vectors of lanes: parts that cover everything once, reductions, and invariants outside."""

import re

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler.codegen import Analysis, Generator
from keras_ocl.core.dim import Dim
from keras_ocl.core.index import Affine
from keras_ocl.kernels.spec import Args
from tests.compiler.codegen.printing import printed
from tests.compiler.graphs import graph_of
from tests.kernels.launching import named


def like(value, x):
    return P.full(x.shape, value, x.dtype)


def covered(parts, arguments):
    """How often the loops of `parts` come to each element, as C would run them."""
    count = np.zeros(400, int)
    for part in parts:
        start, stop = (eval(text.replace("/", "//"), {}, arguments) for text in (part.start, part.stop))
        at = start
        while at + part.lanes <= stop if part.lanes > 1 else at < stop:
            count[at : at + (part.partial or part.lanes)] += 1
            at += part.lanes
    return count


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_parts_cover_a_known_extent_once(width):
    for extent in range(1, 90):
        gen = Generator(Args(), set(), width, {})
        parts = gen.parts(extent, gen.lane_width(extent))
        np.testing.assert_array_equal(covered(parts, {}), np.arange(400) < extent)
        assert all(part.lanes <= width and part.partial < part.lanes for part in parts) and len(parts) <= 2


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("all_arguments", [False, True])
def test_parts_cover_an_unknown_extent_once(width, all_arguments):
    """Whatever it is: the text is that of another value's."""
    texts = set()
    for extent in (1, 3, 4, 15, 16, 17, 70):
        gen = Generator(Args(all_arguments), set(), width, {})
        n = extent if all_arguments else Dim(extent, 50, 1000003)
        parts = gen.parts(n, width)
        arguments = {a.name: a.value for a in gen.args.args}
        np.testing.assert_array_equal(covered(parts, arguments), np.arange(400) < extent)
        if extent > 1:
            texts.add(str(parts))
    assert len(texts) == 1 or all_arguments  # an eager kernel names each occurrence


@pytest.mark.parametrize("width", [1, 4, 16])
def test_parts_between_limits(width):
    for first, last in ((0, 33), (5, 5), (7, 60), (32, 48)):
        parts = Generator(Args(), set(), width, {}).parts(100, width, ("first", "last"))
        at = np.arange(400)
        np.testing.assert_array_equal(covered(parts, {"first": first, "last": last}), (first <= at) & (at < last))


def test_lanes_are_fewer_for_short_loops():
    gen = Generator(Args(), set(), 16, {})
    assert [gen.lane_width(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 100)] == [1, 1, 4, 4, 8, 8, 16, 16, 16]
    assert [gen.lane_width(Dim(100, hint)) for hint in (3, 4, 9, 15, 16, 17)] == [1, 4, 8, 8, 16, 16]
    assert Generator(Args(), set(), 2, {}).lane_width(100) == 1  # two lanes are no gain


# ---- what is computed where


def written(function, *specs, extents, index=lambda vs: vs):
    """(text, registers of all results) of `function` at an index made of the loops' variables."""
    graph, inputs = graph_of(function, *specs)
    registers = []

    def evaluate(evaluator, variables):
        return [evaluator.value(node, index([Affine.of(v) for v in variables])) for node in graph.outputs]

    def emit(gen, _, found):
        registers[:] = found
        for k, register in enumerate(found):
            gen.emit(f"{gen.args.pointer(named(f'y{k}'), register.dtype, out=True)}[0] = {register.text};")

    gen, _, _ = printed(extents, evaluate, emit, inputs)
    return gen.top.render(), registers


MATRIX, ROW = ((5, 7), "float32"), ((5,), "float32")


def along(x, like, axis):
    return P.broadcast(x, like.shape, (axis,))


def before_the_loop(text, what):
    """Whether `what` stands before the innermost loop."""
    return text.index(what) < text.rindex("for (")


def test_what_does_not_depend_on_the_inner_loop_is_computed_outside():
    text, (register,) = written(lambda x, r: P.mul(x, along(P.exp(r), x, 0)), MATRIX, ROW, extents=(5, 7))
    assert before_the_loop(text, "exp") and text.count("exp") == 1 and register.block.depth == 2
    text, _ = written(lambda x, r: P.mul(x, along(P.exp(r), x, 1)), MATRIX, ((7,), "float32"), extents=(5, 7))
    assert not before_the_loop(text, "exp")


def test_what_depends_on_no_loop_is_at_the_top():
    _, (register,) = written(lambda x, s: P.broadcast(P.exp(s), x.shape, ()), MATRIX, ((), "float32"), extents=(5, 7))
    assert register.block.depth == 0


def test_a_sum_of_a_row_is_outside_the_loop_over_the_row():
    text, (register,) = written(lambda x: P.sub(x, along(P.reduce_sum(x, (1,)), x, 0)), MATRIX, extents=(5, 7))
    assert text.count("for (") == 3 and register.block.depth == 2
    adding = re.search(r"\b(a\d+) = .*\b\1\b", text)
    assert adding.start() < text.rindex("for (")  # which walks the results


def test_a_value_is_computed_once_at_each_index():
    text, _ = written(lambda x: P.mul(P.exp(x), P.add(P.exp(x), like(1.0, x))), MATRIX, extents=(5, 7))
    assert text.count("exp") == 1 and text.count("p0[") == 1
    text, _ = written(lambda x: P.add(P.exp(x), P.reverse(P.exp(x), (1,))), MATRIX, extents=(5, 7))
    assert text.count("exp") == 2


def test_views_are_index_expressions():
    text, _ = written(lambda x: P.transpose(P.reverse(P.slice(x, (1, 0), (5, 6), (1, 2)), (1,)), (1, 0)), MATRIX, extents=(3, 4))
    assert text.count("p0[") == 1 and text.count("const float") == 1 and "for (" in text


def test_an_identity_has_one_nest():
    analysis = Analysis(set())
    assert analysis.nest("a", (3,)) is analysis.nest("a", (3,)) is not analysis.nest("b", (3,))
