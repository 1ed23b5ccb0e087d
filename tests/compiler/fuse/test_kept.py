"""What a step keeps for its gradient, and that the results are the same however much it keeps."""

import dataclasses
import math

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.fuse import kept as module
from keras_ocl.compiler.fuse.kept import kept
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.trace import ir
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.dim import Dim, noting
from keras_ocl.core.facts import Facts
from keras_ocl.core.primitive import Kind
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.ops import nn

ROWS, WIDTH = 4096, 2048  # a value of 32 MiB, more than caches hold


def step(loss):
    """A function of tensors: (the loss, its gradients by all of them)."""

    def both(*given):
        with GradientTape() as tape:
            for x in given:
                tape.watch(x)
            value = loss(*given)
        return value, *tape.gradient(value, list(given))

    return both


def dense(x, w):
    return P.dot_general(x, w, ((1,), (0,)))


def total(x):
    return P.reduce_sum(x, (0, 1))


def graph_of(loss, *shapes):
    trace = Trace()
    with tracing(trace):
        results = step(loss)(*[trace.input(shape, "float32") for shape in shapes])
    return ir.build(trace.equations, list(results))


def chosen(loss, *shapes, keep="cut", record="intel-cpu"):
    traits = dataclasses.replace(runtime.read_record(record), keep=keep)
    return kept(graph_of(loss, *shapes), traits)


def names(nodes):
    """The names of nodes that are no constants, views or few numbers, in order."""
    return [n.name for n in nodes if math.prod(n.shape) > 1 and n.name not in ("broadcast", "reshape")]


SHAPES = (ROWS, 256), (256, WIDTH), (WIDTH, 128)


@pytest.mark.parametrize("record, keep", [("sm_90", "cut"), ("intel-cpu", "cut"), ("intel-cpu", "least")])
def test_of_a_dense_layer_with_gelu_only_the_pre_activation_is_kept(record, keep):
    found = chosen(lambda x, w, v: total(P.tanh(dense(nn.gelu(dense(x, w), approximate=False), v))), *SHAPES, keep=keep, record=record)
    assert names(found.kept) == ["dot_general", "tanh"]
    assert "erf" in names(found.repeated) and "dot_general" not in names(found.repeated)


def test_of_a_dense_layer_with_relu_only_the_activation_is_kept():
    found = chosen(lambda x, w, v: total(P.tanh(dense(P.relu(dense(x, w)), v))), *SHAPES)
    assert names(found.kept) == ["relu", "tanh"] and not names(found.repeated)


def test_a_normalised_value_is_computed_from_the_statistics():
    def loss(x, w, v):
        y = dense(x, w)
        mean = P.div(P.reduce_sum(y, (1,)), P.broadcast(P.constant(float(WIDTH), "float32"), (ROWS,), ()))
        centred = P.sub(y, P.broadcast(mean, (ROWS, WIDTH), (0,)))
        return total(P.tanh(dense(P.mul(y, P.exp(centred)), v)))

    found = chosen(loss, *SHAPES, record="sm_90")
    assert names(found.kept) == ["dot_general", "div", "tanh"]
    assert "reduce_sum" not in names(found.repeated)


def test_all_repeats_nothing_and_least_repeats_reductions_too():
    def loss(x, w, v):
        y = dense(x, w)
        scaled = P.mul(y, P.broadcast(P.exp(P.reduce_sum(y, (1,))), (ROWS, WIDTH), (0,)))
        return total(P.tanh(dense(P.exp(scaled), v)))

    assert not chosen(loss, *SHAPES, keep="all").repeated
    assert "reduce_sum" in names(chosen(loss, *SHAPES, keep="least").repeated)
    for keep in ("cut", "least"):
        assert "dot_general" not in names(chosen(loss, *SHAPES, keep=keep).repeated)


def test_a_cast_of_a_weight_is_not_repeated():
    """To load the weight again takes as long as to keep its half."""

    def half(x):
        return P.convert(x, "bfloat16")

    def loss(x, w, v):
        return total(P.convert(P.tanh(dense(nn.gelu(dense(half(x), half(w))), half(v))), "float32"))

    found = chosen(loss, (8192, WIDTH), (WIDTH, WIDTH), (WIDTH, 128), record="sm_90")
    assert found.repeated and not any(n.name == "convert" and n.inputs[0].kind is Kind.INPUT for n in found.repeated)


