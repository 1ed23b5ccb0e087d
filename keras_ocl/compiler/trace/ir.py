"""The compiler's graph: hash-consed nodes, built from a trace and simplified on the way."""

from keras_ocl.compiler.trace.equations import merged, pruned
from keras_ocl.compiler.trace.split import split
from keras_ocl.core.dim import Dim, key, product
from keras_ocl.core.index import linear
from keras_ocl.core.origin import NOWHERE
from keras_ocl.core.primitive import Kind, Primitive
from keras_ocl.kernels.spec import Buffer
from keras_ocl.primitives import algebra


class Node:
    """One value of the graph. `primitive` is None for an input; `results` is a list of (shape, dtype) where there are several.

    A node with several results is never read itself: each result is a PROJECT node. `tag`: the equation's, see core.trace.Trace.apart.
    `part`: the regions.Part by which the value lies in the buffer of a concat, or None where its buffer holds nothing else.
    """

    __slots__ = (
        *("primitive", "kind", "inputs", "params", "shape", "dtype", "results"),
        *("origin", "order", "tag", "tensor", "part", "_buffer", "_form"),
    )

    def __init__(self, primitive, inputs, params, shape, dtype, results=None, origin=NOWHERE, tensor=None):
        self.primitive, self.inputs, self.params = primitive, inputs, params
        self.kind = Kind.INPUT if primitive is None else primitive.kind
        self.shape, self.dtype, self.results, self.origin = shape, dtype, results, origin
        self.order, self.tag, self.tensor = 0, 0, tensor
        self.part = self._buffer = self._form = None

    @property
    def form(self):
        """Hashable, and equal for nodes that are the same function of operands of one kind: primitive, parameters, shape, dtype."""
        if self._form is None:
            self._form = (self.primitive, hashable(self.params), hashable(self.shape), self.dtype)
        return self._form

    @property
    def buffer(self):
        """The kernels.spec.Buffer that holds the value if it is in memory; in a loop's body it may be a slice of a stacked one."""
        if self._buffer is None:
            self._buffer = Buffer(product(self.shape), self.dtype)
        return self._buffer

    @buffer.setter
    def buffer(self, buffer):
        self._buffer = buffer

    def offset(self, index):
        """The offset in the buffer, in elements, of the element at `index`."""
        return linear(index, self.shape) if self.part is None else self.part.offset(index, self.shape)

    @property
    def name(self):
        return self.primitive.name if self.primitive is not None else "input"

    def __repr__(self):
        return f"{self.name}{tuple(self.shape)}:{self.dtype}#{self.order}"


PROJECT = Primitive("project", shape=None, kind=Kind.PROJECTION)


