"""Provenance: which operations of Keras a launch computes, the share of each in its work, and which of them its results' memory counts for.

A launch's time is measured as a whole. To divide it, the work of each node is estimated from shapes alone: two operations for each
multiply-add of a product or convolution, for everything else the price that fusion gives it (cost.py) times its evaluations, and _MOVED
operations for each element that is loaded from or stored to memory.
"""

import functools
import math
from collections import defaultdict
from typing import NamedTuple

from keras_ocl.compiler.fuse import cost
from keras_ocl.compiler.fuse.row_results import REDUCING
from keras_ocl.core.dim import hint, noting
from keras_ocl.core.origin import Origin
from keras_ocl.core.primitive import Kind

_MOVED = 8  # estimated cost, in operations, of loading or storing an element
_NOTHING = (Kind.VIEW, Kind.SOURCE, Kind.PROJECTION, Kind.STEP_SLICE)  # nodes that compute nothing


class Share(NamedTuple):
    """A part of a launch: `fraction` of its work comes from `origin`; `primitive` names it where `origin` has no operation."""

    origin: Origin
    primitive: str
    fraction: float

    @property
    def operation(self):
        """The operation's name."""
        return self.origin.named(self.primitive).operation


class Provenance:
    """What the launches of one region compute. `region` is a regions.Region; properties are computed when they are first read."""

    steps, reread = 1, 0  # as in JoinedProvenance

    def __init__(self, region):
        self.launches = 1  # number of the region's launches
        self._maps, self._outputs, self._anchor, self._places = region.maps, region.outputs, region.anchor, region.places

    @functools.cached_property
    def shares(self):
        """A tuple of Shares, whose fractions add up to 1."""
        work, read = defaultdict(float), set()
        for node in self._maps:
            work[key(node)] += _operations(node) * self._evaluations(node)
            for operand, elements in self._loaded(node):
                if operand not in read:
                    read.add(operand)
                    work[key(node)] += _MOVED * elements
        for node in self._outputs:
            work[key(self._allocator(node))] += _MOVED * _size(node)
        total = sum(work.values())
        return tuple(Share(origin, name, amount / total if total else 1 / len(work)) for (origin, name), amount in work.items())

    @functools.cached_property
    def operations(self):
        """Estimate of the region's arithmetic operations; a multiply-add counts as two."""
        return sum(_operations(node) * self._evaluations(node) for node in self._maps)

    @functools.cached_property
    def loads(self):
        """Dict from the Buffer of each operand in memory to the number of its elements that the region reads."""
        found = {}
        for node in self._maps:
            for operand, elements in self._loaded(node):
                found[operand.buffer] = max(elements, found.get(operand.buffer, 0))
        return found

    @functools.cached_property
    def stores(self):
        """Dict from the Buffer of each concat in which results lie to the number of its elements that the region writes."""
        found = defaultdict(int)
        for node in self._outputs:
            if node.part is not None:
                found[node.buffer] += _size(node)
        return found

    def parts(self, spec):
        """The KernelSpecs that were joined to the kernel `spec`: here only itself."""
        return [spec]

    @functools.cached_property
    def work(self):
        """Estimate of the region's operations, with _MOVED for each element loaded or stored, at the hints of its extents."""
        with noting(None):  # an estimate holds for no extent in particular
            return self.operations + _MOVED * (sum(self.loads.values()) + sum(map(_size, self._outputs)))

    def _evaluations(self, node):
        """How often the kernel evaluates each element of `node`."""
        return max(1, cost.evaluations(self._places.get(node, ())) / cost.size(node))

    def _loaded(self, node):
        """(operand in memory, elements) that `node` reads, directly or through views; a view itself reads only if it is a result."""
        if node.kind is Kind.VIEW and node not in self._outputs:
            return
        for operand in node.inputs:
            elements = min(_size(operand), _size(node) * cost.terms(node)) if node.primitive.pointwise is not None else _size(operand)
            while operand in self._maps and operand.kind is Kind.VIEW:
                operand = operand.inputs[0]
                elements = min(elements, _size(operand))
            if operand not in self._maps:
                yield operand, elements

    @functools.cached_property
    def _nodes(self):
        return {node.buffer: node for node in self._maps}

    def allocator(self, buffer):
        """(origin, primitive's name) of the operation for which the memory of a Buffer that the launch writes counts.

        An elementwise operation that follows a product, convolution, pooling or reduction in the same kernel works in the memory of that
        one and counts for none, as TensorFlow's BiasAdd and Relu do.
        """
        return key(self._allocator(self.writer(buffer)))

    def writer(self, buffer):
        """The node whose value, or a part of it, is in a Buffer that the launch writes."""
        return self._nodes.get(buffer) or self._anchor or self._outputs[0]

    @functools.cached_property
    def read_by_gradients(self):
        """The Buffers of the operands in memory from which the region computes gradients, at once or by values that it recomputes."""
        pending = [node for node in self._maps if node.origin.gradient]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node in self._maps or node.kind is Kind.VIEW:  # a view in memory may share its operand's
                found = [i for i in node.inputs if i not in seen]
                seen.update(found)
                pending += found
        buffers = {node.buffer for node in seen if node not in self._maps}
        return buffers | {b.slice.base for b in buffers if b.slice is not None}

    def _allocator(self, node):
        seen, pending = set(), [node]
        while pending:
            n = pending.pop(0)
            if n is self._anchor or _reduces(n):
                return n
            for i in n.inputs if n.kind is Kind.ELEMENTWISE or n.kind is Kind.VIEW and n.primitive.flat else ():
                if i in self._maps and i not in seen and _size(i) == _size(node):
                    seen.add(i)
                    pending.append(i)
        return node


