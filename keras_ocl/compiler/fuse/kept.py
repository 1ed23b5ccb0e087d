"""What a training step keeps for its gradient: a minimum cut between the forward and the backward part of its graph.

Each value of the forward part that the backward part reads is either kept in memory until then, or computed again (rematerialisation) from
values that are kept. Keeping costs by bytes, computing again by the prices of cost.py; products, convolutions, loops and host operations
are never computed again. The choice with the least cost is a minimum cut: Zheng et al., "Min-cut activation recomputation" (PyTorch's
AOTAutograd), there with bytes alone. Nodes that are computed again are copied in the graph; fusion then places the copies as any node.
"""

from dataclasses import dataclass

from keras_ocl.compiler.fuse import cost
from keras_ocl.compiler.fuse.min_cut import INFINITE, Network
from keras_ocl.compiler.trace.ir import Graph
from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint, size_hint
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.schedule import schedule_of

_FREE = (Kind.VIEW, Kind.SOURCE)  # computed wherever they are used; keeping them gains nothing
_CACHED = 1 << 24  # bytes of values that a last-level cache holds: computing them again gains nothing
_FEW = 1024  # most elements of a value that is always kept
_REPEATED = (*_FREE, Kind.ELEMENTWISE, Kind.MASKED, Kind.INDEXED, Kind.REDUCTION)


@dataclass(frozen=True)
class Kept:
    """What the backward part of a graph reads of the forward part.

    Attributes:
        graph: the graph, in which what is computed again stands twice.
        kept: the forward nodes that stay in memory for the backward part, in the graph's order.
        repeated: those that are computed again.
    """

    graph: Graph
    kept: tuple
    repeated: tuple


def kept(graph, traits):
    """The Kept of a graph, as the device's `traits.keep` says: "cut"; "all" computes nothing again; "least" all that may be."""
    nodes = graph.live()
    backward = _backward(nodes)
    read = {i for n in nodes if n in backward for i in n.inputs if i not in backward and i.kind is not Kind.INPUT}
    cut = traits.keep == "least" or traits.keep == "cut" and sum(map(_bytes, read)) > _CACHED
    repeated = _repeated(nodes, backward, read, traits) if cut else ()
    if not repeated:
        return Kept(graph, tuple(sorted(read, key=_order)), ())
    borders = {i for n in repeated for i in n.inputs if i.kind is not Kind.INPUT} | read
    result = _copied(graph, nodes, backward, repeated)
    return Kept(result, tuple(sorted(borders - repeated, key=_order)), tuple(sorted(repeated, key=_order)))


def _order(node):
    return node.order


def _backward(nodes):
    """The nodes that belong to a gradient or depend on one, such as updates of variables."""
    found = set()
    for n in nodes:
        if n.origin.gradient or any(i in found for i in n.inputs):
            found.add(n)
    return found


def _repeated(nodes, backward, read, traits):
    """The set of forward nodes that the backward part computes again."""
    schedule, least = schedule_of(traits), traits.keep == "least"
    templates = _read_by_templates(nodes, backward)
    numbers, waiting = {}, list(read)
    while waiting:  # what may be computed again, and what it is computed from
        n = waiting.pop()
        if n not in numbers:
            numbers[n] = len(numbers)
            if _repeatable(n):
                waiting += [i for i in n.inputs if i.kind is not Kind.INPUT]
    source, sink = 2 * len(numbers), 2 * len(numbers) + 1  # node k has the vertices 2k, where it is computed, and 2k + 1, where it is read
    network = Network(sink + 1)
    for n, k in numbers.items():
        again = INFINITE
        if _repeatable(n):
            again = 0 if least else _price(n) + (_stored_briefly(n, schedule) if n in templates else 0)
            for i in n.inputs:
                if i in numbers:
                    network.edge(2 * numbers[i] + 1, 2 * k, INFINITE)
        network.edge(source, 2 * k, again)
        network.edge(2 * k, 2 * k + 1, INFINITE if _repeatable(n) and n.kind in _FREE else schedule.kept * _bytes(n))
        if n in read:
            network.edge(2 * k + 1, sink, INFINITE)
    side = network.sink_side(source, sink)
    return {n for n, k in numbers.items() if side[2 * k]}


def _repeatable(node):
    """Whether a node may be computed twice: not by a template or the host, and not one of few elements, which costs nothing to keep."""
    generated = node.kind in _REPEATED and node.primitive.pointwise is not None and not node.primitive.stored and node.results is None
    return generated and (node.kind in _FREE or cost.size(node) > _FEW)


def _read_by_templates(nodes, backward):
    """The forward nodes that a template of the backward part reads from memory, directly or through reshapes."""
    found = set()
    for n in nodes:
        if n in backward and (n.primitive.pointwise is None or n.kind is Kind.CONTRACTION):
            for i in n.inputs:
                while i.kind is Kind.VIEW and i.primitive.flat:
                    i = i.inputs[0]
                if i not in backward:
                    found.add(i)
    return found


def _price(node):
    """The price of computing all of a node, without its operands."""
    return 0 if node.kind in _FREE else int(cost.price(node) * cost.size(node) * hint(cost.terms(node)))


def _stored_briefly(node, schedule):
    """The price of a kernel that stores a node again, right before it is read, from inputs that it loads, such as a weight."""
    loaded = sum(_bytes(i) for i in node.inputs if i.kind is Kind.INPUT)
    return schedule.launch + schedule.byte * (_bytes(node) + loaded // 2)  # a stored byte is loaded, too


def _bytes(node):
    shapes = [(node.shape, node.dtype)] if node.results is None else node.results
    return sum(max(1, size_hint(shape)) * dtypes.itemsize(dtype) for shape, dtype in shapes)


def _copied(graph, nodes, backward, repeated):
    """The graph, whose backward part reads copies of the `repeated` nodes; they stand right before their first reader there."""
    result = Graph(graph.splitting)
    result.nodes, result.border = list(graph.nodes), len(graph.nodes)
    new = {}

    def copy(node, origin):
        new[node] = result.again(node, [new.get(i, i) for i in node.inputs], origin)

    for n in nodes:
        if n not in backward:
            continue
        waiting = [i for i in n.inputs if i in repeated and i not in new]
        while waiting:
            top = waiting[-1]
            first = [i for i in top.inputs if i in repeated and i not in new]
            if first:
                waiting += first
            elif top in new:
                waiting.pop()
            else:
                copy(waiting.pop(), top.origin.differentiated())
        copy(n, n.origin)
    result.outputs = [new.get(n, n) if n in backward else n for n in graph.outputs]
    return result
