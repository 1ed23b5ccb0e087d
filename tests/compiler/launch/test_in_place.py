"""Intermediate results in the memory of an operand."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.launch import in_place
from keras_ocl.compiler.launch.loops.lower import lower_loop
from keras_ocl.compiler.launch.lower import lower_graph
from keras_ocl.distribution.communicator import Communicator
from keras_ocl.primitives.collective import all_reduce_p
from tests.compiler.graphs import graph_of

N = 600  # a matrix of 1.4 MB


def dense(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


def reused(function, *shapes):
    """[(shape, name) of each intermediate result in another's memory] of a function of float32 arrays, and the Lowered."""
    graph, _ = graph_of(function, *((shape, "float32") for shape in shapes))
    lowered = lower_graph(graph, (), runtime.read_record("intel-cpu"), False, lower_loop)
    return [(n.name, owner.name) for n, owner in lowered.alias.items()], lowered


def stepped(a, b):
    """Products whose epilogue reads an intermediate value that nothing reads afterwards."""
    x = dense(a, b)
    return dense(P.mul(x, dense(x, b)), b)


def test_an_epilogue_may_overwrite_what_nothing_reads_afterwards():
    """Not where the product itself reads it: there other elements are still needed."""
    found, _ = reused(stepped, (N, N), (N, N))
    assert not found
    found, lowered = reused(lambda a, b: dense(P.mul(dense(a, b), dense(P.exp(dense(b, a)), b)), b), (N, N), (N, N))
    assert found == [("mul", "dot_general")]
    assert len({lowered.resolve(a.value) for launch in lowered.launches for a in launch.args if a.kind == "out"}) == 3


def test_a_kernel_of_rows_reads_more_than_it_writes():
    def normalised(a, b):
        x = dense(a, b)
        total = P.broadcast(P.reduce_sum(x, (1,)), (N, N), (0,))
        return dense(P.div(x, total), b)

    assert not reused(normalised, (N, N), (N, N))[0]


def test_results_of_the_graph_and_small_values_keep_their_memory():
    def both(a, b):
        x = dense(a, b)
        return x, dense(P.mul(x, dense(P.exp(b), a)), b)

    assert not reused(both, (N, N), (N, N))[0]
    assert not reused(lambda a, b: dense(P.mul(dense(a, b), dense(P.exp(dense(b, a)), b)), b), (64, 64), (64, 64))[0]


@pytest.mark.parametrize("size", [1, 7, 33, 130])
def test_values(monkeypatch, size):
    """With every value large enough, in chains of several such kernels."""
    monkeypatch.setattr(in_place, "_LARGE", 1)
    rng = np.random.default_rng(size)
    a, b = (rng.normal(size=(size, size)).astype("float32") / size**0.5 for _ in range(2))

    def function(a, b):
        x = dense(a, b)
        for _ in range(3):
            x = P.mul(P.add(x, dense(P.tanh(dense(b, a)), b)), dense(P.exp(P.neg(dense(b, b))), a))
        return dense(x, b)

    def reference(a, b):
        x = a @ b
        for _ in range(3):
            x = (x + np.tanh(b @ a) @ b) * (np.exp(-(b @ b)) @ a)
        return x @ b

    np.testing.assert_allclose(to_numpy(Jitted(function)(a, b)), reference(a.astype("float64"), b.astype("float64")), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_operand_of_a_sum_that_a_thread_computes_keeps_its_memory(overlaps):
    """A kernel that reads it last may run while the thread still reads it, too."""

    class Ranks(Communicator):
        pass

    Ranks.overlaps = overlaps
    group = Ranks()

    def function(a, b):
        x = dense(a, b)
        total, _ = all_reduce_p(x, P.constant(0, "int32"), group=group, kind="sum")
        return dense(P.mul(x, dense(P.exp(dense(b, a)), b)), b), total

    found, _ = reused(function, (N, N), (N, N))
    assert found == ([] if overlaps else [("mul", "dot_general")])
