"""Identity: whether two traces are the same function, by their equations without the values of unknown extents."""

import hashlib

import numpy as np

from keras_ocl.compiler.convert import to_numpy
from keras_ocl.compiler.trace.ir import hashable
from keras_ocl.core.body import Body
from keras_ocl.core.dim import key
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.tree import flatten


class Identity:
    """A digest of what a trace computes.

    The Identities of one function for two sets of extents are equal if it uses extents as Dims alone. Where it reads a value unnoticed
    (`range(n)`, `np.arange(n)`, `int(n)` in C code), its equations or its constants differ.

    Args:
        trace: a Trace.
        result: the nest that the traced function returned.
    """

    def __init__(self, trace, result):
        self._numbers, self.constants = {}, []
        for tensor in trace.inputs:
            self._number(tensor)
        for identity, slot in trace.states.items():
            self._numbers[id(slot.entry)] = ("state", identity)
        text = hashlib.sha256()
        for equation in trace.equations:
            text.update(repr(self._equation(equation)).encode())
        leaves, structure = flatten(result)
        assigned = [(id(slot.variable), self._name(slot.value)) for slot in trace.assigned()]
        text.update(repr((structure, [self._leaf(leaf) for leaf in leaves], assigned)).encode())
        self.digest = text.digest()

    def __eq__(self, other):
        return self.digest == other.digest and all(map(_equal, self.constants, other.constants))

    __hash__ = None

    def _number(self, tensor):
        self._numbers[id(tensor)] = len(self._numbers)

    def _name(self, tensor):
        found = self._numbers.get(id(tensor))
        if found is None:
            found = self._numbers[id(tensor)] = ("constant", len(self.constants), tuple(map(key, tensor.shape)), tensor.dtype)
            self.constants.append(tensor)
        return found

    def _leaf(self, leaf):
        return self._name(leaf) if type(leaf) is Tensor else hashable(leaf)

    def _equation(self, equation):
        inputs = [self._name(t) for t in equation.inputs]
        params = [(k, self._body(v) if isinstance(v, Body) else hashable(v)) for k, v in sorted(equation.params.items())]
        for t in equation.outputs:
            self._number(t)
        results = [(tuple(map(key, t.shape)), t.dtype) for t in equation.outputs]
        return equation.primitive.name, inputs, params, results, equation.tag != 0

    def _body(self, body):
        for t in body.inputs:
            self._numbers.setdefault(id(t), len(self._numbers))
        return [self._equation(e) for e in body.equations], [self._name(t) for t in body.outputs]


def _equal(a, b):
    return a.storage is b.storage or (
        a.storage is not None and b.storage is not None and np.array_equal(to_numpy(a), to_numpy(b), equal_nan=a.dtype.startswith("float"))
    )
