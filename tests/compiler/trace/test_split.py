"""Splitting of long reductions: along which axis, and into parts of how many elements."""

import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler.trace import ir
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.schedule import get
from tests.compiler.graphs import trace_of


def parts(schedule, shape, axes):
    """(axis, elements of it per part) of the partial reduction that a sum becomes; None where it stays one."""
    trace, results = trace_of(lambda x: P.reduce_sum(x, axes), (shape, "float32"))
    graph = ir.build(trace.equations, results, get(schedule).splitting)
    found = [n.params for n in graph.live() if n.kind is Kind.REDUCTION and n.primitive.stored]
    return (found[0]["axis"], found[0]["chunk"]) if found else None


@pytest.mark.parametrize(
    "shape, axes, expected",
    [
        ((32, 32, 32, 64), (1, 2, 3), (1, 1)),
        ((32, 32, 32, 64), (0, 1, 2, 3), (0, 1)),
        ((40, 33, 64), (0, 1, 2), (0, 8)),
        ((3, 100_000), (0, 1), (1, 5556)),  # its parts are long themselves
        ((3, 4000), (1,), (1, 2000)),  # there is no other axis
        ((2, 3, 2000), (0, 1, 2), (2, 1000)),  # others have too few parts
        ((64, 4096), (1,), None),
    ],
)
def test_parts_of_rows_on_cpus(shape, axes, expected):
    """Not a few elements of each row, of which all parts would read the same cache lines."""
    assert parts("cpu", shape, axes) == expected


def test_gpus_split_the_first_axis_that_is_long_enough():
    assert parts("gpu", (32, 64, 32, 64), (1, 2, 3)) == (1, 1)
