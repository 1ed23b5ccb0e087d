"""Gather, scatter and slices at computed positions.

Several index tensors of one shape S address the axes `axes` together: element s of S stands for the position
(indices[0][s], indices[1][s], ...) along them. Windows over the remaining axes are whole.
"""

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.access import ANYWHERE, ONLY, Along, same_place
from keras_ocl.core.dim import same
from keras_ocl.core.factors import Factors, sized
from keras_ocl.core.index import Affine, is_one
from keras_ocl.core.primitive import Primitive
from keras_ocl.kernels import scatter as template
from keras_ocl.primitives.batching import all_spread, examples, next_axes, to_front
from keras_ocl.primitives.row_sparse import of_scatter


def _rest(rank, axes):
    return tuple(i for i in range(rank) if i not in axes)


def _check(name, shape, indices, axes):
    if not indices or len(indices) != len(axes) or len(set(axes)) != len(axes) or any(not 0 <= a < len(shape) for a in axes):
        raise ValueError(f"{name}: {len(indices)} index tensors for axes {axes} of shape {tuple(shape)}.")
    for i in indices:
        if not dtypes.is_integer(i.dtype):
            raise TypeError(f"{name}: indices have dtype {i.dtype}; they must be integers.")
        if tuple(i.shape) != tuple(indices[0].shape):
            raise ValueError(f"{name}: index tensors have shapes {[tuple(t.shape) for t in indices]}; broadcast them to one shape first.")


def _gathered_shape(shape, indices, axes):
    return (*indices[0].shape, *(shape[i] for i in _rest(len(shape), axes)))


def _in_range(shape, indices, axes, wanted):
    """Mask, of the gathered shape, of the positions whose indices lie in `shape`."""
    mask = None
    for i, a in zip(indices, axes, strict=True):
        i = i if dtypes.itemsize(i.dtype) >= 4 else P.convert(i, "int32")
        inside = P.lt(i, P.full(i.shape, shape[a], i.dtype))
        if dtypes.is_signed(i.dtype):
            inside = P.and_(inside, P.ge(i, P.zeros_like(i)))
        mask = inside if mask is None else P.and_(mask, inside)
    return P.broadcast(mask, wanted, tuple(range(len(mask.shape))))


# ---- parts of indexed axes


def _indexed_labels(seen, indices, shape, axes, first):
    """(labels of the index tensors' axes, labels of the axes of `shape`, operands that count): see core.factors.

    Where an index counts along an axis of the index tensors as long as what it addresses, as in a batched gather, each part of
    that axis stays within the same part of what is addressed. `first` is the position of the first index among the operands.
    """
    counted, rebased = {}, {}
    for k, (index, axis) in enumerate(zip(indices, axes, strict=True)):
        along = seen.counting(index)
        if along is not None and along not in counted.values() and same((index.shape[along],), (shape[axis],)):
            counted[axis] = along
            rebased[first + k] = ("index", along)
    labels = tuple(("index", i) for i in range(len(indices[0].shape)))
    addressed = tuple(("rest", i) if i not in axes else ("index", counted[i]) if i in counted else None for i in range(len(shape)))
    return labels, addressed, rebased


def _gather_factors(seen):
    (x, *indices), axes = seen.inputs, seen.params["axes"]
    labels, addressed, rebased = _indexed_labels(seen, indices, x.shape, axes, 1)
    result = (*labels, *(addressed[i] for i in _rest(len(x.shape), axes)))
    return Factors((addressed, *(labels,) * len(indices)), (result,), rebased=rebased)


def _new_factors(seen):
    *indices, updates = seen.inputs
    shape, axes = seen.params["shape"], tuple(range(len(indices)))
    labels, addressed, rebased = _indexed_labels(seen, indices, shape, axes, 0)
    rest = tuple(addressed[len(axes) :])
    sums = {label: "sum" for label in labels if label not in addressed} if seen.params["mode"] == "add" else {}
    return Factors((*(labels,) * len(indices), (*labels, *rest)), (addressed,), sums, sized("shape"), rebased)


def _scatter_factors(seen):
    x, *indices, updates = seen.inputs
    labels, addressed, rebased = _indexed_labels(seen, indices, x.shape, tuple(range(len(indices))), 1)
    rest = tuple(addressed[len(indices) :])
    return Factors((addressed, *(labels,) * len(indices), (*labels, *rest)), (addressed,), rebased=rebased)


