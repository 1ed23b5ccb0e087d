"""Normalisations and softmax: how many launches they and their gradients are, on CPUs and on GPUs, and what a kernel of rows stores."""

import inspect

import numpy as np
import pytest
from keras import ops

from keras_ocl import gradient, runtime
from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy
from keras_ocl.compiler.fuse.partition import partition
from keras_ocl.compiler.jit import Jitted
from tests.compiler.graphs import graph_of

ROWS, COLUMNS = (512, 16, 128), (128,)
CPU, GPU = "intel-cpu", "sm_90"


def layer_normalization(x, scale, offset):
    mean, variance = ops.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * ops.rsqrt(variance + 1e-3) * scale + offset


def rms_normalization(x, scale):
    return ops.rms_normalization(x, scale, axis=-1)


def keras_normalization(x, scale, offset):
    return ops.layer_normalization(x, scale, offset, axis=-1)


def unit_normalization(x):
    return ops.normalize(x, axis=-1, order=2)


def log_softmax(x):
    return ops.log_softmax(x)


def launches(record, function, *given):
    """The launches of a function of arrays on the device of a record."""
    device = runtime.RecordDevice(record, runtime.read_record(record))
    with runtime.device_scope(device):
        compiled = Jitted(function)
        return compiled.compiled(*(np.zeros(s, "float32") for s in given)).executable.launches


def shapes(function):
    """The shapes of its arguments: rows, and vectors along them."""
    return (ROWS, COLUMNS, COLUMNS)[: len(inspect.signature(function).parameters)]


def with_gradient(function):
    """`function` and its gradients, for a gradient of the result that is given first."""

    def both(upstream, *arrays):
        def loss(*arrays):
            y = function(*arrays)
            return ops.sum(y * upstream), y

        (_, y), gradients = gradient.value_and_grad(loss, argnums=tuple(range(len(arrays))), has_aux=True)(*arrays)
        return y, gradients

    return both


@pytest.mark.parametrize("record", [CPU, GPU])
@pytest.mark.parametrize(
    "function", [layer_normalization, keras_normalization, rms_normalization, unit_normalization, log_softmax], ids=lambda f: f.__name__
)
def test_a_normalisation_is_one_launch(function, record):
    assert len(launches(record, function, *shapes(function))) == 1


@pytest.mark.parametrize(
    "function, record, most",
    [
        (layer_normalization, CPU, 4),  # with the gradient for x two, and two for the sums over the rows in parts
        (layer_normalization, GPU, 5),
        (keras_normalization, CPU, 4),
        (keras_normalization, GPU, 5),
        (rms_normalization, CPU, 4),
        (rms_normalization, GPU, 4),
        (unit_normalization, CPU, 2),
        (unit_normalization, GPU, 2),
        (log_softmax, CPU, 3),
        (log_softmax, GPU, 2),
    ],
)
def test_a_normalisation_with_its_gradient_is_few_launches(function, record, most):
    found = launches(record, with_gradient(function), ROWS, *shapes(function))
    assert len(found) <= most, [launch.name for launch in found]


def regions(record, function, *shapes):
    """The Regions of a function of primitives on the device of a record."""
    graph, _ = graph_of(function, *((shape, "float32") for shape in shapes))
    return partition(graph, runtime.read_record(record)).regions


def centred(x):
    """x less the mean of its rows."""
    count = P.broadcast(P.constant(float(x.shape[-1]), "float32"), x.shape[:-1], ())
    return P.sub(x, P.broadcast(P.div(P.reduce_sum(x, (x.ndim - 1,)), count), x.shape, tuple(range(x.ndim - 1))))


@pytest.mark.parametrize("record", [CPU, GPU])
def test_a_products_epilogue_stores_what_a_kernel_of_rows_reads(record):
    """As a residual connection before a normalisation: the kernel of rows would read two arrays and write another one."""

    def residual(a, b, bias, x):
        product = P.dot_general(a, b, ((1,), (0,)))
        total = P.add(x, P.add(product, P.broadcast(bias, product.shape, (1,))))
        return total, centred(total)

    product, rows = regions(record, residual, (1024, 256), (256, 128), (128,), (1024, 128))
    assert product.anchor is not None and [n.name for n in product.outputs] == ["add"]
    assert rows.anchor is None and [n.name for n in rows.outputs] == ["sub"]


