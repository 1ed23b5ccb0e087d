"""Access maps: the indices at which a primitive reads an operand to compute its value at an index.

A map has one entry per axis of the operand: an Along, an Inner, a Tap, or one of the constants below. It tells passes what the
primitive's `pointwise` rule tells the code generator; of a view the code generator asks the map itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

from keras_ocl.core.index import Affine


class Along(NamedTuple):
    """The result's index along `axis`, times `stride`, plus `start`."""

    axis: int
    stride: int = 1
    start: int = 0


class Inner(NamedTuple):
    """All indices along the operand's `axis`, in a loop of the primitive's own: an axis that a reduction reduces."""

    axis: int


class Tap(NamedTuple):
    """The positions of a window around the index along the result's `axis`."""

    axis: int


ONLY = "only"  # the single element of an axis of extent 1
REGROUPED = "regrouped"  # the index with the same row-major position: a reshape
ANYWHERE = "anywhere"  # an index computed from values in memory, or from the whole index of the result

AccessMap = tuple[Along | Inner | Tap | str, ...]


def index_in_operand(access: Sequence[Along | str], index: Sequence[Affine]) -> tuple[Affine, ...]:
    """The index at which a map of Along and ONLY reads the operand for the result's element at `index`."""
    found = []
    for entry in access:
        if entry is ONLY:
            found.append(Affine())
            continue
        assert isinstance(entry, Along), entry
        i = index[entry.axis] if entry.stride == 1 else index[entry.axis] * entry.stride
        found.append(i if type(entry.start) is int and entry.start == 0 else i + entry.start)
    return tuple(found)


def same_place(rank: int) -> AccessMap:
    """The map of an operand that is read at the result's own index."""
    return tuple(Along(i) for i in range(rank))
