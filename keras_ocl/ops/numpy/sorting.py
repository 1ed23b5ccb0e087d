"""keras.ops.numpy, sorting: sort, argsort, argpartition, unique, isin."""

from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core.dim import product
from keras_ocl.ops.conversion import convert_to_tensor, read
from keras_ocl.ops.numpy.indexing import needs_values, searchsorted, take
from keras_ocl.ops.numpy.shapes import moveaxis
from keras_ocl.ops.promotion import promote


def _sortable(x):
    return P.convert(x, "int32") if x.dtype == "bool" else x


def sort(x, axis=-1):
    """Elements in increasing order along `axis` (all of them for None); NaN last."""
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = P.reshape(x, (x.size,)), 0
    if x.ndim == 0:
        return x
    return convert_to_tensor(P.sort((_sortable(x),), canonicalize_axis(axis, x.ndim), 1)[0], x.dtype)


def argsort(x, axis=-1):
    """The indices that sort along `axis` (all elements for None), int32; equal elements keep their order."""
    x = convert_to_tensor(x)
    if axis is None or x.ndim == 0:
        x, axis = P.reshape(x, (x.size,)), 0
    axis = canonicalize_axis(axis, x.ndim)
    return P.sort((_sortable(x), P.iota(x.shape, axis, "int32")), axis, 1)[1]


def argpartition(x, kth, axis=-1):
    """Indices with the kth smallest in place, lesser ones before, greater ones after: a full sort satisfies this."""
    x = convert_to_tensor(x)
    n = x.size if axis is None else x.shape[canonicalize_axis(axis, x.ndim)]
    if not -n <= kth < n:
        raise ValueError(f"argpartition: kth {kth} is out of range for extent {n}.")
    return argsort(x, axis)


def unique(
    x,
    sorted=True,
    return_index=False,
    return_inverse=False,
    return_counts=False,
    axis=None,
    size=None,
    fill_value=None,
):
    """The distinct elements (or slices along `axis`), sorted; on request first indices, inverse and counts.

    Without `size` the number of them is read back, so eager only; with it the result has `size` elements, cut or filled.
    """
    x = convert_to_tensor(x)
    if size is None:
        needs_values("unique")
    shape = x.shape
    if axis is None:
        rows = P.reshape(x, (x.size, 1))
        rest = ()
    else:
        axis = canonicalize_axis(axis, x.ndim)
        moved = moveaxis(x, axis, 0)
        rest = moved.shape[1:]
        rows = P.reshape(moved, (moved.shape[0], product(rest)))
    n, width = rows.shape
    rows = _sortable(rows)
    columns = tuple(P.reshape(P.slice(rows, (0, c), (n, c + 1)), (n,)) for c in range(width))
    *ordered, origin = P.sort((*columns, P.iota((n,), 0, "int32")), 0, max(width, 1))
    group = _groups(ordered, n)  # which distinct value each sorted row belongs to, from 0
    count = size if size is not None else (int(read(P.reduce_max(group, (0,)))) + 1 if n else 0)
    first = _starts(group, count, n)  # past the last group, the first one
    values = take(rows, take(origin, first, 0), 0) if n else rows
    values = convert_to_tensor(P.reshape(values, (count, *rest)), x.dtype)
    present = P.lt(P.iota((count,), 0, "int32"), _broadcast_scalar(_total(group, n), count))
    if size is not None:
        fill = convert_to_tensor(0 if fill_value is None else fill_value, x.dtype)
        keep = P.broadcast(present, values.shape, (0,))
        values = P.select(keep, values, P.broadcast(fill, values.shape, ()))
    results = [values if axis is None else moveaxis(values, 0, axis)]
    if return_index:
        results.append(take(origin, first, 0))
    if return_inverse:
        inverse = P.scatter_new((n,), (origin,), group, (0,), "set")
        results.append(P.reshape(inverse, shape) if axis is None else inverse)
    if return_counts:
        one = P.full((n,), 1, "int32")
        results.append(P.scatter_new((count,), (group,), one, (0,)))
    return results[0] if len(results) == 1 else tuple(results)


def _groups(columns, n):
    """Running number of the distinct rows in sorted columns."""
    changed = None
    for column in columns:
        before = P.concat([P.slice(column, (0,), (min(1, n),)), P.slice(column, (0,), (max(n - 1, 0),))], 0)
        differs = P.ne(column, before)
        changed = differs if changed is None else P.or_(changed, differs)
    first = P.eq(P.iota((n,), 0, "int32"), P.full((n,), 0, "int32"))
    changed = P.full((n,), False, "bool") if changed is None else P.and_(changed, P.not_(first))
    return P.cumsum(P.convert(changed, "int32"), 0)


def _starts(group, count, n):
    """The first sorted position of each group."""
    starts = P.scatter(P.full((count,), n, "int32"), (group,), P.iota((n,), 0, "int32"), (0,), "min")
    return P.select(P.eq(starts, P.full((count,), n, "int32")), P.full((count,), 0, "int32"), starts)


def _total(group, n):
    return P.add(P.reduce_max(group, (0,)), P.constant(1, "int32")) if n else P.constant(0, "int32")


def _broadcast_scalar(x, count):
    return P.broadcast(x, (count,), ())


def isin(x1, x2, assume_unique=False, invert=False):
    """Whether each element of x1 is among x2's, by sorting x2 and searching; a NaN is not among NaNs."""
    x1, x2 = promote(x1, x2)
    x1, x2 = _sortable(x1), _sortable(x2)
    if not x2.size:
        return P.full(x1.shape, bool(invert), "bool")
    ordered = sort(P.reshape(x2, (x2.size,)))
    found = P.eq(take(ordered, searchsorted(ordered, x1), 0), x1)
    return P.not_(found) if invert else found
