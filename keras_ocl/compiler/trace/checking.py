"""Checks for NaN and infinity in a trace: flags for the tensors that leave each operation of Keras, and the errors raised for them.

Flags are ordinary results of the compiled function: a small integer for each float tensor that another operation reads or that is a result
(0: all finite, 1: an infinity, 2: a NaN). Values within one operation are not checked: it may divide by zero and then select.
An infinity that the program wrote itself, such as a mask's, is no error, nor is one computed from it; a NaN always is one.
"""

from keras_ocl import primitives as P
from keras_ocl.compiler.convert import to_numpy
from keras_ocl.compiler.trace.equations import expanded, merged, pruned
from keras_ocl.core import dtypes, tree
from keras_ocl.core.checks import index_error
from keras_ocl.core.origin import NOWHERE, scope
from keras_ocl.core.primitive import Kind, active_tapes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import tracing

INFINITE, NAN = 1, 2
_WRITTEN = -1  # the source of an infinity that the program wrote itself
_TOGETHER = 16  # flags that one kernel concatenates: their pointers are its arguments


def flag(x):
    """The flag 0, INFINITE or NAN, an int32 tensor of shape (), for a float tensor with elements."""
    bad = P.select(P.is_nan(x), _numbers(x.shape, NAN), _numbers(x.shape, INFINITE))
    code = P.select(P.is_finite(x), _numbers(x.shape, 0), bad)
    return P.reduce_max(code, tuple(range(x.ndim))) if x.ndim else code


def _numbers(shape, value):
    return P.full(tuple(shape), value, "int32")


def looked_at(x):
    """Whether a tensor is checked: it has elements that can be NaN or infinite."""
    return dtypes.is_float(x.dtype) and all(n != 0 for n in x.shape)


class Sites:
    """The tensors that a compiled function checks.

    found: ([`found` of each IndexCheck], [vectors of flags]), further results of the function.
    """

    def __init__(self, name, checks):
        self.name, self._checks = name, tuple((c.op, c.layer, c.wraps) for c in checks)
        self._whats, self._sources, self._flags = [], [], []  # of each flag: its `what`, its `sources`, its tensor
        self.found = ([c.found for c in checks], [])

    def add(self, tensor, what, sources):
        """Adds a check of a tensor and returns the flag's number.

        what: (subject of the error's sentence, whether the tensor is an input). sources: numbers of the flags of the tensors that it was
        computed from, or _WRITTEN.
        """
        self._flags.append(P.reshape(flag(tensor), (1,)))
        self._whats.append(what)
        self._sources.append(sources)
        return len(self._whats) - 1

    def close(self):
        """Concatenates the flags; called after the last tensor."""
        parts = [self._flags[k : k + _TOGETHER] for k in range(0, len(self._flags), _TOGETHER)]
        self.found[1].extend(P.concat(part, 0) for part in parts)
        self._flags = None

    def judge(self, found):
        """Raise the first error that the values `found` of a run show, IndexError or FloatingPointError. Waits for the device."""
        indices, flags = found
        for (op, layer, wraps), tensor in zip(self._checks, indices, strict=True):
            judge_indices(op, layer, wraps, tensor)
        allowed = {_WRITTEN}
        for k, value in enumerate(v for tensor in flags for v in to_numpy(tensor).tolist()):
            what, given = self._whats[k]
            if value == NAN:
                raise FloatingPointError(f"{self.name}: {what} {'holds' if given else 'gave'} a NaN.")
            if value == INFINITE and not given and not allowed & self._sources[k]:
                raise FloatingPointError(f"{self.name}: {what} gave an infinity; what it was given is finite.")
            if value == INFINITE:
                allowed.add(k)


def judge_indices(op, layer, wraps, found):
    """Raise the IndexError that an IndexCheck's tensor `found` tells of, if any. Waits for the device."""
    for numbers in to_numpy(found).reshape(-1, found.shape[-1]).tolist():  # one row for each step of loops
        error = index_error(op, layer, wraps, numbers)
        if error is not None:
            raise error


def instrumented(trace, result, name):
    """The Sites of a finished trace that returns `result` (a nest); records the equations of the flags into the trace."""
    outputs = [t for t in tree.flatten(result)[0] if type(t) is Tensor] + [s.value for s in trace.assigned()]
    trace.equations = expanded(trace.equations)
    equations = pruned(merged(trace.equations), outputs)
    sites, token = Sites(name, trace.checks), active_tapes.set(())
    try:
        with tracing(trace), scope(NOWHERE):
            _look(trace, equations, outputs, sites)
            sites.close()
    finally:
        active_tapes.reset(token)
    return sites


def _look(trace, equations, outputs, sites):
    results = {id(t) for t in outputs}
    readers = {}  # id of a tensor -> (layer, operation) of those that read it
    for eq in equations:
        for t in eq.inputs:
            readers.setdefault(id(t), set()).add(_place(eq))
    sources = {}  # id of a tensor -> numbers of the flags of what it was computed from
    for t, what in _given(trace):
        if id(t) in readers and looked_at(t):
            sources[id(t)] = frozenset([sites.add(t, (what, True), frozenset())])
    for eq in equations:
        came = frozenset().union(*(sources.get(id(t), ()) for t in eq.inputs))
        if eq.primitive.literal is not None and _is_odd(eq.primitive.literal(**eq.params)):
            came = frozenset([_WRITTEN])
        for o in eq.outputs:
            leaves = id(o) in results or not eq.origin.operation or readers.get(id(o), set()) - {_place(eq)}
            sources[id(o)] = came
            if leaves and eq.primitive.kind not in (Kind.VIEW, Kind.SOURCE) and looked_at(o):
                sources[id(o)] = frozenset([sites.add(o, (_subject(eq), False), came)])


def _place(eq):
    return eq.origin.layer, eq.origin.operation


def _given(trace):
    for k, t in enumerate(trace.inputs):
        yield t, f"array {k + 1} of the arguments"
    for slot in trace.states.values():
        yield slot.entry, f"the variable {slot.variable.path}"


def _is_odd(number):
    return isinstance(number, float) and number - number != 0


def _subject(eq):
    operation = eq.origin.named(eq.primitive.name).operation
    gradient = "the gradient of " if eq.origin.gradient else ""
    return f"{gradient}{operation}{f' in {eq.origin.layer}' if eq.origin.layer else ''}"
