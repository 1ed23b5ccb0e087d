"""Scaled dot-product attention: composed of other primitives, and as one that keeps no (time x source) matrix (kernels/attention/)."""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.dim import key as same_extent
from keras_ocl.core.dim import product
from keras_ocl.core.factors import Factors
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels import attention as template
from keras_ocl.primitives.batching import merged, parted, spread

# ---- composed


def _wide(x):
    return x if x.dtype == dtypes.accumulator(x.dtype) else P.convert(x, dtypes.accumulator(x.dtype))


def _over(x, shape):
    """A tensor of rank 4 broadcast to `shape`: axes of extent 1 are repeated."""
    return x if tuple(x.shape) == tuple(shape) else P.broadcast(x, shape, (0, 1, 2, 3))


def attention_logits(query, key, bias, mask, scale, is_causal):
    """(logits, allowed) of the shape (batch, heads, time, source), logits in float32 or wider.

    `allowed` (bool, None when all are) says which logits are not masked; the others are a number far below.
    Arguments as for attention().
    """
    batch, time, heads, depth = query.shape
    source, key_heads = key.shape[1], key.shape[2]
    shape, wide = (batch, heads, time, source), dtypes.accumulator(query.dtype)
    if heads == key_heads:
        logits = P.dot_general(query, key, ((3,), (3,)), ((0, 2), (0, 2)), wide)
    else:
        groups = P.transpose(P.reshape(query, (batch, time, key_heads, heads // key_heads, depth)), (0, 2, 3, 1, 4))
        logits = P.reshape(P.dot_general(groups, key, ((4,), (3,)), ((0, 1), (0, 2)), wide), shape)
    logits = P.mul(logits, P.full(logits.shape, scale, logits.dtype))
    if bias is not None:
        logits = P.add(logits, _over(_wide(bias), shape))
    allowed = None if mask is None else _over(mask, shape)
    if is_causal:
        causal = P.ge(P.iota((time, source), 0, "int32"), P.iota((time, source), 1, "int32"))
        causal = P.broadcast(causal, shape, (2, 3))
        allowed = causal if allowed is None else P.and_(allowed, causal)
    if allowed is not None:
        logits = P.select(allowed, logits, P.full(logits.shape, template.MASKED, logits.dtype))
    return logits, allowed


def _gradients(query, key, value, do, peak, rescale, delta, bias, mask, scale, is_causal):
    """Gradients of query, key, value and logits (the last in float32 or wider) by the formulas, with matrices of (time x source)."""
    batch, time, heads, _ = query.shape
    source, key_heads = key.shape[1], key.shape[2]
    if heads != key_heads:
        spread = [_repeated(x, heads) for x in (key, value)]
        dq, dk, dv, dlogits = _gradients(query, *spread, do, peak, rescale, delta, bias, mask, scale, is_causal)
        dk, dv = (P.reduce_sum(P.reshape(x, (batch, source, key_heads, heads // key_heads, x.shape[3])), (3,)) for x in (dk, dv))
        return dq, dk, dv, dlogits
    logits, allowed = attention_logits(query, key, bias, mask, scale, is_causal)
    peak, rescale, delta = (P.broadcast(P.transpose(x, (0, 2, 1)), logits.shape, (0, 1, 2)) for x in (peak, rescale, delta))
    weights = P.mul(P.exp(P.sub(logits, peak)), rescale)
    products = P.dot_general(do, value, ((3,), (3,)), ((0, 2), (0, 2)), logits.dtype)
    slopes = P.mul(weights, P.sub(products, delta))
    if allowed is not None:
        slopes = P.select(allowed, slopes, P.zeros_like(slopes))

    def summed(factors, axis, rows, by):
        total = P.transpose(P.dot_general(factors, rows, ((axis,), (1,)), ((0, 1), (0, 2))), (0, 2, 1, 3))
        return P.convert(P.mul(total, P.full(total.shape, by, total.dtype)), query.dtype)

    return summed(slopes, 3, key, scale), summed(slopes, 2, query, scale), summed(weights, 2, do, 1.0), slopes


def _repeated(x, heads):
    """(batch, source, key heads, depth) with each head as often as there are query heads in its group."""
    batch, source, key_heads, depth = x.shape
    spread = P.broadcast(x, (batch, source, key_heads, heads // key_heads, depth), (0, 1, 2, 4))
    return P.reshape(spread, (batch, source, heads, depth))


# ---- rules

_STATISTICS = ("peak", "rescale", "delta")


def _named(inputs, params, gradient):
    """Operands by name, from a primitive's inputs."""
    names = ["query", "key", "value"] + (["do", *_STATISTICS] if gradient else [])
    names += [name for name in ("bias", "mask") if params[name]]
    return dict(zip(names, inputs, strict=True))


def _shape(query, key, value, *extras, scale, is_causal, bias, mask):
    batch, time, heads, depth = query.shape
    source, key_heads = key.shape[1], key.shape[2]
    named = _named((query, key, value, *extras), {"bias": bias, "mask": mask}, False)
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
    if tuple(key.shape) != (batch, source, key_heads, depth) or tuple(value.shape[:3]) != tuple(key.shape[:3]):
        raise ValueError(f"attention: {shapes} do not fit together; all but the times, heads and the value's depth must be equal.")
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"attention: {shapes}; the query's heads must be a multiple of the key's.")
    if len({x.dtype for x in (query, key, value)}) != 1 or not dtypes.is_float(query.dtype):
        raise TypeError(f"attention: dtypes {query.dtype}, {key.dtype} and {value.dtype}; convert them to one float dtype first.")
    for name in ("bias", "mask"):
        if name in named and any(n != m and not is_one(n) for n, m in zip(named[name].shape, (batch, heads, time, source), strict=True)):
            raise ValueError(f"attention: {shapes}; the {name} must be (batch, heads, time, source) or 1 in each place.")
    wide = dtypes.accumulator(query.dtype)
    return [((batch, time, heads, value.shape[3]), query.dtype), ((batch, time, heads), wide), ((batch, time, heads), wide)]


def _vjp(cts, outs, *inputs, **params):
    """Of the saved statistics' cotangents only that of `rescale` counts: what depends on `peak` cancels."""
    out, peak, rescale = outs
    ct = P.zeros_like(out) if cts[0] is None else cts[0]
    delta = P.reduce_sum(P.mul(_wide(ct), _wide(out)), (3,))
    if cts[2] is not None:
        delta = P.add(delta, P.mul(rescale, cts[2]))
    extras = inputs[3:]
    operands = (*inputs[:3], ct, peak, rescale, delta, *extras)
    if is_one(inputs[0].shape[1]):  # the matrix is a row
        gradients = _composed(_named(operands, params, True), params)[:3]
    else:
        gradients = _attention_gradient(*operands, **params)
    return *gradients, *_extra_gradients(operands, params)


def _extra_gradients(operands, params):
    named = _named(operands, params, True)
    result = []
    if params["bias"]:
        # A bias may be as large as the matrix, so avoiding the matrix gains nothing; the compiler drops it where nothing reads it.
        dlogits = _composed(named, params)[3]
        axes = tuple(i for i, n in enumerate(named["bias"].shape) if is_one(n) and not is_one(dlogits.shape[i]))
        total = P.reshape(P.reduce_sum(dlogits, axes), named["bias"].shape) if axes else dlogits
        result.append(P.convert(total, named["bias"].dtype))
    if params["mask"]:
        result.append(None)
    return result


def _composed(named, params):
    return _gradients(**{"bias": None, "mask": None, **named}, scale=params["scale"], is_causal=params["is_causal"])


def _gradient_shape(query, key, value, *rest, **params):
    return [(x.shape, x.dtype) for x in (query, key, value)]


def _gradient_vjp(cts, outs, *inputs, **params):
    """The gradient of the formulas."""
    named = _named(inputs, params, True)
    floats = {name: x for name, x in named.items() if dtypes.is_float(x.dtype)}
    with GradientTape() as tape:
        tape.watch(list(floats.values()))
        found = _composed(named, params)
    known = [(x, ct) for x, ct in zip(found, cts, strict=False) if ct is not None]
    gradients = tape.gradient([x for x, _ in known], floats, [ct for _, ct in known])
    gradients["peak"] = None  # see _vjp
    return tuple(gradients.get(name) for name in named)


def _kernels(plan, gradient):
    def rule(builder, node, sinks):
        named = _named(node.inputs, node.params, gradient)
        query, key, value = (named[name] for name in ("query", "key", "value"))
        # The source names the size of private memory: an unknown depth would need a bound.
        depths = [d if builder.all_arguments else int(d) for d in (query.shape[3], value.shape[3])]
        problem = template.Problem(
            builder.traits,
            *query.shape[:2],
            key.shape[1],
            query.shape[2],
            key.shape[2],
            *depths,
            query.dtype,
            node.params["scale"],
            node.params["is_causal"],
            {name: template.Operand(x, x.dtype, tuple(x.shape)) for name, x in named.items()},
            builder.all_arguments,
        )
        return plan(problem, sinks)

    return rule


def _batch(primitive):
    """Rule that merges the examples into the batch."""

    def rule(inputs, batched, size, **params):
        batch = next(x.shape[1] if is_batched else x.shape[0] for x, is_batched in zip(inputs, batched, strict=True))
        operands = []
        for x, is_batched in zip(inputs, batched, strict=True):
            if not is_batched and is_one(x.shape[0]) and not is_one(batch):
                operands.append(x)  # a bias or mask that all share
                continue
            x = spread(x, is_batched, size)
            operands.append(merged(P.broadcast(x, (size, batch, *x.shape[2:]), tuple(range(len(x.shape)))) if is_one(x.shape[1]) else x))
        return tuple(parted(y, size) for y in primitive()(*operands, **params))

    return rule


def _operations(forward, backward):
    """Rule for (time x source) matrix products: `forward` of them with the query's depth, `backward` with the value's."""

    def rule(node):
        query, key, value = node.inputs[:3]
        return 2 * product(query.shape[:3]) * key.shape[1] * (forward * query.shape[3] + backward * value.shape[3])

    return rule


def _factors(gradient):
    """Rule: examples are apart, and heads where each has a key of its own."""

    def rule(seen):
        query, keys = seen.inputs[:2]
        heads = "head" if same_extent(query.shape[2]) == same_extent(keys.shape[2]) else None
        wide, statistics = ("batch", None, heads, None), ("batch", None, heads)
        operands = {name: wide for name in ("query", "key", "value", "do")} | dict.fromkeys(_STATISTICS, statistics)
        labels = []
        for name, x in _named(seen.inputs, seen.params, gradient).items():
            shared = tuple(None if is_one(n) else label for n, label in zip(x.shape, ("batch", heads, None, None), strict=False))
            labels.append(operands.get(name, shared))
        return Factors(tuple(labels), (wide,) * 3 if gradient else (wide, statistics, statistics))

    return rule


_attention = Primitive(
    "attention",
    _shape,
    _vjp,
    kernels=_kernels(template.forward, False),
    multiple_results=True,
    operations=_operations(1, 1),
    batch=_batch(lambda: _attention),
    factors=_factors(False),
)
_attention_gradient = Primitive(
    "attention_gradient",
    _gradient_shape,
    _gradient_vjp,
    kernels=_kernels(template.gradient, True),
    multiple_results=True,
    operations=_operations(3, 2),
    batch=_batch(lambda: _attention_gradient),
    factors=_factors(True),
)


def attention(query, key, value, bias, mask, scale, is_causal):
    """softmax(query key * scale + bias) value, masked, without a matrix of (time x source) in memory.

    Args:
        query: (batch, time, heads, depth). key, value: (batch, source, key heads, depth or value depth), of one float dtype; query heads
            are a multiple of key heads.
        bias, mask: float and bool, (batch, heads, time, source) or 1 in each place, or None. False masks.
        scale: a float. is_causal: whether what comes later than the query is masked.
    Returns:
        (batch, time, heads, value depth) in the operands' dtype, computed in float32 or wider. The caller handles a source of
        extent 0, whose result would be zeros.
    """
    extras = [x for x in (bias, mask) if x is not None]
    params = {"scale": float(scale), "is_causal": bool(is_causal), "bias": bias is not None, "mask": mask is not None}
    return _attention(query, key, value, *extras, **params)[0]
