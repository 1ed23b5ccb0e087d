"""Primitives that make and move values: constants, broadcasts, reshapes, slices, pads."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.access import ANYWHERE, ONLY, REGROUPED, Along
from keras_ocl.core.dim import Dim, ceil_div, key, maximum, present, product, same
from keras_ocl.core.factors import Factors, of_access, sized
from keras_ocl.core.index import is_one, linear
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.primitives.batching import all_spread, first, moved_axes, next_axes, next_axis
from keras_ocl.primitives.joined_updates import joined_updates
from keras_ocl.primitives.prices import DIVISION, masking
from keras_ocl.primitives.rows import FEW_PARTS, of_concat, of_slice, quickly_copied


def _linear_total(primitive, summed, stacked, inputs, params, number):
    """Rule `total` of a linear function of one operand: the sum of its results is its result for the sum."""
    inner = summed(inputs[0])
    return None if inner is None else lambda: primitive(inner(), **params)


# ---- constants

constant_p = Primitive(
    "constant",
    lambda *, value, dtype: ((), dtype),
    None,
    lambda gen, node, index: gen.constant(node.params["value"], node.dtype),
    kind=Kind.SOURCE,
    cost=0,
    literal=lambda *, value, dtype: value,
)


def constant(value, dtype):
    """A rank-0 tensor of a Python number or a Dim."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    return constant_p(value=value, dtype=dtypes.canonical(dtype))


def full(shape, value, dtype):
    """A tensor of `shape` filled with a number or a Dim."""
    return broadcast(constant(value, dtype), shape, ())


def zeros_like(x, fill=0):
    """A tensor of the shape and dtype of `x` filled with `fill`."""
    return full(x.shape, fill, x.dtype)


def _iota_factors(seen):
    axis = seen.params["axis"]
    return Factors((), (tuple(None if i == axis else i for i in range(len(seen.shape))),), resized=sized("shape"))


iota_p = Primitive(
    "iota",
    lambda *, shape, axis, dtype: (shape, dtype),
    None,
    lambda gen, node, index: gen.number(index[node.params["axis"]], node.dtype),
    kind=Kind.SOURCE,
    cost=0,
    dynamic_extents=("shape",),
    factors=_iota_factors,
)


def check_positions(op, extent, dtype):
    """ValueError where the positions along an axis do not fit in the dtype."""
    if dtype in ("int32", "uint32") and present(extent) > 2 ** (31 + (dtype == "uint32")):
        raise ValueError(f"{op}: positions along an axis of {present(extent)} elements do not fit in {dtype}; split that axis first.")


def iota(shape, axis, dtype):
    """A tensor of `shape` that counts 0, 1, 2, ... along `axis`."""
    if not 0 <= axis < len(shape):
        raise ValueError(f"iota: axis {axis} is out of range for shape {tuple(shape)}.")
    check_positions("iota", shape[axis], dtype)
    return iota_p(shape=tuple(shape), axis=axis, dtype=dtypes.canonical(dtype))


# ---- broadcast


def _broadcast_shape(x, *, shape, dims):
    rising = all(a < b for a, b in zip(dims, dims[1:], strict=False))
    if len(dims) != len(x.shape) or not rising or any(not 0 <= d < len(shape) for d in dims):
        raise ValueError(f"broadcast: axes {dims} do not place the {len(x.shape)} axes of shape {tuple(x.shape)} in {tuple(shape)}.")
    for n, d in zip(x.shape, dims, strict=True):
        if not is_one(n) and key(n) != key(shape[d]) and n != shape[d]:
            raise ValueError(f"broadcast: shape {tuple(x.shape)} does not broadcast to {tuple(shape)} along axes {dims}.")
    return shape, x.dtype


def _places(x, shape, dims):
    """The access map of a broadcast: an axis of extent 1 that is repeated is read at its only element."""
    return tuple(ONLY if is_one(n) and not is_one(shape[d]) else Along(d) for n, d in zip(x.shape, dims, strict=True))


