"""Updates of states by gradients that are row-sparse (primitives/row_sparse.py), as those of embeddings: only the rows in use are computed.

A node that is elementwise in such a gradient g, f(state, g), is f(state, 0) but for the rows of g, where it is computed from the rows of
its operands. So it is known by its values at the rows and by its rest, f(state, 0), which simplification gives. Two kinds are of use:

- The new value of a state: the values are put into the rest. With SGD, Adagrad or a select that keeps the state, the rest is the state
  itself, and an update takes as long for any number of rows. With decaying slots, as Adam's, weight decay or the accumulation of gradients
  it is a dense update of its own, which neither writes a dense gradient nor reads it.
- A sum whose operand's rest is 0, such as the norm of a gradient: it is the sum of the values.

If any other operation needs a node that depends on g, or the rows of an operand cannot be had alone, such as those of a product in which
the table is used too, g is computed as a dense tensor; so it is where it updates no state. Products with 0 count as 0 even where the
other number may not be finite: a learning rate of NaN spoils the rows in use, not the table.
"""

from typing import NamedTuple

from keras_ocl.core.access import Along
from keras_ocl.core.dim import Dim, same, size_hint
from keras_ocl.core.index import is_one
from keras_ocl.core.primitive import Kind
from keras_ocl.primitives import algebra
from keras_ocl.primitives.movement import broadcast_p
from keras_ocl.primitives.row_sparse import gathered, put_rows, united

# Least ratios of a tensor's elements to those of its values, where the rest is the state itself and where it is a dense update.
_KEPT_RATIO = 8
_DENSE_RATIO = 16
_NEUTRAL = {"sum": 0, "and": True}  # by how a reduction combines


class _Rows(NamedTuple):
    """A tensor that is `rest`, a node, but for `rows`, where it is `values`."""

    rows: object
    values: object
    rest: object


def rewrite(graph, updates, least):
    """Let the graph compute the new values of states from the rows in use of row-sparse gradients, where that is possible.

    Args:
        updates: pairs (Tensor of a state's old value, position of its new value in graph.outputs).
        least: the least elements of a gradient for which it pays.
    """
    gradients = _gradients(graph, least)
    if not gradients:
        return
    states = {id(tensor): position for tensor, position in updates if graph.outputs.count(graph.outputs[position]) == 1}
    replaced = {graph.outputs[states[id(n.tensor)]]: n for n in graph.live() if n.primitive is None and id(n.tensor) in states}
    while gradients:
        attempt = _Attempt(graph, gradients, replaced)
        of_states = {g for o in graph.outputs if o in attempt.put for g in attempt.uses[o]}
        dense = {g for o in graph.outputs if attempt.dense.get(o, o) is None for g in attempt.uses[o]} | (gradients.keys() - of_states)
        if not dense:
            graph.outputs = [attempt.dense.get(o, o) for o in graph.outputs]
            return
        gradients = {g: rows for g, rows in gradients.items() if g not in dense}


def _gradients(graph, least):
    """Dict from each row-sparse node of the graph for which it pays to its _Rows."""
    found = {}
    for n in graph.live():
        if n.kind is not Kind.PROJECTION or size_hint(n.shape) < least:
            continue
        source = n.inputs[0]
        pair = source.primitive.row_sparse and source.primitive.row_sparse(graph, source.inputs, source.params, source.origin)
        rows = pair and _Rows(*pair, algebra.full(graph, 0, n.shape, n.dtype, n.origin))
        if rows and _ratio(n, rows) >= _KEPT_RATIO:
            found[n] = rows
    return found


def _ratio(node, rows):
    return size_hint(node.shape) / max(1, size_hint(rows.values.shape) + size_hint(rows.rows.shape))


