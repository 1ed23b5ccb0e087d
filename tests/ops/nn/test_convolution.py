"""Convolutions in both data formats against a plain sum in NumPy."""

import itertools

import numpy as np
import pytest

from keras_ocl.compiler import from_numpy
from keras_ocl.ops.nn.convolution import conv, conv_transpose, depthwise_conv, separable_conv
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(8)


def last_to_first(x):
    return np.moveaxis(x, -1, 1)


def reference(x, w, strides, padding, dilation):
    """Channels last; groups follow from the shapes."""
    rank = x.ndim - 2
    reach = [(k - 1) * dilation + 1 for k in w.shape[:rank]]
    pads = [(0, 0)] * rank
    if padding == "same":
        total = [max((-(-n // strides) - 1) * strides + r - n, 0) for n, r in zip(x.shape[1:], reach, strict=False)]
        pads = [(t // 2, t - t // 2) for t in total]
    x = np.pad(x.astype("f8"), [(0, 0), *pads, (0, 0)])
    groups = x.shape[-1] // w.shape[-2]
    per = w.shape[-1] // groups
    extents = [(n - r) // strides + 1 for n, r in zip(x.shape[1:], reach, strict=False)]
    y = np.zeros((x.shape[0], *extents, w.shape[-1]))
    for tap in itertools.product(*[range(k) for k in w.shape[:rank]]):
        starts = [t * dilation for t in tap]
        part = x[(slice(None), *[slice(i, i + (e - 1) * strides + 1, strides) for i, e in zip(starts, extents, strict=True)])]
        for g in range(groups):
            c = slice(g * w.shape[-2], (g + 1) * w.shape[-2])
            f = slice(g * per, (g + 1) * per)
            y[..., f] += part[..., c] @ w[tap][:, f]
    return y


def in_both_formats(op, x, *kernels, expected, **options):
    found = both(lambda x, *k: op(x, *k, data_format="channels_last", **options), x, *kernels, tolerance=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    first = np.ascontiguousarray(last_to_first(x))
    found = both(lambda x, *k: op(x, *k, data_format="channels_first", **options), first, *kernels, tolerance=1e-4)
    np.testing.assert_allclose(found, last_to_first(expected), rtol=1e-4, atol=1e-4)


CASES = [
    ((3, 17, 4), (3, 4, 5), 1, "valid", 1),
    ((2, 11, 3), (4, 3, 8), 2, "same", 1),
    ((2, 9, 7, 3), (3, 3, 3, 6), 1, "same", 1),
    ((2, 9, 8, 4), (3, 2, 2, 6), 2, "valid", 1),
    ((1, 12, 13, 2), (3, 3, 2, 17), 1, "valid", 3),
    ((2, 5, 6, 4, 3), (2, 3, 2, 3, 5), 1, "same", 1),
    ((1, 7, 7, 5, 2), (3, 3, 2, 2, 4), 2, "same", 1),
]


@pytest.mark.parametrize(("shape", "window", "strides", "padding", "dilation"), CASES)
def test_conv(shape, window, strides, padding, dilation):
    x, w = RNG.normal(size=shape).astype("f4"), RNG.normal(size=window).astype("f4")
    expected = reference(x, w, strides, padding, dilation)
    in_both_formats(conv, x, w, expected=expected, strides=strides, padding=padding, dilation_rate=dilation)


@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize(("strides", "padding", "dilation"), [(1, "same", 1), (2, "valid", 1), (1, "valid", 2)])
def test_depthwise_and_separable(multiplier, strides, padding, dilation):
    x, w = RNG.normal(size=(2, 9, 8, 5)).astype("f4"), RNG.normal(size=(3, 3, 5, multiplier)).astype("f4")
    expected = reference(x, w.reshape(3, 3, 1, -1), strides, padding, dilation)
    options = {"strides": strides, "padding": padding, "dilation_rate": dilation}
    in_both_formats(depthwise_conv, x, w, expected=expected, **options)
    point = RNG.normal(size=(1, 1, 5 * multiplier, 4)).astype("f4")
    in_both_formats(separable_conv, x, w, point, expected=expected @ point[0, 0], **options)


@pytest.mark.parametrize("extent", [5, 8])
@pytest.mark.parametrize(("size", "strides", "dilation"), [(3, 1, 1), (3, 2, 1), (2, 2, 1), (5, 3, 1), (3, 1, 2)])
def test_conv_transpose_undoes_the_extents_and_is_the_adjoint(extent, size, strides, dilation):
    """Where "valid" convolution takes extent m to n exactly, the transposed one takes n to m, and <conv(a), b> = <a, transpose(b)>."""
    full = (extent - 1) * strides + (size - 1) * dilation + 1
    a, b = RNG.normal(size=(2, full, full, 3)).astype("f4"), RNG.normal(size=(2, extent, extent, 4)).astype("f4")
    w = RNG.normal(size=(size, size, 3, 4)).astype("f4")
    options = {"strides": strides, "padding": "valid", "dilation_rate": dilation}
    found = both(lambda x, k: conv_transpose(x, k, data_format="channels_last", **options), b, w, tolerance=1e-4)
    grown = found[:, :full, :full]
    assert np.all(found[:, full:] == 0) and np.all(found[:, :, full:] == 0)
    product = np.sum(reference(a, w, strides, "valid", dilation) * b)
    np.testing.assert_allclose(product, np.sum(a.astype("f8") * grown), rtol=1e-3, atol=1e-2)
    in_both_formats(conv_transpose, b, w, expected=found, **options)


def test_conv_transpose_same_and_output_padding():
    x, w = RNG.normal(size=(1, 6, 3)).astype("f4"), RNG.normal(size=(3, 2, 3)).astype("f4")
    found = both(lambda x, w: conv_transpose(x, w, 2, "same", data_format="channels_last"), x, w)
    assert found.shape == (1, 12, 2)
    found = both(lambda x, w: conv_transpose(x, w, 2, "same", output_padding=0, data_format="channels_last"), x, w)
    assert found.shape == (1, 11, 2)


def test_gradients():
    x, w = RNG.normal(size=(2, 5, 4, 2)), RNG.normal(size=(3, 2, 2, 3))
    check_gradient(lambda x, w: conv(x, w, (2, 1), "same", "channels_last"), x, w, second=False)
    check_gradient(lambda x, w: conv(x, w, 1, "valid", "channels_first"), np.moveaxis(x, -1, 1), w, second=False)
    check_gradient(lambda x, w: depthwise_conv(x, w, 1, "same", "channels_last"), x, RNG.normal(size=(3, 3, 2, 2)), second=False)
    check_gradient(lambda x, w: conv_transpose(x, w, 2, "same", None, "channels_last"), x, RNG.normal(size=(3, 3, 4, 2)), second=False)


def test_errors():
    x = from_numpy(np.ones((1, 4, 4, 3), "f4"))
    with pytest.raises(ValueError, match="evenly divisible"):
        conv(x, from_numpy(np.ones((2, 2, 2, 4), "f4")), data_format="channels_last")
    with pytest.raises(ValueError, match="empty output"):
        conv(x, from_numpy(np.ones((5, 5, 3, 4), "f4")), data_format="channels_last")
    with pytest.raises(ValueError, match="`padding` must be"):
        conv(x, from_numpy(np.ones((2, 2, 3, 4), "f4")), padding="full", data_format="channels_last")
    with pytest.raises(ValueError, match="does not fit inputs of rank"):
        conv(x, from_numpy(np.ones((2, 3, 4), "f4")), data_format="channels_last")
    with pytest.raises(ValueError, match="`strides` must be"):
        conv(x, from_numpy(np.ones((2, 2, 3, 4), "f4")), strides=(1, 2, 3), data_format="channels_last")