def _broadcast_vjp(ct, out, x, *, shape, dims):
    kept = {entry.axis for entry in _places(x, shape, dims) if entry is not ONLY}
    axes = tuple(d for d in range(len(shape)) if d not in kept)
    total = P.reduce_sum(ct, axes) if axes else ct
    return (reshape(total, x.shape),)


def _simplified_broadcast(graph, inputs, params, origin):
    (x,) = inputs
    shape, dims = params["shape"], params["dims"]
    if same(x.shape, shape) and list(dims) == list(range(len(shape))):
        return x
    if x.primitive is broadcast_p:
        inner = x.inputs[0]
        through = tuple(dims[d] for d in x.params["dims"])
        if all(same((inner.shape[i],), (shape[d],)) or is_one(inner.shape[i]) for i, d in enumerate(through)):
            return graph.simplest(broadcast_p, x.inputs, {"shape": shape, "dims": through}, origin)
    return None


def _broadcast_factors(seen):
    labels = tuple(None if entry is ONLY else entry.axis for entry in broadcast_p.access(seen, 0))
    return Factors((labels,), (tuple(range(len(seen.shape))),), resized=sized("shape"))


broadcast_p = Primitive(
    "broadcast",
    _broadcast_shape,
    _broadcast_vjp,
    kind=Kind.VIEW,
    cost=0,
    access=lambda node, position: _places(node.inputs[0], node.shape, node.params["dims"]),
    factors=_broadcast_factors,
    deferred=True,
    dynamic_extents=("shape",),
    simplify=_simplified_broadcast,
    batch=moved_axes(lambda: broadcast_p, shape=first(None), dims=lambda dims, size: (0, *next_axes(dims, size))),
)


def broadcast(x, shape, dims):
    """`x` repeated to `shape`; `dims[i]` (rising) is the result's axis along which x's axis i runs, of the same extent or 1."""
    return broadcast_p(x, shape=tuple(shape), dims=tuple(dims))


# ---- reshape, transpose, reverse


def _reshape_shape(x, *, shape):
    if product(x.shape) != product(shape):
        raise ValueError(f"reshape: shape {tuple(x.shape)} has {product(x.shape)} elements and does not fit {tuple(shape)}.")
    return shape, x.dtype


def _reshape_pointwise(gen, node, index):
    return gen.value_flat(node.inputs[0], linear(index, node.shape))


def _simplified_reshape(graph, inputs, params, origin):
    (x,) = inputs
    if same(x.shape, params["shape"]):
        return x
    return graph.simplest(reshape_p, x.inputs, params, origin) if x.primitive is reshape_p else None


reshape_p = Primitive(
    "reshape",
    _reshape_shape,
    lambda ct, out, x, *, shape: (reshape(ct, x.shape),),
    _reshape_pointwise,
    kind=Kind.VIEW,
    cost=0,
    access=lambda node, position: (REGROUPED,) * len(node.inputs[0].shape),
    flat=True,
    shares_memory=lambda node: True,
    dynamic_extents=("shape",),
    simplify=_simplified_reshape,
    batch=moved_axes(lambda: reshape_p, shape=first(None)),
    total=lambda *rule: _linear_total(reshape_p, *rule),
)


def reshape(x, shape):
    """The elements of `x`, in row-major order, as another shape."""
    shape = tuple(shape)
    if shape == tuple(x.shape) and not any(isinstance(n, Dim) for n in (*shape, *x.shape)):
        return x
    return reshape_p(x, shape=shape)


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


def _simplified_transpose(graph, inputs, params, origin):
    (x,), perm = inputs, params["perm"]
    if list(perm) == list(range(len(perm))):
        return x
    if x.primitive is transpose_p:
        inner = x.params["perm"]
        return graph.simplest(transpose_p, x.inputs, {"perm": tuple(inner[p] for p in perm)}, origin)
    return None


transpose_p = Primitive(
    "transpose",
    _transpose_shape,
    lambda ct, out, x, *, perm: (transpose(ct, inverse_permutation(perm)),),
    kind=Kind.VIEW,
    cost=0,
    access=lambda node, position: tuple(map(Along, inverse_permutation(node.params["perm"]))),
    simplify=_simplified_transpose,
    batch=moved_axes(lambda: transpose_p, perm=lambda perm, size: (0, *next_axes(perm, size))),
    total=lambda *rule: _linear_total(transpose_p, *rule),
)


