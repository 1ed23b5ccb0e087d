"""Collectives: what the devices that compute one step together exchange. Declared host operations, computed by a communicator.

`group` is whatever has `all_reduce`, `all_gather`, `reduce_scatter` and `overlaps` (distribution/communicator.py); all its members run the
same collectives in the same order, which `token`, the last operand and result of each, keeps.
"""

from contextvars import Context

from keras_ocl import primitives as P
from keras_ocl.core.autodiff import differentiable
from keras_ocl.core.primitive import Primitive, current_trace
from keras_ocl.core.variable import Owned
from keras_ocl.primitives.batching import all_spread


def _reduce_shape(*operands, group, kind):
    return [(x.shape, x.dtype) for x in operands]


def _reduce_host(arrays, targets, *, group, kind):
    *arrays, token = arrays
    return [*group.all_reduce(arrays, kind, targets[:-1]), token]


def _reduce_vjp(cts, outs, *operands, group, kind):
    """What each part's value does to all parts' results."""
    if kind != "sum":
        raise NotImplementedError(f"all_reduce: only sums have a gradient, not kind {kind!r}.")
    pairs = list(zip(operands[:-1], cts, strict=False))
    found = iter(all_reduce([P.zeros_like(x) if ct is None else ct for x, ct in pairs if differentiable(x.dtype)], group, kind))
    return *(next(found) if differentiable(x.dtype) else None for x, _ in pairs), None


def _reduce_batch(inputs, batched, size, **params):
    return all_reduce_p(*all_spread(inputs[:-1], batched[:-1], size), inputs[-1], **params)


class _Sequence:
    """The token as a Variable (core/variable.py), which loops carry and steps keep: what follows in program order follows in a trace too,
    gradients included, and a collective whose result nothing uses runs as well, as its peers wait for it."""

    trainable, path, shape, dtype = False, "sequence of collectives", (), "int32"

    def __init__(self):
        self._owned = Owned.sharing(Context().run(P.constant, 0, self.dtype))  # concrete, whatever is being traced

    @property
    def _value(self):
        return self._owned.lend()


_sequence = None


def all_reduce(tensors, group, kind):
    """The Tensors, combined elementwise over all members of the group by one collective, behind those called before it.

    Args:
        tensors: a list of any shapes and dtypes, the same for all members.
        kind: see `Communicator.all_reduce`.
    """
    global _sequence
    trace = current_trace.get()
    if trace is None:
        *results, _ = all_reduce_p(*tensors, P.constant(0, "int32"), group=group, kind=kind)
        return results
    if _sequence is None:
        _sequence = _Sequence()
    *results, token = all_reduce_p(*tensors, trace.read(_sequence), group=group, kind=kind)
    trace.assign(_sequence, token)
    return results


def check_unused(trace):
    """Raise RuntimeError where `all_reduce` was called in a trace of whole values, which is to be divided among the parts."""
    if id(_sequence) in trace.states:
        layer = next((eq.origin.layer for eq in trace.equations if eq.primitive is all_reduce_p), "")
        raise RuntimeError(
            f"keras_ocl.all_reduce is called{f' by {layer}' if layer else ''} in a step that keras.distribution divides among the ranks:"
            " its tensors are those of the whole batch already, so leave the call out, or train without set_distribution."
        )


def _gather_shape(x, token, *, group, axis, extents):
    total = 0
    for n in extents:
        total = total + n
    return [((*x.shape[:axis], total, *x.shape[axis + 1 :]), x.dtype), (token.shape, token.dtype)]


def _gather_host(arrays, targets, *, group, axis, extents):
    x, token = arrays
    return [group.all_gather(x, axis, list(extents), targets[0]), token]


def _scatter_shape(x, token, *, group, axis, extents, kind):
    return [((*x.shape[:axis], extents[group.rank], *x.shape[axis + 1 :]), x.dtype), (token.shape, token.dtype)]


def _scatter_host(arrays, targets, *, group, axis, extents, kind):
    x, token = arrays
    return [group.reduce_scatter(x, axis, list(extents), kind, targets[0]), token]


def _overlaps(group, **_):
    return group.overlaps


all_reduce_p = Primitive(
    "all_reduce", _reduce_shape, _reduce_vjp, host=_reduce_host, overlaps=_overlaps, batch=_reduce_batch, multiple_results=True
)
_RESIZED = {"multiple_results": True, "dynamic_extents": ("extents",)}
# Begun as early as can be, it would hold the whole of all variables.
all_gather_p = Primitive("all_gather", _gather_shape, host=_gather_host, **_RESIZED)
reduce_scatter_p = Primitive("reduce_scatter", _scatter_shape, host=_scatter_host, overlaps=_overlaps, **_RESIZED)