def test_a_small_step_keeps_all():
    shapes = (32, 16), (16, 64), (64, 8)

    def loss(x, w, v):
        return total(dense(nn.gelu(dense(x, w)), v))

    assert not chosen(loss, *shapes).repeated
    assert chosen(lambda x, w, v: total(dense(nn.gelu(dense(x, w)), v)), (ROWS, 16), (16, WIDTH), (WIDTH, 8)).repeated


def test_without_a_gradient_nothing_changes():
    trace = Trace()
    with tracing(trace):
        x = trace.input((ROWS, WIDTH), "float32")
        y = P.exp(P.exp(x))
    graph = ir.build(trace.equations, [y])
    found = kept(graph, runtime.read_record("intel-cpu"))
    assert found.graph is graph and not found.kept and not found.repeated


def test_the_graph_that_is_given_stays_as_it_is():
    """It is lowered again for a profile, and for smaller work-groups."""
    graph = graph_of(lambda x, w, v: total(dense(nn.gelu(dense(x, w)), v)), *SHAPES)
    before = [(n, n.inputs, n.order) for n in graph.nodes], list(graph.outputs)
    first, second = (kept(graph, runtime.read_record("intel-cpu")) for _ in range(2))
    assert ([(n, n.inputs, n.order) for n in graph.nodes], list(graph.outputs)) == before
    assert [repr(n) for n in first.graph.live()] == [repr(n) for n in second.graph.live()]


def test_copies_stand_before_their_first_reader():
    found = chosen(lambda x, w, v: total(dense(nn.gelu(dense(x, w)), v)), *SHAPES)
    order = {n: n.order for n in found.graph.live()}
    assert all(order[i] < order[n] for n in order for i in n.inputs)


@pytest.mark.parametrize("keep", ["all", "cut", "least"])
def test_results_are_the_same(monkeypatch, keep):
    device = runtime.current_device()
    monkeypatch.setattr(module, "_CACHED", 0)
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, keep=keep))
    rng = np.random.default_rng(0)
    x, w, v = (rng.normal(size=shape).astype("float32") / 4 for shape in ((37, 19), (19, 65), (65, 5)))

    def loss(x, w, v):
        y = dense(x, w)
        n, m = y.shape
        mean = P.div(P.reduce_sum(y, (1,)), P.broadcast(P.constant(65.0, "float32"), (n,), ()))
        centred = nn.gelu(P.sub(y, P.broadcast(mean, (n, m), (0,))), approximate=False)
        return total(P.tanh(dense(P.relu(centred), v)))

    def reference(x, w, v):
        erf = np.vectorize(math.erf)
        y = x @ w
        c = y - y.mean(1, keepdims=True)
        g = c * 0.5 * (1 + erf(c / math.sqrt(2)))
        a = np.maximum(g, 0)
        t = np.tanh(a @ v)
        ds = 1 - t * t
        dv, da = a.T @ ds, ds @ v.T
        dc = da * (g > 0) * (0.5 * (1 + erf(c / math.sqrt(2))) + c * np.exp(-c * c / 2) / math.sqrt(2 * math.pi))
        dy = dc - dc.mean(1, keepdims=True)
        return t.sum(), dy @ w.T, x.T @ dy, dv

    expected = reference(*(a.astype("float64") for a in (x, w, v)))
    for dynamic in (None, (0,)):
        results = Jitted(step(loss), dynamic=dynamic)(x, w, v)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(to_numpy(result), value, rtol=2e-4, atol=2e-5)


def test_unknown_extents_note_no_fact():
    """The choice goes by hints: another batch keeps the same."""
    rows = Dim(ROWS)
    with noting(Facts((rows,))) as facts:
        trace = Trace()
        with tracing(trace):
            results = step(lambda x, w, v: total(dense(nn.gelu(dense(x, w)), v)))(
                *[trace.input(shape, "float32") for shape in ((rows, 256), *SHAPES[1:])]
            )
        graph = ir.build(trace.equations, list(results))
        before = len(tuple(facts))
        assert kept(graph, runtime.read_record("intel-cpu")).repeated
        assert len(tuple(facts)) == before
