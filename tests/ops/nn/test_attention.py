"""Dot-product attention against NumPy in float64."""

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.ops.nn.attention import dot_product_attention
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

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


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"is_causal": True}])
def test_values(key_heads, options, flash):
    args = operands(key_heads=key_heads)
    found = both(lambda *a: dot_product_attention(*a, **options, flash_attention=flash), *args)
    np.testing.assert_allclose(found, reference(*args, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1, 1, 7)])
def test_bias_and_mask(shape, flash):
    args = operands()
    bias, mask = RNG.normal(size=shape).astype("f4"), RNG.uniform(size=shape) < 0.6
    mask[..., 0] = True
    found = both(lambda q, k, v: dot_product_attention(q, k, v, bias, mask, is_causal=True, flash_attention=flash), *args)
    np.testing.assert_allclose(found, reference(*args, bias, mask, is_causal=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flash", [False, True])
def test_rows_masked_as_a_whole_weigh_all_alike(flash):
    args = operands()
    found = both(lambda q, k, v: dot_product_attention(q, k, v, mask=np.zeros((5, 7), bool), flash_attention=flash), *args)
    np.testing.assert_allclose(found, np.broadcast_to(args[2].mean(1, keepdims=True), found.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flash", [False, True])
def test_16_bit_operands_keep_their_dtype(flash):
    args = [a.astype("f2") for a in operands()]
    found = both(lambda *a: dot_product_attention(*a, flash_attention=flash), *args, tolerance=1e-2)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, reference(*args), rtol=1e-2, atol=1e-2)


def test_gradient():
    for key_heads in (2, 1):
        args = operands(1, 3, 4, 2, key_heads, 2, 3)
        check_gradient(lambda *a: dot_product_attention(*a, is_causal=True), *args)


def test_gradients_of_a_single_query():
    """Its one kernel forward, and the formulas backward; slopes of slopes as well."""
    query, key, value = operands(time=1)
    mask = RNG.uniform(size=(2, 1, 1, 7)) < 0.6
    mask[..., 0] = True
    check_gradient(lambda q, k, v: dot_product_attention(q, k, v, mask=mask, flash_attention=True), query, key, value)


def test_gradients_of_flash_attention():
    """Of bias and mask too, and second ones."""
    mask = RNG.uniform(size=(1, 1, 3, 4)) < 0.7
    mask[..., 1, :] = False  # a row that is masked as a whole
    for key_heads, shape in ((2, (1, 2, 3, 4)), (1, (2, 3, 1)), (2, (4,))):
        args = operands(1, 3, 4, 2, key_heads, 2, 3)
        bias = RNG.normal(size=shape)

        def attend(q, k, v, b):
            return dot_product_attention(q, k, v, b, mask, is_causal=True, flash_attention=True)

        check_gradient(attend, *args, bias, second=key_heads == 1)


def _with_gradients(*args):
    with GradientTape() as tape:
        tape.watch(list(args))
        out = dot_product_attention(*args, is_causal=True, flash_attention=True)
    return out, *tape.gradient(out, list(args))


def test_flash_attention_is_few_launches_and_keeps_no_matrix():
    device = runtime.current_device()
    args = [from_numpy(a) for a in operands(1, 300, 300, 2, 2, 4, 4)]
    step = Jitted(_with_gradients)
    step(*args)
    before = device.statistics.launches
    step(*args)
    assert device.statistics.launches - before <= 5  # the cotangent of ones, attention, delta, and two kernels of gradients
    (compiled,) = step.traces
    assert compiled.executable.arena_bytes < 300 * 300 * 4


def test_no_source():
    q, k, v = (from_numpy(a) for a in operands(source=0))
    for flash in (False, True):
        assert not to_numpy(dot_product_attention(q, k, v, flash_attention=flash)).any()


def test_errors():
    q, k, v = (from_numpy(a) for a in operands())
    with pytest.raises(ValueError, match="does not broadcast"):
        dot_product_attention(q, k, v, mask=np.ones((3, 7), bool))
    with pytest.raises(ValueError, match="soft_cap"):
        dot_product_attention(q, k, v, attn_logits_soft_cap=1.0)
    with pytest.raises(ValueError, match="only supports 4D"):
        dot_product_attention(from_numpy(np.ones((2, 3), "f4")), k, v)
    with pytest.raises(ValueError, match="multiple of key heads"):
        dot_product_attention(q, from_numpy(np.ones((2, 7, 3, 3), "f4")), from_numpy(np.ones((2, 7, 3, 3), "f4")))
