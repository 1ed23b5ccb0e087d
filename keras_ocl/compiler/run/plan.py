"""Memory planning: intermediate buffers share one arena by liveness.

Greedy, as in "Efficient Memory Management for Deep Neural Net Inference" (Pisarchyk & Lee, 2020): one buffer after another, each at the
lowest offset free during its lifetime; of three orders, largest first among them, the one with the smallest arena. Where a single device
buffer cannot hold the arena, it has several parts, each planned in this way.
"""

from dataclasses import dataclass

import numpy as np


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
    intervals, found = list(intervals), []
    bound = live_bytes(intervals, alignment)
    for order in (_size, _area, _begin):
        found.append(_placed(sorted(intervals, key=order), alignment, limit))
        if sum(found[-1][0]) <= bound:
            break
    sizes, places = min(found, key=lambda plan: (len(plan[0]), sum(plan[0])))
    for interval, (part, offset) in places:
        interval.part, interval.offset = part, offset
    return sizes


def live_bytes(intervals, alignment):
    """The most bytes alive at once, each interval rounded up to the alignment: what an arena must have, wherever they lie."""
    changes = {}
    for i in intervals:
        need = _aligned(i.nbytes, alignment)
        changes[i.first] = changes.get(i.first, 0) + need
        changes[i.last + 1] = changes.get(i.last + 1, 0) - need
    live = most = 0
    for launch in sorted(changes):
        live += changes[launch]
        most = max(most, live)
    return most


def _size(i):
    return -i.nbytes, i.first


def _area(i):
    return -i.nbytes * (i.last - i.first + 1), i.first, -i.nbytes


def _begin(i):
    return i.first, -i.nbytes


def _aligned(nbytes, alignment):
    return -(-nbytes // alignment) * alignment


def _placed(intervals, alignment, limit):
    """(bytes of each part, list of (interval, (part, offset))) where the intervals are placed in this order."""
    parts, sizes, places = [], [], []
    for interval in intervals:
        need = _aligned(interval.nbytes, alignment)
        for number, part in enumerate(parts):  # noqa: B007 (the one where it fits)
            offset = part.lowest(interval, need)
            if offset + need <= limit:
                break
        else:
            number, offset, part = len(parts), 0, _Part(len(intervals))
            parts.append(part)
            sizes.append(0)
        places.append((interval, (number, offset)))
        part.add(interval, offset, need)
        sizes[number] = max(sizes[number], min(offset + need, max(limit, interval.nbytes)))  # the last interval needs no padding
    return sizes, places


class _Part:
    """What lies in one part of the arena. `most`: the number of intervals that may be added."""

    def __init__(self, most):
        self._lives, self._count = np.empty((4, most), np.int64), 0  # rows: first and last launch, offset, end

    def add(self, interval, offset, need):
        self._lives[:, self._count] = interval.first, interval.last, offset, offset + need
        self._count += 1

    def lowest(self, interval, need):
        """The lowest offset at which `need` bytes are free while the interval is alive."""
        first, last, offsets, ends = self._lives[:, : self._count]
        (beside,) = np.nonzero((first <= interval.last) & (last >= interval.first))
        beside = beside[np.argsort(offsets[beside])]
        ends = np.maximum.accumulate(np.concatenate([[0], ends[beside]]))
        gaps = offsets[beside] - ends[:-1] >= need
        return int(ends[np.argmax(gaps)] if gaps.any() else ends[-1])
