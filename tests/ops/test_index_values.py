"""Indices out of range are data: nothing outside a tensor is read, and what comes of them is what each op's documentation says.

Take, indexing by tensors, embeddings: clipped to the nearest element (after negative ones are counted from the end).
Scatter, segments, one-hot: left out. Sparse cross-entropy: as if no class were right. CTC and bincount follow from these.
"""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl

X = np.arange(12, dtype="float32").reshape(4, 3)
WILD = np.array([0, 3, 4, 1000, 2**31 - 1, -1, -4, -5, -1000, -(2**31)], "int64")
CLIPPED = np.clip(np.where(WILD < 0, WILD + 4, WILD), 0, 3)
DTYPES = ("int32", "int64")


def both(function, *arrays):
    """The result of the eager call, which the compiled one must equal."""
    tensors = [ops.convert_to_tensor(a, a.dtype) for a in arrays]
    result = np.asarray(function(*tensors))
    np.testing.assert_array_equal(result, np.asarray(keras_ocl.jit(function)(*tensors)))
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_take_clips(dtype):
    wild = WILD.astype(dtype)
    np.testing.assert_array_equal(both(lambda x, i: ops.take(x, i, 0), X, wild), X[CLIPPED])
    np.testing.assert_array_equal(both(lambda x, i: ops.take(x, i), X[:, 0], wild), X[CLIPPED, 0])
    np.testing.assert_array_equal(both(lambda x, i: x[i], X, wild), X[CLIPPED])
    np.testing.assert_array_equal(
        both(lambda x, i: ops.take_along_axis(x, i, 0), X, np.stack([wild] * 3, 1)), np.take_along_axis(X, np.stack([CLIPPED] * 3, 1), 0)
    )


def test_unsigned_indices_have_no_sign():
    wild = np.array([0, 3, 4, 255], "uint8")
    np.testing.assert_array_equal(both(lambda x, i: ops.take(x, i, 0), X, wild), X[[0, 3, 3, 3]])
    wild = np.array([0, 3, 4, 2**32 - 1], "uint32")
    np.testing.assert_array_equal(both(lambda x, i: ops.take(x, i, 0), X, wild), X[[0, 3, 3, 3]])


def test_what_32_bits_do_not_hold_does_not_wrap():
    wild = np.array([1, 2**32 + 1, -(2**32) + 1, 2**62], "int64")
    np.testing.assert_array_equal(both(lambda x, i: ops.take(x, i, 0), X, wild), X[[1, 3, 0, 3]])
    base = np.zeros(4, "float32")
    np.testing.assert_array_equal(both(lambda x, i: ops.scatter_update(x, i, [1.0, 2.0, 3.0, 4.0]), base, wild[:, None]), [0, 1, 0, 0])


def test_embeddings_clip():
    layer = keras.layers.Embedding(4, 3)
    layer.build()
    layer.set_weights([X])
    np.testing.assert_array_equal(np.asarray(layer(WILD.astype("int32"))), X[CLIPPED])


