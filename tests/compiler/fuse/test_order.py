"""The order of regions: which values are alive at once, what follows what in all orders, and steps of models with rematerialisation."""

import dataclasses
import time

import keras
import numpy as np
import pytest
from keras import layers

import keras_ocl
from keras_ocl import lowering, runtime
from keras_ocl import primitives as P
from keras_ocl.compiler.fuse import order
from keras_ocl.compiler.fuse.order import Ordering, in_program_order
from keras_ocl.compiler.fuse.partition import Partition, partition
from keras_ocl.compiler.fuse.regions import Region
from keras_ocl.compiler.launch.loops.lower import lower_loop
from keras_ocl.compiler.launch.lower import lower_graph
from tests.compiler.graphs import graph_of

MIB = 1 << 20
LARGE = ((1024, 1024), "float32")  # 4 MiB
RECORDS = ["intel-cpu", "sm_86"]


def product(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


def schedule(function, *specs):
    """(Ordering, its regions) of a function of primitives."""
    graph, _ = graph_of(function, *specs)
    found = partition(graph, runtime.read_record("intel-cpu"))
    return Ordering(found.regions, found, set(graph.outputs), [], []), found.regions


def peaks(function, *specs):
    """Peaks of live MiB in the program's order and in the best one."""
    given, regions = schedule(function, *specs)
    best = [regions.index(r) for r in given.best()]
    return given.peak(range(len(regions))) / MIB, given.peak(best) / MIB


def reduced_afterwards(x, *ws):
    """Products, of which a row each is left; the program computes all products first."""
    ys = [product(x, w) for w in ws]
    return tuple(P.reduce_sum(P.exp(y), (0,)) for y in ys)


def test_what_frees_memory_runs_as_soon_as_it_can():
    given, best = peaks(reduced_afterwards, *[LARGE] * 7)
    assert given >= 24 and best < 12


def test_what_takes_memory_runs_as_late_as_it_can():
    """Values that are computed first and read last, one after another: each right before it is read."""

    def function(x, y):
        for w in [P.exp(P.mul(x, P.full(x.shape, k, x.dtype))) for k in (2.0, 3.0, 4.0, 5.0)]:
            y = product(y, w)
        return y

    given, best = peaks(function, LARGE, LARGE)
    assert given >= 20 and best <= 12


def test_small_regions_stay_in_the_programs_order():
    given, regions = schedule(reduced_afterwards, *[((64, 128), "float32"), *[((128, 128), "float32")] * 6])
    assert given.best() is regions


def test_one_order_of_equal_graphs():
    def numbers():
        given, regions = schedule(reduced_afterwards, *[LARGE] * 7)
        return [regions.index(r) for r in given.best()]

    assert numbers() == numbers() != sorted(numbers())


def update(w, g):
    return P.add(w, P.mul(g, P.full(g.shape, 0.5, g.dtype)))


@pytest.mark.parametrize("record", RECORDS)
def test_states_are_overwritten_where_they_were(record):
    """Each update frees the operands of its gradient; it comes after the product that reads the old value."""

    def function(x, *ws):
        ys = [x]
        for w in ws:
            ys.append(product(ys[-1], w))
        g, new = ys[-1], []
        for w, y in zip(ws[::-1], ys[-2::-1], strict=True):
            new.append(update(w, product(P.transpose(y, (1, 0)), g)))
            g = product(g, P.transpose(w, (1, 0)))
        return (*new[::-1], g)

    graph, inputs = graph_of(function, *[LARGE] * 7)
    lowered = lower_graph(graph, [(inputs[k], k - 1) for k in range(1, 7)], runtime.read_record(record), False, lower_loop)
    assert lowered.overwritten == set(inputs[1:])
    overwriting = [k for k, launch in enumerate(lowered.launches) if launch.overwrites]
    assert overwriting[0] < len(lowered.launches) - 6  # not all at the end


def test_updates_stay_behind_loops():
    """In a loop the host takes part: a run that fails there has overwritten nothing."""

    def function(x, w, v):
        gradient = product(P.transpose(x, (1, 0)), x)
        walked = P.cholesky(product(v, P.transpose(v, (1, 0))))
        return update(w, gradient), P.reduce_sum(product(walked, walked), (0, 1))

    graph, inputs = graph_of(function, *[LARGE] * 3)
    lowered = lower_graph(graph, [(inputs[1], 0)], runtime.read_record("intel-cpu"), False, lower_loop)
    overwriting = [k for k, launch in enumerate(lowered.launches) if launch.overwrites]
    (host,) = [k for k, launch in enumerate(lowered.launches) if launch.name.startswith("host")]
    assert lowered.overwritten == {inputs[1]} and overwriting and min(overwriting) > host


def test_thousands_of_regions_are_ordered_in_seconds():
    """A deep network's regions: each layer's value is read by the next layer and by its gradient."""
    graph, inputs = graph_of(lambda x: P.exp(x), LARGE)
    (node,) = graph.outputs
    nodes, regions = [], []
    for k in range(5000):
        n = graph.add(node.primitive, (nodes[-1] if nodes else node,), {})
        region = Region(n.shape, k)
        region.outputs.append(n)
        for j in {k - 1, 5000 - k if k > 2500 else -1} - {-1, k}:
            region.operands.add(nodes[j])
            regions[j].consumers.add(region)
            region.producers.add(regions[j])
        nodes.append(n)
        regions.append(region)
    start = time.perf_counter()
    Ordering(in_program_order(regions), Partition(regions, set(nodes), {}, {}), set(), [], []).best()
    assert time.perf_counter() - start < 5


# ---- models


class Block(layers.Layer):
    """x + Dense(gelu of Dense(LayerNormalization(x))), wrapped."""

    def __init__(self, wrap, width, features):
        super().__init__()
        self.parts = [layers.LayerNormalization(), layers.Dense(width, "gelu"), layers.Dense(features)]
        self.inner = wrap(self.apply)

    def build(self, shape):
        for layer in self.parts:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def apply(self, x):
        y = x
        for layer in self.parts:
            y = layer(y)
        return x + y

    def call(self, x):
        return self.inner(x)


def blocks(wrap, count=16, batch=32, positions=512, features=128):
    def make():
        x = y = keras.Input((positions, features))
        for _ in range(count):
            y = Block(wrap, 4 * features, features)(y)
        model = keras.Model(x, y)
        model.compile(keras.optimizers.SGD(), "mse")
        data = np.zeros((batch, positions, features), "float32")
        return model, data, data

    return make


def trained(make, record, keep="cut"):
    keras.utils.clear_session()
    return lowering.lower(make, dataclasses.replace(runtime.read_record(record), keep=keep))[0]


@pytest.mark.parametrize("record", RECORDS)
def test_rematerialised_blocks_keep_their_inputs(record):
    """Sixteen blocks need the sum of their inputs, of 8 MiB each, and what one block needs."""
    one, step = (trained(blocks(keras.remat, count), record) for count in (1, 16))
    assert step.arena_bytes <= 1.25 * (16 * 8 * MIB + one.arena_bytes)
    assert step.live_bytes <= step.arena_bytes <= 1.05 * step.live_bytes
    assert step.arena_bytes < 0.3 * trained(blocks(lambda f: f), record, "all").arena_bytes


def test_both_orders_train_alike(monkeypatch):
    """To the last bit: the kernels are the same."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 256, 256)).astype("float32")
    found = []
    for worth in (1 << 16, 1 << 40):
        monkeypatch.setattr(order, "WORTH", worth)
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((256,)), *(layers.Dense(256, "tanh") for _ in range(4))])
        model.compile("sgd", "mse")
        model.build((None, 256))
        model.optimizer.build(model.trainable_variables)
        step = keras_ocl.jit(lambda data, model=model: model.train_step(data))
        for _ in range(3):
            step((x, y))
        (compiled,) = step.traces
        found.append((compiled.executable.arena_bytes, [keras.ops.convert_to_numpy(v) for v in model.variables]))
    (early, a), (last, b) = found
    assert early < last
    for v, w in zip(a, b, strict=True):
        np.testing.assert_array_equal(v, w)


def test_steps_are_the_same_each_time():
    def text():
        return [(launch.name, launch.kernel) for launch in trained(blocks(keras.remat, 4), "intel-cpu").launches]

    assert text() == text()
