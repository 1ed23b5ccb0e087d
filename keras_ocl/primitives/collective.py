"""Collectives: what the devices that compute one step together exchange. Declared host operations, computed by a communicator.

`group` is whatever has `all_reduce`, `all_gather` and `reduce_scatter` (distribution/communicator.py); all its members run the same
collectives in the same order, which `token`, the last operand and result of each, keeps.
"""

from keras_ocl import primitives as P
from keras_ocl.core.primitive import Primitive
from keras_ocl.primitives.batching import all_spread, spread


def _reduce_shape(*operands, group, kind):
    return [(x.shape, x.dtype) for x in operands]


def _reduce_host(arrays, *, group, kind):
    *arrays, token = arrays
    return [*group.all_reduce(arrays, kind), token]


def _reduce_vjp(cts, outs, *operands, group, kind):
    """What each part's value does to all parts' results."""
    if kind != "sum":
        raise NotImplementedError(f"all_reduce: only sums have a gradient, not kind {kind!r}.")
    given = [P.zeros_like(x) if ct is None else ct for x, ct in zip(operands[:-1], cts, strict=False)]
    *grads, _ = all_reduce_p(*given, operands[-1], group=group, kind=kind)
    return *grads, None


def _reduce_batch(inputs, batched, size, **params):
    return all_reduce_p(*all_spread(inputs[:-1], batched[:-1], size), inputs[-1], **params)


def _gather_shape(x, token, *, group, axis, extents):
    total = 0
    for n in extents:
        total = total + n
    return [((*x.shape[:axis], total, *x.shape[axis + 1 :]), x.dtype), (token.shape, token.dtype)]


def _gather_host(arrays, *, group, axis, extents):
    x, token = arrays
    return [group.all_gather(x, axis, list(extents)), token]


def _gather_batch(inputs, batched, size, *, axis, **params):
    x, token = inputs
    return all_gather_p(spread(x, batched[0], size), token, axis=axis + 1, **params)


def _scatter_shape(x, token, *, group, axis, extents, kind):
    return [((*x.shape[:axis], extents[group.rank], *x.shape[axis + 1 :]), x.dtype), (token.shape, token.dtype)]


def _scatter_host(arrays, *, group, axis, extents, kind):
    x, token = arrays
    return [group.reduce_scatter(x, axis, list(extents), kind), token]


def _scatter_batch(inputs, batched, size, *, axis, **params):
    x, token = inputs
    return reduce_scatter_p(spread(x, batched[0], size), token, axis=axis + 1, **params)


all_reduce_p = Primitive("all_reduce", _reduce_shape, _reduce_vjp, host=_reduce_host, batch=_reduce_batch, multiple_results=True)
_RESIZED = {"multiple_results": True, "dynamic_extents": ("extents",)}
all_gather_p = Primitive("all_gather", _gather_shape, host=_gather_host, batch=_gather_batch, **_RESIZED)
reduce_scatter_p = Primitive("reduce_scatter", _scatter_shape, host=_scatter_host, batch=_scatter_batch, **_RESIZED)
