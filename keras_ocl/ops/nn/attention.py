"""Dot-product attention."""

import math

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.kernels import attention
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.nn.activations import softmax
from keras_ocl.ops.promotion import as_bool, promote


def dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    scale=None,
    is_causal=False,
    flash_attention=None,
    attn_logits_soft_cap=None,
):
    """softmax(query · key * scale + bias) · value over the time axis of key and value.

    Args:
        query: (batch, time, heads, depth).
        key, value: (batch, source time, key heads, depth); query heads are a multiple of key heads, which then serve groups of them.
        bias: added to the logits; broadcast to (batch, heads, time, source time).
        mask: False masks; broadcast like `bias`. is_causal: mask what comes later than the query.
        scale: None means 1 / sqrt(depth).
        flash_attention: True keeps no matrix of (time, source time) in memory, False keeps one, None chooses what is faster.
        attn_logits_soft_cap: ValueError unless None.
    Returns:
        (batch, time, heads, value depth) in the dtype that query, key and value promote to; the softmax is computed in float32 or wider.
    """
    if attn_logits_soft_cap is not None:
        raise ValueError("dot_product_attention: `attn_logits_soft_cap` is not supported in the ocl backend; leave it at None.")
    query, key, value = promote(query, key, value)
    shapes = f"query.shape={tuple(query.shape)}, key.shape={tuple(key.shape)}, value.shape={tuple(value.shape)}."
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(f"`dot_product_attention` only supports 4D inputs. Received: {shapes}")
    batch, time, heads, depth = query.shape
    source, key_heads = key.shape[1], key.shape[2]
    if key.shape[0] != batch or value.shape[0] != batch or key.shape[3] != depth or value.shape[1] != source:
        raise ValueError(
            "dot_product_attention: query, key and value must agree in batch, query and key in depth, key and value in time. Received:"
            f" {shapes}"
        )
    if key_heads == 0 or heads % key_heads or value.shape[2] != key_heads:
        raise ValueError(f"dot_product_attention: query heads must be a multiple of key heads, value heads the same. Received: {shapes}")
    scale = 1 / math.sqrt(depth) if scale is None else scale
    logits_shape = (batch, heads, time, source)
    if bias is not None:
        bias = _of_logits("bias", convert_to_tensor(bias, query.dtype), logits_shape)
    if mask is not None:
        mask = _of_logits("mask", as_bool(mask), logits_shape)
    if flash_attention is None:
        flash_attention = attention.pays(runtime.current_device().traits, query, key, bias is not None)
    if flash_attention and source > 0:
        return P.attention(query, key, value, bias, mask, scale, is_causal)
    logits, _ = P.attention_logits(query, key, bias, mask, scale, is_causal)
    weights = convert_to_tensor(softmax(logits), query.dtype)
    if heads == key_heads:
        result = P.dot_general(weights, value, ((3,), (1,)), ((0, 1), (0, 2)))  # (batch, heads, time, depth)
        return P.transpose(result, (0, 2, 1, 3))
    weights = P.reshape(weights, (batch, key_heads, heads // key_heads, time, source))
    result = P.dot_general(weights, value, ((4,), (1,)), ((0, 1), (0, 2)))  # (batch, key heads, group, time, depth)
    return P.reshape(P.transpose(result, (0, 3, 1, 2, 4)), (batch, time, heads, value.shape[3]))


def _of_logits(name, x, shape):
    """`x`, which broadcasts to `shape` of rank 4, with ones for the axes that it lacks and wherever it is repeated."""
    if x.ndim > 4 or any(n not in (1, m) for n, m in zip(x.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(f"dot_product_attention: `{name}` of shape {tuple(x.shape)} does not broadcast to the logits' {tuple(shape)}.")
    wanted = (1,) * (4 - x.ndim) + tuple(x.shape)
    return P.reshape(x, tuple(1 if n == 1 and m != 1 else n for n, m in zip(wanted, shape, strict=True)))