def test_the_gradient_of_take_goes_where_it_read():
    weights = np.arange(10, dtype="float32")[:, None] + np.ones(3, "float32")
    gradient = keras_ocl.grad(lambda x: ops.sum(ops.take(x, WILD.astype("int32"), 0) * weights))(ops.convert_to_tensor(X))
    expected = np.zeros_like(X)
    np.add.at(expected, CLIPPED, weights)
    np.testing.assert_allclose(np.asarray(gradient), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_leaves_out(dtype):
    wild = WILD.astype(dtype)[:, None]
    values = np.arange(1, 11, dtype="float32")
    inside = (WILD >= -4) & (WILD < 4)
    expected = np.zeros(4, "float32")
    np.add.at(expected, WILD[inside], values[inside])
    np.testing.assert_array_equal(both(lambda i, v: ops.scatter(i, v, (4,)), wild, values), expected)
    expected = np.full(4, 2.0, "float32")
    np.maximum.at(expected, WILD[inside], values[inside])
    base = np.full(4, 2.0, "float32")
    np.testing.assert_array_equal(both(lambda x, i, v: ops.scatter_update(x, i, v, "max"), base, wild, values), expected)
    last = np.full(4, 2.0, "float32")
    last[WILD[inside]] = values[inside]
    np.testing.assert_array_equal(both(lambda x, i, v: ops.scatter_update(x, i, v), base, wild, values), last)


@pytest.mark.parametrize("name", ["segment_sum", "segment_max", "segment_min", "segment_prod"])
def test_segments_leave_out(name):
    data, ids = np.arange(1, 6, dtype="float32"), np.array([0, -1, 2, 1000, 0], "int32")
    expected = {
        "segment_sum": [6, 0, 3], "segment_max": [5, -np.inf, 3], "segment_min": [1, np.inf, 3], "segment_prod": [5, 1, 3],
    }[name]  # fmt: skip
    np.testing.assert_array_equal(both(lambda x, i: getattr(ops, name)(x, i, 3), data, ids), expected)


def test_one_hot_leaves_out():
    expected = (WILD[:, None] == np.arange(4)).astype("float32")
    np.testing.assert_array_equal(both(lambda i: ops.one_hot(i, 4), WILD.astype("int32")), expected)


def test_slices_move_into_range():
    """As in JAX; TensorFlow refuses them on the CPU."""
    starts = np.array([3, -7], "int32")
    np.testing.assert_array_equal(both(lambda x, s: ops.slice(x, s, (2, 2)), X, starts), X[2:4, 0:2])
    updated = X.copy()
    updated[2:4, 0:2] = -1
    np.testing.assert_array_equal(both(lambda x, s: ops.slice_update(x, s, -ops.ones((2, 2))), X, starts), updated)


def test_targets_without_a_class():
    """Their loss is that of a row without a right class: 0."""
    logits = np.array([[-50, 0, -200]] * 4, "float32")  # the sum of whose exponentials is 1 in any order
    loss = both(lambda t, x: ops.sparse_categorical_crossentropy(t, x, from_logits=True), np.array([0, -1, 3, 1000], "int32"), logits)
    assert loss.tolist() == [50, 0, 0, 0]


def test_top_k_of_a_class_out_of_range_is_no_hit():
    predictions = np.array([[0.1, 0.7, 0.2]] * 3, "float32")
    assert both(lambda t, x: ops.in_top_k(t, x, 1), np.array([1, 0, 2], "int32"), predictions).tolist() == [True, False, False]


def test_numpy_indices_out_of_range_are_errors():
    """Those that are known on the host are refused, as in NumPy."""
    x = ops.convert_to_tensor(X)
    with pytest.raises(IndexError, match="index 4 is out of range for axis 0 with extent 4"):
        x[4]
    with pytest.raises(IndexError, match="values from 0 to 9, out of range for an axis of extent 4"):
        x[np.array([0, 9])]
    with pytest.raises(IndexError, match="too many indices"):
        x[0, 0, 0]


@pytest.mark.parametrize("extent", [1, 3, 17, 1031])
def test_odd_sizes(extent):
    """Wild indices between good ones, at sizes that fill no vector; other tensors stay as they are."""
    rng = np.random.default_rng(extent)
    around = [ops.full((extent,), 7.0) for _ in range(3)]
    x, values = rng.normal(size=(2, extent)).astype("float32")
    good, wild = rng.integers(-extent, extent, extent), rng.integers(-(2**31), 2**31 - 1, extent)
    indices = np.where(rng.random(extent) < 0.5, good, wild).astype("int32")
    wrapped = indices.astype("int64") + np.where(indices < 0, extent, 0)
    clipped, inside = np.clip(wrapped, 0, extent - 1), (wrapped >= 0) & (wrapped < extent)
    np.testing.assert_array_equal(both(lambda a, i: ops.take(a, i, 0), x, indices), x[clipped])
    np.testing.assert_array_equal(both(lambda a, i: ops.take_along_axis(a, i, 0), x, indices), x[clipped])
    expected = np.zeros(extent)
    np.add.at(expected, wrapped[inside], values[inside].astype("float64"))
    np.testing.assert_allclose(both(lambda i, v: ops.scatter(i, v, (extent,)), indices[:, None], values), expected, atol=1e-5)
    written = x.copy()
    written[wrapped[inside]] = values[inside]
    np.testing.assert_array_equal(both(lambda a, i, v: ops.scatter_update(a, i, v), x, indices[:, None], values), written)
    known = (indices >= 0) & (indices < extent)
    expected = np.zeros(extent)
    np.add.at(expected, indices[known], values[known].astype("float64"))
    np.testing.assert_allclose(both(lambda i, v: ops.segment_sum(v, i, extent), indices, values), expected, atol=1e-5)
    hot = np.zeros(extent, "float32")
    hot[indices[known]] = 1
    np.testing.assert_array_equal(both(lambda i: ops.multi_hot(i, extent), indices), hot)
    for tensor in around:
        np.testing.assert_array_equal(tensor, np.full(extent, 7.0))


def test_compiled_counts_leave_out():
    counted = keras_ocl.jit(lambda i: ops.bincount(i, minlength=3))
    np.testing.assert_array_equal(counted(np.array([0, 2, 3, 1000, -1, 2], "int32")), [1, 0, 2])


def test_probabilities_without_a_class():
    p = np.full((3, 4), 0.25, "float32")
    loss = both(lambda t, x: ops.sparse_categorical_crossentropy(t, x), np.array([0, -1, 4], "int32"), p)
    np.testing.assert_allclose(loss, [np.log(4), 0, 0], atol=1e-6)
    gradient = keras_ocl.grad(lambda x: ops.sum(ops.sparse_categorical_crossentropy(np.array([0, -1, 4], "int32"), x)))(p)
    assert np.any(np.asarray(gradient)[0]) and not np.any(np.asarray(gradient)[1:])