# ---- gather


def _gather_shape(x, *indices, axes):
    _check("gather", x.shape, indices, axes)
    shape = _gathered_shape(x.shape, indices, axes)
    if any(x.shape[a] == 0 for a in axes) and all(n != 0 for n in shape):
        raise ValueError(f"gather: there is nothing to take along axes {axes} of shape {tuple(x.shape)}, which has no elements.")
    return shape, x.dtype


def _gather_vjp(ct, out, x, *indices, axes):
    return (scatter_new(x.shape, indices, ct, axes, "add", clip=True), *(None for _ in indices))


def _gather_pointwise(gen, node, index):
    x, *indices = node.inputs
    axes = node.params["axes"]
    rank = len(indices[0].shape)
    where = dict(zip(_rest(len(x.shape), axes), index[rank:], strict=True))
    for i, a in zip(indices, axes, strict=True):
        extent = x.shape[a]
        where[a] = gen.as_index(gen.clip_index(gen.value(i, index[:rank]), extent), extent)
    return gen.value(x, tuple(where[i] for i in range(len(x.shape))))


def _gather_batch(inputs, batched, size, *, axes):
    x, *indices = inputs
    indices = all_spread(indices, batched[1:], size) if any(batched[1:]) else indices
    if not batched[0]:
        return _gather(x, *indices, axes=axes)
    if not any(batched[1:]):  # whole windows over the examples, which lie behind the indices' axes
        return to_front(_gather(x, *indices, axes=next_axes(axes, size)), len(indices[0].shape))
    return _gather(x, examples(size, indices[0].shape[1:]), *indices, axes=(0, *next_axes(axes, size)))


_gather = Primitive("gather", _gather_shape, _gather_vjp, _gather_pointwise, batch=_gather_batch, factors=_gather_factors)


def gather(x, indices, axes):
    """Elements of `x` at `indices` along `axes`: shape S, then x's other axes. Indices are clipped into range."""
    indices = tuple(indices)
    return _gather(x, *indices, axes=tuple(axes))


# ---- scatter

_MODES = ("set", "add", "max", "min", "mul")


def _scatter_check(name, shape, indices, updates, axes, mode):
    _check(name, shape, indices, axes)
    wanted = _gathered_shape(shape, indices, axes)
    if tuple(updates.shape) != wanted:
        raise ValueError(f"{name}: updates have shape {tuple(updates.shape)}; indices and shape {tuple(shape)} need {wanted}.")
    if mode not in _MODES:
        raise ValueError(f"{name}: mode {mode!r} is not one of {', '.join(_MODES)}.")
    if updates.dtype == "bool" and mode in ("add", "mul"):
        raise TypeError(f"{name}: bool tensors cannot be scattered with mode {mode!r}; convert them first.")


def _kernels(builder, node, sinks):
    inputs = list(node.inputs)
    x = inputs.pop(0) if node.name == "scatter" else None
    *indices, updates = inputs
    ((shape, dtype),) = node.results
    return template.plan(
        builder.traits,
        shape=shape,
        count=indices[0].shape,
        mode=node.params["mode"],
        clip=node.params.get("clip", False),
        x=x,
        indices=[(i, i.dtype) for i in indices],
        updates=updates,
        dtype=dtype,
        result=sinks[0].handle,
        all_arguments=builder.all_arguments,
    )


def _scatter_shape(x, *rest, mode):
    *indices, updates = rest
    _scatter_check("scatter", x.shape, indices, updates, tuple(range(len(indices))), mode)
    if updates.dtype != x.dtype:
        raise TypeError(f"scatter: updates have dtype {updates.dtype} and the tensor {x.dtype}; convert them to one dtype first.")
    return [(x.shape, x.dtype)]