def transpose(x, perm):
    """Axes reordered: the result's axis i is x's axis `perm[i]`."""
    perm = tuple(perm)
    return x if perm == tuple(range(len(x.shape))) else transpose_p(x, perm=perm)


def _reverse_access(node, position):
    axes = node.params["axes"]
    return tuple(Along(i, -1, n - 1) if i in axes else Along(i) for i, n in enumerate(node.shape))


reverse_p = Primitive(
    "reverse",
    lambda x, *, axes: (x.shape, x.dtype),
    lambda ct, out, x, *, axes: (reverse(ct, axes),),
    kind=Kind.VIEW,
    cost=0,
    access=_reverse_access,
    batch=moved_axes(lambda: reverse_p, axes=next_axes),
)


def reverse(x, axes):
    """`x` backwards along `axes`."""
    axes = tuple(axes)
    if any(not 0 <= a < len(x.shape) for a in axes):
        raise ValueError(f"reverse: axes {axes} are out of range for shape {tuple(x.shape)}.")
    return reverse_p(x, axes=axes) if axes else x


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


def _slice_access(node, position):
    starts, strides = node.params["starts"], node.params["strides"]
    return tuple(Along(i, stride, start) for i, (start, stride) in enumerate(zip(starts, strides, strict=True)))


def _is_prefix(node):
    """Whether a slice lies at the beginning of its operand's memory."""
    x, p = node.inputs[0], node.params
    whole = same(node.shape[1:], x.shape[1:])
    return len(node.shape) > 0 and whole and all(s == 0 and not isinstance(s, Dim) for s in p["starts"]) and set(p["strides"]) == {1}


def _slice_rows(inputs, params):
    (x,) = inputs
    rows = of_slice(x.shape, **params)
    return rows if rows is not None and quickly_copied(rows, dtypes.itemsize(x.dtype)) else None


def _slice_factors(seen):
    """Axes of which all is taken; the limits are those of the part."""
    found = of_access(slice_p, seen)

    def resized(params, shape):
        limits = zip(found.operands[0], shape, params["limits"], strict=True)
        return {**params, "limits": tuple(limit if label is None else n for label, n, limit in limits)}

    return found._replace(resized=resized)


slice_p = Primitive(
    "slice",
    _slice_shape,
    _slice_vjp,
    kind=Kind.VIEW,
    cost=0,
    access=_slice_access,
    factors=_slice_factors,
    shares_memory=_is_prefix,
    rows=_slice_rows,
    dynamic_extents=("starts", "limits"),
    batch=moved_axes(lambda: slice_p, starts=first(0), limits=first(None), strides=first(1)),
)


def slice(x, starts, limits, strides=None):
    """Elements start, start + stride, ... below limit along each axis."""
    rank = len(x.shape)
    strides = (1,) * rank if strides is None else tuple(strides)
    if not len(starts) == len(limits) == len(strides) == rank:
        raise ValueError(f"slice: {len(starts)} starts, {len(limits)} limits and {len(strides)} strides for shape {tuple(x.shape)}.")
    return slice_p(x, starts=tuple(starts), limits=tuple(limits), strides=strides)


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
        i = gen.safe(i, inside, n)
        mask = gen.both(mask, inside)
        if gaps:
            i, rest = gen.divmod(i, gaps + 1)
            mask = gen.both(mask, gen.inside(rest, 0, 1))
        places.append(i)
    found = gen.value(x, tuple(places))
    return found if mask is None else gen.select(mask, found, gen.value(value, ()))


def _padded_axes(node):
    p = node.params
    return [i for i, around in enumerate(zip(p["low"], p["high"], p["interior"], strict=True)) if any(around)]


def _pad_access(node, position):
    if position or any(node.params["interior"]):
        return (ANYWHERE,) * len(node.inputs[position].shape)
    return tuple(Along(i, 1, -low) for i, low in enumerate(node.params["low"]))


