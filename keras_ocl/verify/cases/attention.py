"""Attention in one kernel, with its gradients."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import integers, normal, wide


def cases(traits, short):
    """The cases of attention."""
    found = [_case((4, 70, 3, 32), 53, 3, masked=True)]
    if not short:
        found += [
            _case((2, 129, 4, 64), 129, 2, causal=True),
            _case((8, 1, 8, 64), 190, 8),
            _case((3, 17, 5, 24), 33, 5),
        ]
    return found + ([] if short else of_units(traits, short))


def of_units(traits, short):
    """The cases of attention whose operands matrix units take."""
    return [_case((2, 64, 2, 32), 64, 2, causal=True, dtype="float16")]


def _case(shape, source, key_heads, causal=False, masked=False, dtype="float32"):
    batch, time, heads, depth = shape
    query, ct = (normal(name, *shape, dtype=dtype) for name in ("query", "cotangent"))
    key, value = (normal(name, batch, source, key_heads, depth, dtype=dtype) for name in ("key", "value"))
    mask = (integers("mask", 0, 4, batch, 1, time, source) > 0) | (np.arange(source) == 0)
    scale = depth**-0.5

    def function(query, key, value, mask, ct):
        with GradientTape() as tape:
            tape.watch([query, key, value])
            out = P.attention(query, key, value, None, mask if masked else None, scale, causal)
            total = P.reduce_sum(P.mul(P.convert(out, "float32"), P.convert(ct, "float32")), (0, 1, 2, 3))
        return [out, *tape.gradient(total, [query, key, value])]

    def wanted():
        q, c = wide(query), wide(ct)
        k, v = (np.repeat(wide(x), heads // key_heads, 2) for x in (key, value))
        logits = np.einsum("bthd,bshd->bhts", q, k) * scale
        seen = np.broadcast_to(mask, logits.shape) if masked else np.ones(logits.shape, bool)
        if causal:
            seen = seen & (np.arange(source) <= np.arange(time)[:, None])
        weights = np.exp(np.where(seen, logits - np.where(seen, logits, -np.inf).max(-1, keepdims=True), -np.inf))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("bhts,bshd->bthd", weights, v)
        products = np.einsum("bthd,bshd->bhts", c, v)
        slopes = weights * (products - (weights * products).sum(-1, keepdims=True)) * scale
        shared = (batch, source, key_heads, heads // key_heads, depth)
        dk = np.einsum("bhts,bthd->bshd", slopes, q).reshape(shared).sum(3)
        dv = np.einsum("bhts,bthd->bshd", weights, c).reshape(shared).sum(3)
        return [out, np.einsum("bhts,bshd->bthd", slopes, k), dk, dv]

    def scales():
        return [np.full(w.shape, abs(w).max()) for w in wanted()]

    name = f"attention of {dtype} {list(shape)} to {source}{' causal' * causal}{' masked' * masked}"
    names = ("forward", "gradient of the query", "gradient of the key", "gradient of the value")
    return Case(name, function, (query, key, value, mask, ct), wanted, 64, scales, names)