def _scatter_vjp(cts, outs, x, *rest, mode):
    (ct,), (out,), (*indices, updates) = cts, outs, rest
    axes = tuple(range(len(indices)))
    none = (None,) * len(indices)
    if mode == "set":
        dx = scatter(ct, indices, P.zeros_like(updates), axes, "set")
        return dx, *none, _of_last(ct, x.shape, indices, updates)
    if mode == "add":
        return ct, *none, _picked(ct, x.shape, indices, updates)
    if mode == "mul":
        return scatter(ct, indices, updates, axes, "mul"), *none, _product_gradient(ct, out, x, indices, updates)
    kept = P.eq(x, out)
    hit = P.and_(P.eq(updates, gather(out, indices, axes)), _in_range(x.shape, indices, axes, updates.shape))
    ties = scatter(P.convert(kept, ct.dtype), indices, P.convert(hit, ct.dtype), axes, "add")
    share = P.div(ct, P.max(ties, P.full(ties.shape, 1, ties.dtype)))
    zero = P.zeros_like(updates)
    return P.select(kept, share, P.zeros_like(x)), *none, P.select(hit, gather(share, indices, axes), zero)


def _picked(ct, shape, indices, updates):
    axes = tuple(range(len(indices)))
    inside = _in_range(shape, indices, axes, updates.shape)
    return P.select(inside, gather(ct, indices, axes), P.zeros_like(updates))


def _of_last(ct, shape, indices, updates):
    """The cotangent for those updates that were not overwritten by a later one."""
    axes = tuple(range(len(indices)))
    order = P.reshape(P.iota((indices[0].size,), 0, "int32"), indices[0].shape)
    last = scatter_new(shape[: len(axes)], indices, order, axes, "set")
    written = P.eq(gather(last, indices, axes), order)
    written = P.and_(written, _in_range(shape, indices, axes, written.shape))
    written = P.broadcast(written, updates.shape, tuple(range(len(written.shape))))
    return P.select(written, gather(ct, indices, axes), P.zeros_like(updates))


def _product_gradient(ct, out, x, indices, updates):
    """ct times the product of everything else that meets at the position, also where factors are 0."""
    axes = tuple(range(len(indices)))
    zero, one = P.zeros_like(updates), P.zeros_like(updates, 1)
    is_zero = P.eq(updates, zero)
    zeros = scatter_new(x.shape, indices, P.convert(is_zero, updates.dtype), axes)
    without = scatter(x, indices, P.select(is_zero, one, updates), axes, "mul")
    alone = P.select(P.eq(gather(zeros, indices, axes), one), gather(without, indices, axes), zero)
    others = P.select(is_zero, alone, P.div(gather(out, indices, axes), P.select(is_zero, one, updates)))
    return P.mul(_picked(ct, x.shape, indices, updates), others)


def _new_shape(*rest, shape, mode, clip):
    *indices, updates = rest
    _scatter_check("scatter_new", shape, indices, updates, tuple(range(len(indices))), mode)
    return [(shape, updates.dtype)]


def _new_vjp(cts, outs, *rest, shape, mode, clip):
    (ct,), (*indices, updates) = cts, rest
    if mode == "add" and clip:
        grad = gather(ct, indices, tuple(range(len(indices))))
    elif mode == "add":
        grad = _picked(ct, shape, indices, updates)
    else:
        grad = _of_last(ct, shape, indices, updates)
    return *(None for _ in indices), grad


def _scatter_batch(inputs, batched, size, *, mode):
    x, *indices, updates = all_spread(inputs, batched, size)
    return _scatter(x, examples(size, indices[0].shape[1:]), *indices, updates, mode=mode)


def _new_batch(inputs, batched, size, *, shape, mode, clip):
    *indices, updates = all_spread(inputs, batched, size)
    return _scatter_new(examples(size, indices[0].shape[1:]), *indices, updates, shape=(size, *shape), mode=mode, clip=clip)


# One result each, but `multiple_results`: the template accumulates in the result's own buffer.
_scatter = Primitive(
    "scatter",
    _scatter_shape,
    _scatter_vjp,
    kernels=_kernels,
    multiple_results=True,
    batch=_scatter_batch,
    factors=_scatter_factors,
)
_scatter_new = Primitive(
    "scatter_new",
    _new_shape,
    _new_vjp,
    kernels=_kernels,
    multiple_results=True,
    dynamic_extents=("shape",),
    batch=_new_batch,
    factors=_new_factors,
    row_sparse=of_scatter,
)


def _leading(x, axes):
    """`x` with `axes` first, and the permutation that moved them."""
    perm = (*axes, *_rest(len(x.shape), axes))
    return P.transpose(x, perm), perm


def _wide(dtype, mode):
    return dtypes.accumulator(dtype) if mode in ("add", "mul") and dtypes.is_float(dtype) else dtype


