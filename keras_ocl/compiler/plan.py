"""Memory planning: intermediate buffers share one arena by liveness.

Greedy by size with best fit, as in "Efficient Memory Management for Deep Neural Net Inference"
(Pisarchyk & Lee, 2020): largest buffers first, each at the lowest offset free during its lifetime.
"""

from dataclasses import dataclass


@dataclass
class Interval:
    """A buffer of `nbytes`, alive from launch `first` to launch `last` inclusive."""

    handle: object
    nbytes: int
    first: int
    last: int
    offset: int = 0


def place(intervals, alignment):
    """Give every interval an offset; returns the arena's size in bytes."""
    placed, size = [], 0
    for interval in sorted(intervals, key=lambda i: (-i.nbytes, i.first)):
        need = -(-interval.nbytes // alignment) * alignment
        offset = 0
        for other in sorted((p for p in placed if p.first <= interval.last and interval.first <= p.last), key=lambda p: p.offset):
            if offset + need <= other.offset:
                break
            offset = max(offset, other.offset + -(-other.nbytes // alignment) * alignment)
        interval.offset = offset
        placed.append(interval)
        size = max(size, offset + need)
    return size
