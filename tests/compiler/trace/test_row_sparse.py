"""Row-sparse gradients: values against NumPy in float64 and against dense gradients, and what a step's memory is."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.compiler.trace import row_sparse
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.lowering import lower
from tests.fixtures import seeded  # noqa: F401

ROWS, COLUMNS, COUNT = 20000, 16, 60


@pytest.fixture(autouse=True)
def large_enough():
    """The table is one of those for which a row-sparse gradient pays."""
    if ROWS * COLUMNS < schedule_of(runtime.current_device().traits).sparse_table:
        pytest.skip("the device's schedule keeps such gradients dense")


class Step:
    """A compiled function of (indices, updates) that changes variables of the table's shape; `update(g, *variables)` assigns them."""

    def __init__(self, update, slots=1, dtype="float32", clip=True, dynamic=None):
        rng = np.random.default_rng(1)
        self.variables = [keras.Variable(rng.uniform(0.5, 1.5, (ROWS, COLUMNS)), dtype=dtype) for _ in range(slots)]

        def step(indices, updates):
            g = P.scatter_new((ROWS, COLUMNS), (indices,), updates, (0,), clip=clip)
            return update(g, *self.variables)

        self.jitted = Jitted(step, dynamic=dynamic)

    def __call__(self, indices, updates):
        return self.jitted(indices, updates)

    @property
    def values(self):
        return [ops.convert_to_numpy(v).astype("float64") for v in self.variables]

    def large(self, indices, updates):
        """(buffers of the table's size or more, puts) in the compiled step."""
        executable = self.jitted.compiled(indices, updates).executable
        buffers = [b for b in executable.program.buffers if b.elements >= ROWS * COLUMNS]
        return len(buffers), sum("put_rows" in launch.name for launch in executable.launches)


def drawn(count=COUNT, low=0, high=40, dtype="int32"):
    rng = np.random.default_rng(2)
    return rng.integers(low, high, count).astype(dtype), rng.normal(size=(count, COLUMNS)).astype("float32")


def summed(indices, updates):
    """The dense gradient in float64."""
    g = np.zeros((ROWS, COLUMNS))
    np.add.at(g, np.clip(indices.astype("int64"), 0, ROWS - 1), updates.astype("float64"))
    return g


def sgd(g, table):
    table.assign(table - g * 0.1)


def adagrad(g, table, slot):
    slot.assign(slot + g * g)
    table.assign(table - 0.1 * g / ops.sqrt(slot + 1e-7))


def momentum(g, table, slot):
    slot.assign(slot * 0.9 + g)
    table.assign(table - slot * 0.1)


def decayed(g, table):
    table.assign(table * 0.99)
    table.assign(table - g * 0.1)


def clipped(g, table):
    norm = ops.sqrt(ops.sum(g * g))
    table.assign(table - g * (0.5 / ops.maximum(norm, 0.5)))


UPDATES = {  # name: (update, number of variables, NumPy's, of arrays)
    "sgd": (sgd, 1, lambda g, t: [t - g * 0.1]),
    "adagrad": (adagrad, 2, lambda g, t, s: [t - 0.1 * g / np.sqrt(s + g * g + 1e-7), s + g * g]),
    "momentum": (momentum, 2, lambda g, t, s: [t - (s * 0.9 + g) * 0.1, s * 0.9 + g]),
    "decayed": (decayed, 1, lambda g, t: [t * 0.99 - g * 0.1]),
    "clipped": (clipped, 1, lambda g, t: [t - g * 0.5 / max(0.5, np.sqrt((g * g).sum()))]),
}


@pytest.mark.parametrize("name", UPDATES)
def test_values_and_memory(name):
    """Equal rows are summed before anything else, and only the variables have the table's size."""
    update, slots, wanted = UPDATES[name]
    step, (indices, updates) = Step(update, slots), drawn(low=-5)
    want = wanted(summed(indices, updates), *step.values)
    step(indices, updates)
    for got, array in zip(step.values, want, strict=True):
        np.testing.assert_allclose(got, array, rtol=3e-6, atol=3e-6)
    assert step.large(indices, updates) == (slots, slots)


