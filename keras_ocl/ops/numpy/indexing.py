"""keras.ops.numpy, indexing: take, where, nonzero, diagonals, searching in sorted sequences."""

from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.core.dim import minimum
from keras_ocl.core.origin import current_origin
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.trace import ValueUnknown
from keras_ocl.ops.bounds import check_indices
from keras_ocl.ops.conversion import convert_to_tensor, read
from keras_ocl.ops.numpy.reduction import sum as total
from keras_ocl.ops.promotion import as_bool, broadcast, broadcast_shapes, broadcast_to, operand, promote, scalar_like
from keras_ocl.ops.result_types import dtype_of, result_type
from keras_ocl.ops.slicing import from_start, wrapped


def needs_values(op):
    """Refuse inside a trace an operation whose result's shape depends on values."""
    if current_trace.get() is not None:
        layer = current_origin.get().layer
        where_ = f" in {layer}" if layer else ""
        raise ValueUnknown(
            f"{op}{where_}: the shape of its result depends on the values of its input, which a compiled function does not know while it is"
            " traced. Use an operation of fixed shape (keras.ops.where with three arguments, masking), or run eagerly (run_eagerly=True)."
        )


def take(x, indices, axis=None):
    """Elements at `indices` along `axis` (of the flattened `x` without one).

    Negative indices count from the end; what is out of range even so is clipped, and never read. ValueError where there is nothing to take.
    """
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = P.reshape(x, (x.size,)), 0
    axis = canonicalize_axis(axis, x.ndim)
    check_indices("take", indices, x.shape[axis])
    indices = from_start(indices, x.shape[axis])
    result = P.gather(x, (indices,), (axis,))
    if axis == 0 or indices.ndim == 0:
        return result
    rank = indices.ndim
    rest = list(range(rank, result.ndim))
    return P.transpose(result, tuple(rest[:axis] + list(range(rank)) + rest[axis:]))


def take_along_axis(x, indices, axis=None):
    """x's elements at the positions `indices` along `axis`, matched elsewhere."""
    x = convert_to_tensor(x)
    indices = convert_to_tensor(indices)
    if axis is None:
        if indices.ndim != 1:
            raise ValueError(f"take_along_axis: without an axis the indices must be a vector, got shape {tuple(indices.shape)}.")
        x, axis = P.reshape(x, (x.size,)), 0
    if x.ndim != indices.ndim:
        raise ValueError(f"take_along_axis: x of rank {x.ndim} and indices of rank {indices.ndim} must have the same rank.")
    axis = canonicalize_axis(axis, x.ndim)
    others = broadcast_shapes(
        "take_along_axis", x.shape[:axis] + (1,) + x.shape[axis + 1 :], indices.shape[:axis] + (1,) + indices.shape[axis + 1 :]
    )
    check_indices("take_along_axis", indices, x.shape[axis])
    shape = others[:axis] + (indices.shape[axis],) + others[axis + 1 :]
    x = broadcast_to(x, others[:axis] + (x.shape[axis],) + others[axis + 1 :])
    indices = broadcast_to(wrapped(indices, x.shape[axis]), shape)
    coordinates = tuple(indices if a == axis else P.iota(shape, a, indices.dtype) for a in range(x.ndim))
    return P.gather(x, coordinates, tuple(range(x.ndim)))


def where(condition, x1=None, x2=None):
    """x1 where `condition` holds, else x2; with the condition alone, as nonzero."""
    if x1 is None and x2 is None:
        return nonzero(condition)
    if x1 is None or x2 is None:
        raise ValueError("where: give both x1 and x2, or neither.")
    x1, x2 = promote(x1, x2)
    return P.select(*broadcast("where", as_bool(condition), x1, x2))


def nonzero(x):
    """Indices of the elements that are not zero, one int32 vector per axis. Eager only: one number is read back."""
    needs_values("nonzero")
    mask = as_bool(x)
    shape = mask.shape or (1,)
    flat = P.reshape(mask, (mask.size,))
    count = int(read(P.reduce_sum(P.convert(flat, "int32"), (0,))))
    # A stable sort of the negated mask brings the true elements to the front in order.
    positions = P.sort((P.convert(P.not_(flat), "int32"), P.iota(flat.shape, 0, "int32")), 0, 1)[1]
    positions = P.slice(positions, (0,), (count,))
    return unravel_index(positions, shape)


def unravel_index(indices, shape):
    """Flat indices as a tuple of index tensors, one for each axis of `shape`."""
    indices = convert_to_tensor(indices)
    dtype = indices.dtype
    if dtypes.itemsize(dtype) < 4:
        indices = P.convert(indices, "int32")
    shape = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    result = []
    for axis in reversed(range(len(shape))):
        extent = scalar_like(shape[axis], indices)
        if axis == 0:
            result.append(indices)
        else:
            result.append(P.mod(indices, extent))
            indices = P.floor_div(indices, extent)
    return tuple(convert_to_tensor(i, dtype) for i in reversed(result))


