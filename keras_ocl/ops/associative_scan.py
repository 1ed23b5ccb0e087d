"""keras.ops.associative_scan."""

from keras.src import tree
from keras.src.backend.common.backend_utils import slice_along_axis

from keras_ocl import primitives as P
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy import shapes
from keras_ocl.ops.numpy.logic import logical_or


def associative_scan(f, elems, reverse=False, axis=0):
    """All prefixes combined by the associative `f`, in a logarithmic number of steps (Blelloch 1990)."""
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    flat = [convert_to_tensor(e) for e in tree.flatten(elems)]
    if reverse:
        flat = [shapes.flip(e, axis) for e in flat]
    n = flat[0].shape[axis]
    if any(e.shape[axis] != n for e in flat):
        raise ValueError(f"Array inputs to associative_scan must have the same first dimension. (saw: {[tuple(e.shape) for e in flat]})")

    def combine(a, b):
        return tree.flatten(f(tree.pack_sequence_as(elems, a), tree.pack_sequence_as(elems, b)))

    result = _prefixes(combine, flat, axis)
    if reverse:
        result = [shapes.flip(e, axis) for e in result]
    return tree.pack_sequence_as(elems, result)


def _prefixes(combine, elems, axis):
    n = elems[0].shape[axis]
    if n < 2:
        return elems

    def part(items, *bounds):
        return [slice_along_axis(e, *bounds, axis=axis) for e in items]

    odd = _prefixes(combine, combine(part(elems, 0, n - 1, 2), part(elems, 1, None, 2)), axis)
    even = part(elems, 0, 1)
    if n > 2:
        rest = combine(part(odd, 0, (n - 1) // 2), part(elems, 2, None, 2))
        even = [shapes.concatenate([first, others], axis) for first, others in zip(even, rest, strict=True)]
    return [_interleaved(e, o, axis) for e, o in zip(even, odd, strict=True)]


def _interleaved(even, odd, axis):
    """even[0], odd[0], even[1], ... along an axis."""
    axis %= even.ndim
    n = even.shape[axis] + odd.shape[axis]

    def spread(x, first):
        zero = convert_to_tensor(0, x.dtype)
        before = first
        after = n - (2 * x.shape[axis] - 1) - before

        def at(v):
            return tuple(v if i == axis else 0 for i in range(x.ndim))

        return P.pad(x, zero, at(before), at(after), at(1))

    even, odd = spread(even, 0), spread(odd, 1)
    return logical_or(even, odd) if even.dtype == "bool" else P.add(even, odd)
