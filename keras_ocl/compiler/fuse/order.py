"""The order in which regions run: the program's, with updates of states last, or one with a lower peak of live bytes.

The latter is list scheduling. In a training step it computes a weight's gradient, and updates the weight, as soon as the operands are
there, and what is recomputed for the backward pass right before it is read.
"""

import heapq
from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import size_hint
from keras_ocl.core.primitive import Kind

WORTH = 2**22  # bytes by which the peak must fall: for fewer, small kernels stay next to one another, where they can be joined
_MOVES = 2**16  # bytes that a region must free to be moved


def in_program_order(regions):
    """Topological order. Among ready regions, host operations that overlap with device work come first, then the program's order."""
    position = {r: -1 if overlaps(r.anchor) else r.order for r in regions}
    tie = {r: k for k, r in enumerate(regions)}
    waiting = {r: 0 for r in regions}
    for r in regions:
        for c in r.consumers:
            waiting[c] += 1
    ready = [(position[r], tie[r], r) for r in regions if not waiting[r]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, _, r = heapq.heappop(ready)
        order.append(r)
        for c in r.consumers:
            waiting[c] -= 1
            if not waiting[c]:
                heapq.heappush(ready, (position[c], tie[c], c))
    assert len(order) == len(regions), "cyclic regions"
    return order


def overlaps(node):
    """Whether `node` is a host operation that a thread computes while the device goes on."""
    return node is not None and node.primitive.overlaps(**node.params)


def updates_last(regions, updated):
    """The regions with those that only update states last, so that every reader of an old value comes before them."""
    chosen = set()
    for r in reversed(regions):
        if r.consumers <= chosen and all(n in updated for n in r.outputs):
            chosen.add(r)
    return [r for r in regions if r not in chosen] + [r for r in regions if r in chosen]


def behind_stops(regions, updated, stops):
    """The regions with updates of states, and what depends on them, after all regions in the list `stops` that do not depend on them.

    In those the host takes part, so that a run can fail or be interrupted there.
    """
    if not stops:
        return regions
    updates = [r for r in regions if not updated.isdisjoint(r.outputs) and not any(r.reaches(s) for s in stops)]
    last = {id(r) for r in regions if r in updates or any(u.reaches(r) for u in updates)}
    return [r for r in regions if id(r) not in last] + [r for r in regions if id(r) in last]


@dataclass
class _Task:
    """A region among those to order.

    Attributes:
        position: its position in the order that is given.
        before, after: sets of positions of regions that must run before it and after it.
        writes: dict from the number of a value in the arena to the bytes of it that the region stores: of a concat maybe only a part.
        reads: numbers of the values that it loads.
    """

    position: int
    before: set
    after: set
    writes: dict
    reads: set


class Ordering:
    """The orders of a partition's regions, by the bytes that are alive in the arena.

    Args:
        regions: in an order in which they can run; regions that stop keep it among themselves.
        found: the Partition.
        results: set of nodes with memory outside of the arena.
        updates: pairs (entry node, new node) of states. What reads an entry before the new value is computed does so in all orders.
        stops: list of the regions that stop (`behind_stops`). An update after the last of them stays there.
    """

    def __init__(self, regions, found, results, updates, stops):
        self._regions, self._views, self._parts = regions, found.views, found.parts
        self._numbers, self._bytes = {}, []  # node in memory -> number of its value; bytes of each value
        position = {r: k for k, r in enumerate(regions)}
        projected = {}
        for n in found.materialised:
            if n.kind is Kind.PROJECTION:
                projected.setdefault(n.inputs[0], []).append(n)
        stored = [[n for n in (*r.outputs, *projected.get(r.anchor, ())) if n.results is None] for r in regions]
        for n in (n for nodes in stored for n in nodes):
            for value in self._values(n):
                self._number(value, 0 if value in results else _bytes(value))
        self._tasks = []
        for k, r in enumerate(regions):
            writes = {}
            for n in stored[k]:
                for v in [self._numbers[value] for value in self._values(n)]:
                    writes[v] = min(self._bytes[v], writes.get(v, 0) + _bytes(n))
            operands = [self._values(self._base(n))[-1] for n in r.operands]
            reads = {self._numbers[b] for b in operands if b in self._numbers} - writes.keys()
            self._tasks.append(_Task(k, {position[p] for p in r.producers}, {position[c] for c in r.consumers}, writes, reads))
        self._keep_updates(position, updates, stops)
        self._readers = [[] for _ in self._bytes]
        for task in self._tasks:
            for v in task.reads:
                self._readers[v].append(task.position)
        self._fixed = {position[s] for s in stops}

    def _number(self, node, nbytes):
        if node not in self._numbers:
            self._numbers[node] = len(self._bytes)
            self._bytes.append(nbytes)

    def _values(self, node):
        """The nodes in whose memory kernels store `node`, the last one where others read it: the buffer of a concat is one value."""
        parts, own = self._parts.get(node, ((), True))
        return [*(part.concat for part in parts), *([node] if own else ())]

    def _base(self, node):
        while node in self._views:
            node = self._views[node]
        return node

    def _keep_updates(self, position, updates, stops):
        """Let updates stay after the last region that stops, and after those that read the old values."""
        places = [position[s] for s in stops]
        for k, s in zip(places, places[1:], strict=False):
            self._precede(k, s)
        producer = {n: k for k, r in enumerate(self._regions) for n in r.outputs}
        new = {}
        for entry, n in updates:
            if n in producer:
                new.setdefault(entry, []).append(producer[n])
                if places and places[-1] < producer[n]:
                    self._precede(places[-1], producer[n])
        for k, r in enumerate(self._regions):
            for entry in {b for n in r.operands if (b := self._base(n)) in new}:
                for u in new[entry]:
                    if k < u:
                        self._precede(k, u)

    def _precede(self, k, later):
        self._tasks[k].after.add(later)
        self._tasks[later].before.add(k)

    def best(self):
        """The regions in the order with the lowest peak; as given where none is lower by WORTH."""
        given = list(range(len(self._tasks)))
        before = self.peak(given)
        if before < WORTH:
            return self._regions
        late = self._moved(given, late=True)
        early = self._moved(given, late=False)
        orders = [early, late, self._moved(late, late=False), self._moved(early, late=True)]
        peak, _, order = min((self.peak(order), k, order) for k, order in enumerate(orders))
        return [self._regions[k] for k in order] if peak <= before - WORTH else self._regions

    def peak(self, order):
        """The most bytes alive at once where the regions at these positions run one after another."""
        left, begun = [len(readers) for readers in self._readers], set()
        live = most = 0
        for k in order:
            task = self._tasks[k]
            live += sum(self._bytes[v] for v in task.writes.keys() - begun)
            begun |= task.writes.keys()
            most = max(most, live)
            for v in task.reads:
                left[v] -= 1
            live -= sum(self._bytes[v] for v in (*task.reads, *task.writes) if not left[v])
        return most

    def _moved(self, order, late):
        """List scheduling: as `order`, but a region that frees _MOVES bytes or more runs as soon as it is ready.

        late: schedule from the end, where a region that allocates more than it frees runs as late as its readers let it.
        """
        return self._scheduled(order[::-1], _Backward(self))[::-1] if late else self._scheduled(order, _Forward(self))

    def _scheduled(self, order, side):
        tasks, place = self._tasks, {k: p for p, k in enumerate(order)}
        waiting = {k: len(side.before(tasks[k])) for k in order}
        ready, worth, found, done = [place[k] for k in order if not waiting[k]], [], [], set()
        heapq.heapify(ready)

        def look(k):
            freed = side.freed(tasks[k])
            if freed >= _MOVES and k not in self._fixed:
                heapq.heappush(worth, (-freed, place[k]))

        for p in ready:
            look(order[p])
        while ready or worth:
            p = heapq.heappop(worth)[1] if worth else heapq.heappop(ready)
            k = order[p]
            if k in done:
                continue
            done.add(k)
            found.append(k)
            for n in side.take(tasks[k]):  # they may free more now
                if not waiting[n] and n not in done:
                    look(n)
            for n in side.after(tasks[k]):
                waiting[n] -= 1
                if not waiting[n]:
                    heapq.heappush(ready, place[n])
                    look(n)
        return found


def _bytes(node):
    return size_hint(node.shape) * dtypes.itemsize(node.dtype)


class _Forward:
    """From the first launch on: a region frees the values of which it is the last reader, and allocates those that it stores."""

    def __init__(self, schedule):
        self._bytes, self._left = schedule._bytes, [set(readers) for readers in schedule._readers]

    def before(self, task):
        return task.before

    def after(self, task):
        return task.after

    def freed(self, task):
        """The bytes freed less those allocated if the task runs now."""
        freed = sum(self._bytes[v] for v in task.reads if len(self._left[v]) == 1)
        return freed - sum(nbytes for v, nbytes in task.writes.items() if self._left[v])

    def take(self, task):
        """Run the task; returns the positions of those for which `freed` grows."""
        grown = []
        for v in task.reads:
            self._left[v].discard(task.position)
            if len(self._left[v]) == 1:
                grown += self._left[v]
        return grown


class _Backward:
    """From the last launch on: the values that a region stores are no longer alive before it, those that it loads are."""

    def __init__(self, schedule):
        self._bytes, self._readers, self._live = schedule._bytes, schedule._readers, set()

    def before(self, task):
        return task.after

    def after(self, task):
        return task.before

    def freed(self, task):
        freed = sum(nbytes for v, nbytes in task.writes.items() if v in self._live)
        return freed - sum(self._bytes[v] for v in task.reads if v not in self._live)

    def take(self, task):
        new = [v for v in task.reads if v not in self._live]
        self._live.update(new)
        return [k for v in new for k in self._readers[v]]
