"""Attention without a (time x source) matrix in memory: forward, and gradients by recomputing the weights.

Dao et al., "FlashAttention" (2022), and Dao, "FlashAttention-2" (2023): blocks of logits live in registers and local memory, and an online
softmax keeps a running maximum and sum per row, by which earlier sums are rescaled. Saved for the gradients are each row's maximum (`peak`)
and the reciprocal of its sum (`rescale`); both, as a single log-sum-exp would lose a masked row's sum to rounding.

Three kernels have one form: a work-item or group that owns a block of `own` positions loops over all `other` positions, block by block.

    forward             own queries, other keys    logits = q k                      out = sum of weights v
    gradient of q       own queries, other keys    logits = q k, products = do v     dq = sum of slopes k
    gradients of k, v   own keys, other queries    logits = k q, products = v do     dk = sum of slopes q, dv = sum of weights do

with weights = exp(logits - peak) * rescale, and slopes (gradients of the logits) = weights * (products - delta) where a logit is not
masked, 0 elsewhere; delta is a row's sum of do * out (plus a term if `rescale` has a gradient). On a CPU, with enough heads, one kernel
replaces the last two (gradient_cpu.py).
"""

from keras_ocl.kernels.attention.parts import FORWARD, KEY_VALUE_GRADIENT, MASKED, QUERY_GRADIENT, Operand, Problem
from keras_ocl.kernels.schedule import schedule_of

__all__ = ["MASKED", "Operand", "Problem", "forward", "gradient", "pays"]


def forward(problem, sinks):
    """KernelSpecs that compute [out, peak, rescale] and hand them to `sinks`."""
    p = problem
    return _plan(p, FORWARD, sinks, (p.batch, p.time, p.heads, p.value_depth))


def gradient(problem, sinks):
    """KernelSpecs for the gradients of [query, key, value]; those of key and value are summed over the query heads that share them."""
    p = problem
    asked, keys = (p.batch, p.time, p.heads, p.depth), (p.batch, p.source, p.key_heads)
    if 0 not in (*asked, *keys):
        together = schedule_of(p.traits).attention_gradients(p, sinks)
        if together is not None:
            return [together]
    return _plan(p, QUERY_GRADIENT, sinks[:1], asked) + _plan(p, KEY_VALUE_GRADIENT, sinks[1:], keys)


def pays(traits, query, key, has_bias):
    """Whether these kernels are at least as fast as separate operations, for attention of tensors like `query` and `key`."""
    return bool(schedule_of(traits).attention_pays(traits, query, key, has_bias))


def _plan(problem, scheme, sinks, result):
    """A list of one KernelSpec, or of none for an empty result."""
    if 0 in result:
        return []
    return [schedule_of(problem.traits).attention(problem, scheme, sinks)]
