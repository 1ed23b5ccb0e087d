"""Sorting and the greatest elements of rows."""

import math

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint, product
from keras_ocl.core.factors import all_but
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels import sort as template
from keras_ocl.primitives.batching import same_parameters
from keras_ocl.primitives.movement import check_positions


def _along(shape, axis):
    """iota index tensors for every axis of `shape` but `axis` (whose place is None)."""
    return [None if i == axis else P.iota(shape, i, "int32") for i in range(len(shape))]


def _scattered(ct, position, axis, shape):
    """Cotangents sent back to the `position` along `axis` that their elements came from."""
    indices = _along(ct.shape, axis)
    indices[axis] = position
    return P.scatter_new(shape, tuple(indices), ct, tuple(range(len(shape))))


def _check_order(name, x):
    if dtypes.is_complex(x.dtype):
        raise TypeError(f"{name}: dtype {x.dtype} has no order.")


def _sort_shape(*operands, keys):
    for x in operands:
        if tuple(x.shape) != tuple(operands[0].shape):
            raise ValueError(f"sort: operands have shapes {[tuple(o.shape) for o in operands]}; they must have one shape.")
    for x in operands[:keys]:
        _check_order("sort", x)
    return [(x.shape, x.dtype) for x in operands]


def _sort_vjp(cts, outs, *operands, keys):
    axis = len(operands[0].shape) - 1
    *_, position = _sort(*operands[:keys], P.iota(operands[0].shape, axis, "int32"), keys=keys)
    return tuple(
        None if ct is None or not dtypes.is_float(x.dtype) else _scattered(ct, position, axis, x.shape)
        for ct, x in zip(cts, operands, strict=True)
    )


def _sort_kernels(builder, node, sinks):
    return template.plan(
        builder.traits,
        shape=node.inputs[0].shape,
        operands=[(x, x.dtype) for x in node.inputs],
        keys=node.params["keys"],
        results=[s.handle for s in sinks],
        all_arguments=builder.all_arguments,
    )


def _operations(node):
    """About one comparison per element and level of merging."""
    (*_, length) = shape = node.inputs[0].shape
    return product(shape) * max(1, math.ceil(math.log2(max(2, hint(length)))))


_sort = Primitive(
    "sort",
    _sort_shape,
    _sort_vjp,
    kernels=_sort_kernels,
    multiple_results=True,
    operations=_operations,
    factors=all_but(lambda seen: -1),
    batch=same_parameters(lambda: _sort),
)


def sort(operands, axis, keys=1):
    """Operands (a tuple of tensors of one shape) reordered along `axis` so that the first `keys` ascend lexicographically.

    Stable; NaN comes last. Returns a tuple.
    """
    operands = tuple(operands)
    rank = len(operands[0].shape) if operands else 0
    if not 0 <= axis < rank or not 1 <= keys <= len(operands):
        raise ValueError(f"sort: axis {axis} and keys {keys} do not fit {len(operands)} operands of rank {rank}.")
    if axis == rank - 1:
        return _sort(*operands, keys=keys)
    perm = [i for i in range(rank) if i != axis] + [axis]
    back = P.inverse_permutation(perm)
    return tuple(P.transpose(x, back) for x in _sort(*(P.transpose(x, perm) for x in operands), keys=keys))


def _top_k_shape(x, *, k):
    _check_order("top_k", x)
    if not 0 <= k <= x.shape[-1]:
        raise ValueError(f"top_k: k = {k} is not between 0 and the last extent of shape {tuple(x.shape)}.")
    check_positions("top_k", x.shape[-1], "int32")
    shape = (*x.shape[:-1], k)
    return [(shape, x.dtype), (shape, "int32")]


def _top_k_vjp(cts, outs, x, *, k):
    ct, position = cts[0], outs[1]
    return (None if ct is None else _scattered(ct, position, len(x.shape) - 1, x.shape),)


def _top_k_kernels(builder, node, sinks):
    (x,) = node.inputs
    return template.top_k(
        builder.traits,
        shape=x.shape,
        k=node.params["k"],
        x=x,
        dtype=x.dtype,
        results=[s.handle for s in sinks],
        all_arguments=builder.all_arguments,
    )


_top_k = Primitive(
    "top_k",
    _top_k_shape,
    _top_k_vjp,
    kernels=_top_k_kernels,
    multiple_results=True,
    operations=_operations,
    factors=all_but(lambda seen: -1),
    batch=same_parameters(lambda: _top_k),
)


def top_k(x, k):
    """The `k` greatest elements along the last axis, descending, and their int32 positions; of equal ones the first. NaN is greatest."""
    if not x.shape:
        raise ValueError("top_k: the tensor has rank 0; it needs an axis.")
    return _top_k(x, k=k)