def scatter(x, indices, updates, axes, mode="set"):
    """A copy of `x` with `updates` (shape S, then x's other axes) set, added, ... at `indices` along `axes`.

    Updates apply in the order of the flattened S, so results are deterministic; out-of-range indices are
    dropped. `mode`: "set", "add", "max", "min" or "mul"; the last three and "add" combine with what is there.
    """
    indices, axes = tuple(indices), tuple(axes)
    _scatter_check("scatter", x.shape, indices, updates, axes, mode)
    dtype = x.dtype
    wide = _wide(dtype, mode)
    first, perm = _leading(x, axes)
    (result,) = _scatter(P.convert(first, wide), *indices, P.convert(updates, wide), mode=mode)
    return P.transpose(P.convert(result, dtype), P.inverse_permutation(perm))


def scatter_new(shape, indices, updates, axes, mode="add", clip=False):
    """A tensor of zeros of `shape` with `updates` added ("add") or set ("set"); see scatter. `clip` clips indices into range."""
    indices, axes, shape = tuple(indices), tuple(axes), tuple(shape)
    _scatter_check("scatter_new", shape, indices, updates, axes, mode)
    if mode not in ("add", "set"):
        raise ValueError(f"scatter_new: mode {mode!r} is not 'add' or 'set'.")
    dtype = updates.dtype
    perm = (*axes, *_rest(len(shape), axes))
    leading = tuple(shape[p] for p in perm)
    (result,) = _scatter_new(*indices, P.convert(updates, _wide(dtype, mode)), shape=leading, mode=mode, clip=bool(clip))
    return P.transpose(P.convert(result, dtype), P.inverse_permutation(perm))


# ---- slices at computed positions


def _check_starts(name, x, starts, sizes):
    if len(starts) != len(x.shape) or len(sizes) != len(x.shape):
        raise ValueError(f"{name}: {len(starts)} starts and {len(sizes)} sizes for shape {tuple(x.shape)}.")
    for s in starts:
        if len(s.shape) or not dtypes.is_integer(s.dtype):
            raise TypeError(f"{name}: a start has shape {tuple(s.shape)} and dtype {s.dtype}; starts are rank-0 integers.")
    if any(not 0 <= size <= n for size, n in zip(sizes, x.shape, strict=True)):
        raise ValueError(f"{name}: sizes {tuple(sizes)} do not fit in shape {tuple(x.shape)}.")


def _dynamic_slice_shape(x, *starts, sizes):
    _check_starts("dynamic_slice", x, starts, sizes)
    return sizes, x.dtype


def _start(gen, start, extent):
    """A start as an index, clipped so that the slice fits: 0 <= start < extent."""
    return gen.as_index(gen.clip_index(gen.value(start, ()), extent), extent)


def _dynamic_slice_pointwise(gen, node, index):
    x, *starts = node.inputs
    places = tuple(
        i if same((n,), (size,)) else i + _start(gen, s, n - size + 1)
        for i, s, n, size in zip(index, starts, x.shape, node.shape, strict=True)
    )
    return gen.value(x, places)


def _dynamic_slice_access(node, position):
    if position:
        return ()
    extents = enumerate(zip(node.inputs[0].shape, node.shape, strict=True))
    return tuple(Along(i) if same((n,), (size,)) else ANYWHERE for i, (n, size) in extents)


def _dynamic_slice_vjp(ct, out, x, *starts, sizes):
    return dynamic_update_slice(P.zeros_like(x), ct, starts), *(None for _ in starts)


def _places(starts, batched, size, sizes, shape):
    """Index tensors (size, *sizes) for every axis of slices of `sizes` that begin at `starts`, moved so that they lie in `shape`."""
    places, dtype = [], "int32" if all(n < 2**31 for n in shape) else "int64"
    for axis, (start, n, length) in enumerate(zip(all_spread(starts, batched, size), shape, sizes, strict=True)):
        start = P.convert(start, dtype)
        start = P.max(P.min(start, P.full((size,), n - length, dtype)), P.full((size,), 0, dtype))
        places.append(P.add(P.broadcast(start, (size, *sizes), (0,)), P.iota((size, *sizes), axis + 1, dtype)))
    return places


def _zero():
    return P.constant(0, "int32")