@pytest.mark.parametrize("dtype,tolerance", [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_narrow_tables(dtype, tolerance):

    def update(g, table):
        table.assign(table - ops.cast(g, dtype) * 0.1)

    step, (indices, updates) = Step(update, dtype=dtype), drawn()
    want = step.values[0] - summed(indices, updates) * 0.1
    step(indices, updates)
    np.testing.assert_allclose(step.values[0], want, rtol=tolerance, atol=tolerance)
    assert step.large(indices, updates)[1] == 1


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_dtypes_of_indices(dtype):
    step, (indices, updates) = Step(sgd), drawn(dtype=dtype)
    want = step.values[0] - summed(indices, updates) * 0.1
    step(indices, updates)
    np.testing.assert_allclose(step.values[0], want, rtol=3e-6, atol=3e-6)


def test_indices_out_of_range_are_dropped_where_they_are_not_clipped():
    step, (indices, updates) = Step(sgd, clip=False), drawn(low=-20, high=20)
    kept = indices >= 0
    want = step.values[0] - summed(indices[kept], updates[kept]) * 0.1
    step(indices, updates)
    np.testing.assert_allclose(step.values[0], want, rtol=3e-6, atol=3e-6)


def test_unknown_number_of_indices():
    step = Step(adagrad, 2, dynamic=(0,))
    for count in (60, 7, 1, 0, 200):
        indices, updates = drawn(count)
        want = UPDATES["adagrad"][2](summed(indices, updates), *step.values)
        step(indices, updates)
        np.testing.assert_allclose(step.values[0], want[0], rtol=3e-6, atol=3e-6)
    assert len(step.jitted.traces) <= 2


def test_a_held_value_stays():
    """A variable's value that the caller keeps is not overwritten."""
    step, (indices, updates) = Step(sgd), drawn()
    step(indices, updates)
    held = step.variables[0].value
    before = ops.convert_to_numpy(held).copy()
    step(indices, updates)
    np.testing.assert_array_equal(ops.convert_to_numpy(held), before)
    np.testing.assert_allclose(step.values[0], before - summed(indices, updates) * 0.1, rtol=3e-6, atol=3e-6)


def test_the_old_table_is_a_result():
    """The new value is a copy with other rows where the old value is still needed."""

    def update(g, table):
        old = table.value
        table.assign(table - g * 0.1)
        return ops.sum(table * old), old

    step, (indices, updates) = Step(update), drawn()
    before = step.values[0]
    total, old = step(indices, updates)
    after = before - summed(indices, updates) * 0.1
    np.testing.assert_array_equal(ops.convert_to_numpy(old), before.astype("float32"))
    np.testing.assert_allclose(step.values[0], after, rtol=3e-6, atol=3e-6)
    np.testing.assert_allclose(float(total), (before * after).sum(), rtol=1e-5)


def test_two_lookups_of_one_table():
    rng = np.random.default_rng(3)
    table = keras.Variable(rng.normal(size=(ROWS, COLUMNS)))
    before = ops.convert_to_numpy(table).astype("float64")
    indices, updates = drawn()

    def step(a, b, updates):
        g = [P.scatter_new((ROWS, COLUMNS), (i,), updates, (0,), clip=True) for i in (a, b)]
        total = g[0] + g[1]
        table.assign(table - total * total * 0.1)

    jitted = Jitted(step)
    jitted(indices, indices[::-1] + 20, updates)
    g = summed(indices, updates) + summed(indices[::-1] + 20, updates)
    np.testing.assert_allclose(ops.convert_to_numpy(table), before - 0.1 * g * g, rtol=1e-5, atol=1e-5)
    executable = jitted.compiled(indices, indices, updates).executable
    assert sum(b.elements >= ROWS * COLUMNS for b in executable.program.buffers) == 1


def tied(g, table):
    x = ops.ones((3, ROWS))
    table.assign(table - (g + ops.transpose(ops.transpose(table) @ ops.transpose(x) @ x)) * 1e-6)


def returned(g, table):
    table.assign(table - g * 0.1)
    return g * 2.0


def maximum(g, table):
    table.assign(table - g / ops.max(g))


def no_state(g, table):
    return ops.sum(g * (table / 0.0))


@pytest.mark.parametrize("update", [tied, returned, maximum, no_state])
def test_what_needs_a_dense_gradient_gets_one(update):
    step, (indices, updates) = Step(update), drawn()
    assert step.large(indices, updates)[1] == 0


def test_products_with_zero_outside_of_updates():
    """Where no state is updated, 0 times infinity is NaN as in any operation."""
    assert np.isnan(float(Step(no_state)(*drawn())))


def test_a_step_that_only_accumulates_skips_the_table(monkeypatch):
    """The dense part of an update returns at once unless the gradients of enough batches are there."""
    launches, made = [], Executable.__init__

    def spied(self, *args, **kwargs):
        made(self, *args, **kwargs)
        launches.extend(self.launches)

    monkeypatch.setattr(Executable, "__init__", spied)
    trained("accumulated", False)
    tables = [launch for launch in launches if launch.name == "sgd: select, if true"]
    assert len(tables) == 2 and all(launch.overwrites and len(launch.guards) == 1 for launch in tables)


def test_few_rows_stay_dense():
    """Where the table is not much larger than the updates, a dense update is faster."""
    indices, updates = drawn(ROWS)
    assert Step(sgd).large(indices, updates)[1] == 0


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=128.0),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.01),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=1e-3),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "averaged": lambda: keras.optimizers.Adam(0.1, use_ema=True, weight_decay=0.1),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def model(optimizer, shared=False):
    inputs = [keras.Input((6,), dtype="int32") for _ in range(1 + shared)]
    embedding = layers.Embedding(ROWS, COLUMNS, mask_zero=not shared)
    pooled = [layers.GlobalAveragePooling1D()(embedding(x)) for x in inputs]
    built = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(pooled) if shared else pooled[0]))
    built.compile(optimizer, "mse")
    return built


