"""Collectives among threads, each of which computes one part of a step on its own device, and among the job's ranks."""

import threading

import numpy as np

from keras_ocl.distribution import wire
from keras_ocl.distribution.communicator import Communicator, check_extents

_OPERATIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


class Team:
    """The threads of this rank, which `join` adds until they first meet. Every rank has equally many.

    Args:
        outer: the Communicator of the ranks.
        overlaps: as for Communicator.
    """

    def __init__(self, outer, overlaps=False):
        self.overlaps = overlaps
        self.outer, self.size, self._given, self._result, self._barrier = outer, 0, [], None, None
        self._parts = {}  # (number of a split, color) -> Team
        self._lock, self._failed = threading.Lock(), False

    def join(self):
        """Add a member; returns its Communicator."""
        self.size += 1
        self._given.append(None)
        return Member(self, self.size - 1)

    def part(self, number, color):
        """The Team of the members that give this color in the split with this number."""
        return self._parts.setdefault((number, color), Team(Communicator(), self.overlaps))

    def meet(self, place, value, combine):
        """Return `combine` of the list of all members' values, computed once when all members are here."""
        with self._lock:
            if self._failed:
                raise threading.BrokenBarrierError
            if self._barrier is None:
                self._barrier = threading.Barrier(self.size, self._combine)
        self._given[place] = value, combine
        self._barrier.wait()
        result = self._result
        self._barrier.wait()  # otherwise a faster member's next meeting could overwrite it
        return result

    def _combine(self):
        if self._given[0] is None:
            return  # the second of the two waits
        values, self._result = [value for value, _ in self._given], None
        combine, self._given = self._given[0][1], [None] * self.size
        self._result = combine(values)

    def abort(self):
        """Call when a member fails: until `renew`, members that wait here or in a part of the team get threading.BrokenBarrierError."""
        for team in (self, *self._parts.values()):
            with team._lock:
                team._failed = True  # for members that come later
                if team._barrier is not None:
                    team._barrier.abort()

    def renew(self):
        """Let members meet again, once none is waiting any more."""
        for team in (self, *self._parts.values()):
            team._given, team._barrier, team._failed = [None] * team.size, None, False


class Member(Communicator):
    """One thread of a Team. The members of rank 0 come first in the order of ranks, then those of rank 1."""

    def __init__(self, team, place):
        self._team, self._place, self._splits = team, place, 0

    @property
    def rank(self):
        return self._team.outer.rank * self._team.size + self._place

    @property
    def size(self):
        return self._team.outer.size * self._team.size

    @property
    def overlaps(self):
        return self._team.overlaps

    def all_reduce(self, arrays, kind, targets=()):
        arrays = [np.asarray(array) for array in arrays]
        for array in arrays:
            wire.carrier(array.dtype, kind)  # each member raises for a dtype that the kind does not support
        combine = lambda given: [_combined(parts, kind) for parts in zip(*given, strict=True)]  # noqa: E731
        return self._meet(arrays, lambda given: self._team.outer.all_reduce(combine(given), kind))

    def all_gather(self, array, axis, extents, target=None):
        array = np.asarray(array)
        check_extents(self, array.shape[axis], (extents[self.rank],), extents)
        n = self._team.size
        ranks = [sum(extents[k : k + n]) for k in range(0, len(extents), n)]
        return self._meet(array, lambda given: self._team.outer.all_gather(np.concatenate(given, axis), axis, ranks))

    def reduce_scatter(self, array, axis, extents, kind="sum", target=None):
        array = np.asarray(array)
        check_extents(self, array.shape[axis], extents, extents)
        (whole,) = self.all_reduce([array], kind)
        return wire.parts(whole, axis, extents)[self.rank]

    def broadcast(self, array, root=0):
        rank, place = divmod(root, self._team.size)
        return self._meet(np.asarray(array), lambda given: self._team.outer.broadcast(given[place], rank))

    def gather_objects(self, thing):
        everybody = self._meet(thing, self._team.outer.gather_objects)
        return [each for things in everybody for each in things]

    def barrier(self):
        self._meet(None, lambda given: self._team.outer.barrier())

    def split(self, color):
        """As in the base class, but not collective: members call it one after the other, in order. Not possible on several ranks."""
        if self._team.outer.size > 1:
            raise NotImplementedError("A mesh over several ranks that have several devices each has one axis.")
        self._splits += 1
        return self._team.part(self._splits, color).join()

    def _meet(self, value, combine):
        return self._team.meet(self._place, value, combine)


def _combined(arrays, kind):
    """The arrays combined in order, in the dtype `wire.carrier` by the operation `wire.combined`."""
    first = arrays[0]
    operation, carrier = _OPERATIONS[wire.combined(first.dtype, kind)], wire.carrier(first.dtype, kind)
    total, other = np.empty(first.shape, carrier), np.empty(first.shape, carrier)
    wire.encode(first, total, kind)
    for array in arrays[1:]:
        wire.encode(array, other, kind)
        operation(total, other, out=total)
    return wire.decode(total, first.dtype)