def _dynamic_slice_batch(inputs, batched, size, *, sizes):
    x, *starts = inputs
    if not any(batched[1:]):
        return _dynamic_slice(x, _zero(), *starts, sizes=(size, *sizes))
    places = _places(starts, batched[1:], size, sizes, x.shape[1:] if batched[0] else x.shape)
    if not batched[0]:
        return gather(x, places, range(len(sizes)))
    return gather(x, (examples(size, sizes), *places), range(len(sizes) + 1))


def _whole_axes(seen, position):
    """Labels of the axes that the operand at `position` (the smaller one) has whole."""
    extents = zip(seen.inputs[0].shape, (*seen.shape,) if position == 0 else seen.inputs[position].shape, strict=True)
    return tuple(i if same((n,), (m,)) else None for i, (n, m) in enumerate(extents))


def _dynamic_slice_factors(seen):
    labels = _whole_axes(seen, 0)
    return Factors((labels, *((),) * (len(seen.inputs) - 1)), (labels,), resized=sized("sizes"))


def _update_factors(seen):
    labels = _whole_axes(seen, 1)
    return Factors((labels, labels, *((),) * (len(seen.inputs) - 2)), (labels,))


_dynamic_slice = Primitive(
    "dynamic_slice",
    _dynamic_slice_shape,
    _dynamic_slice_vjp,
    _dynamic_slice_pointwise,
    dynamic_extents=("sizes",),
    access=_dynamic_slice_access,
    factors=_dynamic_slice_factors,
    batch=_dynamic_slice_batch,
)


def dynamic_slice(x, starts, sizes):
    """The part of `x` of shape `sizes` that begins at `starts` (rank-0 integer tensors), moved where necessary so that it lies within."""
    return _dynamic_slice(x, *starts, sizes=tuple(sizes))


def _update_shape(x, update, *starts):
    if len(update.shape) != len(x.shape) or update.dtype != x.dtype:
        raise ValueError(
            f"dynamic_update_slice: update {tuple(update.shape)} {update.dtype} must have the rank and dtype of {tuple(x.shape)} {x.dtype}."
        )
    _check_starts("dynamic_update_slice", x, starts, update.shape)
    return x.shape, x.dtype


def _update_pointwise(gen, node, index):
    x, update, *starts = node.inputs
    if any(n == 0 for n in update.shape):
        return gen.value(x, index)
    mask, places = None, []
    for i, s, n, size in zip(index, starts, x.shape, update.shape, strict=True):
        if same((n,), (size,)):  # it begins where x does
            places.append(i)
            continue
        place = i - _start(gen, s, n - size + 1)
        within = gen.inside(place, 0, size)
        places.append(Affine() if is_one(size) else gen.safe(place, within, size))
        mask = gen.both(mask, within)
    return gen.select(mask, gen.value(update, tuple(places)), gen.value(x, index))


def _update_access(node, position):
    if position > 1:
        return ()
    x, update = node.inputs[:2]
    if position == 0:
        return same_place(len(x.shape))
    extents = enumerate(zip(x.shape, update.shape, strict=True))
    return tuple(Along(i) if same((n,), (size,)) else ONLY if is_one(size) else ANYWHERE for i, (n, size) in extents)


def _update_vjp(ct, out, x, update, *starts):
    dx = dynamic_update_slice(ct, P.zeros_like(update), starts)
    return dx, dynamic_slice(ct, starts, update.shape), *(None for _ in starts)


def _update_batch(inputs, batched, size):
    x, update, *starts = inputs
    x, update = all_spread((x, update), batched[:2], size)
    if not any(batched[2:]):
        return _dynamic_update_slice(x, update, _zero(), *starts)
    sizes = update.shape[1:]
    places = (examples(size, sizes), *_places(starts, batched[2:], size, sizes, x.shape[1:]))
    return scatter(x, places, update, range(len(places)))


_dynamic_update_slice = Primitive(
    "dynamic_update_slice",
    _update_shape,
    _update_vjp,
    _update_pointwise,
    batch=_update_batch,
    access=_update_access,
    factors=_update_factors,
)


def dynamic_update_slice(x, update, starts):
    """A copy of `x` with `update` written at `starts` (rank-0 integer tensors), moved where necessary so that it lies within."""
    return _dynamic_update_slice(x, update, *starts)
