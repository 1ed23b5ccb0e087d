"""What fusion makes: regions of nodes that become one kernel each, and where each node is computed and stored."""

import functools
import operator

from keras_ocl.core.index import linear


class Region:
    """Nodes computed by one kernel. `anchor`: the template's node, when its epilogue is this region."""

    def __init__(self, space, number):
        self.space = tuple(space)
        self.number = number  # in order of making
        self.outputs = []  # nodes stored to memory
        self.maps = {}  # node -> for each of its axes the axis of `space` it runs along, None (constant) or ANY
        self.places = {}  # node -> the indices at which it is evaluated
        self.work = 0  # what these evaluations cost
        self.lanes = True  # whether they can be done in vectors
        self.strided = False  # whether vectors are gathered from distances
        self.anchor = None
        self.reductions = False
        self.operands = set()  # materialised nodes read
        self.fetched = frozenset()  # nodes that the template computes where it reads its operand
        self.consumers = set()  # regions that read our outputs
        self.producers = set()  # regions whose outputs we read
        self.bit = 1 << number  # stands for this region in `below`
        self.below = 0  # the bits of all regions that depend on our outputs: to search for them each time is quadratic in large graphs

    def feed(self, consumers):
        """Note regions that read our outputs."""
        for c in consumers:
            self.consumers.add(c)
            c.producers.add(self)
        stack = [(self, functools.reduce(operator.or_, (c.below | c.bit for c in consumers), 0))]
        while stack:
            region, more = stack.pop()
            if more & ~region.below:
                region.below |= more
                stack += [(p, more) for p in region.producers]

    def reaches(self, other):
        """Whether `other` depends on this region's outputs."""
        return bool(self.below & other.bit)

    def absorb(self, other):
        """Become this region and `other`, of which neither depends on the other."""
        self.outputs += other.outputs
        self.maps.update(other.maps)
        self.places.update(other.places)
        self.operands |= other.operands
        self.reductions |= other.reductions
        for r in other.producers:
            r.consumers.discard(other)
        for r in other.consumers:
            r.producers.discard(other)
        self.feed(other.consumers)
        for r in other.producers:
            r.feed([self])


class Parts:
    """How the parts of a concat in memory are stored: each by its own region, straight into the concat's buffer.

    A part's element at `index` lies at linear(index[:split]) * row + linear(index[split:]) + start.
    """

    def __init__(self, concat, split, row, start):
        self.concat, self.split, self.row, self.start = concat, split, row, start

    def offset(self, index, shape):
        return linear(index[: self.split], shape[: self.split]) * self.row + linear(index[self.split :], shape[self.split :]) + self.start


class Placement:
    """Where a node is computed and stored, as far as that is decided.

    Attributes:
        wanted: whether it must be in memory whatever its users do: a result of the graph.
        cut: whether it is to be stored by a kernel of its own.
        in_memory: whether it is, or will be, in memory.
        inlined: regions that compute it for themselves.
        producer: the region that stores it.
        anchored: whether a kernel template or the host computes it.
        shared: the node whose memory it is, of a view that lies there as it is.
        fetches: of a template's node, the operand that the template computes, which others may store or compute all the same.
        fetchers: regions whose template computes it for such an operand.
        parts: its Parts in the memory of concats.
        joined: whether it is a concat that is stored part by part, or a reshape before such ones alone.
        passed: whether others store it: a concat that its parts store, or a reshape between; or a template fetches it.
    """

    __slots__ = (
        *("wanted", "cut", "in_memory", "inlined", "producer", "anchored"),
        *("shared", "fetches", "fetchers", "parts", "joined", "passed"),
    )

    def __init__(self, wanted, cut, in_memory):
        self.wanted, self.cut, self.in_memory = wanted, cut, in_memory
        self.inlined, self.producer, self.shared, self.parts = set(), None, None, []
        self.fetches, self.fetchers = None, set()
        self.anchored = self.joined = self.passed = False

    @property
    def regions(self):
        """Regions that evaluate it."""
        return self.inlined | ({self.producer} if self.producer is not None else set())