def select(condlist, choicelist, default=0):
    """From the choice of the first condition that holds, else `default`."""
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(f"select: {len(condlist)} conditions for {len(choicelist)} choices.")
    choices = [operand(c) for c in choicelist]
    default = operand(default)
    dtype = result_type(*[dtype_of(c) for c in [*choices, default]])
    result = convert_to_tensor(default, dtype)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        result = P.select(*broadcast("select", as_bool(condition), convert_to_tensor(choice, dtype), result))
    return result


def diagonal(x, offset=0, axis1=0, axis2=1):
    """The elements with equal indices (the second `offset` greater) on two axes, as a new last axis."""
    x = convert_to_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"diagonal: a tensor of rank 2 or more is needed, got shape {tuple(x.shape)}.")
    a, b = canonicalize_axis(axis1, x.ndim), canonicalize_axis(axis2, x.ndim)
    if a == b:
        raise ValueError(f"diagonal: axis1 and axis2 are both {a}.")
    down, right = (-offset, 0) if offset < 0 else (0, offset)
    length = minimum(x.shape[a] - down, x.shape[b] - right)
    if length <= 0:
        return P.full((*[n for i, n in enumerate(x.shape) if i not in (a, b)], 0), 0, x.dtype)
    position = P.iota((length,), 0, "int32")

    def moved(places):
        return P.add(position, scalar_like(places, position)) if places else position

    found = P.gather(x, (moved(down), moved(right)), (a, b))
    return found if x.ndim == 2 else P.transpose(found, (*range(1, found.ndim), 0))


def diag(x, k=0):
    """A vector as the k-th diagonal of a matrix, or the k-th diagonal of a matrix."""
    x = convert_to_tensor(x)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag: a vector or a matrix is needed, got shape {tuple(x.shape)}.")
    n = x.shape[0]
    side = n + (k if k >= 0 else -k)
    # The vector, moved to the columns it fills, down every row; all but the diagonal masked.
    spread = P.pad(x, P.constant(0, x.dtype), (k if k > 0 else 0,), (0 if k > 0 else -k,))
    spread = P.broadcast(spread, (side, side), (1,))
    rows, columns = P.iota((side, side), 0, "int32"), P.iota((side, side), 1, "int32")
    return P.select(P.eq(P.sub(columns, rows), scalar_like(k, rows)), spread, scalar_like(0, spread))


def diagflat(x, k=0):
    """The flattened elements as the k-th diagonal of a matrix."""
    x = convert_to_tensor(x)
    return diag(P.reshape(x, (x.size,)), k)


def trace(x, offset=0, axis1=0, axis2=1):
    """Sum along the diagonal of two axes."""
    return total(diagonal(x, offset, axis1, axis2), -1)


def searchsorted(sorted_sequence, values, side="left"):
    """Where in a sorted vector each value would be inserted, int32: before (left) or after (right) equal ones."""
    sequence, values = promote(sorted_sequence, values)
    if sequence.ndim != 1:
        raise ValueError(
            "`searchsorted` only supports 1-D sorted sequences. You can use `keras.ops.vectorized_map` to extend it to N-D sequences."
            f" Received: sorted_sequence.shape={tuple(sequence.shape)}"
        )
    if side not in ("left", "right"):
        raise ValueError(f'searchsorted: side must be "left" or "right", got {side!r}.')
    n = sequence.shape[0]
    return _bisect(sequence, values, n, _before if side == "left" else _not_after)


def _before(a, b):
    """a < b in the order of sorting, in which NaN is last."""
    less = P.lt(a, b)
    return P.or_(less, P.and_(P.is_nan(b), P.not_(P.is_nan(a)))) if dtypes.is_float(a.dtype) else less


def _not_after(a, b):
    """a <= b in the order of sorting."""
    return P.or_(P.le(a, b), P.is_nan(b)) if dtypes.is_float(a.dtype) else P.le(a, b)


def _bisect(sequence, values, n, before):
    """Binary search: the number of elements of `sequence` for which `before(element, value)` holds, for each value."""
    low, high = P.full(values.shape, 0, "int32"), P.full(values.shape, n, "int32")
    one = scalar_like(1, low)
    for _ in range(int(n).bit_length()):
        middle = P.shift_right(P.add(low, high), one)
        open_ = P.lt(low, high)
        right = P.and_(open_, before(P.gather(sequence, (middle,), (0,)), values))
        low = P.select(right, P.add(middle, one), low)
        high = P.select(P.and_(open_, P.not_(right)), middle, high)
    return low


def digitize(x, bins):
    """The bin (of increasing edges) each element falls in, int32; past the last one for NaN."""
    x, bins = promote(x, bins)
    if bins.ndim != 1:
        raise ValueError(f"digitize: bins must be a vector, got shape {tuple(bins.shape)}.")
    return _bisect(bins, x, bins.shape[0], _not_after)
