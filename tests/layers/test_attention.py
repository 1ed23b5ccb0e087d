"""Dot-product attention against NumPy in float64."""

import numpy as np
import pytest

from keras_ocl.compiler import from_numpy
from keras_ocl.layers.attention import dot_product_attention
from tests.layers.checking import both
from tests.primitives.checking import check_gradient

RNG = np.random.default_rng(6)


def reference(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    query, key, value = (a.astype("f8") for a in (query, key, value))
    groups = query.shape[2] // key.shape[2]
    key, value = np.repeat(key, groups, 2), np.repeat(value, groups, 2)
    logits = np.einsum("btnh,bsnh->bnts", query, key) * (query.shape[3] ** -0.5 if scale is None else scale)
    logits = logits + (0 if bias is None else bias)
    allowed = np.ones(logits.shape[2:], bool) if mask is None else mask
    if is_causal:
        allowed = allowed & np.tril(np.ones(logits.shape[2:], bool))
    logits = np.where(allowed, logits, -1e300)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), value)


def operands(batch=2, time=5, source=7, heads=4, key_heads=4, depth=3, value_depth=6):
    shapes = ((batch, time, heads, depth), (batch, source, key_heads, depth), (batch, source, key_heads, value_depth))
    return [RNG.normal(size=s).astype("f4") for s in shapes]


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"is_causal": True}])
def test_values(key_heads, options):
    args = operands(key_heads=key_heads)
    found = both(lambda *a: dot_product_attention(*a, **options), *args)
    np.testing.assert_allclose(found, reference(*args, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1, 1, 7)])
def test_bias_and_mask(shape):
    args = operands()
    bias, mask = RNG.normal(size=shape).astype("f4"), RNG.uniform(size=shape) < 0.6
    mask[..., 0] = True
    found = both(lambda q, k, v: dot_product_attention(q, k, v, bias, mask, is_causal=True), *args)
    np.testing.assert_allclose(found, reference(*args, bias, mask, is_causal=True), rtol=1e-4, atol=1e-5)


def test_rows_masked_as_a_whole_stay_finite():
    args = operands()
    assert np.all(np.isfinite(both(lambda q, k, v: dot_product_attention(q, k, v, mask=np.zeros((5, 7), bool)), *args)))


def test_16_bit_operands_keep_their_dtype():
    args = [a.astype("f2") for a in operands()]
    found = both(lambda *a: dot_product_attention(*a), *args, tolerance=1e-2)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, reference(*args), rtol=1e-2, atol=1e-2)


def test_gradient():
    for key_heads in (2, 1):
        args = operands(1, 3, 4, 2, key_heads, 2, 3)
        check_gradient(lambda *a: dot_product_attention(*a, is_causal=True), *args)


def test_errors():
    q, k, v = (from_numpy(a) for a in operands())
    with pytest.raises(ValueError, match="Flash attention is not supported"):
        dot_product_attention(q, k, v, flash_attention=True)
    with pytest.raises(ValueError, match="only supports 4D"):
        dot_product_attention(from_numpy(np.ones((2, 3), "f4")), k, v)
    with pytest.raises(ValueError, match="multiple of key heads"):
        dot_product_attention(q, from_numpy(np.ones((2, 7, 3, 3), "f4")), from_numpy(np.ones((2, 7, 3, 3), "f4")))
