"""Primitives that make and move values: constants, broadcasts, reshapes, slices, pads."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, maximum, product
from keras_ocl.core.index import Affine, is_one, linear
from keras_ocl.core.primitive import Primitive

# ---- constants

_constant = Primitive(
    "constant", lambda *, value, dtype: ((), dtype), None, lambda gen, node, index: gen.constant(node.params["value"], node.dtype)
)


def constant(value, dtype):
    """A rank-0 tensor of a Python number or a Dim."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    return _constant(value=value, dtype=dtypes.canonical(dtype))


def full(shape, value, dtype):
    """A tensor of `shape` filled with a number or a Dim."""
    return broadcast(constant(value, dtype), shape, ())


def zeros_like(x, fill=0):
    """A tensor of the shape and dtype of `x` filled with `fill`."""
    return full(x.shape, fill, x.dtype)


_iota = Primitive(
    "iota",
    lambda *, shape, axis, dtype: (shape, dtype),
    None,
    lambda gen, node, index: gen.number(index[node.params["axis"]], node.dtype),
)


def iota(shape, axis, dtype):
    """A tensor of `shape` that counts 0, 1, 2, ... along `axis`."""
    if not 0 <= axis < len(shape):
        raise ValueError(f"iota: axis {axis} is out of range for shape {tuple(shape)}.")
    return _iota(shape=tuple(shape), axis=axis, dtype=dtypes.canonical(dtype))


# ---- broadcast


def _stretched(x, shape, dims):
    """Axes of `x` of extent 1 that a broadcast repeats."""
    return tuple(i for i, d in enumerate(dims) if is_one(x.shape[i]) and not is_one(shape[d]))


def _broadcast_shape(x, *, shape, dims):
    rising = all(a < b for a, b in zip(dims, dims[1:], strict=False))
    if len(dims) != len(x.shape) or not rising or any(not 0 <= d < len(shape) for d in dims):
        raise ValueError(f"broadcast: axes {dims} do not place the {len(x.shape)} axes of shape {tuple(x.shape)} in {tuple(shape)}.")
    for n, d in zip(x.shape, dims, strict=True):
        if n != shape[d] and not is_one(n):
            raise ValueError(f"broadcast: shape {tuple(x.shape)} does not broadcast to {tuple(shape)} along axes {dims}.")
    return shape, x.dtype


def _broadcast_vjp(ct, out, x, *, shape, dims):
    stretched = _stretched(x, shape, dims)
    kept = tuple(d for i, d in enumerate(dims) if i not in stretched)
    axes = tuple(d for d in range(len(shape)) if d not in kept)
    total = P.reduce_sum(ct, axes) if axes else ct
    return (reshape(total, x.shape),)


def _broadcast_pointwise(gen, node, index):
    x, dims = node.inputs[0], node.params["dims"]
    stretched = _stretched(x, node.shape, dims)
    return gen.value(x, tuple(Affine() if i in stretched else index[d] for i, d in enumerate(dims)))


_broadcast = Primitive("broadcast", _broadcast_shape, _broadcast_vjp, _broadcast_pointwise)


def broadcast(x, shape, dims):
    """`x` repeated to `shape`; `dims[i]` (rising) is the result's axis along which x's axis i runs, of the same extent or 1."""
    return _broadcast(x, shape=tuple(shape), dims=tuple(dims))


# ---- reshape, transpose, reverse


def _reshape_shape(x, *, shape):
    if product(x.shape) != product(shape):
        raise ValueError(f"reshape: shape {tuple(x.shape)} has {int(product(x.shape))} elements and does not fit {tuple(shape)}.")
    return shape, x.dtype


def _reshape_pointwise(gen, node, index):
    return gen.value_flat(node.inputs[0], linear(index, node.shape))


_reshape = Primitive("reshape", _reshape_shape, lambda ct, out, x, *, shape: (reshape(ct, x.shape),), _reshape_pointwise)


def reshape(x, shape):
    """The elements of `x`, in row-major order, as another shape."""
    shape = tuple(shape)
    if shape == tuple(x.shape) and not any(isinstance(n, Dim) for n in (*shape, *x.shape)):
        return x
    return _reshape(x, shape=shape)


