"""Gather, scatter, slices at computed positions, sorting and random bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.core import dtypes
from keras_ocl.kernels.schedule import schedule_of
from tests.primitives.checking import check_gradient, same

RNG = np.random.default_rng(5)
few = settings(max_examples=25, deadline=None)
MODES = {"add": np.add.at, "max": np.maximum.at, "min": np.minimum.at, "mul": np.multiply.at}


def draw_indexing(data, low=0, beyond=0):
    """(shape, axes, index arrays)."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    count = data.draw(st.integers(1, len(shape)))
    axes = tuple(data.draw(st.permutations(range(len(shape))))[:count])
    where = tuple(data.draw(st.lists(st.integers(0, 5), max_size=2)))
    dtype = data.draw(st.sampled_from(["int32", "int64", "uint8", "int16"]))
    low = 0 if dtype.startswith("u") else low
    return shape, axes, [RNG.integers(low, shape[a] + beyond, where).astype(dtype) for a in axes]


def front(x, axes):
    return np.moveaxis(x, axes, range(len(axes)))


@few
@given(st.data(), st.sampled_from(["float32", "bool", "float16", "int64", "complex64"]))
def test_gather(data, dtype):
    shape, axes, indices = draw_indexing(data, -3, 3)
    x = RNG.integers(0, 2, shape).astype(dtypes.numpy_dtype(dtype))
    clipped = [np.clip(i.astype("i8"), 0, shape[a] - 1) for i, a in zip(indices, axes, strict=True)]
    same(P.gather(from_numpy(x), [from_numpy(i) for i in indices], axes), front(x, axes)[tuple(clipped)])


def scattered(x, axes, indices, updates, mode):
    x = x.copy()
    view = front(x, axes)
    for s in np.ndindex(indices[0].shape):
        place = tuple(int(i[s]) for i in indices)
        if all(0 <= p < view.shape[k] for k, p in enumerate(place)):
            if mode == "set":
                view[place] = updates[s]
            else:
                MODES[mode](view, place, updates[s])
    return x


@few
@given(st.data(), st.sampled_from(["set", *MODES]), st.sampled_from(["float32", "int32", "float16", "int8"]))
def test_scatter(data, mode, dtype):
    shape, axes, indices = draw_indexing(data, -2, 2)
    x = RNG.integers(-2, 3, shape).astype(dtypes.numpy_dtype(dtype))
    updates = RNG.integers(-2, 3, (*indices[0].shape, *front(x, axes).shape[len(axes) :])).astype(x.dtype)
    tensors = [from_numpy(i) for i in indices]
    expected = scattered(x, axes, indices, updates, mode)
    same(P.scatter(from_numpy(x), tensors, from_numpy(updates), axes, mode), expected)
    if mode in ("set", "add"):
        expected = scattered(np.zeros_like(x), axes, indices, updates, mode)
        same(P.scatter_new(shape, tensors, from_numpy(updates), axes, mode), expected)


@pytest.mark.parametrize("rows,columns,count", [(300, 48, 2000), (50, 1, 3000), (1000, 17, 500)])
def test_larger_scatter_is_deterministic(rows, columns, count):
    index = RNG.integers(0, rows, count).astype("i4")
    index[: count // 2] = 3
    updates = RNG.normal(size=(count, columns)).astype("f4")
    expected = np.zeros((rows, columns), "f4")
    np.add.at(expected, index, updates)  # adds in order, as ours where items walk the updates, and those are few
    results = [P.scatter_new((rows, columns), (from_numpy(index),), from_numpy(updates), (0,)) for _ in range(2)]
    in_chunks = schedule_of(runtime.current_device().traits).name == "gpu"  # of updates sorted by row
    if in_chunks or count >= 32 * rows:  # many are added in blocks
        exact = np.zeros((rows, columns))
        np.add.at(exact, index, updates)
        same(results[0], exact.astype("f4"), 1e-4 if in_chunks else 2e-6)
    else:
        same(results[0], expected)
    same(results[1], to_numpy(results[0]), 0)


def test_indexing_gradients():
    x = RNG.normal(size=(4, 3, 2))
    rows, columns = from_numpy(np.array([1, 1, 3], "i4")), from_numpy(np.array([0, 0, 2], "i4"))
    check_gradient(lambda a: P.exp(P.gather(a, (rows,), (1,))), x)
    check_gradient(lambda a: P.exp(P.gather(a, (rows, columns), (0, 1))), x)
    outside = from_numpy(np.array([1, 7, 1], "i4"))
    updates = RNG.uniform(0.5, 2, size=(3, 3, 2))
    for mode in ("set", "add", "max", "min", "mul"):
        check_gradient(lambda a, u, mode=mode: P.exp(P.scatter(a, (outside,), u, (0,), mode)), x, updates)
    check_gradient(lambda u: P.exp(P.scatter_new((4, 3, 2), (rows, columns), u, (0, 1))), RNG.normal(size=(3, 2)))
    check_gradient(lambda u: P.exp(P.scatter_new((4, 2), (rows,), u, (0,), "set")), RNG.normal(size=(3, 2)))


def test_product_scatter_gradient_with_zeros():
    index = from_numpy(np.array([0, 0, 1, 1, 1], "i4"))
    factors = np.array([0.0, 4.0, 0.0, 0.0, 5.0])
    check_gradient(lambda a, u: P.scatter(a, (index,), u, (0,), "mul"), np.array([2.0, 3.0]), factors, second=False)


@few
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.data())
def test_dynamic_slices(shape, data):
    x = RNG.normal(size=shape).astype("f4")
    sizes = [data.draw(st.integers(0, n)) for n in shape]
    starts = [data.draw(st.integers(-3, n + 2)) for n in shape]
    clipped = [min(max(s, 0), n - size) for s, n, size in zip(starts, shape, sizes, strict=True)]
    where = tuple(slice(s, s + size) for s, size in zip(clipped, sizes, strict=True))
    tensors = [from_numpy(np.int32(s)) for s in starts]
    same(P.dynamic_slice(from_numpy(x), tensors, sizes), x[where])
    update, expected = RNG.normal(size=sizes).astype("f4"), x.copy()
    expected[where] = update
    same(P.dynamic_update_slice(from_numpy(x), from_numpy(update), tensors), expected)


