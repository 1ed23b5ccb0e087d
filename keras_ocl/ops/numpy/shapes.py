"""keras.ops.numpy, shape and movement: reshape, transpose, join, split, repeat, roll."""

import numpy as np
from keras.src.backend.common.backend_utils import canonicalize_axis

from keras_ocl import primitives as P
from keras_ocl.core.dim import minimum, product
from keras_ocl.core.index import is_one
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.integer_arguments import extents_of
from keras_ocl.ops.numpy.indexing import take
from keras_ocl.ops.promotion import axes_of, broadcast_shapes, promote
from keras_ocl.ops.promotion import broadcast_to as _broadcast_to
from keras_ocl.ops.slicing import cut, stacked, unstacked


def ndim(x):
    """The rank."""
    return convert_to_tensor(x).ndim


def size(x):
    """The number of elements."""
    return convert_to_tensor(x).size


def reshape(x, newshape):
    """The elements of `x` in row-major order as `newshape`; one extent may be -1."""
    x = convert_to_tensor(x)
    shape = list(extents_of(newshape))
    unknown = [i for i, n in enumerate(shape) if n == -1]
    if len(unknown) > 1:
        raise ValueError(f"reshape: only one extent may be -1, got {tuple(shape)}.")
    if unknown:
        rest = product(n for n in shape if n != -1)
        if rest == 0 or x.size % rest != 0:
            raise ValueError(f"reshape: shape {tuple(x.shape)} has {x.size} elements, which {tuple(shape)} cannot hold.")
        shape[unknown[0]] = x.size // rest
    elif product(shape) != x.size:
        raise ValueError(f"reshape: shape {tuple(x.shape)} has {x.size} elements, but {tuple(shape)} has {product(shape)}.")
    return x if tuple(shape) == x.shape else P.reshape(x, tuple(shape))


def ravel(x):
    """All elements in one axis."""
    x = convert_to_tensor(x)
    return x if x.ndim == 1 else P.reshape(x, (x.size,))


def expand_dims(x, axis):
    """New axes of extent 1 at the positions `axis` of the result."""
    x = convert_to_tensor(x)
    axes = axis if isinstance(axis, (list, tuple)) else (axis,)
    rank = x.ndim + len(axes)
    axes = axes_of(axes, rank)
    extents = iter(x.shape)
    return P.reshape(x, tuple(1 if i in axes else next(extents) for i in range(rank)))


def squeeze(x, axis=None):
    """Axes of extent 1 removed: all of them, or `axis`, which must have extent 1."""
    x = convert_to_tensor(x)
    if axis is None:
        axes = tuple(i for i, n in enumerate(x.shape) if is_one(n))
    else:
        axes = axes_of(axis, x.ndim)
        for a in axes:
            if x.shape[a] != 1:
                raise ValueError(f"squeeze: axis {a} of shape {tuple(x.shape)} has extent {x.shape[a]}, not 1.")
    return P.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes)) if axes else x


def transpose(x, axes=None):
    """Axes permuted; reversed without `axes`."""
    x = convert_to_tensor(x)
    if axes is None:
        order = tuple(reversed(range(x.ndim)))
    else:
        order = tuple(canonicalize_axis(int(a), x.ndim) for a in axes)
        if sorted(order) != list(range(x.ndim)):
            raise ValueError(f"transpose: axes {tuple(axes)} are not a permutation of a rank-{x.ndim} tensor's.")
    return x if order == tuple(range(x.ndim)) else P.transpose(x, order)


def moveaxis(x, source, destination):
    """Axes `source` moved to the positions `destination`; the others keep their order."""
    x = convert_to_tensor(x)
    source = [source] if isinstance(source, int) else list(source)
    destination = [destination] if isinstance(destination, int) else list(destination)
    source = [canonicalize_axis(a, x.ndim) for a in source]
    destination = [canonicalize_axis(a, x.ndim) for a in destination]
    if len(source) != len(destination):
        raise ValueError(f"moveaxis: {len(source)} source axes but {len(destination)} destinations.")
    order = [a for a in range(x.ndim) if a not in source]
    for d, s in sorted(zip(destination, source, strict=True)):
        order.insert(d, s)
    return transpose(x, order)


def swapaxes(x, axis1, axis2):
    """Two axes exchanged."""
    x = convert_to_tensor(x)
    order = list(range(x.ndim))
    a, b = canonicalize_axis(axis1, x.ndim), canonicalize_axis(axis2, x.ndim)
    order[a], order[b] = b, a
    return transpose(x, order)