def _transpose_shape(x, *, perm):
    if sorted(perm) != list(range(len(x.shape))):
        raise ValueError(f"transpose: {perm} is not a permutation of the axes of shape {tuple(x.shape)}.")
    return tuple(x.shape[p] for p in perm), x.dtype


def inverse_permutation(perm):
    """The permutation that undoes `perm`."""
    inverse = [0] * len(perm)
    for position, p in enumerate(perm):
        inverse[p] = position
    return tuple(inverse)


def _transpose_pointwise(gen, node, index):
    return gen.value(node.inputs[0], tuple(index[i] for i in inverse_permutation(node.params["perm"])))


_transpose = Primitive(
    "transpose", _transpose_shape, lambda ct, out, x, *, perm: (transpose(ct, inverse_permutation(perm)),), _transpose_pointwise
)


def transpose(x, perm):
    """Axes reordered: the result's axis i is x's axis `perm[i]`."""
    perm = tuple(perm)
    return x if perm == tuple(range(len(x.shape))) else _transpose(x, perm=perm)


def _reverse_pointwise(gen, node, index):
    (x,), axes = node.inputs, node.params["axes"]
    return gen.value(x, tuple(x.shape[i] - 1 - a if i in axes else a for i, a in enumerate(index)))


_reverse = Primitive(
    "reverse", lambda x, *, axes: (x.shape, x.dtype), lambda ct, out, x, *, axes: (reverse(ct, axes),), _reverse_pointwise
)


def reverse(x, axes):
    """`x` backwards along `axes`."""
    axes = tuple(axes)
    if any(not 0 <= a < len(x.shape) for a in axes):
        raise ValueError(f"reverse: axes {axes} are out of range for shape {tuple(x.shape)}.")
    return _reverse(x, axes=axes) if axes else x


# ---- slice


def _slice_shape(x, *, starts, limits, strides):
    shape = []
    for n, start, limit, stride in zip(x.shape, starts, limits, strides, strict=True):
        if not 0 <= start <= limit <= n or stride < 1:
            raise ValueError(
                f"slice: starts {starts}, limits {limits} and strides {strides} do not lie in shape {tuple(x.shape)}"
                " (0 <= start <= limit <= extent, stride >= 1)."
            )
        shape.append(ceil_div(limit - start, stride))
    return tuple(shape), x.dtype


def _slice_vjp(ct, out, x, *, starts, limits, strides):
    if any(n == 0 for n in out.shape):
        return (zeros_like(x),)
    used = [start + (n - 1) * stride + 1 for n, start, stride in zip(out.shape, starts, strides, strict=True)]
    high = tuple(n - u for n, u in zip(x.shape, used, strict=True))
    return (pad(ct, constant(0, ct.dtype), starts, high, tuple(s - 1 for s in strides)),)


def _slice_pointwise(gen, node, index):
    starts, strides = node.params["starts"], node.params["strides"]
    return gen.value(node.inputs[0], tuple(i * t + s for i, s, t in zip(index, starts, strides, strict=True)))


_slice = Primitive("slice", _slice_shape, _slice_vjp, _slice_pointwise)


def slice(x, starts, limits, strides=None):
    """Elements start, start + stride, ... below limit along each axis."""
    rank = len(x.shape)
    strides = (1,) * rank if strides is None else tuple(strides)
    if not len(starts) == len(limits) == len(strides) == rank:
        raise ValueError(f"slice: {len(starts)} starts, {len(limits)} limits and {len(strides)} strides for shape {tuple(x.shape)}.")
    return _slice(x, starts=tuple(starts), limits=tuple(limits), strides=strides)


# ---- pad


def _spread(n, interior):
    """Extent with `interior` gaps between neighbours."""
    return n if interior == 0 else maximum(0, (n - 1) * (interior + 1) + 1)


