"""With checks on, every op that looks up by indices names the first one that is out of range, eagerly and compiled."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from tests.fixtures import seeded  # noqa: F401

X = np.arange(35, dtype="float32").reshape(5, 7)
ONES = np.ones(3, "float32")


def ints(*values):
    return np.array(values, "int32")


# op in the error, function of one index tensor of shape (3,), extent, whether negative indices count from the end
CASES = [
    ("take", lambda i: ops.take(X, i, axis=1), 7, True),
    ("take", lambda i: ops.take(X, i), 35, True),
    ("take_along_axis", lambda i: ops.take_along_axis(X[:, :3], i[None], 0), 5, True),
    ("indexing", lambda i: ops.convert_to_tensor(X)[i], 5, True),
    ("scatter", lambda i: ops.scatter(i[:, None], ONES, (5,)), 5, True),
    ("scatter_update", lambda i: ops.scatter_update(ops.zeros(5), i[:, None], ONES), 5, True),
    ("segment_sum", lambda i: ops.segment_sum(ONES, i, 5), 5, False),
    ("segment_max", lambda i: ops.segment_max(ONES, i, 5), 5, False),
    ("one_hot", lambda i: ops.one_hot(i, 5), 5, False),
    ("one_hot", lambda i: ops.multi_hot(i, 5), 5, False),
    ("sparse_categorical_crossentropy", lambda i: ops.sparse_categorical_crossentropy(i, ops.ones((3, 5)), from_logits=True), 5, False),
    ("take_along_axis", lambda i: ops.in_top_k(i, ops.ones((3, 5)), 2), 5, True),
    ("slice_update", lambda i: ops.slice_update(ops.zeros(7), i[2:], ONES), 5, False),
    ("slice", lambda i: ops.slice(ops.zeros(7), i[2:], (3,)), 5, False),
]


@pytest.mark.parametrize("op, function, extent, wraps", CASES, ids=[f"{k}-{case[0]}" for k, case in enumerate(CASES)])
def test_every_op_checks(op, function, extent, wraps):
    low = -extent if wraps else 0
    compiled = keras_ocl.jit(function)
    expected = [np.asarray(function(ops.convert_to_tensor(i))) for i in (ints(0, 1, extent - 1), ints(0, 1, low))]
    with keras_ocl.checks():
        for run in (compiled, lambda i: function(ops.convert_to_tensor(i))):
            for i, result in zip((ints(0, 1, extent - 1), ints(0, 1, low)), expected, strict=True):
                np.testing.assert_array_equal(np.asarray(run(i)), result)
            for wrong in (extent, low - 1, 2**31 - 1, -(2**31)):
                with pytest.raises(IndexError, match=rf"^{op}: index {wrong} .*is out of range; allowed are from {low} to {extent - 1}\.$"):
                    run(ints(0, 1, wrong))


def test_a_count_says_which_value_has_no_bin():
    compiled = keras_ocl.jit(lambda i: ops.bincount(i, minlength=5))
    with keras_ocl.checks():
        np.testing.assert_array_equal(compiled(ints(0, 4, 4)), [1, 0, 0, 0, 2])
        with pytest.raises(IndexError, match="bincount: index 5 at"):
            compiled(ints(0, 1, 5))
        with pytest.raises(IndexError, match="bincount: index -1 at"):
            ops.bincount(ints(0, 1, -1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64"])
def test_the_first_bad_index_and_its_place(dtype):
    wrong = np.zeros((3, 4), dtype)
    wrong[1, 2], wrong[2, 0] = 9, 8
    with keras_ocl.checks():
        with pytest.raises(IndexError, match=r"take: index 9 at \(1, 2\)"):
            ops.take(X, ops.convert_to_tensor(wrong), 1)
        ops.take(X, ops.convert_to_tensor(wrong[:1]), 1)
        ops.take(X, ops.convert_to_tensor(wrong[:0]), 1)


@pytest.mark.parametrize("steps", [3, 6])  # unrolled, a loop
def test_inside_scans_and_their_gradients(steps):
    class Cell(keras.layers.Layer):
        state_size = output_size = 2

        def build(self, shape):
            self.table = self.add_weight((5, 2))

        def call(self, i, states):
            h = ops.tanh(states[0] + ops.take(self.table, ops.cast(i[:, 0], "int32"), 0))
            return h, [h]

    model = keras.Sequential([keras.Input((steps, 1)), keras.layers.RNN(Cell(name="cell")), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.arange(2 * steps).reshape(2, steps, 1) % 5, np.zeros((2, 1))
    first = model.get_weights()
    model.train_on_batch(x, y)
    expected = model.get_weights()
    model.set_weights(first)
    with keras_ocl.checks():
        model.train_on_batch(x, y)
        for a, b in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        x[1, 2] = 7
        with pytest.raises(IndexError, match=r"take in .*cell: index 7 at \(1,\)"):
            model.train_on_batch(x, y)


def test_inside_while_loops_and_maps():
    def step(i, total):
        return i + 1, total + ops.take(ops.arange(30, 35), i)

    def walk(start):
        return ops.while_loop(lambda i, total: total < 100, step, (start, ops.zeros((), "int32")))[1]

    compiled = keras_ocl.jit(walk)
    mapped = keras_ocl.jit(lambda i: ops.vectorized_map(lambda k: ops.take(X, k, 0), i))
    with keras_ocl.checks():
        assert int(compiled(np.array(0, "int32"))) == 126
        with pytest.raises(IndexError, match="take: index 5 is out of range"):
            compiled(np.array(3, "int32"))
        np.testing.assert_array_equal(mapped(ints(1, 2)), X[1:3])
        for run in (mapped, lambda i: ops.vectorized_map(lambda k: ops.take(X, k, 0), ops.convert_to_tensor(i))):
            with pytest.raises(IndexError, match="take: index 6 is out of range"):
                run(ints(1, 6))


def test_eager_numbers():
    with keras_ocl.checks():
        with pytest.raises(FloatingPointError, match=r"^Log gave an infinity; what it was given is finite\.$"):
            ops.log(ops.zeros(3))
        with pytest.raises(FloatingPointError, match=r"^Sqrt gave a NaN; what it was given has none\.$"):
            ops.sqrt(-ops.ones(3))
        with pytest.raises(FloatingPointError, match=r"^Add gave a NaN; it was given one\.$"):
            ops.add(ops.convert_to_tensor([np.nan]), 1.0)
        ops.in_top_k(ints(0, 1, 1), ops.ones((3, 2)), 1)
        mask = ops.where(ops.convert_to_tensor([True, False]), 0.0, -float("inf"))
        np.testing.assert_array_equal(ops.softmax(ops.ones(2) + mask), [1, 0])
