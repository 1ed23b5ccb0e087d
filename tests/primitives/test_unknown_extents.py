"""Primitives and their gradients inside jit with an unknown batch size: right for every size, and another size builds nothing."""

import dataclasses
import re

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.launch.lower import function_name
from keras_ocl.core.autodiff import GradientTape
from tests.pairwise import pairwise
from tests.primitives.checking import same

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(8)
POOL = ((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1, 1, 1, 1))
OVERLAPPING = ((1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (0, 1), (0, 0)), (1, 1, 1, 1))
CONV = ((1, 2), ((1, 1), (0, 1)), (1, 1), (1, 1), 1)
KERNEL = RNG.normal(size=(3, 3, 4, 5)).astype("f4")
MATRIX = RNG.normal(size=(4, 7)).astype("f4")
ROWS = RNG.integers(0, 6, (5,)).astype("i4")


def over_batch(x):
    """Batch contracted, as in a weight's gradient."""
    n = x.shape[0]
    flat = P.reshape(x, (n, 6 * 6 * 4))
    return P.dot_general(flat, P.tanh(flat), ((0,), (0,)))


def normalised(x):
    """Mean over the batch and pixels, whose count is unknown."""
    n = x.shape[0]
    count = P.full((4,), n * 36, x.dtype)
    mean = P.div(P.reduce_sum(x, (0, 1, 2)), count)
    return P.sub(x, P.broadcast(mean, x.shape, (3,)))


def scattered(x):
    updates = P.transpose(P.slice(x, (0, 0, 0, 0), (x.shape[0], 5, 6, 4)), (1, 0, 2, 3))
    return P.scatter(x, (from_numpy(ROWS),), P.exp(updates), (1,), "add")


def padded(x):
    x = P.pad(P.exp(x), P.constant(1, "float32"), (1, 0, 2, 0), (0, 0, 1, 3))
    return P.slice(x, (0, 1, 0, 0), (x.shape[0] - 1, 6, 9, 7), (1, 2, 3, 1))


FUNCTIONS = {
    "elementwise": lambda x: P.mul(P.tanh(x), P.relu(x)),
    "normalised": normalised,
    "flattened product": lambda x: P.dot_general(P.reshape(x, (x.shape[0] * 36, 4)), from_numpy(MATRIX), ((1,), (0,))),
    "product": lambda x: P.dot_general(x, from_numpy(MATRIX), ((3,), (0,))),
    "batched product": lambda x: P.dot_general(x, P.exp(x), ((3,), (3,)), ((0, 1), (0, 1))),
    "over batch": over_batch,
    "convolution": lambda x: P.conv(x, from_numpy(KERNEL), *CONV),
    "max pooling": lambda x: P.reduce_window(x, "max", *POOL),
    "overlapping pooling": lambda x: P.reduce_window(x, "max", *OVERLAPPING),
    "average pooling": lambda x: P.reduce_window(x, "sum", *OVERLAPPING),
    "gather": lambda x: P.gather(x, (from_numpy(ROWS),), (1,)),
    "scatter": scattered,
    "pad and slice": padded,
    "concat": lambda x: P.concat((x, P.exp(x), x), 0),
    "concat inside": lambda x: P.concat((x, P.exp(x)), 3),
    "reverse": lambda x: P.exp(P.reverse(x, (0, 3))),
    "cumsum over batch": lambda x: P.exp(P.cumsum(x, 0)),
    "cumprod": lambda x: P.cumprod(x, 2),
    "product of all": lambda x: P.reduce_prod(x, (1, 3)),
    "greatest": lambda x: P.reduce_max(x, (0, 3)),
    "sort over batch": lambda x: P.exp(P.sort((x,), 0)[0]),
    "top_k": lambda x: P.top_k(P.reshape(x, (x.shape[0], 144)), 3)[0],
    "top_k over batch": lambda x: P.top_k(P.transpose(x, (1, 2, 3, 0)), 1)[0],
    "iota": lambda x: P.mul(x, P.iota(x.shape, 0, "float32")),
}


def with_gradient(function):
    def both(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = P.mul(y, y)
        return y, tape.gradient(loss, x)

    return both


def kernels(compiled):
    """Names of its kernels, which stand for their source."""
    return {function_name(launch, runtime.current_device().traits) for launch in compiled.executable.launches}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_another_batch_size(name):
    both = with_gradient(FUNCTIONS[name])
    jitted = Jitted(both, dynamic=(0,))
    for n in (8, 5, 1, 13, 40):
        x = RNG.uniform(0.5, 1.5, size=(n, 6, 6, 4)).astype("f4")
        for result, expected in zip(jitted(x), both(from_numpy(x)), strict=True):
            same(result, to_numpy(expected), 1e-4)
        assert all(kernels(trace) <= kernels(jitted.traces[0]) for trace in jitted.traces)


def test_scatter_of_more_rows_than_at_first(monkeypatch):
    """With one compute unit all rows of the first batch are one work-item's, those of a larger batch are not."""
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule="cpu", compute_units=1))
    where = from_numpy(np.array([3, 1, 3], "i4"))
    added = Jitted(lambda x: P.scatter(x, (where,), P.exp(P.slice(x, (0, 0), (3, 5))), (0,), "add"), dynamic=(0,))
    for n in (4, 13):
        x = RNG.normal(size=(n, 5)).astype("f4")
        expected = x.copy()
        np.add.at(expected, [3, 1, 3], np.exp(x[:3]))
        same(added(x), expected, 1e-5)


CHANNELS = [(1, 1), (1, 4), (2, 2), (3, 1), (8, 8), (16, 20)]


@pytest.mark.parametrize("channels,window,padding", pairwise(CHANNELS, [(2, 3), (1, 3), (3, 1), (4, 4)], [0, 1, 2]))
def test_convolutions_of_unknown_sizes(channels, window, padding):
    """Every kernel of a convolution and its gradients, for sizes that differ from those of the trace."""
    inputs, outputs = channels
    w = from_numpy(RNG.normal(size=(*window, inputs, outputs)).astype("f4"))

    def both(x):
        with GradientTape() as tape:
            tape.watch(x)
            tape.watch(w)
            y = P.conv(x, w, (1, 1), ((padding, padding),) * 2, (1, 1), (1, 1), 1)
            loss = P.mul(y, y)
        return [y, *tape.gradient(loss, [x, w])]

    jitted = Jitted(both, dynamic=(1, 2))
    for size in ((7, 9), (4, 5), (7, 7), (12, 6)):
        x = RNG.uniform(0.5, 1.5, size=(3, *size, inputs)).astype("f4")
        for result, expected in zip(jitted(x), both(from_numpy(x)), strict=True):
            same(result, to_numpy(expected), 1e-3)
    hidden = re.compile(r"\b(?:int|long|float)\d* ([npl]\d+)(?: =|;)")
    assert not [hidden.findall(launch.body) for t in jitted.traces for launch in t.executable.launches if hidden.search(launch.body)]
