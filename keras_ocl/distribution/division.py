"""How a step's rows are divided among the parts of a mesh, also by measured speed (`KERAS_OCL_SHARES=auto`)."""

import statistics
import time

from keras_ocl.distribution.communicator import Communicator

TIMED = 5  # steps with equal shares that are timed to compute the shares
GRAIN = 8  # shares are whole numbers that sum to GRAIN times the number of parts
clock = time.perf_counter


class Metered(Communicator):
    """A Communicator that measures one part's time in its collectives and those of its splits, which is mostly waiting for others.

    Args:
        inner: the Communicator.
        seconds: a list with one number, to which the time is added.
    """

    def __init__(self, inner, seconds=None):
        self._inner, self._seconds, self.rank, self.size = inner, [0.0] if seconds is None else seconds, inner.rank, inner.size

    @property
    def seconds(self):
        """Seconds in all collectives so far."""
        return self._seconds[0]

    def _timed(self, collective, args, named):
        begun = clock()
        try:
            return collective(*args, **named)
        finally:
            self._seconds[0] += clock() - begun

    def all_reduce(self, *args, **named):
        return self._timed(self._inner.all_reduce, args, named)

    def all_gather(self, *args, **named):
        return self._timed(self._inner.all_gather, args, named)

    def reduce_scatter(self, *args, **named):
        return self._timed(self._inner.reduce_scatter, args, named)

    def broadcast(self, *args, **named):
        return self._timed(self._inner.broadcast, args, named)

    def gather_objects(self, thing):
        return self._timed(self._inner.gather_objects, (thing,), {})

    def barrier(self):
        self._timed(self._inner.barrier, (), {})

    def split(self, color):
        return Metered(self._inner.split(color), self._seconds)


class Division:
    """The division of rows for one step function.

    In steps with equal shares, for shapes that have run before, it measures the rows per second that each part computes outside of its
    collectives.

    Args:
        placement: the step's Placement or LocalPlacement.
        own: whether each rank gives its own rows (own_rows.py), which are divided among its devices.

    Attributes:
        shares: relative numbers of rows of the parts; None to use those of the batch axis.
    """

    def __init__(self, placement, own):
        self.own, self.shares, self._world, self._parts = own, None, placement.world, placement.batch_axis.size
        self._devices = self._parts // (placement.ranks.size if own else 1)  # number of devices among which rows are divided
        self._left = TIMED if placement.measured and self._devices > 1 else 0
        self._working = [share > 0 for share in placement.batch_axis.shares]  # a device that only has the variables gets no rows
        self._seen, self._timing, self._speeds = set(), False, {}

    def begin(self, arrays):
        """Call before a step runs on `arrays`, with the shapes of the whole batch."""
        if self._left:
            shapes = tuple(tuple(x.shape) for x in arrays)
            self._timing = shapes in self._seen
            self._seen.add(shapes)

    def run(self, placement, device, rows, function):
        """Return the result of `function`, with which a part computes `rows` rows."""
        if not self._timing:
            return function()
        waited, begun = placement.communicator.seconds, clock()
        result = function()
        device.finish()
        taken = clock() - begun - (placement.communicator.seconds - waited)
        if rows:
            part = placement.communicator.rank, placement.batch_axis.place
            self._speeds.setdefault(part, []).append(rows / taken)
        return result

    def end(self):
        """Call after a step; returns whether parts get other shares from now on. Collective."""
        if not self._timing:
            return False
        self._left, self._timing = self._left - 1, False
        if self._left:
            return False
        slowest = {}
        for found in self._world.gather_objects({part: statistics.median(speeds) for part, speeds in self._speeds.items()}):
            for (_, place), speed in found.items():
                slowest[place] = min(speed, slowest.get(place, speed))
        if len(slowest) < sum(self._working):
            return False  # batches had fewer rows than there are parts
        speeds = [slowest.get(place, 0) for place in range(self._parts)]
        groups = (speeds[k : k + self._devices] for k in range(0, len(speeds), self._devices))
        found = tuple(share for group in groups for share in proportional(group))
        if len({share for share, works in zip(found, self._working, strict=True) if works}) > 1:
            self.shares = found
        return self.shares is not None


def proportional(speeds):
    """Whole numbers (0 allowed) in proportion to `speeds`, which sum to GRAIN times their count."""
    exact = [GRAIN * len(speeds) * speed / sum(speeds) for speed in speeds]
    shares = [int(share) for share in exact]
    first = sorted(range(len(exact)), key=lambda k: (shares[k] - exact[k], k))
    for k in first[: GRAIN * len(speeds) - sum(shares)]:
        shares[k] += 1
    return shares
