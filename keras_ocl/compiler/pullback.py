"""Compiled functions under a tape: one trace, cut into the function and its pullback (VJP).

The pullback maps cotangents of the results to gradients. The function returns the residuals, intermediate values that the pullback reads,
as further results: Radul et al., "You Only Linearize Once" (POPL 2023), with a trace in the place of partial evaluation.
"""

import enum
import threading
import weakref

from keras_ocl import runtime
from keras_ocl.compiler.jit import Call, Compiled, Jitted
from keras_ocl.core import tree
from keras_ocl.core.autodiff import GradientTape, differentiable, zeros_like
from keras_ocl.core.origin import current_origin
from keras_ocl.core.primitive import Equation, active_tapes, bind, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import NotTraced, Trace, ValueUnknown


class _From(enum.Enum):
    """Where a call finds the value of a tensor of the function's trace."""

    ARGUMENT = "among the arrays that it is given"
    VARIABLE = "what a variable holds before the call"
    RESULT = "among what the function returns besides"


class Pullback:
    """The gradients of traced results with respect to traced sources; its equations are taken out of the trace.

    Args:
        trace: the Trace, to which nothing has been added since the results.
        tape: the GradientTape that watched the sources.
        results: Tensors of the trace, of floating-point dtypes.
        sources: Tensors: arguments of the trace, and the values of variables when it began.

    Attributes:
        variables: the variables whose value before the call is needed.
        sources: (_From, index) of each source that the results depend on; it gives one gradient for each.
        residuals: (_From, index) of each tensor of the trace that it reads.
        made: Tensors that the function returns beside its results, because they are residuals.
    """

    def __init__(self, trace, tape, results, sources):
        equations, arguments = len(trace.equations), len(trace.inputs)
        self._cotangents = [trace.input(t.shape, t.dtype) for t in results]
        found = tape.gradient(results, sources, self._cotangents)
        self._gradients = [g for g in found if g is not None]
        self._equations = trace.equations[equations:]
        del trace.equations[equations:], trace.inputs[arguments:]
        self._residuals = self._read()
        self._compiled, self._lock = None, threading.Lock()
        self.variables, self.made = [], []
        places = {id(t): (_From.ARGUMENT, k) for k, t in enumerate(trace.inputs)}
        entries = {id(slot.entry): slot.variable for slot in trace.states.values()}

        def place(t):
            if id(t) not in places:
                kind, there = (_From.VARIABLE, self.variables) if id(t) in entries else (_From.RESULT, self.made)
                places[id(t)] = kind, len(there)
                there.append(entries.get(id(t), t))
            return places[id(t)]

        self.sources = [place(t) for t, g in zip(sources, found, strict=True) if g is not None]
        self.residuals = [place(t) for t in self._residuals]

    # A pullback follows from the rest of its trace: two traces of one function have equal ones.
    def __eq__(self, other):
        return type(other) is Pullback

    def __hash__(self):
        return 0

    def __repr__(self):
        return "Pullback()"

    def _read(self):
        """The traced Tensors that the gradients need and that are neither results of the equations nor cotangents."""
        needed = {id(t): t for t in self._gradients}
        for equation in reversed(self._equations):
            if any(id(t) in needed for t in equation.outputs):
                for t in equation.outputs:
                    needed.pop(id(t), None)
                needed.update((id(t), t) for t in equation.inputs)
        for t in self._cotangents:
            needed.pop(id(t), None)
        return [t for t in needed.values() if t.storage is None]

    def belongs_to(self, compiled, name, unknowns):
        """Notes the Compiled whose function returns it, with a name and the unknown extents; called once."""
        self._function, self._device = weakref.ref(compiled), compiled.device
        self._name, self._unknowns = f"{name} gradient", unknowns

    def run(self, residuals, cotangents, values):
        """The gradients, a list of Tensors, for these values of the unknown extents."""
        with self._lock:
            if self._compiled is None:
                trace = Trace()
                trace.inputs, trace.equations = [*self._residuals, *self._cotangents], self._equations
                self._compiled = Compiled(trace, self._gradients, self._device, self._name, unknowns=self._unknowns)
                function = self._function()
                if function is not None:  # a cache may have dropped it since the call
                    function.held_bytes += self._compiled.held_bytes
        specs, _ = self._compiled.results_at(values)
        storages = self._compiled.launch([*residuals, *cotangents], values)
        return [Tensor(shape, dtype, storage) for (shape, dtype), storage in zip(specs, storages, strict=False)]

    def replay(self, residuals, cotangents):
        """The gradients, computed operation by operation so that tapes record them; without unknown extents."""
        known = {id(t): x for t, x in zip([*self._residuals, *self._cotangents], [*residuals, *cotangents], strict=True)}
        for equation in self._equations:
            results = bind(equation.primitive, [known.get(id(t), t) for t in equation.inputs], equation.params)
            results = results if equation.primitive.multiple_results else (results,)
            known.update((id(t), x) for t, x in zip(equation.outputs, results, strict=True))
        return [known.get(id(t), t) for t in self._gradients]