def trained(name, shared):
    keras.utils.set_random_seed(1)
    built, rng = model(OPTIMIZERS[name](), shared), np.random.default_rng(5)
    x, y = [rng.integers(-2, 30, (8, 6)).astype("int32") for _ in built.inputs], rng.normal(size=(8, 1)).astype("float32")
    for _ in range(4):
        built.train_on_batch(x if shared else x[0], y)
    return [ops.convert_to_numpy(v) for v in (*built.variables, *built.optimizer.variables)]


@pytest.mark.parametrize("name,shared", [*((name, False) for name in OPTIMIZERS), ("adagrad", True)])
def test_optimizers_give_what_dense_gradients_give(monkeypatch, name, shared):
    """Bit for bit where one work-item sums a row's updates in their order; a norm is a sum in another order."""
    found, rewrite = [], row_sparse.rewrite

    def spied(graph, *rest):
        rewrite(graph, *rest)
        found.extend(n for n in graph.live() if n.primitive is not None and n.primitive.overwrites is not None)

    monkeypatch.setattr(row_sparse, "rewrite", spied)
    sparse = trained(name, shared)
    assert found
    monkeypatch.setattr(row_sparse, "rewrite", lambda *_: None)
    for got, want in zip(sparse, trained(name, shared), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_on_a_gpu():
    """A large table's update there is by sorting, too, and needs no dense gradient."""

    def make():
        built = keras.Sequential([keras.Input((20,), dtype="int32"), layers.Embedding(10**6, 32), layers.Flatten(), layers.Dense(1)])
        built.compile("adagrad", "mse")
        return built

    train, *_ = lower(make, runtime.read_record("sm_86"), train=True)
    (puts,) = (launch for launch in train.launches if "put_rows" in launch.name)
    assert puts.name == "adagrad: put_rows and 1 more" and [share.fraction for share in puts.shares] == [0.5, 0.5]  # the table and its slot
    assert any("const int there" in text for launch in train.launches for text in (launch.source, *launch.helpers))
    assert max(launch.written for launch in train.launches) < 10**6
