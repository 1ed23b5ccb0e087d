"""Access maps: where a primitive's value at an index reads its operands.

A map has one entry per axis of the operand: an Along, an Inner, a Tap, or one of the constants below. It tells passes what the
primitive's `pointwise` rule tells the code generator.
"""

from typing import NamedTuple


class Along(NamedTuple):
    """The index along the result's `axis`, times `stride`, plus `start`."""

    axis: int
    stride: int = 1
    start: int = 0


class Inner(NamedTuple):
    """A loop of the primitive's own over the operand's `axis`: what a reduction reduces."""

    axis: int


class Tap(NamedTuple):
    """The positions of a window around the index along the result's `axis`."""

    axis: int


ONLY = "only"  # the single element of an axis of extent 1
REGROUPED = "regrouped"  # the same row-major position: a reshape
ANYWHERE = "anywhere"  # computed from values, or from the whole index


def same_place(rank):
    """The map of an operand that is read where the result is computed."""
    return tuple(Along(i) for i in range(rank))