def _pad_shape(x, value, *, low, high, interior):
    if value.dtype != x.dtype or len(value.shape):
        raise TypeError(f"pad: the padding value has dtype {value.dtype} and shape {tuple(value.shape)}; it must be one {x.dtype}.")
    shape = tuple(_spread(n, i) + lo + hi for n, lo, hi, i in zip(x.shape, low, high, interior, strict=True))
    if any(n < 0 for n in shape):
        raise ValueError(f"pad: low {low} and high {high} crop more than shape {tuple(x.shape)} has.")
    return shape, x.dtype


def _pad_vjp(ct, out, x, value, *, low, high, interior):
    zero = constant(0, ct.dtype)
    dx = pad(ct, zero, [-lo for lo in low], [-hi for hi in high])
    if any(interior):
        dx = slice(dx, (0,) * len(low), dx.shape, [i + 1 for i in interior])
    padded = pad(full(x.shape, 0, ct.dtype), constant(1, ct.dtype), low, high, interior)
    return dx, P.reduce_sum(P.mul(ct, padded), tuple(range(len(low))))


def _pad_pointwise(gen, node, index):
    x, value = node.inputs
    if any(n == 0 for n in x.shape):
        return gen.value(value, ())
    low, interior = node.params["low"], node.params["interior"]
    mask, places = None, []
    for i, n, lo, gaps in zip(index, x.shape, low, interior, strict=True):
        i = i - lo
        inside = gen.inside(i, 0, _spread(n, gaps))
        i = gen.safe(i, inside)
        mask = gen.both(mask, inside)
        if gaps:
            i, rest = gen.divmod(i, gaps + 1)
            mask = gen.both(mask, gen.inside(rest, 0, 1))
        places.append(i)
    found = gen.value(x, tuple(places))
    return found if mask is None else gen.select(mask, found, gen.value(value, ()))


_pad = Primitive("pad", _pad_shape, _pad_vjp, _pad_pointwise)


def pad(x, value, low, high, interior=None):
    """`x` with `low` and `high` elements of `value` (a rank-0 tensor) before and after along each axis, and `interior` between neighbours.

    Negative `low` or `high` crop.
    """
    rank = len(x.shape)
    interior = (0,) * rank if interior is None else tuple(interior)
    if not len(low) == len(high) == len(interior) == rank:
        raise ValueError(f"pad: {len(low)} low, {len(high)} high and {len(interior)} interior paddings for shape {tuple(x.shape)}.")
    return _pad(x, value, low=tuple(low), high=tuple(high), interior=interior)


# ---- concat


def _concat_shape(*xs, axis):
    first = xs[0]
    for x in xs[1:]:
        rank = len(first.shape)
        fits = len(x.shape) == rank and all(x.shape[i] == first.shape[i] for i in range(rank) if i != axis)
        if not fits or x.dtype != first.dtype:
            given = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in xs)
            raise ValueError(f"concat: tensors {given} do not fit together along axis {axis}; only that extent may differ.")
    total = 0
    for x in xs:
        total = total + x.shape[axis]
    return (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype


def _concat_vjp(ct, out, *xs, axis):
    grads, start = [], 0
    for x in xs:
        n = x.shape[axis]
        starts = tuple(start if i == axis else 0 for i in range(len(x.shape)))
        limits = tuple(start + n if i == axis else m for i, m in enumerate(ct.shape))
        grads.append(slice(ct, starts, limits))
        start = start + n
    return tuple(grads)


def _concat_pointwise(gen, node, index):
    axis, at = node.params["axis"], index[node.params["axis"]]
    result, start = None, 0
    for x in node.inputs:
        n = x.shape[axis]
        if n == 0:
            continue
        mask = gen.inside(at, start, start + n)
        found = gen.value(x, (*index[:axis], gen.safe(at - start, mask), *index[axis + 1 :]))
        result = found if result is None else gen.select(mask, found, result)
        start = start + n
    return result


_concat = Primitive("concat", _concat_shape, _concat_vjp, _concat_pointwise)


def concat(xs, axis):
    """Tensors of one dtype joined along `axis`."""
    xs = tuple(xs)
    if not xs or not 0 <= axis < len(xs[0].shape):
        raise ValueError(f"concat: axis {axis} is out of range for {[tuple(x.shape) for x in xs]}.")
    return _concat(*xs, axis=axis) if len(xs) > 1 else xs[0]