class JoinedProvenance:
    """What a kernel joined of `specs` (KernelSpecs) computes, with the properties of a Provenance.

    Args:
        steps: number of times that it does all of them, as the steps of a loop; may be a Dim. reread: bytes that every work-group reads in
            each step, the same for all groups. places: function from a Buffer of the specs to the Buffers that stand for it in the kernel.
    """

    def __init__(self, specs, steps=1, reread=0, places=lambda buffer: [buffer]):
        specs = tuple(part for spec in specs for part in spec.provenance.parts(spec))  # a joined kernel may be a part of another one
        self._specs, self.steps, self.reread, self._places = specs, steps, reread, places
        self._writers = {b: spec.provenance for spec in specs for a in spec.args if a.kind == "out" for b in places(a.value)}

    def parts(self, spec):
        """The KernelSpecs that were joined to the kernel `spec`."""
        return self._specs

    @functools.cached_property
    def shares(self):
        """A tuple of Shares, whose fractions add up to 1."""
        amounts = {}
        for provenance in dict.fromkeys(spec.provenance for spec in self._specs):
            mine = [spec.args for spec in self._specs if spec.provenance is provenance]
            whole = len(mine) >= provenance.launches  # else the estimate is for launches outside this kernel too
            amounts[provenance] = provenance.work if whole else sum(map(moved, mine))
        total = sum(amounts.values()) or 1
        return tuple(s._replace(fraction=s.fraction * amount / total) for p, amount in amounts.items() for s in p.shares)

    def allocator(self, buffer):
        """Provenance.allocator of the spec that writes the Buffer."""
        return self._writers[buffer].allocator(buffer)

    def writer(self, buffer):
        """Provenance.writer of the spec that writes the Buffer."""
        return self._writers[buffer].writer(buffer)

    @functools.cached_property
    def read_by_gradients(self):
        """Provenance.read_by_gradients of all specs, in terms of the kernel's Buffers."""
        return {b for p in {spec.provenance for spec in self._specs} for read in p.read_by_gradients for b in self._places(read)}


def key(node):
    """(origin, name of the primitive, empty where the origin names an operation) of a node."""
    return node.origin, "" if node.origin.operation else node.name


def moved(args):
    """Estimate of the work of loading and storing, once, all buffers that a kernel with these arguments reads or writes, at their hints."""
    return _MOVED * sum(hint(a.value.elements) for a in args if a.is_pointer)


def _reduces(node):
    return node.kind in REDUCING


def _size(node):
    shapes = [node.shape] if node.results is None else [shape for shape, _ in node.results]
    # In eager code each hint is rounded by itself, so an extent that is a difference may have a hint below 0.
    return sum(math.prod(max(0, hint(extent)) for extent in shape) for shape in shapes)


def _operations(node):
    """Estimate of the operations that compute every element of `node` once."""
    if node.kind in _NOTHING:
        return 0
    if node.primitive.operations is not None:
        return max(0, hint(node.primitive.operations(node)))
    return cost.price(node) * _size(node)
