"""Extents of 2**31 and beyond: right values, or one sentence before anything is enqueued. No test makes such an array."""

import dataclasses

import numpy as np
import pytest
from keras import ops

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.launch.loops.lower import lower_loop
from keras_ocl.compiler.launch.lower import lower_graph, program_spec
from keras_ocl.kernels.schedule import schedule_names
from keras_ocl.ops import core, numpy, slicing
from keras_ocl.runtime import OutOfMemory
from tests.compiler.graphs import graph_of

FAR = 2**31
ROWS = np.int32([0, 1])


def scatter(mode):
    def function(x, ids, updates):
        if mode == "new":
            return P.scatter_new(x.shape, (ids,), updates, (0,))
        return P.scatter(x, (ids,), updates, (0,), mode)

    return function, ((FAR,), "int8"), ((3,), "int32"), ((3,), "int8")


KERNELS = {
    "bincount": scatter("new"),
    "segment_max": scatter("max"),
    "scatter of rows": (
        lambda x, ids, updates: P.scatter(x, (ids,), updates, (0,), "add"),
        ((2**19 + 3, 4096), "int8"),
        ((9,), "int32"),
        ((9, 4096), "int8"),
    ),
    "scatter of many": (
        lambda ids, updates: P.scatter_new((2**30, 3), (ids,), updates, (0,)),
        ((2**20,), "int32"),
        ((2**20, 3), "float32"),
    ),
    "cumsum": (lambda x: P.cumsum(x, 0), ((FAR + 5,), "int8")),
    "cumsum of columns": (lambda x: P.cumsum(x, 0), ((FAR, 3), "int8")),
    "cumsum of rows": (lambda x: P.cumsum(x, 1), ((3, FAR), "int8")),
    "sort": (lambda x: P.sort((x,), 0, 1), ((FAR + 5,), "int8")),
    "sort of rows": (lambda x: P.sort((x,), 1, 1), ((3, FAR), "int32")),
    "sort of short rows": (lambda x: P.sort((x,), 1, 1), ((2**20, 4096), "int32")),
    "top_k": (lambda x: P.top_k(x, 3), ((2**20, 4096), "int32")),
    "argmax": (lambda x: P.argmax(x, 0, "int64"), ((FAR + 5,), "int8")),
    "gather": (lambda x, i: P.gather(x, (i,), (0,)), ((FAR + 5,), "int8"), ((3,), "int64")),
    "dynamic_slice": (lambda x, s: P.dynamic_slice(x, (s,), (2,)), ((FAR + 5,), "int8"), ((), "int64")),
    "dynamic_update_slice": (lambda x, u, s: P.dynamic_update_slice(x, u, (s,)), ((FAR + 5,), "int8"), ((2,), "int8"), ((), "int64")),
    "pad": (lambda x: P.pad(x, P.constant(0, "int8"), (3,), (2,)), ((FAR,), "int8")),
    "concat": (lambda x, y: P.concat((x, y), 0), ((FAR,), "int8"), ((2**30,), "int8")),
    "window": (lambda x: P.reduce_window(x, "max", (3,), (2,), ((0, 0),), (1,)), ((FAR + 5,), "int32")),
}


@pytest.mark.parametrize("schedule", schedule_names())
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile(name, schedule):
    """Extents are numbers in their text, small ones beside far ones."""
    device = runtime.current_device()
    function, *inputs = KERNELS[name]
    graph, _ = graph_of(function, *inputs)
    traits = dataclasses.replace(device.traits, schedule=schedule)
    launches = lower_graph(graph, (), traits, False, lower_loop).launches
    assert device.build([program_spec(launch, traits) for launch in launches])


@pytest.mark.parametrize("extent", [FAR - 1, FAR, FAR + 5, 2**40])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint32"])
def test_indices_count_from_the_end_of_any_axis(extent, dtype):
    given = np.array([0, 1, 2, 100], dtype) if dtype.startswith("u") else np.array([0, -1, 5, -7], dtype)
    want = np.where(given.astype(np.int64) < 0, given.astype(np.int64) + extent, given.astype(np.int64))
    np.testing.assert_array_equal(ops.convert_to_numpy(slicing.wrapped(ops.convert_to_tensor(given), extent)), want)
    np.testing.assert_array_equal(ops.convert_to_numpy(slicing.from_start(given, extent)), want)


def shape_of(function, *inputs):
    graph, _ = graph_of(function, *inputs)
    (output,) = graph.outputs
    return output.shape, output.dtype


def test_shapes_and_dtypes():
    x = ((FAR + 5,), "int8")
    assert shape_of(lambda t: numpy.argmax(t), x) == ((), "int64")
    assert shape_of(lambda t: numpy.argmin(t, axis=1, keepdims=True), ((3, FAR), "int8")) == ((3, 1), "int64")
    assert shape_of(lambda t: numpy.argmax(t), ((FAR - 1,), "int8")) == ((), "int32")
    assert shape_of(lambda t: numpy.take(t, ROWS, 0), x) == ((2,), "int8")
    assert shape_of(lambda t: numpy.take(t, ops.convert_to_tensor(ROWS), 0), x) == ((2,), "int8")
    assert shape_of(lambda t: t[ROWS], x) == ((2,), "int8")
    assert shape_of(lambda t: core.slice(t, (FAR + 1,), (2,)), x) == ((2,), "int8")
    assert shape_of(lambda t: core.slice_update(t, [FAR + 1], np.int8([9, 9])), x) == ((FAR + 5,), "int8")
    assert shape_of(lambda t: core.scatter_update(t, ROWS[:, None], np.int8([9, 9])), x) == ((FAR + 5,), "int8")


@pytest.mark.parametrize("name", ["argsort", "nonzero", "top_k"])
def test_positions_that_int32_does_not_hold_are_one_sentence(name):
    calls = {"argsort": numpy.argsort, "nonzero": lambda x: P.iota(x.shape, 0, "int32"), "top_k": lambda x: P.top_k(x, 2)[1]}
    with pytest.raises(ValueError, match=f"positions along an axis of {FAR + 5} elements do not fit in int32"):
        graph_of(calls[name], ((FAR + 5,), "int8"))


TOO_LARGE = {
    "zeros": lambda: ops.zeros((2**62, 4)),
    "ones of many axes": lambda: ops.ones((FAR, FAR, FAR)),
    "tile": lambda: ops.tile(np.ones(3, "int8"), 2**62),
    "broadcast_to": lambda: ops.broadcast_to(np.ones(1, "int8"), (2**62, 8)),
    "segment_sum": lambda: ops.segment_sum(np.ones(3, "int8"), np.array([0, 1, 2]), num_segments=2**62),
    "scatter": lambda: ops.scatter(np.array([[1]]), np.ones(1, "int8"), (2**62,)),
    "arange": lambda: ops.arange(2**62),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_arrays_beyond_all_memory_are_one_sentence(name):
    with pytest.raises(OutOfMemory, match=r"out of memory on .*: .* (needs \d|makes an array of \d+ elements)"):
        TOO_LARGE[name]()
    assert ops.convert_to_numpy(ops.ones(3)).sum() == 3
