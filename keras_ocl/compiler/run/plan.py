"""Memory planning: intermediate buffers share one arena by liveness.

Greedy by size with best fit, as in "Efficient Memory Management for Deep Neural Net Inference"
(Pisarchyk & Lee, 2020): largest buffers first, each at the lowest offset free during its lifetime. Where a single device buffer cannot
hold the arena, the arena has several parts, each planned in this way.
"""

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter


@dataclass
class Interval:
    """A buffer of `nbytes`, alive from launch `first` to launch `last` inclusive; it lies at `offset` of the arena's part `part`."""

    buffer: object
    nbytes: int
    first: int
    last: int
    offset: int = 0
    part: int = 0


def place(intervals, alignment, limit):
    """Give every interval a part and an offset; returns a list of the bytes of each of the arena's parts.

    No part has more than `limit` bytes, except one that a single larger interval fills. `alignment`: of offsets, in bytes.
    """
    parts, sizes = [], []  # for each part, its intervals in order of offsets, and its bytes
    for interval in sorted(intervals, key=lambda i: (-i.nbytes, i.first)):
        need = -(-interval.nbytes // alignment) * alignment
        for part, placed in enumerate(parts):  # noqa: B007 (the one where it fits)
            offset = _lowest(interval, need, placed, alignment)
            if offset + need <= limit:
                break
        else:
            part, offset, placed = len(parts), 0, []
            parts.append(placed)
            sizes.append(0)
        interval.part, interval.offset = part, offset
        insort(placed, interval, key=attrgetter("offset"))
        sizes[part] = max(sizes[part], min(offset + need, max(limit, interval.nbytes)))  # the last interval needs no padding
    return sizes


def _lowest(interval, need, placed, alignment):
    """The lowest offset at which `need` bytes are free while the interval is alive."""
    offset = 0
    for other in placed:
        if other.last < interval.first or interval.last < other.first:
            continue
        if offset + need <= other.offset:
            break
        offset = max(offset, other.offset + -(-other.nbytes // alignment) * alignment)
    return offset