def test_dynamic_slice_gradients():
    starts = [from_numpy(np.int32(1)), from_numpy(np.int64(5))]
    x = RNG.normal(size=(4, 5))
    check_gradient(lambda a: P.exp(P.dynamic_slice(a, starts, (2, 3))), x)
    check_gradient(lambda a, u: P.exp(P.dynamic_update_slice(a, u, starts)), x, RNG.normal(size=(2, 3)))


def test_indexing_errors():
    x, index = from_numpy(np.zeros((4, 3), "f4")), from_numpy(np.zeros(2, "i4"))
    with pytest.raises(TypeError, match="gather.*integers"):
        P.gather(x, (from_numpy(np.zeros(2, "f4")),), (0,))
    with pytest.raises(ValueError, match="scatter.*updates have shape"):
        P.scatter(x, (index,), x, (0,))
    with pytest.raises(ValueError, match="mode"):
        P.scatter(x, (index,), from_numpy(np.zeros((2, 3), "f4")), (0,), "div")
    with pytest.raises(TypeError, match="dynamic_slice"):
        P.dynamic_slice(x, (index, index), (1, 1))


# ---- sorting


@pytest.mark.parametrize("shape,axis", [((1,), 0), ((17,), 0), ((3, 100), 1), ((100, 3), 0), ((2, 5, 4), 1), ((2, 9001), 1), ((0, 3), 0)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16", "bool"])
def test_sort(shape, axis, dtype):
    x = RNG.integers(0, 50, shape)
    x = x > 25 if dtype == "bool" else x.astype(dtypes.numpy_dtype(dtype))
    place = np.broadcast_to(np.expand_dims(np.arange(shape[axis]), [i for i in range(len(shape)) if i != axis]), shape)
    values, order = P.sort((from_numpy(x), from_numpy(place.astype("i4"))), axis)
    same(values, np.sort(x, axis))
    same(order, np.argsort(x, axis, kind="stable").astype("i4"))


def test_sort_by_several_keys():
    a, b, c = RNG.integers(0, 4, (3, 5, 200)).astype("i4")
    first, second, third = P.sort((from_numpy(a), from_numpy(b), from_numpy(c)), 1, keys=2)
    order = np.lexsort((b, a), axis=1)
    for result, x in ((first, a), (second, b), (third, c)):
        same(result, np.take_along_axis(x, order, 1))


def test_nan_sorts_last():
    x = np.array([3, np.nan, -np.inf, 1, np.inf, np.nan, 2], "f4")
    same(P.sort((from_numpy(x),), 0)[0], np.sort(x))
    values, order = P.top_k(from_numpy(x), 4)
    same(values, [np.nan, np.nan, np.inf, 3])
    same(order, np.array([1, 5, 4, 0], "i4"))


@pytest.mark.parametrize("shape,k", [((7,), 3), ((3, 100), 5), ((2, 3, 50), 50), ((4, 9), 1), ((4, 9), 0)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "bool"])
def test_top_k(shape, k, dtype):
    x = RNG.integers(0, 30, shape)
    x = x > 15 if dtype == "bool" else x.astype(dtypes.numpy_dtype(dtype))
    values, order = P.top_k(from_numpy(x), k)
    expected = np.argsort(-x.astype("f8"), -1, kind="stable")[..., :k]
    same(order, expected.astype("i4"))
    same(values, np.take_along_axis(x, expected, -1))


def test_sort_gradients():
    x, y = RNG.normal(size=(2, 3, 5))
    check_gradient(lambda a, b: tuple(P.mul(s, s) for s in P.sort((a, b), 1)), x, y)
    check_gradient(lambda a: P.exp(P.sort((a,), 0)[0]), x)
    check_gradient(lambda a: P.exp(P.top_k(a, 2)[0]), x)


def test_sort_errors():
    x = from_numpy(np.zeros((2, 3), "f4"))
    with pytest.raises(ValueError, match="sort.*axis"):
        P.sort((x,), 2)
    with pytest.raises(ValueError, match="top_k"):
        P.top_k(x, 4)
    with pytest.raises(TypeError, match="order"):
        P.sort((from_numpy(np.zeros(3, "c8")),), 0)


# ---- random bits


def threefry(key, counter, word=0):
    """Threefry-2x32, 20 rounds, of counters (counter, word): the first word (Salmon et al., SC 2011)."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        x0, x1 = counter + keys[0], np.full_like(counter, word) + keys[1]
        for block in range(5):
            for r in rotations[block % 2]:
                x0 = x0 + x1
                x1 = (x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))
                x1 = x1 ^ x0
            x0 = x0 + keys[(block + 1) % 3]
            x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x0


def test_random_bits():
    key = np.array([12345, 678], "u4")
    bits = P.random_bits(from_numpy(key), (7, 33))
    same(bits, threefry(key, np.arange(7 * 33).astype("u4")).reshape(7, 33))
    others = P.random_bits(from_numpy(key), (7, 33), 3)
    same(others, threefry(key, np.arange(7 * 33).astype("u4"), 3).reshape(7, 33))
    with pytest.raises(TypeError, match="random_bits"):
        P.random_bits(from_numpy(np.zeros(2, "i4")), (3,))
