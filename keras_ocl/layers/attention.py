"""Dot-product attention."""

import math

from keras_ocl import primitives as P
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.nn_activations import softmax
from keras_ocl.ops.numpy_logic import as_bool
from keras_ocl.ops.promotion import broadcast_to, promote, result_type, scalar_like

# What masked logits become, as in other backends: far below all others, yet a row that is masked as a whole stays finite.
_MASKED = -0.7 * 3.4028234663852886e38


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
        flash_attention: True raises ValueError. attn_logits_soft_cap: ValueError unless None.
    Returns:
        (batch, time, heads, value depth) in the dtype that query, key and value promote to; the softmax is computed in float32 or wider.
    """
    if flash_attention:
        raise ValueError("Flash attention is not supported in the ocl backend; leave `flash_attention` at None.")
    if attn_logits_soft_cap is not None:
        raise ValueError("dot_product_attention: `attn_logits_soft_cap` is not supported in the ocl backend; leave it at None.")
    query, key, value = promote(query, key, value)
    shapes = f"query.shape={tuple(query.shape)}, key.shape={tuple(key.shape)}, value.shape={tuple(value.shape)}."
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(f"`dot_product_attention` only supports 4D inputs. Received: {shapes}")
    batch, time, heads, depth = query.shape
    source, key_heads = key.shape[1], key.shape[2]
    if key_heads == 0 or heads % key_heads or value.shape[2] != key_heads:
        raise ValueError(f"dot_product_attention: query heads must be a multiple of key heads, value heads the same. Received: {shapes}")
    dtype = query.dtype
    wide = result_type(dtype, "float32")
    logits = _logits(query, key, wide)
    logits = P.mul(logits, scalar_like(1 / math.sqrt(depth) if scale is None else scale, logits))
    if bias is not None:
        logits = P.add(logits, broadcast_to(convert_to_tensor(convert_to_tensor(bias, dtype), wide), logits.shape))
    allowed = None if mask is None else broadcast_to(as_bool(mask), logits.shape)
    if is_causal:
        causal = P.ge(P.iota((time, source), 0, "int32"), P.iota((time, source), 1, "int32"))
        causal = P.broadcast(causal, logits.shape, (2, 3))
        allowed = causal if allowed is None else P.and_(allowed, causal)
    if allowed is not None:
        logits = P.select(allowed, logits, scalar_like(_MASKED, logits))
    weights = convert_to_tensor(softmax(logits), dtype)
    if heads == key_heads:
        result = P.dot_general(weights, value, ((3,), (1,)), ((0, 1), (0, 2)))  # (batch, heads, time, depth)
        return P.transpose(result, (0, 2, 1, 3))
    weights = P.reshape(weights, (batch, key_heads, heads // key_heads, time, source))
    result = P.dot_general(weights, value, ((4,), (1,)), ((0, 1), (0, 2)))  # (batch, key heads, group, time, depth)
    return P.reshape(P.transpose(result, (0, 3, 1, 2, 4)), (batch, time, heads, value.shape[3]))


def _logits(query, key, wide):
    """(batch, heads, time, source time) in the dtype `wide`."""
    batch, time, heads, depth = query.shape
    source, key_heads = key.shape[1], key.shape[2]
    wide = None if wide == query.dtype else wide
    if heads == key_heads:
        return P.dot_general(query, key, ((3,), (3,)), ((0, 2), (0, 2)), wide)
    query = P.transpose(P.reshape(query, (batch, time, key_heads, heads // key_heads, depth)), (0, 2, 3, 1, 4))
    logits = P.dot_general(query, key, ((4,), (3,)), ((0, 1), (0, 2)), wide)
    return P.reshape(logits, (batch, heads, time, source))