def flip(x, axis=None):
    """Elements in reverse order along `axis` (all axes by default)."""
    x = convert_to_tensor(x)
    axes = axes_of(axis, x.ndim)
    return P.reverse(x, axes) if axes else x


def fliplr(x):
    """Columns in reverse order."""
    x = convert_to_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"fliplr: a tensor of rank 2 or more is needed, got shape {tuple(x.shape)}.")
    return flip(x, 1)


def flipud(x):
    """Rows in reverse order."""
    x = convert_to_tensor(x)
    if x.ndim < 1:
        raise ValueError("flipud: a tensor of rank 1 or more is needed, got a scalar.")
    return flip(x, 0)


def rot90(array, k=1, axes=(0, 1)):
    """Rotate by 90 degrees `k` times in the plane of two axes."""
    x = convert_to_tensor(array)
    if x.ndim < 2:
        raise ValueError(f"Input array must have at least 2 dimensions. Received: array.ndim={x.ndim}")
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ValueError(f"Invalid axes: {axes}. Axes must be a tuple of two different dimensions.")
    a, b = (canonicalize_axis(axis, x.ndim) for axis in axes)
    if k % 4 == 2:
        return flip(x, (a, b))
    if k % 4 == 1:
        return swapaxes(flip(x, b), a, b)
    return flip(swapaxes(x, a, b), b) if k % 4 == 3 else x


def broadcast_to(x, shape):
    """`x` repeated to `shape` by NumPy's rules."""
    x = convert_to_tensor(x)
    shape = extents_of(shape)
    if broadcast_shapes("broadcast_to", x.shape, shape) != shape:
        raise ValueError(f"broadcast_to: shape {tuple(x.shape)} cannot be broadcast to {shape}.")
    return _broadcast_to(x, shape)


def _some(op, xs):
    """A sequence of tensors that is not empty."""
    if len(xs) == 0:
        raise ValueError(f"{op}: there are no tensors to join; give at least one.")
    return xs


def concatenate(xs, axis=0):
    """Tensors joined along an axis; their dtypes promoted."""
    xs = promote(*_some("concatenate", xs))
    if axis is None:
        return P.concat([ravel(x) for x in xs], 0)
    axis = canonicalize_axis(axis, xs[0].ndim)
    for x in xs[1:]:
        if x.ndim != xs[0].ndim or any(m != n for i, (m, n) in enumerate(zip(x.shape, xs[0].shape, strict=True)) if i != axis):
            raise ValueError(f"concatenate: shapes {[tuple(x.shape) for x in xs]} differ outside axis {axis}.")
    return xs[0] if len(xs) == 1 else P.concat(xs, axis)


def stack(x, axis=0):
    """Tensors of one shape joined along a new axis."""
    return stacked(promote(*_some("stack", x)), axis)


def append(x1, x2, axis=None):
    """x2 joined to the end of x1 (both flattened without `axis`)."""
    return concatenate([x1, x2], axis)


def _at_least(x, rank):
    """Leading axes until rank 1 or 2; for rank 3, NumPy's (1, n, 1) and (m, n, 1)."""
    x = convert_to_tensor(x)
    if x.ndim >= rank:
        return x
    if rank < 3:
        return P.reshape(x, (1,) * (rank - x.ndim) + x.shape)
    return P.reshape(x, {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}[x.ndim])


def _sequence(xs):
    return list(xs) if isinstance(xs, (list, tuple)) else unstacked(convert_to_tensor(xs))


def hstack(xs):
    """Joined along the second axis (the first, of vectors)."""
    xs = [_at_least(x, 1) for x in _some("hstack", _sequence(xs))]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1)


def vstack(xs):
    """Joined along the first axis, vectors as rows."""
    return concatenate([_at_least(x, 2) for x in _sequence(xs)], 0)


def dstack(xs):
    """Joined along the third axis."""
    return concatenate([_at_least(x, 3) for x in _sequence(xs)], 2)


def column_stack(xs):
    """Joined along the second axis, vectors as columns. Of Keras behind 3.15."""
    xs = [convert_to_tensor(x) for x in _some("column_stack", _sequence(xs))]
    return concatenate([P.reshape(x, (product(x.shape), 1)) if x.ndim < 2 else x for x in xs], 1)