@pytest.mark.parametrize("record", [CPU, GPU])
def test_a_kernel_of_rows_stores_what_it_reads_if_that_is_cheap(record):
    def cheap(x, y):
        total = P.add(x, y)
        return total, centred(total)

    def expensive(x, y):
        total = P.add(x, y)
        for _ in range(20):
            total = P.tanh(total)
        return total, centred(total)

    assert len(regions(record, cheap, (4096, 128), (4096, 128))) == 1
    first, *others = regions(record, expensive, (4096, 128), (4096, 128))
    if record == CPU:  # staged: computed once
        assert [n.name for n in first.outputs] == ["sub", "tanh"] and not others
    else:
        assert [n.name for n in first.outputs] == ["tanh"] and len(others) == 1


def test_sums_of_the_same_array_share_a_kernel_where_kernels_do_not_run_side_by_side():
    def sums(x, y):
        return P.reduce_sum(x, (0,)), P.reduce_sum(P.mul(x, y), (0,))

    def others(x, y):
        return P.reduce_sum(x, (0,)), P.reduce_sum(y, (0,))

    both = (1000, 512), (1000, 512)
    partial = {f: [r for r in regions(CPU, f, *both) if r.outputs[0].inputs[0].shape == (1000, 512)] for f in (sums, others)}
    assert [len(r.outputs) for r in partial[sums]] == [2]
    assert [len(r.outputs) for r in partial[others]] == [1, 1]
    assert all(len(r.outputs) == 1 for r in regions(GPU, sums, *both))


@pytest.mark.parametrize("record", [CPU, GPU])
def test_a_gradient_from_mean_and_deviation_in_memory_is_one_kernel_of_rows(record):
    def gradients(x, mean, inverse, scale, upstream):
        def of_row(value):
            return P.broadcast(value, x.shape, (0,))

        def row_mean(value):
            return of_row(P.div(P.reduce_sum(value, (1,)), P.broadcast(P.constant(128.0, "float32"), (4096,), ())))

        normalised = P.mul(P.sub(x, of_row(mean)), of_row(inverse))
        scaled = P.mul(upstream, P.broadcast(scale, x.shape, (1,)))
        inner = P.sub(P.sub(scaled, row_mean(scaled)), P.mul(normalised, row_mean(P.mul(scaled, normalised))))
        return P.mul(of_row(inverse), inner), P.reduce_sum(P.mul(upstream, normalised), (0,)), P.reduce_sum(upstream, (0,))

    found = regions(record, gradients, (4096, 128), (4096,), (4096,), (128,), (4096, 128))
    over_all = [r for r in found if any(n.shape == (4096, 128) for n in (*r.operands, *r.outputs))]
    assert len(over_all) == (2 if record == CPU else 3), [[n.name for n in r.outputs] for r in over_all]