class _Cut(Jitted):
    """A compiled function that returns a Pullback as the last of its results."""

    def _compile(self, trace, result, call, unknowns):
        if any(slot.variable._owned.layout is not None for slot in trace.states.values()):
            raise NotTraced from ValueUnknown(f"{self.name} has variables that are cut over devices")
        compiled = super()._compile(trace, result, call, unknowns)
        result[-1].belongs_to(compiled, self.name, unknowns)
        return compiled

    def pullback(self, args):
        """The Pullback of a new trace for these arguments, without unknown extents."""
        call = Call(self, *tree.flatten((args, {})), runtime.current_device())
        _, result = call.trace([n for shape in call.shapes for n in shape])
        return result[-1]


class Differentiable:
    """A function that runs compiled under a tape, which records each call as one equation.

    Args:
        function: takes and returns nests of Tensors and Python values; it may read and assign Keras variables.
        variables: all Keras variables that it may read or assign.
        name: the function's name in errors and profiles.
        context: callable that returns a hashable value of whatever else a trace depends on.
    """

    def __init__(self, function, variables, name, context):
        self._function, self._variables = function, variables
        self._jitted = _Cut(self._traced, name=name, context=context)

    @property
    def traces(self):
        """The Compileds in its cache, without those of pullbacks."""
        return self._jitted.traces

    def run(self, tape, args, kwargs):
        """The function's result; raises NotTraced where it cannot be traced, or assigns a variable that the tape differentiates by."""
        arguments = _tensors((args, kwargs))
        given = tuple(map(tape.follows, arguments)), tuple(map(tape.wants, self._variables)), args, kwargs
        bound, arrays = self._jitted.find(given, {})
        pullback = bound.leaves[-1]
        lent = [variable._tape_value() for variable in pullback.variables]
        result, made, _ = bound.compiled.run(arrays, bound)
        there = {_From.ARGUMENT: arguments, _From.VARIABLE: lent, _From.RESULT: made}
        for kind, k in pullback.sources:
            if kind is _From.VARIABLE:
                tape.read(pullback.variables[k], lent[k])
        rule = _Rule(self._jitted, given, pullback, [there[kind][k] for kind, k in pullback.residuals], bound.values)
        outputs = tuple(t for t in _tensors(result) if differentiable(t.dtype))
        tape.record(Equation(rule, tuple(there[kind][k] for kind, k in pullback.sources), {}, outputs, current_origin.get()))
        return result

    def _traced(self, by_arguments, by_variables, args, kwargs):
        trace = current_trace.get()
        sources = [t for t, by in zip(_tensors((args, kwargs)), by_arguments, strict=True) if by]
        variables = [v for v, by in zip(self._variables, by_variables, strict=True) if by]
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([sources, variables])
            result = self._function(*args, **kwargs)
        slots = [trace.states[id(v)] for v in variables]
        if any(slot.value is not slot.entry for slot in slots):
            raise NotTraced from ValueUnknown(f"{self._jitted.name} assigns a variable that it is differentiated by")
        results = [t for t in _tensors(result) if differentiable(t.dtype)]
        pullback = Pullback(trace, tape, results, sources + [slot.entry for slot in slots])
        return result, pullback.made, pullback


class _Rule:
    """Takes the place of the Primitive in the equation of a call; its VJP runs the Pullback."""

    multiple_results = True

    def __init__(self, jitted, given, pullback, residuals, values):
        self.name, self._jitted, self._given = f"call({jitted.name})", jitted, given
        self._pullback, self._residuals, self._values = pullback, residuals, values

    def __repr__(self):
        return self.name

    def vjp(self, cotangents, outputs, *_):
        cotangents = [zeros_like(y) if c is None else c for y, c in zip(outputs, cotangents, strict=True)]
        if active_tapes.get():
            return self._jitted.pullback(self._given).replay(self._residuals, cotangents)
        return self._pullback.run(self._residuals, cotangents, self._values)


def _tensors(nest):
    return [leaf for leaf in tree.flatten(nest)[0] if type(leaf) is Tensor]