class _Attempt:
    """The nodes that depend on row-sparse gradients, computed from their rows.

    Attributes:
        uses: dict from each such node to the set of gradients on which it depends.
        rows: dict from those that are elementwise in gradients to their _Rows.
        dense: dict from each such node to the node that has its value, None where only a dense gradient gives it.
        put: the set of those whose values are put into their rest.
    """

    def __init__(self, graph, gradients, replaced):
        self.graph, self.uses, self.rows, self.dense = graph, {g: {g} for g in gradients}, dict(gradients), dict.fromkeys(gradients)
        self.put, self._readers = set(), graph.readers()
        self._partial = {}  # node that reduces parts of a tensor -> the reduction's operand, at the rows
        for n in sorted(self._readers, key=lambda n: n.order):
            used = [self.uses[i] for i in n.inputs if i in self.uses]
            if n in gradients or not used:
                continue
            self.uses[n] = set().union(*used)
            self.dense[n] = self._reduced(n)
            if n.kind is Kind.ELEMENTWISE and (rows := self._elementwise(n)) is not None:
                self.rows[n] = rows
                if n in replaced and (rows.rest is replaced[n] or _ratio(n, rows) >= _DENSE_RATIO):
                    self.dense[n] = put_rows(graph, rows.rest, rows.rows, rows.values, n.origin)
                    self.put.add(n)
            if self.dense[n] is None:
                self.dense[n] = self._again(n)

    def _again(self, n):
        """The node with dense operands; None where one is missing."""
        inputs = [self.dense.get(i, i) for i in n.inputs]
        if None in inputs:
            return None
        if n.kind is Kind.PROJECTION:
            return self.graph.project(inputs[0], n.params["index"])
        return self.graph.add(n.primitive, inputs, n.params, n.origin)

    def _elementwise(self, n):
        known = {i: self.rows[i] for i in n.inputs if i in self.rows}
        if not known or any(not same(i.shape, n.shape) for i in known):
            return None
        if len({rows.rows for rows in known.values()}) > 1:
            if any(_number(rows.rest) != 0 for rows in known.values()):
                return None
            pairs = united(self.graph, [(r.rows, r.values) for r in known.values()], n.shape[0], n.origin)
            known = {i: _Rows(*pair, r.rest) for (i, r), pair in zip(known.items(), pairs, strict=True)}
        rows = next(iter(known.values())).rows
        values = [known[i].values if i in known else self._at(self.dense.get(i, i), rows) for i in n.inputs]
        if None in values:
            return None
        rest = self._rest(n, [known[i].rest if i in known else self.dense.get(i, i) for i in n.inputs])
        return _Rows(rows, self.graph.simplest(n.primitive, values, n.params, n.origin), rest)

    def _at(self, x, rows):
        """The rows of a node that depends on no gradient; None where they are no cheaper than all of it."""
        if x is None or x.kind is Kind.INPUT:
            return x and gathered(self.graph, x, rows, x.origin)
        if x.kind is Kind.ELEMENTWISE:
            inputs = [self._at(i, rows) for i in x.inputs]
            return None if None in inputs else self.graph.simplest(x.primitive, inputs, x.params, x.origin)
        if x.primitive is not broadcast_p:
            return None
        (part,), along = x.inputs, x.primitive.access(x, 0)
        if any(type(entry) is Along and entry.axis == 0 and not is_one(n) for entry, n in zip(along, part.shape, strict=True)):
            return None
        return self.graph.add(broadcast_p, (part,), {**x.params, "shape": (*rows.shape, *x.shape[1:])}, x.origin)

    def _rest(self, n, inputs):
        zeros = [_number(i) == 0 for i in inputs]
        others = [zero for position, zero in enumerate(zeros) if position not in n.primitive.vanishes]
        if any(zeros[position] for position in n.primitive.vanishes) and not any(others):
            return algebra.full(self.graph, 0, n.shape, n.dtype, n.origin)
        return self.graph.simplest(n.primitive, inputs, n.params, n.origin)

    def _reduced(self, n):
        """The node of a reduction over the rows, and the rest's elements change nothing; else None."""
        if n.kind is not Kind.REDUCTION:
            return None
        x = n.inputs[0]
        if x in self._partial:  # the reduction was split for the dense tensor's size
            primitive, values, axes, origin = self._partial[x]
            return self.graph.lowered(primitive, (values,), {"axes": axes}, origin) if primitive is n.primitive else None
        if x not in self.rows or 0 not in n.params["axes"]:
            return None
        rows = self.rows[x]
        whole = n.primitive if n.primitive.combines else self._whole(n)
        if whole is None or _number(rows.rest) is None or _number(rows.rest) != _NEUTRAL.get(whole.combines):
            return None
        if whole is not n.primitive:
            self._partial[n] = whole, rows.values, n.params["axes"], n.origin
            return None
        return self.graph.lowered(n.primitive, (rows.values,), n.params, n.origin)

    def _whole(self, n):
        """The primitive by which a reduction's parts are reduced again."""
        found = {u.primitive for u in self._readers[n] if u.primitive.partial is n.primitive}
        return found.pop() if len(found) == 1 else None


def _number(node):
    """The Python number that all elements of a node are, None where there is none."""
    value = algebra.constant_value(node)
    return None if isinstance(value, Dim) else value
