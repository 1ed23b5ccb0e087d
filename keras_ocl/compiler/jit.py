"""jit: trace a Python function once for each signature, compile it, replay it."""

import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import ParamSpec, TypeVar, overload

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler import checking, ir
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.eager import Extents, check_supported, compiled_once, on_device
from keras_ocl.compiler.executable import Executable
from keras_ocl.core import checks, dtypes, tree
from keras_ocl.core.dim import Dim
from keras_ocl.core.origin import NOWHERE, scope
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.core.variable import Owned, is_variable
from keras_ocl.kernels.schedule import schedule_of

_FAR = 8  # times the hint: for a batch beyond that, kernels made for the hint are so slow that new ones pay


class Jitted:
    """A function that is traced once per signature and then replayed as kernel launches.

    Args:
        function: takes and returns nests of tensors, arrays and Python values; may read and assign Keras variables.
        batch_axis: True makes the first axis of every array argument a Dim, so that another batch size
            builds no kernels, unless it is more than eight times as large as any before.
        name: for errors and profiles.
        context: callable that returns a hashable of whatever else a trace depends on.

    The signature is the nest's structure, the shapes and dtypes of arrays, and the values of everything else.
    Python side effects happen once per signature.
    """

    def __init__(self, function, batch_axis=False, name=None, context=None):
        self.function, self.batch_axis = function, batch_axis
        self.context = context or (lambda: None)
        self.name = name or getattr(function, "__name__", "function")
        self.__doc__ = getattr(function, "__doc__", None)
        self._compiled = Cache()
        self._hints = {}
        self._lock = threading.RLock()

    def __call__(self, *args, **kwargs):
        if current_trace.get() is not None or active_tapes.get():
            return self.function(*args, **kwargs)  # part of a larger trace, or to be differentiated by a tape outside
        compiled, arrays = self._find(args, kwargs)
        return compiled.run(arrays)

    def compiled(self, *args, **kwargs):
        """What these arguments would run: the Compiled of their signature, traced if it is new. Nothing runs."""
        return self._find(args, kwargs)[0]

    def _find(self, args, kwargs):
        """(the Compiled of the arguments' signature, the arrays among them)."""
        leaves, structure = tree.flatten((args, kwargs))
        arrays, key = [], [structure, self.context(), checks.active()]
        for leaf in leaves:
            if type(leaf) is Tensor or isinstance(leaf, (np.ndarray, np.generic)):
                arrays.append(leaf)
                key.append((leaf.shape, leaf.dtype))
            elif is_variable(leaf):  # a Keras variable: read and assigned by the function itself
                key.append(id(leaf))
            else:
                key.append((type(leaf), _exact(leaf) if isinstance(leaf, (float, complex)) else leaf))
        device = runtime.current_device()
        key.append(device)
        key = tuple(key)
        try:
            compiled = self._compiled.get(key)
        except (TypeError, ValueError):
            odd = self._unhashable(args, kwargs)
            if odd is None:
                raise
            raise TypeError(f"{self.name}: the argument {odd}, which Python cannot hash; pass an array or a tuple instead.") from None
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = self._compiled.add(key, self._trace(leaves, structure, device))
        compiled.used = Cache.now
        return compiled, arrays

    def _unhashable(self, args, kwargs):
        """The first argument that cannot be part of a signature, and what is odd about it; None where all can."""
        for name, value in inspect.signature(self.function).bind(*args, **kwargs).arguments.items():
            for leaf in tree.flatten(value)[0]:
                if isinstance(leaf, np.ndarray) or is_variable(leaf):
                    continue
                try:
                    hash(leaf)
                except (TypeError, ValueError):
                    return f"`{name}` {'is of' if leaf is value else 'holds a value of'} type {type(leaf).__name__}"
        return None

    def __get__(self, instance, owner=None):
        """For a method: the function with the instance as its first argument, which counts among the values of the signature."""
        return self if instance is None else types.MethodType(self, instance)

    def _trace(self, leaves, structure, device):
        trace = Trace()
        batch = {}
        symbolic = []
        for position, leaf in enumerate(leaves):
            if type(leaf) is Tensor or isinstance(leaf, (np.ndarray, np.generic)):
                shape = tuple(leaf.shape)
                if self.batch_axis and shape:
                    shape = (self._dim(shape[0], position, batch), *shape[1:])
                symbolic.append(trace.input(shape, leaf.dtype if type(leaf) is Tensor else dtypes.canonical(leaf.dtype)))
            else:
                symbolic.append(leaf)
        args, kwargs = tree.unflatten(structure, symbolic)
        with tracing(trace):
            result = self.function(*args, **kwargs)
        kind = Checked if checks.active() else Compiled
        return kind(trace, result, device, self.name, variables=[leaf for leaf in leaves if is_variable(leaf)])

    def _dim(self, n, position, batch):
        """Equal first extents are one unknown; its hint stays what it was at the first trace, until one comes that is far larger."""
        if n not in batch:
            if n > _FAR * self._hints.get(position, -1):
                self._hints[position] = n
            batch[n] = Dim(n, self._hints[position], 1500450271 + 2 * len(batch))
        return batch[n]


