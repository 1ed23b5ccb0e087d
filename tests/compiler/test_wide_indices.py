"""Indices take 64 bits where a tensor has more elements than 32 count: of generated kernels, and of templates' epilogues."""

import dataclasses

import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.launch.loops.lower import lower_loop
from keras_ocl.compiler.launch.lower import lower_graph
from keras_ocl.kernels import ordered_sum
from keras_ocl.kernels.conv import Geometry, Problem, elements
from keras_ocl.kernels.spec import Buffer, Sink
from tests.compiler.graphs import graph_of
from tests.kernels.places import stored


@pytest.fixture
def device():
    return runtime.current_device()


def kernels(device, function, *shapes, schedule="reference"):
    """The kernels of `function` on float32 inputs of these shapes."""
    graph, _ = graph_of(function, *((shape, "float32") for shape in shapes))
    traits = dataclasses.replace(device.traits, schedule=schedule)
    return lower_graph(graph, (), traits, False, lower_loop).launches


def multiply(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


@pytest.mark.parametrize("rows", [5, 60_001])
def test_a_product_with_an_epilogue(device, rows):
    """The epilogue adds a row and is stored; at the last element."""

    def add(a, b, row):
        return P.add(multiply(a, b), P.broadcast(row, (rows, 70_001), (1,)))

    (spec,) = kernels(device, add, (rows, 3), (3, 70_001), (70_001,))
    assert stored(device, spec, 70_000, rows - 1, 0) == [rows * 70_001 - 1]


def test_parts_of_a_larger_tensor(device):
    """Each is small enough for 32 bits, and stored straight into a concat that is not."""

    def join(x, y, b):
        return multiply(P.concat((P.exp(x), P.exp(y)), 0), b)

    graph, _ = graph_of(join, *((shape, "float32") for shape in ((20_000, 70_001), (30_000, 70_001), (70_001, 3))))
    traits = dataclasses.replace(device.traits, schedule="reference")
    first, second, _ = lower_graph(graph, (), traits, False, lower_loop, {}).launches
    assert stored(device, first, 20_000 * 70_001 - 1, 0, 0) == [20_000 * 70_001 - 1]
    assert stored(device, second, 30_000 * 70_001 - 1, 0, 0) == [50_000 * 70_001 - 1]


def test_an_operand_of_an_epilogue_that_is_larger_than_the_result(device):
    """Every second row of a tensor is added: read at twice the result's offsets, whose last is beyond 32 bits."""

    def add(a, b, x):
        return P.add(multiply(a, b), P.slice(x, (0, 0), (60_000, 40_000), (2, 1)))

    (spec,) = kernels(device, add, (30_000, 3), (3, 40_000), (60_000, 40_000))
    assert "(long)" in spec.body and stored(device, spec, 39_999, 29_999, 0) == [30_000 * 40_000 - 1]


def test_a_generated_kernel(device):
    """Elements, and a loop over more of them than 32 bits count although no tensor in memory has as many."""

    def total(x, y):
        square = (70_000, 70_000)
        return P.reduce_sum(P.mul(P.broadcast(x, square, (0,)), P.broadcast(y, square, (1,))), (0, 1))

    (spec,) = kernels(device, lambda x: P.neg(x), (60_001, 70_001))
    assert stored(device, spec, 60_001 * 70_001 - 1, 0, 0) == [60_001 * 70_001 - 1]
    assert all("int g" not in spec.body for spec in kernels(device, total, (70_000,), (70_000,)))


def test_a_plain_sink_and_the_sum_of_parts(device):
    shape = (60_001, 70_001)
    spec = ordered_sum.kernel("sum", Buffer(0, "float32"), 2, shape, "float32", Sink(Buffer(0, "float32"), shape, "float32"))
    assert stored(device, spec, 60_001 * 70_001 - 1, 0, 0) == [60_001 * 70_001 - 1]


def test_a_convolution_with_more_pixels(device):
    geometry = Geometry.of((50_000, 50_000, 1), (1, 1, 1))
    sink = Sink(Buffer(0, "float32"), geometry.output, "float32")
    (spec,) = elements.forward(Problem(device.traits, geometry, "float32", sink, x=Buffer(0, "float32"), w=Buffer(0, "float32")))
    assert stored(device, spec, 0, 50_000 * 50_000 - 1, 0) == [50_000 * 50_000 - 1]
