"""Digest: a number that is equal, in later processes too, for graphs that lowering cannot tell apart.

It is made of all that lowering reads of a graph: its nodes in order, with their primitives' names, operands, parameters, shapes, dtypes,
tags and origins, by which launches are named; the equations of bodies; which nodes are inputs, outputs, states and their updates. Of an
unknown extent (a Dim) it has the formula, the hint and the present value, since facts that lowering finds out hold for that value. Values
of arrays are not part of it, as no pass reads them.
"""

import hashlib

from keras_ocl.core.body import Body
from keras_ocl.core.dim import Dim, key, present
from keras_ocl.core.primitive import Primitive

_PLAIN = (int, str, bool, float, complex, type(None))  # types whose texts say all of them


class Nameless(Exception):
    """A part of a graph means nothing to other processes: a user's own primitive, or a parameter that is a function or another object."""


def digest(graph, inputs, updates, states, unknowns, *others):
    """The digest of a graph and of the texts `others`, as hexadecimal text; the other arguments are those of run.executable.Executable.

    Raises:
        Nameless: the graph has no digest.
    """
    text, described = hashlib.sha256(), _Description()
    for node in dict.fromkeys([*graph.live(), *inputs]):
        text.update(described.node(node).encode())
    ends = [[described.number(node) for node in some] for some in (inputs, graph.outputs, states)]
    text.update(repr((ends, [(described.number(entry), k) for entry, k in updates], described.value(tuple(unknowns)), others)).encode())
    return text.hexdigest()


class _Description:
    """Texts of the parts of one graph, in which nodes, tensors, origins and the like are numbered in the order of their appearance."""

    def __init__(self):
        self._numbers, self._origins, self._bodies, self._tags = {}, {}, {}, {}

    def number(self, node):
        """The number of a node or tensor that has appeared."""
        return self._numbers[id(node)]

    def node(self, node):
        """The text of a node."""
        inputs = [self._numbers[id(i)] for i in node.inputs]
        self._numbers[id(node)] = len(self._numbers)
        results = node.results and [(self.value(shape), dtype) for shape, dtype in node.results]
        params, shape = self.value(node.params), self.value(node.shape)
        return repr((self._primitive(node), inputs, params, shape, node.dtype, results, self._origin(node), self._tag(node)))

    def value(self, x):
        """What a parameter's text is made of."""
        kind = type(x)
        if kind in _PLAIN:
            return x
        if kind is tuple:
            return tuple([self.value(v) for v in x])
        if kind is list:
            return [self.value(v) for v in x]
        if kind is dict:
            return [(name, self.value(v)) for name, v in x.items()]
        if kind is Dim:
            return (*key(x), present(x))
        if kind is Body:
            return self._body(x)
        raise Nameless(f"a parameter of type {kind.__name__}")

    def _primitive(self, of):
        primitive = of.primitive
        if primitive is None:
            return None
        if Primitive.named(primitive.name) is not primitive:
            raise Nameless(f"the primitive {primitive}")
        return primitive.name

    def _origin(self, of):
        """The number of an origin, with the origin where it appears first."""
        found = self._origins.get(of.origin)
        if found is None:
            found = self._origins[of.origin] = len(self._origins)
            return found, tuple(of.origin)
        return found

    def _tag(self, of):
        return self._tags.setdefault(of.tag, len(self._tags))

    def _body(self, body):
        """Bodies that share their list of equations are one function with different results, and have one number."""
        inputs = [self._tensor(t) for t in body.inputs]
        found = self._bodies.get(id(body.equations))
        if found is None:
            number = self._bodies[id(body.equations)] = len(self._bodies)
            found = number, [self._equation(e) for e in body.equations]
        return "body", inputs, found, [self._tensor(t) for t in body.outputs]

    def _tensor(self, t):
        # One that has not appeared is read by equations whose results this body does not need.
        return self._numbers.setdefault(id(t), len(self._numbers)), self.value(tuple(t.shape)), t.dtype

    def _equation(self, equation):
        inputs, params = [self._tensor(t) for t in equation.inputs], self.value(equation.params)
        for t in equation.outputs:
            self._numbers[id(t)] = len(self._numbers)
        outputs = [self._tensor(t) for t in equation.outputs]
        return self._primitive(equation), inputs, params, outputs, self._origin(equation), self._tag(equation)
