"""The results of fusion: regions, which are sets of nodes that become one kernel each, and where each node is computed and stored."""

import functools
import operator

from keras_ocl.core.index import linear


class Region:
    """Nodes computed by one kernel. `anchor`: the node that a template or the host computes, whose epilogue the others are, or None."""

    def __init__(self, space, number):
        self.space = tuple(space)
        self.number = number  # counts regions in the order of creation
        self.outputs = []  # nodes stored to memory
        self.maps = {}  # node -> for each of its axes the axis of `space` it runs along, None (constant) or ANY
        self.places = {}  # node -> the indices (see cost.Places) at which it is evaluated
        self.work = 0  # cost of these evaluations, in the unit of cost.py
        self.lanes = True  # whether the kernel can be vectorised
        self.strided = False  # whether the lanes of a vector read elements that are not adjacent
        self.staged = {}  # node of which the kernel stores rows that it loads later (staging.py) -> leading axes of `space` that count rows
        self.anchor = None
        self.reductions = False
        self.operands = set()  # nodes that the kernel reads from memory
        self.prologues = {}  # operand that the template computes while loading it -> (the nodes that it computes, those that it reads)
        self.consumers = set()  # regions that read our outputs
        self.producers = set()  # regions whose outputs we read
        self.bit = 1 << number  # stands for this region in `below`
        self.below = 0  # bits of all regions that depend on our outputs; kept, as searching for them each time is quadratic in large graphs

    @property
    def order(self):
        """The place of its results in the graph's order."""
        return max(n.order for n in self.outputs)

    @property
    def fetched(self):
        """The nodes that prologues compute."""
        return frozenset().union(*(inside for inside, _ in self.prologues.values()))

    @property
    def loaded(self):
        """The nodes that prologues read from memory."""
        return frozenset().union(*(leaves for _, leaves in self.prologues.values()))

    def compute(self, operand, inside, leaves):
        """Note a prologue: the template computes `operand`, by the nodes `inside`, from the nodes `leaves`."""
        self.prologues[operand] = frozenset(inside), frozenset(leaves)
        elsewhere = any(operand in n.inputs for n in self.maps if n is not self.anchor)  # by the epilogue
        self.operands = self.operands - (set() if elsewhere else {operand}) | leaves

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

    def detach(self):
        """Take the region out of the graph of regions, before any of its operands is stored."""
        for r in self.consumers:
            r.producers.discard(self)

    def absorb(self, other):
        """Merge the region `other` into this one; neither depends on the other."""
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


class Part:
    """Where an operand of a concat lies in the concat's buffer, into which the operand's own kernel writes.

    The operand's element at `index` lies at linear(index[:split]) * row + linear(index[split:]) + start, in elements.
    """

    def __init__(self, concat, split, row, start):
        self.concat, self.split, self.row, self.start = concat, split, row, start

    def offset(self, index, shape):
        """The offset in the concat's buffer, in elements, of the element at `index` of an operand of this shape."""
        return linear(index[: self.split], shape[: self.split]) * self.row + linear(index[self.split :], shape[self.split :]) + self.start

    def inside(self, outer):
        """The Part of an operand's operand: this one is of a concat along the same axis, which lies by `outer` in another one's buffer."""
        return Part(outer.concat, self.split, outer.row, outer.start + self.start)


class Placement:
    """Where a node is computed and stored, as far as that is decided.

    Attributes:
        wanted: whether it must be in memory whatever its users do, such as a result of the graph.
        cut: whether a kernel of its own has to store it.
        in_memory: whether it is, or will be, in memory.
        inlined: regions that recompute it for their own use.
        producer: the region that stores it.
        anchored: whether a kernel template (as its anchor or prologue) or the host computes it.
        shared: for a view that needs no copy, the node whose buffer it shares.
        fetches: for a template's node, the set of the operands that the template recomputes while loading them; other kernels may store or
            compute them all the same.
        fetchers: regions whose template recomputes it as part of such an operand.
        parts: its Parts, a list: where it is stored straight into the buffers of concats.
        joined: whether it is a concat into whose buffer its operands are written, or a reshape read only by such concats.
        passed: whether no kernel has to be found for it: its operands are written into the concat's buffer, or it is a reshape on the way
            there, or a template computes it in its prologue.
    """

    __slots__ = (
        *("wanted", "cut", "in_memory", "inlined", "producer", "anchored"),
        *("shared", "fetches", "fetchers", "parts", "joined", "passed"),
    )

    def __init__(self, wanted, cut, in_memory):
        self.wanted, self.cut, self.in_memory = wanted, cut, in_memory
        self.inlined, self.producer, self.shared, self.parts = set(), None, None, []
        self.fetches, self.fetchers = set(), set()
        self.anchored = self.joined = self.passed = False

    @property
    def regions(self):
        """The set of regions that evaluate the node."""
        return self.inlined | ({self.producer} if self.producer is not None else set())
