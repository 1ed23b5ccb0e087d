"""Memory planning: intermediate buffers share one arena by liveness.

Greedy by size with best fit, as in "Efficient Memory Management for Deep Neural Net Inference"
(Pisarchyk & Lee, 2020): largest buffers first, each at the lowest offset free during its lifetime.
"""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter


@dataclass
class Interval:
    """A buffer of `nbytes`, alive from launch `first` to launch `last` inclusive."""

    buffer: object
    nbytes: int
    first: int
    last: int
    offset: int = 0


def place(intervals, alignment):
    """Give every interval an offset; returns the arena's size in bytes."""
    placed, size = [], 0  # in order of offsets
    for interval in sorted(intervals, key=lambda i: (-i.nbytes, i.first)):
        need = -(-interval.nbytes // alignment) * alignment
        offset = 0
        for other in placed:
            if other.last < interval.first or interval.last < other.first:
                continue
            if offset + need <= other.offset:
                break
            offset = max(offset, other.offset + -(-other.nbytes // alignment) * alignment)
        interval.offset = offset
        insort(placed, interval, key=attrgetter("offset"))
        size = max(size, offset + need)
    return size
