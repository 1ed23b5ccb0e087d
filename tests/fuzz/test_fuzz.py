"""Random programs: a few new ones, those that once failed, and whether a wrong operation would be noticed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from keras import ops

from keras_ocl.compiler.trace.ir import Graph
from tests.fuzz import operations
from tests.fuzz.checks import check_gradient, check_results, supported
from tests.fuzz.programs import Program, programs

FOUND = {
    "a floor of two states of a loop that cancel": Program(
        inputs=[(None, 7, 16)],
        steps=[
            ("add", [0, 0], {}),
            ("scan", [1], {"pieces": ["flip", "sin", "sin"], "reverse": False}),
            ("floor", [2], {}),
        ],
        outputs=[3],
        dtype="float16",
        seed=38,
        batches=[7],
        odd=True,
    ),
    "an elementwise chain of nothing, concatenated": Program(
        inputs=[(0,)], steps=[("abs", [0], {}), ("abs", [1], {}), ("abs", [2], {}), ("concatenate", [3, 3], {"axis": 0})], outputs=[4]
    ),
    "nothing, tiled": Program(inputs=[(0,)], steps=[("tile", [0], {"repeats": (2,)})], outputs=[1]),
    "sines of sines and their cosines in float64, which Intel's compiler could not take": Program(
        inputs=[(2,)],
        steps=[
            ("tanh", [0], {}),
            ("sin", [0], {}),
            ("sin", [2], {}),
            ("add", [3, 2], {}),
            ("abs", [4], {}),
            ("standardized", [3], {"axis": 0}),
            ("gelu", [5], {}),
        ],
        outputs=[7],
        dtype="float64",
        seed=72,
        batches=[17],
    ),
    "a sign that rounding to 1.0 makes jump": Program(
        inputs=[(None, 5)],
        steps=[("sigmoid", [0], {}), ("abs", [1], {}), ("log", [2], {}), ("sign", [3], {})],
        outputs=[4],
        dtype="float16",
        seed=4,
        batches=[16],
        odd=True,
    ),
}


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs(program):
    if supported(program):
        check_results(program)
        check_gradient(program)


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_failed_once(name):
    if not supported(FOUND[name]):
        pytest.skip("the device has no float64")
    check_results(FOUND[name])
    check_gradient(FOUND[name])


SMALL = Program(inputs=[(3, 5)], steps=[("tanh", [0], {}), ("multiply", [0, 1], {})], outputs=[2])


def wrong(monkeypatch, name, function):
    monkeypatch.setitem(operations.OPERATIONS, name, dataclasses.replace(operations.OPERATIONS[name], ours=function))


def test_a_wrong_result_is_noticed(monkeypatch):
    check_results(SMALL)
    wrong(monkeypatch, "tanh", lambda x: ops.tanh(x) * (1 + 1e-4))
    with pytest.raises(AssertionError, match="eager: result 0 has .* wrong elements; at"):
        check_results(SMALL)


def test_a_wrong_shape_is_noticed(monkeypatch):
    wrong(monkeypatch, "multiply", lambda a, b: (a * b)[:2])
    with pytest.raises(AssertionError, match=r"shape \(2, 5\), not \(3, 5\)"):
        check_results(SMALL)


def test_nan_is_noticed(monkeypatch):
    wrong(monkeypatch, "tanh", lambda x: ops.where(x > 0, ops.tanh(x), np.nan))
    with pytest.raises(AssertionError, match="wrong elements"):
        check_results(SMALL)


ODD = dataclasses.replace(SMALL, odd=True)


@pytest.mark.parametrize("change", [ops.nan_to_num, lambda x: ops.where(ops.isfinite(x), x, np.nan), ops.negative])
def test_nan_and_infinities_that_change_are_noticed(monkeypatch, change):
    assert any(not np.isfinite(a).all() for a in ODD.arrays())
    check_results(ODD)
    wrong(monkeypatch, "multiply", lambda a, b: change(a * b))
    with pytest.raises(AssertionError, match="wrong elements"):
        check_results(ODD)


@pytest.mark.parametrize("loop", ["scan", "fori_loop", "while_loop"])
def test_a_wrong_loop_is_noticed(monkeypatch, loop):
    params = {"pieces": ["tanh", "mean"], "reverse": True} if loop == "scan" else {"pieces": ["tanh", "mean"], "times": 3}
    program = Program(inputs=[(3, 5)], steps=[(loop, [0], params)], outputs=[1])
    check_results(program)
    check_gradient(program)
    ours = operations.OPERATIONS[loop].ours
    wrong(monkeypatch, loop, lambda x, **p: ours(x, **(p | ({"reverse": False} if loop == "scan" else {"times": 2}))))
    with pytest.raises(AssertionError, match="wrong elements"):
        check_results(program)


def test_a_wrong_gradient_is_noticed(monkeypatch):
    check_gradient(SMALL)
    wrong(monkeypatch, "tanh", lambda x: ops.stop_gradient(ops.tanh(x)))
    with pytest.raises(AssertionError, match="tape: the slope is"):
        check_gradient(SMALL)


def test_a_value_that_is_computed_again_wrongly_is_noticed(monkeypatch):
    check_gradient(SMALL)
    again = Graph.again

    def without_tanh(graph, node, inputs, origin):
        return inputs[0] if node.name == "tanh" else again(graph, node, inputs, origin)

    monkeypatch.setattr(Graph, "again", without_tanh)
    with pytest.raises(AssertionError, match="compiled gradient that keeps least: the slope is"):
        check_gradient(SMALL)


def test_a_wrong_remat_is_noticed(monkeypatch):
    program = Program(inputs=[(3, 5)], steps=[("remat", [0], {"pieces": ["tanh", "product"]})], outputs=[1])
    check_results(program)
    check_gradient(program)
    ours = operations.OPERATIONS["remat"].ours
    wrong(monkeypatch, "remat", lambda x, pieces: ours(x, pieces[:1]))
    with pytest.raises(AssertionError, match="wrong elements"):
        check_results(program)


def test_a_program_is_made_again_from_its_text():
    again = eval(repr(SMALL))
    assert again == SMALL and all(np.array_equal(a, b) for a, b in zip(again.arrays(), SMALL.arrays(), strict=True))
