"""Pooling in both data formats against NumPy, window by window."""

import itertools

import numpy as np
import pytest

from keras_ocl.compiler import from_numpy
from keras_ocl.ops.nn.pooling import adaptive_average_pool, adaptive_max_pool, average_pool, max_pool
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(9)


def windows(extent, size, stride, padding):
    """[(first, last + 1)] inside the axis."""
    if padding == "valid":
        return [(i * stride, i * stride + size) for i in range((extent - size) // stride + 1)]
    count = -(-extent // stride)
    low = max((count - 1) * stride + size - extent, 0) // 2
    return [(max(i * stride - low, 0), min(i * stride - low + size, extent)) for i in range(count)]


def reference(x, ranges, reduce):
    y = np.zeros((x.shape[0], *[len(r) for r in ranges], x.shape[-1]))
    axes = tuple(range(1, x.ndim - 1))
    for place in itertools.product(*[range(len(r)) for r in ranges]):
        part = x[(slice(None), *[slice(*r[i]) for r, i in zip(ranges, place, strict=True)])]
        y[(slice(None), *place)] = reduce(part, axis=axes)
    return y


def in_both_formats(op, x, expected, *args):
    np.testing.assert_allclose(both(lambda x: op(x, *args, data_format="channels_last"), x), expected, rtol=1e-5, atol=1e-5)
    first = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    found = both(lambda x: op(x, *args, data_format="channels_first"), first)
    np.testing.assert_allclose(found, np.moveaxis(expected, -1, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(
    ("shape", "size", "stride"), [((2, 11, 3), 2, None), ((2, 9, 7, 5), 3, 2), ((1, 8, 8, 17), 2, 2), ((2, 5, 6, 7, 2), 2, 1)]
)
def test_pooling(shape, size, stride, padding):
    x = RNG.normal(size=shape).astype("f4")
    ranges = [windows(n, size, stride or size, padding) for n in shape[1:-1]]
    in_both_formats(max_pool, x, reference(x, ranges, np.max), size, stride, padding)
    in_both_formats(average_pool, x, reference(x, ranges, np.mean), size, stride, padding)


@pytest.mark.parametrize(("shape", "size"), [((2, 11, 3), 4), ((2, 9, 7, 5), (3, 2)), ((1, 4, 5, 6, 2), (1, 5, 4)), ((2, 3, 3, 2), (5, 3))])
def test_adaptive(shape, size):
    x = RNG.normal(size=shape).astype("f4")
    sizes = (size,) * (len(shape) - 2) if isinstance(size, int) else size
    ranges = [[(i * n // m, -(-(i + 1) * n // m)) for i in range(m)] for n, m in zip(shape[1:-1], sizes, strict=True)]
    in_both_formats(adaptive_max_pool, x, reference(x, ranges, np.max), size)
    in_both_formats(adaptive_average_pool, x, reference(x, ranges, np.mean), size)


def test_integer_and_half_dtypes():
    x = RNG.integers(-9, 9, (2, 6, 3)).astype("i4")
    assert both(lambda x: max_pool(x, 2, data_format="channels_last"), x).dtype == np.int32
    x = RNG.normal(size=(2, 6, 3)).astype("f2")
    assert both(lambda x: average_pool(x, 2, data_format="channels_last"), x, tolerance=1e-2).dtype == np.float16


def test_gradients():
    x = RNG.permutation(np.arange(2.0 * 5 * 4 * 2)).reshape(2, 5, 4, 2)
    for padding in ("valid", "same"):
        check_gradient(lambda x, p=padding: max_pool(x, 2, 1, p, "channels_last"), x, step=1e-3)
        check_gradient(lambda x, p=padding: average_pool(x, 3, 2, p, "channels_last"), x)
    check_gradient(lambda x: max_pool(x, 2, None, "valid", "channels_first"), np.moveaxis(x, -1, 1), step=1e-3)
    check_gradient(lambda x: adaptive_average_pool(x, 3, "channels_last"), x, second=False)
    check_gradient(lambda x: adaptive_max_pool(x, (2, 3), "channels_last"), x, second=False, step=1e-3)


def test_errors():
    x = from_numpy(np.ones((1, 3, 3, 2), "f4"))
    with pytest.raises(ValueError, match="larger than the input"):
        max_pool(x, 4, data_format="channels_last")
    with pytest.raises(ValueError, match="`padding` must be"):
        average_pool(x, 2, padding="full", data_format="channels_last")
    with pytest.raises(ValueError, match="1 to 3 spatial"):
        adaptive_max_pool(from_numpy(np.ones((2, 3), "f4")), 1, "channels_last")