def _exact(number):
    """A float or complex number so that two are equal where nothing tells them apart: 0.0 is not -0.0, and NaN is NaN."""
    return number.hex() if isinstance(number, float) else (number.real.hex(), number.imag.hex())


class Compiled:
    """One trace, compiled: runs on arrays for the trace's inputs and on the variables' current values."""

    def __init__(self, trace, result, device, name, all_arguments=False, variables=()):
        self.device = device
        leaves, self._structure = tree.flatten(result)
        self._leaves = list(leaves)
        self._places = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
        outputs = [leaves[k] for k in self._places]
        slots = trace.assigned()
        graph = ir.build(trace.equations, outputs + [s.value for s in slots], schedule_of(device.traits).splitting)
        entries = {id(s.entry): s for s in trace.states.values()}
        position = {id(t): k for k, t in enumerate(trace.inputs)}
        self._arguments = []  # positions among the trace's inputs, in the order of the executable's
        self._states = []
        self._constants = []
        inputs, node_of = [[], [], []], {}
        for node in graph.live():
            if node.primitive is not None:
                results = [(node.shape, node.dtype)] if node.results is None else node.results
                layer = node.origin.layer
                check_supported(f"{layer}: {node.primitive}" if layer else node.primitive, device, [d for _, d in results])
                continue
            t = node.tensor
            if id(t) in position:
                inputs[0].append(node)
                self._arguments.append(position[id(t)])
            elif id(t) in entries:
                inputs[1].append(node)
                node_of[id(t)] = node
                self._states.append(entries[id(t)].variable)
            elif t.storage is not None:
                inputs[2].append(node)
                self._constants.append(t)
            else:
                raise RuntimeError(
                    f"{name}: a tensor of another trace (shape {tuple(t.shape)}) is used in this one; pass it as an argument."
                )
        updates = [(node_of[id(s.entry)], len(outputs) + k) for k, s in enumerate(slots) if id(s.entry) in node_of]
        self.executable = Executable(device, graph, [*inputs[0], *inputs[1], *inputs[2]], updates, all_arguments, name, inputs[1])
        in_place = self.executable.overwritten
        self._guarded = [k for k, node in enumerate(inputs[1]) if node in in_place]
        self._assigned = [
            (s.variable, len(outputs) + k)
            for k, s in enumerate(slots)
            if node_of.get(id(s.entry)) not in in_place or id(s.entry) not in node_of
        ]
        self.held_bytes = self.executable.held_bytes + sum(t.storage.nbytes for t in self._constants)
        self._specs = [(tuple(int(n) for n in t.shape), t.dtype) for t in outputs]
        self._keep = trace.states, variables  # no other object gets the ids of these variables

    def run(self, arrays):
        """Results for the trace's inputs `arrays` (NumPy arrays or Tensors)."""
        device = self.device
        storages = []
        for k in self._arguments:
            a = arrays[k]
            storages.append(on_device(a, device) if type(a) is Tensor else device.upload(a))
        constants = [on_device(t, device) for t in self._constants]
        if self._states or self._assigned:
            results = self._run_on_states(storages, constants)
        else:
            results = self.executable.run(storages + constants)
        leaves = list(self._leaves)
        for place, storage, (shape, dtype) in zip(self._places, results, self._specs, strict=False):
            leaves[place] = Tensor(shape, dtype, storage)
        return tree.unflatten(self._structure, leaves)

    def _run_on_states(self, storages, constants):
        """The executable's results for the variables' values, which it updates; no other thread reads or changes them meanwhile."""
        device, states = self.device, self._states
        with device.state_lock:
            for k in self._guarded:
                owned = states[k]._owned
                if owned.is_held() or owned.storage.device is not device:
                    own_copy(states[k], device)
            storages += [on_device(variable._owned, device) for variable in states]
            results = self.executable.run(storages + constants)
            for variable, k in self._assigned:
                variable._owned = Owned(tuple(variable.shape), variable.dtype, results[k])
        return results