class Graph:
    """Nodes under construction. `outputs` are set when it is complete.

    border: the order from which on all nodes belong to the backward part, if copies of forward nodes stand there; else 0.

    splitting: the limits above which long reductions are split into parts, a kernels.schedules.tuning.Splitting; None: never.

    reshapes_last: whether reshapes are moved behind elementwise operations (algebra.flattened).
    """

    def __init__(self, splitting=None):
        self.splitting = splitting
        self._consed = {}
        self.tag = 0  # tag of the equation being added: equal nodes with different tags are not merged
        self.nodes = []
        self.border = 0
        self.reshapes_last = False
        self.outputs = []

    def input(self, tensor):
        return self._append(Node(None, (), {}, tuple(tensor.shape), tensor.dtype, tensor=tensor))

    def add(self, primitive, inputs, params, origin=NOWHERE):
        """The node `primitive(*inputs)`; an equal one is reused (common-subexpression elimination)."""
        identity = (primitive.name, self.tag, tuple(id(i) for i in inputs), hashable(params))
        node = self._consed.get(identity)
        if node is None:
            results = primitive.shape(*inputs, **params)
            if primitive.multiple_results:
                node = Node(primitive, tuple(inputs), params, (), None, list(results), origin)
            else:
                node = Node(primitive, tuple(inputs), params, tuple(results[0]), results[1], None, origin)
            self._consed[identity] = self._append(node)
        return node

    def simplest(self, primitive, inputs, params, origin=NOWHERE):
        """The simplest node equal to `primitive(*inputs)`, by the primitive's own rules."""
        found = None if primitive.simplify is None else primitive.simplify(self, inputs, params, origin)
        if found is None:
            found = algebra.folded(self, primitive, inputs, params, origin)
        if found is None and self.reshapes_last:
            found = algebra.flattened(self, primitive, inputs, params, origin)
        return self.add(primitive, inputs, params, origin) if found is None else found

    def lowered(self, primitive, inputs, params, origin=NOWHERE):
        """`simplest`, with long reductions split into parts."""
        found = None
        if primitive.partial is not None and self.splitting is not None:
            if primitive.from_parts is not None:
                found = primitive.from_parts(self, primitive, inputs, params, origin)
            found = found or split(self, self.splitting, primitive, inputs, params, origin)
        return self.simplest(primitive, inputs, params, origin) if found is None else found

    def project(self, node, k):
        """The PROJECT node for result number `k` of a node with several results."""
        identity = ("project", id(node), k)
        found = self._consed.get(identity)
        if found is None:
            shape, dtype = node.results[k]
            found = self._append(Node(PROJECT, (node,), {"index": k}, tuple(shape), dtype, None, node.origin))
            self._consed[identity] = found
        return found

    def again(self, node, inputs, origin):
        """A new node that computes what `node` does of other inputs; it is merged with no equal one."""
        self.tag = node.tag
        return self._append(Node(node.primitive, tuple(inputs), node.params, node.shape, node.dtype, node.results, origin))

    def _append(self, node):
        node.order, node.tag = len(self.nodes), self.tag
        self.nodes.append(node)
        return node

    def live(self):
        """Nodes that the outputs depend on, in topological order."""
        wanted, stack = set(), list(self.outputs)
        while stack:
            node = stack.pop()
            if node not in wanted:
                wanted.add(node)
                stack.extend(node.inputs)
        return sorted(wanted, key=lambda n: n.order)

    def readers(self):
        """Dict from each live node to the set of nodes that read it."""
        readers = {n: set() for n in self.live()}
        for n in readers:
            for i in n.inputs:
                readers[i].add(n)
        return readers


def stored(n, readers):
    """The node to store for a body's result: the base of its flat views (reshapes), or, if that is a view too, the first that others read.

    That one has the shape of its readers, whose kernel can store it too; a view that only a reshape reads would need a kernel of its own.
    `readers`: the graph's readers().
    """
    base, inside, found = n, None, None
    while base.kind is Kind.VIEW and base.primitive.flat:
        found = found or (base if readers[base] - {inside} else None)
        base, inside = base.inputs[0], base
    return found if base.kind is Kind.VIEW and found is not None else base


def hashable(x):
    """A hashable form of a parameter: equal for equal parameters, whatever the present values of Dims in it."""
    if type(x) in (int, str):  # nearly all there is
        return (type(x).__name__, x)
    if isinstance(x, dict):
        return tuple([(k, hashable(v)) for k, v in sorted(x.items())])
    if isinstance(x, (tuple, list)):
        return tuple([hashable(v) for v in x])
    if isinstance(x, Dim):
        return key(x)
    if isinstance(x, float):
        return ("float", x.hex())  # tells 0.0 from -0.0 and 1.0 from 1
    return (type(x).__name__, x)


def build(equations, outputs, splitting=None):
    """The Graph of the `equations` that `outputs` (Tensors) depend on. splitting: as for Graph."""
    graph = Graph(splitting)
    # A gradient reads the value before the operation too, which its own kernel would then have to store as well.
    graph.reshapes_last = not any(eq.origin.gradient for eq in equations)
    values = {}

    def node_of(tensor):
        found = values.get(id(tensor))
        if found is None:
            found = values[id(tensor)] = graph.input(tensor)
        return found

    for eq in pruned(merged(equations), outputs):
        inputs = [node_of(t) for t in eq.inputs]
        graph.tag = eq.tag
        if eq.primitive.multiple_results:
            node = graph.add(eq.primitive, inputs, eq.params, eq.origin)
            for k, o in enumerate(eq.outputs):
                values[id(o)] = graph.project(node, k)
        else:
            values[id(eq.outputs[0])] = graph.lowered(eq.primitive, inputs, eq.params, eq.origin)
    graph.outputs = [node_of(o) for o in outputs]
    return graph
