"""Minimum cuts of networks, by Dinic's algorithm (1970): blocking flows along shortest paths."""

from collections import deque

INFINITE = 1 << 62


class Network:
    """Vertices 0, 1, ... with directed edges of integer capacities. A capacity of INFINITE is never cut."""

    def __init__(self, vertices):
        self._edges = [[] for _ in range(vertices)]  # of each vertex: the numbers of the edges that leave it
        self._ends, self._left = [], []  # of each edge: its end, and what may still flow; edge k ^ 1 is k reversed

    def edge(self, start, end, capacity):
        """Add an edge."""
        self._edges[start].append(len(self._ends))
        self._edges[end].append(len(self._ends) + 1)
        self._ends += [end, start]
        self._left += [capacity, 0]

    def sink_side(self, source, sink):
        """The vertices on the sink's side of the minimum cut, a list of bools: of several such cuts that with the fewest there."""
        while (levels := self._levels(source, sink)) is not None:
            tried = [0] * len(self._edges)
            while self._augmented(source, sink, levels, tried):
                pass
        side, waiting = [False] * len(self._edges), [sink]
        side[sink] = True
        while waiting:
            for k in self._edges[waiting.pop()]:
                if self._left[k ^ 1] and not side[self._ends[k]]:  # what flows in may still grow
                    side[self._ends[k]] = True
                    waiting.append(self._ends[k])
        return side

    def _levels(self, source, sink):
        """The distance of each vertex from the source along edges that may still carry flow; None where the sink is out of reach."""
        levels, waiting = [-1] * len(self._edges), deque([source])
        levels[source] = 0
        while waiting:
            vertex = waiting.popleft()
            for k in self._edges[vertex]:
                if self._left[k] and levels[self._ends[k]] < 0:
                    levels[self._ends[k]] = levels[vertex] + 1
                    waiting.append(self._ends[k])
        return levels if levels[sink] >= 0 else None

    def _augmented(self, source, sink, levels, tried):
        """Let more flow along one shortest path; returns whether there was one. `tried`: for each vertex, how many of its edges are full or
        lead to no path."""
        path, vertex = [], source
        while vertex != sink:
            edges = self._edges[vertex]
            while tried[vertex] < len(edges):
                k = edges[tried[vertex]]
                if self._left[k] and levels[self._ends[k]] == levels[vertex] + 1:
                    break
                tried[vertex] += 1
            else:
                if not path:
                    return False
                vertex = self._ends[path.pop() ^ 1]
                tried[vertex] += 1
                continue
            path.append(k)
            vertex = self._ends[k]
        flow = min(self._left[k] for k in path)
        for k in path:
            self._left[k] -= flow
            self._left[k ^ 1] += flow
        return True