def _pad_cost(node):
    return 1 + sum(masking(node, i) for i in _padded_axes(node)) + DIVISION * sum(1 for gap in node.params["interior"] if gap)


def _pad_batch(inputs, batched, size, *, low, high, interior):
    (x, value), (_, value_batched) = inputs, batched
    x = all_spread((x,), batched[:1], size)[0]
    around = {"low": (0, *low), "high": (0, *high), "interior": (0, *interior)}
    if not value_batched:
        return pad_p(x, value, **around)
    padded = pad_p(x, constant(0, x.dtype), **around)
    inside = pad_p(full(x.shape, True, "bool"), constant(False, "bool"), **around)
    return P.select(inside, padded, broadcast(value, padded.shape, (0,)))


def _pad_total(summed, stacked, inputs, params, number):
    """Padding with zeros is linear. It is the gradient of a slice, such as each step may take of a constant."""
    inner = summed(inputs[0]) if number(inputs[1]) == 0 else None
    return None if inner is None else lambda: pad(inner(), constant(0, inputs[0].dtype), **params)


def _pad_factors(seen):
    padded = _padded_axes(seen)
    labels = tuple(None if i in padded else i for i in range(len(seen.shape)))
    return Factors((labels, ()), (labels,))


pad_p = Primitive(
    "pad",
    _pad_shape,
    _pad_vjp,
    _pad_pointwise,
    kind=Kind.MASKED,
    cost=_pad_cost,
    access=_pad_access,
    masks=_padded_axes,
    factors=_pad_factors,
    batch=_pad_batch,
    total=_pad_total,
    dynamic_extents=("low", "high"),
)


def pad(x, value, low, high, interior=None):
    """`x` with `low` and `high` elements of `value` (a rank-0 tensor) before and after along each axis, and `interior` between neighbours.

    Negative `low` or `high` crop.
    """
    rank = len(x.shape)
    interior = (0,) * rank if interior is None else tuple(interior)
    if not len(low) == len(high) == len(interior) == rank:
        raise ValueError(f"pad: {len(low)} low, {len(high)} high and {len(interior)} interior paddings for shape {tuple(x.shape)}.")
    return pad_p(x, value, low=tuple(low), high=tuple(high), interior=interior)


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
        if n == 0 and not isinstance(n, Dim):
            continue
        mask = gen.inside(at, start, start + n)
        found = gen.value(x, (*index[:axis], gen.safe(at - start, mask, n), *index[axis + 1 :]))
        result = found if result is None else gen.select(mask, found, result)
        start = start + n
    return result


def _concat_access(node, position):
    axis = node.params["axis"]
    start = sum(x.shape[axis] for x in node.inputs[:position])
    return tuple(Along(i, 1, -start) if i == axis else Along(i) for i in range(len(node.shape)))


def _concat_rows(inputs, params):
    return of_concat([x.shape for x in inputs], params["axis"]) if len(inputs) > FEW_PARTS else None


def _concat_factors(seen):
    labels = tuple(None if i == seen.params["axis"] else i for i in range(len(seen.shape)))
    return Factors((labels,) * len(seen.inputs), (labels,))


concat_p = Primitive(
    "concat",
    _concat_shape,
    _concat_vjp,
    _concat_pointwise,
    kind=Kind.MASKED,
    cost=lambda node: (1 + masking(node, node.params["axis"])) * len(node.inputs),
    access=_concat_access,
    masks=lambda node: [node.params["axis"]],
    joined_axis="axis",
    rows=_concat_rows,
    factors=_concat_factors,
    simplify=joined_updates,
    batch=moved_axes(lambda: concat_p, axis=next_axis),
)


def concat(xs, axis):
    """Tensors of one dtype joined along `axis`."""
    xs = tuple(xs)
    if not xs or not 0 <= axis < len(xs[0].shape):
        raise ValueError(f"concat: axis {axis} is out of range for {[tuple(x.shape) for x in xs]}.")
    return concat_p(*xs, axis=axis) if len(xs) > 1 else xs[0]