class Checked(Compiled):
    """A trace compiled with checks (core/checks.py) in it: `run` raises what they find, once the run is complete."""

    def __init__(self, trace, result, device, name, variables=()):
        self._sites = checking.instrumented(trace, result, name)
        super().__init__(trace, (result, self._sites.found), device, name, variables=variables)

    def run(self, arrays):
        result, found = super().run(arrays)
        self._sites.judge(found)
        return result


def own_copy(variable, device):
    """Give a variable memory of its own on `device`, because others hold its present value or it lies elsewhere."""
    old = variable._owned
    storage = device.allocate_state(old.storage.nbytes, variable.path)
    device.copy(on_device(old, device), storage)
    variable._owned = Owned(old.shape, old.dtype, storage)


def fused(function):
    """Decorator for a composite of primitives: eager calls run it as one compiled graph instead of operation by operation.

    The function takes tensors, and keywords of which `shape` is a tuple of extents; as in all eager code, extents
    become arguments of the kernels, so other sizes reuse them. Inside a trace or under a tape it is just called.
    """

    def compiled(device, tensors, static):
        extents, trace = Extents(), Trace()
        symbolic = [trace.input(tuple(extents(n) for n in t.shape), t.dtype) for t in tensors]
        if "shape" in static:
            static = {**static, "shape": tuple(extents(n) for n in static["shape"])}
        with tracing(trace), scope(NOWHERE):  # it is kept for every caller
            result = function(*symbolic, **static)
        return Compiled(trace, result, device, function.__name__.strip("_"), all_arguments=True)

    @functools.wraps(function)
    def run(*tensors, **static):
        if current_trace.get() is not None or active_tapes.get():
            return function(*tensors, **static)
        device = tensors[0].storage.device
        identity = (device, function, *((t.shape, t.dtype) for t in tensors), *sorted(static.items()))
        return compiled_once(identity, lambda: compiled(device, tensors, static)).run(tensors)

    return run


P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(function: Callable[P, R], *, batch_axis: bool = False, name: str | None = None) -> Callable[P, R]: ...


@overload
def jit(function: None = None, *, batch_axis: bool = False, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def jit(
    function: Callable[P, R] | None = None, *, batch_axis: bool = False, name: str | None = None
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Compiles a function: it is traced once per signature and from then on replayed as kernel launches.

        @keras_ocl.jit
        def step(x, y): ...

    Args:
        function: takes and returns lists, tuples and dicts of Tensors, arrays and Python values, of any shapes and dtypes; it may read and
            assign Keras variables, and make them from initializers, as layers do. Methods can be compiled too.
        batch_axis: True makes the first extent of every array an unknown, so that another batch size builds no kernels.
        name: what errors and profiles call the function; by default its own name.

    Returns:
        A function of the same arguments; without `function` a decorator that makes one. Its results are Tensors where the function computed
        them. A signature is the structure of the arguments, the shapes and dtypes of arrays, and the values of everything else: each new
        Python number is traced anew, so pass what changes as an array. Python side effects happen once per signature. Under a GradientTape
        or in another compiled function it is simply called.

    Raises:
        TypeError: `function` cannot be called; or, from the returned function, an argument that is no array is not hashable, or the
            device lacks a dtype.
        RuntimeError: (from the returned function) Python code asks for a value that is computed only later.
    """
    if function is None:
        return functools.partial(jit, batch_axis=batch_axis, name=name)
    if not callable(function):
        raise TypeError(f"keras_ocl.jit compiles functions, not {type(function).__name__}.")
    return Jitted(function, batch_axis, name)