def group_normalization(groups, activation=None):
    """A function of x (batch, ..., channels), scale and offset, in the operations of Keras's layer."""

    def function(x, scale, offset):
        *lead, channels = x.shape
        vector = (*(1 for _ in lead), groups, channels // groups)
        grouped = ops.reshape(x, (*lead, *vector[-2:]))
        mean, variance = ops.moments(grouped, axes=[*range(1, len(lead)), len(lead) + 1], keepdims=True)
        inverse = ops.rsqrt(variance + 1e-3) * ops.reshape(scale, vector)
        y = ops.reshape(grouped * inverse + (ops.reshape(offset, vector) - mean * inverse), x.shape)
        return y if activation is None else activation(y)

    return function


@pytest.mark.parametrize("shape, groups, most", [((32, 32, 32, 64), 8, 6), ((4, 64, 64, 320), 32, 6), ((8, 16, 16, 128), 8, 7)])
def test_group_normalisation_is_a_kernel_of_rows_and_one_over_all_elements(shape, groups, most):
    """The latter computes an activation too. In one kernel, rows whose elements lie apart took longer (up to half as long again)."""
    vectors = (shape[-1:],) * 2
    assert len(launches(CPU, group_normalization(groups), shape, *vectors)) == 2
    assert len(launches(CPU, group_normalization(groups, ops.silu), shape, *vectors)) == 2
    found = launches(CPU, with_gradient(group_normalization(groups)), shape, shape, *vectors)
    assert len(found) <= most, [launch.name for launch in found]


@pytest.mark.parametrize("shape, groups", [((3, 7, 5, 30), 3), ((5, 9, 11, 20), 4), ((70, 6, 7, 36), 4), ((2, 50, 12), 6), ((4, 3, 8), 1)])
def test_values_and_gradients_of_group_normalisation(shape, groups):
    rng = np.random.default_rng(0)
    x, upstream = 3 + rng.normal(size=shape), rng.normal(size=shape)
    scale, offset = rng.normal(size=(2, shape[-1]))
    arrays = [from_numpy(a.astype("float32")) for a in (upstream, x, scale, offset)]
    y, gradients = Jitted(with_gradient(group_normalization(groups)))(*arrays)
    grouped = x.reshape(shape[0], -1, groups, shape[-1] // groups)
    vector = (1, 1, *grouped.shape[-2:])

    def mean(a):
        return a.mean((1, 3), keepdims=True)

    inverse = 1 / np.sqrt(mean((grouped - mean(grouped)) ** 2) + 1e-3)
    normal, outer = (grouped - mean(grouped)) * inverse, upstream.reshape(grouped.shape)
    inner = outer * scale.reshape(vector)
    wanted = [
        normal * scale.reshape(vector) + offset.reshape(vector),
        inverse * (inner - mean(inner) - normal * mean(inner * normal)),
        (outer * normal).sum((0, 1)),
        outer.sum((0, 1)),
    ]
    for got, want in zip((y, *gradients), wanted, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(got).ravel(), want.ravel(), rtol=1e-4, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("record", [CPU, GPU])
@pytest.mark.parametrize("both", [False, True])
def test_a_value_per_row_is_stored_with_the_row_whether_its_axes_are_kept_or_not(record, both):
    """Also beside one of the other kind, of rows with an axis of extent 1."""

    def function(x):
        total = P.reduce_sum(x, (2, 3))
        row = P.reshape(total, (*total.shape, 1, 1))
        other = P.exp(row)
        y = P.mul(*(P.sub(x, P.broadcast(value, x.shape, (0, 1, 2, 3))) for value in (row, other)))
        return (y, other, total) if both else (y, total)

    (found,) = regions(record, function, (64, 32, 1, 128))
    assert len(found.outputs) == 2 + both


def test_vectors_per_row_that_follow_from_the_same_deviation_share_its_kernel():
    """As in group normalisation, of groups whose elements are not adjacent: moments and two vectors, and one kernel over all elements."""

    def grouped(x, scale, offset):
        shape = (64, 1024, 8, 8)
        x = ops.reshape(x, shape)
        mean, variance = ops.moments(x, axes=[1, 3], keepdims=True)
        inverse = ops.rsqrt(variance + 1e-3) * ops.reshape(scale, (1, 1, 8, 8))
        return ops.relu(x * inverse + (ops.reshape(offset, (1, 1, 8, 8)) - mean * inverse))

    assert len(launches(CPU, grouped, (64, 1024, 64), (64,), (64,))) == 2


def pooled(x, scale, offset):
    """Means over the rows of what a normalisation makes of them: no kernel stores the normalised rows."""
    return ops.mean(keras_normalization(x, scale, offset), axis=1)


@pytest.mark.parametrize("record", [CPU, GPU])
def test_the_mean_of_rows_is_stored_with_what_follows_from_it(record):
    """One kernel stores the mean, without the rows' axis, and its negative, which has that axis with extent 1."""
    found = launches(record, pooled, ROWS, COLUMNS, COLUMNS)
    assert [launch.name for launch in found] == ["neg+div", "rsqrt", "div"]
    assert sum(arg.kind == "out" for arg in found[0].args) == 2


@pytest.mark.parametrize("shape", [(3, 5, 70), (2, 7, 129), (1, 3, 8)])
def test_values_of_means_of_rows_that_no_kernel_stores(shape):
    rng = np.random.default_rng(0)
    x, (scale, offset) = 3 + rng.normal(size=shape), rng.normal(size=(2, shape[-1]))
    centred = x - x.mean(-1, keepdims=True)
    want = (centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-7) * scale + offset).mean(1)
    got = Jitted(pooled)(*(from_numpy(a.astype("float32")) for a in (x, scale, offset)))
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=2e-6)
