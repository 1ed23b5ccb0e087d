"""Kernels generated for hand-made graphs, with all schedules and widths of vectors, run and compared with NumPy."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.launch.region_kernels import KernelBody, pointwise_kernel
from keras_ocl.core.dim import Dim
from keras_ocl.kernels.schedule import schedule_names
from tests.compiler.graphs import evaluate_trace, graph_of
from tests.kernels.launching import launch
from tests.pairwise import pairwise

SCHEDULES = [*schedule_names(), "cpu of 4 lanes", "cpu of 8 lanes"]


@pytest.fixture(params=SCHEDULES)
def traits(request):
    schedule, *more = request.param.split(" of ")
    traits = dataclasses.replace(runtime.current_device().traits, schedule=schedule)
    return dataclasses.replace(traits, vector_width=int(more[0].split()[0])) if more else traits


def zeros(x):
    return P.constant(0, x.dtype)


FUNCTIONS = {
    "chain": lambda x: P.add(P.mul(x, x), P.full(x.shape, 0.25, x.dtype)),
    "transposed": lambda x: P.transpose(P.neg(x), (1, 0)),
    "reversed": lambda x: P.add(x, P.reverse(x, (1,))),
    "strided": lambda x: P.slice(P.add(x, x), (1, 0), x.shape, (2, 3)),
    "shifted": lambda x: P.add(x, P.pad(x, zeros(x), (0, 1), (0, -1))),
    "with gaps": lambda x: P.pad(P.neg(x), P.constant(7, x.dtype), (1, 0), (0, 2), (1, 2)),
    "beside itself": lambda x: P.concat((x, P.neg(x), P.slice(x, (0, 1), x.shape)), 1),
    "reshaped": lambda x: P.reshape(P.transpose(P.neg(x), (1, 0)), x.shape),
    "spread": lambda x: P.add(x, P.broadcast(P.slice(x, (0, 0), (x.shape[0], 1)), x.shape, (0, 1))),
    "numbered": lambda x: P.add(x, P.convert(P.iota(x.shape, 1, "int32"), x.dtype)),
    "less the row's maximum": lambda x: P.sub(x, P.broadcast(P.reduce_max(x, (1,)), x.shape, (0,))),
    "less the column's sum": lambda x: P.sub(x, P.broadcast(P.reduce_sum(x, (0,)), x.shape, (1,))),
    "row sums": lambda x: P.reduce_sum(P.mul(x, x), (1,)),
    "column sums": lambda x: P.reduce_sum(P.mul(x, x), (0,)),
    "all summed": lambda x: P.reduce_sum(x, (0, 1)),
    "two results": lambda x: (P.neg(x), P.add(x, P.reverse(x, (0,)))),
}


def check(traits, function, array, wrap=lambda n: n, all_arguments=False):
    shape = tuple(map(wrap, array.shape))
    graph, inputs = graph_of(function, (shape, array.dtype.name))
    body = KernelBody(graph.outputs, graph.outputs[0].shape, set(inputs), {}, {}, {})
    device, wanted = runtime.current_device(), evaluate_trace(function, array)
    buffers = {node.buffer: device.upload(np.full(want.shape, 99, want.dtype)) for node, want in zip(graph.outputs, wanted, strict=True)}
    buffers[inputs[0].buffer] = device.upload(array)
    launch(device, [pointwise_kernel(traits, body, all_arguments)], buffers)
    for node, want in zip(graph.outputs, wanted, strict=True):
        got = device.download(buffers[node.buffer], want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("traits,name,shape", pairwise(SCHEDULES, FUNCTIONS, [(3, 37), (16, 32), (1, 5)]), indirect=["traits"])
def test_values(traits, name, shape):
    x = np.random.default_rng(0).integers(-4, 5, shape).astype("f4")
    check(traits, FUNCTIONS[name], x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_where_extents_are_unknown(traits, name):
    """Hints are of another call."""
    x = np.random.default_rng(0).integers(-4, 5, (5, 19)).astype("f4")
    check(traits, FUNCTIONS[name], x, lambda n: Dim(n, 3 * n))
    check(traits, FUNCTIONS[name], x, all_arguments=True)


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint16", "int64"])
def test_dtypes(traits, dtype):
    if dtype == "float64" and not traits.fp64:
        pytest.skip("the device has no float64")
    x = np.random.default_rng(0).integers(0, 5, (3, 37)).astype(dtype)
    for name in ("reversed", "shifted", "beside itself", "less the row's maximum"):
        check(traits, FUNCTIONS[name], x)