def split(x, indices_or_sections, axis=0):
    """Parts along an axis: equal ones for a count, else cut at the given indices."""
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    if isinstance(indices_or_sections, int) and indices_or_sections > 0 and x.shape[axis] % indices_or_sections:
        raise ValueError(f"split: axis {axis} of shape {tuple(x.shape)} does not divide into {indices_or_sections} equal parts.")
    return array_split(x, indices_or_sections, axis)


def array_split(x, indices_or_sections, axis=0):
    """Parts along an axis, the first ones longer where a count does not divide it."""
    x = convert_to_tensor(x)
    axis = canonicalize_axis(axis, x.ndim)
    n = x.shape[axis]
    if isinstance(indices_or_sections, int):
        sections = indices_or_sections
        if sections <= 0:
            raise ValueError(f"split: the number of sections must be positive, got {sections}.")
        each, longer = n // sections, n % sections
        cuts = [i * each + minimum(i, longer) for i in range(sections + 1)]
    else:
        cuts = [0] + [_bound(i, n) for i in _indices(indices_or_sections)] + [n]
    return [cut(x, axis, low, high if high >= low else low) for low, high in zip(cuts[:-1], cuts[1:], strict=True)]


def _indices(indices):
    return indices.tolist() if isinstance(indices, (Tensor, np.ndarray)) else indices


def _bound(i, n):
    return minimum(i, n) if i >= 0 else n + i


def hsplit(x, indices_or_sections):
    """Split along the second axis (the first, of a vector)."""
    x = convert_to_tensor(x)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(x, indices_or_sections):
    """Split along the first axis."""
    return split(x, indices_or_sections, 0)


def dsplit(x, indices_or_sections):
    """Split along the third axis."""
    return split(x, indices_or_sections, 2)


def tile(x, repeats):
    """`x` repeated as a whole, `repeats` times along each axis."""
    x = convert_to_tensor(x)
    repeats = _indices(repeats)
    repeats = tuple(repeats) if isinstance(repeats, (list, tuple)) else (repeats,)
    rank = max(len(repeats), x.ndim)
    shape = (1,) * (rank - x.ndim) + x.shape
    repeats = (1,) * (rank - len(repeats)) + repeats
    if all(is_one(r) for r in repeats):
        return x if x.ndim == rank else P.reshape(x, shape)
    paired = tuple(e for r, n in zip(repeats, shape, strict=True) for e in (r, n))
    spread = P.broadcast(P.reshape(x, shape), paired, tuple(range(1, 2 * rank, 2)))
    return P.reshape(spread, tuple(r * n for r, n in zip(repeats, shape, strict=True)))


def repeat(x, repeats, axis=None):
    """Each element along `axis` repeated `repeats` times (one count, or one for each element)."""
    x = convert_to_tensor(x)
    if axis is None:
        x, axis = ravel(x), 0
    axis = canonicalize_axis(axis, x.ndim)
    counts = repeats.tolist() if isinstance(repeats, (Tensor, np.ndarray)) else repeats
    if isinstance(counts, (list, tuple)) and len(counts) == 1:
        counts = counts[0]
    if isinstance(counts, (list, tuple)):
        if len(counts) != x.shape[axis]:
            raise ValueError(f"repeat: {len(counts)} counts for an axis of extent {x.shape[axis]}.")
        return take(x, np.repeat(np.arange(len(counts), dtype="int32"), counts), axis)
    spread = (*x.shape[: axis + 1], counts, *x.shape[axis + 1 :])
    dims = tuple(i for i in range(x.ndim + 1) if i != axis + 1)
    shape = tuple(n * counts if i == axis else n for i, n in enumerate(x.shape))
    return P.reshape(P.broadcast(x, spread, dims), shape)


def roll(x, shift, axis=None):
    """Elements moved `shift` places along `axis`, those leaving one end entering at the other. Several shifts of one axis add up."""
    x = convert_to_tensor(x)
    if axis is None:
        return P.reshape(roll(ravel(x), shift, 0), x.shape)
    axis, shift = _indices(axis), _indices(shift)
    axes = axis if isinstance(axis, (list, tuple)) else (axis,)
    shifts = shift if isinstance(shift, (list, tuple)) else (shift,) * len(axes)
    axes = axes * len(shifts) if len(axes) == 1 else axes
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes; give one for each axis, or one for all.")
    for s, a in zip(shifts, axes, strict=True):
        a = canonicalize_axis(a, x.ndim)
        n = x.shape[a]
        if n == 0:
            continue
        place = n - s % n
        x = P.concat([cut(x, a, place, n), cut(x, a, 0, place)], a)
    return x
