"""Results that are rows of their operands' memory, which eager code copies: no kernel, so that none depends on how many parts there are.

A copy takes equally long rows, at equal distances in the operand and in the result. A driver moves each row by itself, so short ones are
left to kernels where there are many of them.
"""

import math
from typing import NamedTuple

FEW_PARTS = 4  # what a concat's kernel selects from; copies put more together
_FEW_ROWS = 4096  # that may be short
_LONG_ROW = 64  # bytes


class Rows(NamedTuple):
    """`count` rows of `length` elements of one operand, at distances of `pitch` from `start` on, and where the result has them."""

    operand: int
    start: int
    pitch: int
    to: int
    to_pitch: int
    length: int
    count: int


def quickly_copied(rows, itemsize):
    """Whether copies of such Rows take no longer than a kernel would."""
    return all(r.count <= _FEW_ROWS or r.length * itemsize >= _LONG_ROW for r in rows)


def of_slice(shape, starts, limits, strides):
    """The Rows of which a slice is made, in a list; None where they do not lie at equal distances."""
    sizes = [limit - start for start, limit in zip(starts, limits, strict=True)]
    if any(stride != 1 and size > 1 for stride, size in zip(strides, sizes, strict=True)):
        return None
    axis = len(shape)  # from here on all is taken, but for what is before it in a row
    while axis and sizes[axis - 1] == shape[axis - 1]:
        axis -= 1
    length = math.prod(sizes[max(axis - 1, 0) :])
    distances = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    start = sum(s * d for s, d in zip(starts, distances, strict=True))
    count, pitch = 1, length
    for k in reversed(range(axis - 1)):
        if sizes[k] == 1:
            continue
        if count == 1:
            pitch = distances[k]
        elif distances[k] != pitch * count:
            return None
        count *= sizes[k]
    return [Rows(0, start, pitch, 0, length, length, count)]


def of_concat(shapes, axis):
    """The Rows of which a concat is made: one entry for each part."""
    outer = math.prod(shapes[0][:axis])
    lengths = [math.prod(shape[axis:]) for shape in shapes]
    whole, start, found = sum(lengths), 0, []
    for k, length in enumerate(lengths):
        found.append(Rows(k, 0, length, start, whole, length, outer))
        start += length
    return found
