"""jit: trace a Python function once for each signature, compile it, replay it."""

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable
from itertools import repeat
from typing import ParamSpec, TypeVar, overload

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.eager import Extents, check_supported, compiled_once, on_device
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.compiler.trace import checking, ir, row_sparse
from keras_ocl.compiler.trace.family import Family, Member
from keras_ocl.compiler.trace.identity import Identity
from keras_ocl.core import autodiff, checks, dtypes, precision, tree
from keras_ocl.core.dim import Dim, noting, present
from keras_ocl.core.facts import Facts, formulas
from keras_ocl.core.origin import NOWHERE, scope
from keras_ocl.core.primitive import active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.core.variable import is_variable
from keras_ocl.kernels.schedule import schedule_of


class Jitted:
    """A function that is traced once per family of signatures (compiler/trace/family.py) and then replayed as kernel launches.

    Args:
        function: takes and returns nests of tensors, arrays and Python values; may read and assign Keras variables.
        dynamic: which axes of array arguments are unknown extents (Dims), so that other extents need no new trace and no new kernels.
            None: those on which a second extent was seen; a tuple of axis numbers: these, and the former; True: all; False: none.
        name: the function's name in errors and profiles.
        context: callable that returns a hashable value of whatever else a trace depends on.

    The signature is the nest's structure, the shapes and dtypes of arrays, and the values of everything else.
    Python side effects happen with each trace.
    """

    def __init__(self, function, dynamic=None, name=None, context=None):
        self.function, self.dynamic = function, dynamic
        self.context = context or (lambda: None)
        self.name = name or getattr(function, "__name__", "function")
        self.__doc__ = getattr(function, "__doc__", None)
        self._compiled = Cache()
        self._families = weakref.WeakValueDictionary()  # key -> Family, kept alive by its Compileds
        self._hints = {}
        self._lock = threading.RLock()

    def __call__(self, *args, **kwargs):
        if current_trace.get() is not None or active_tapes.get():
            return self.function(*args, **kwargs)  # part of a larger trace, or to be differentiated by a tape outside
        return self.run(args, kwargs)

    def run(self, args, kwargs):
        """The compiled function's result for these arguments; tapes do not record the call."""
        bound, arrays = self.find(args, kwargs)
        return bound.compiled.run(arrays, bound)

    def compiled(self, *args, **kwargs):
        """The Compiled that these arguments would run, traced if their signature is new, set to their extents. Nothing runs."""
        bound, _ = self.find(args, kwargs)
        bound.compiled.executable.at(bound.values)
        return bound.compiled

    @property
    def traces(self):
        """The Compileds in its cache."""
        return list({id(bound.compiled): bound.compiled for bound in self._compiled.values()}.values())

    def find(self, args, kwargs):
        """(the Bound of the arguments' signature, traced if it is new; the arrays among them). Nothing runs."""
        leaves, structure = tree.flatten((args, kwargs))
        arrays, key = [], [structure, self.context(), checks.active(), precision.active()]
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
            bound = self._compiled.get(key)
        except (TypeError, ValueError):
            odd = self._unhashable(args, kwargs)
            if odd is None:
                raise
            raise TypeError(f"{self.name}: the argument {odd}, which Python cannot hash; pass an array or a tuple instead.") from None
        if bound is None:
            with self._lock:
                bound = self._compiled.get(key)
                if bound is None:
                    bound = self._compiled.add(key, self._bind(Call(self, leaves, structure, device), key))
        bound.used = Cache.now
        return bound, arrays

    def _unhashable(self, args, kwargs):
        """Text that names the first argument that cannot be hashed, and its type; None where all can."""
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
        """For a method: the function bound to the instance, which is a value of the signature as any first argument is."""
        return self if instance is None else types.MethodType(self, instance)

    def _bind(self, call, key):
        """The Bound of a new signature: of an earlier trace that is valid for its extents, or of a new trace."""
        leaves = key[_BEFORE_LEAVES:-1]
        shapeless = [part if is_value else (len(part[0]), part[1]) for part, is_value in zip(leaves, call.values, strict=True)]
        family_key = (*key[:_BEFORE_LEAVES], *shapeless, key[-1])
        family = self._families.get(family_key)
        if family is None:
            family = self._families[family_key] = Family(call.shapes, self.dynamic, self._hints)
        extents = tuple(n for shape in call.shapes for n in shape)
        more_vary = family.see(extents)
        found = family.find(extents, call.identity_at)
        if found is None:
            unknown, unknowns = family.unknowns(extents)
            facts = Facts(unknowns)
            with noting(facts):
                trace, result = call.trace(unknown)
                identity = Identity(trace, result) if unknowns else None
                compiled = self._compile(trace, result, call, unknowns)
            compiled.family = family
            family.add(Member(unknown, facts, identity), compiled, call.identity_at if more_vary else None)
            found = compiled, tuple(map(present, unknowns))
        return Bound(*found)

    def _compile(self, trace, result, call, unknowns):
        """The Compiled of a new trace of a Call."""
        for slot in trace.states.values():
            if slot.variable._owned.layout is not None:
                return slot.variable._owned.compiled(trace, result, call, self.name, unknowns)
        kind = Checked if checks.active() else Compiled
        return kind(trace, result, call.device, self.name, variables=call.variables, unknowns=unknowns)


class Call:
    """The arguments of one call of a Jitted, for tracing it."""

    def __init__(self, jitted, leaves, structure, device):
        self._function, self._leaves, self._structure, self.device = jitted.function, leaves, structure, device
        self.values = [not _is_array(leaf) for leaf in leaves]
        self.shapes = [tuple(leaf.shape) for leaf in leaves if _is_array(leaf)]
        self.variables = [leaf for leaf in leaves if is_variable(leaf)]

    def trace(self, extents):
        """(Trace, result) of the function for arrays with these extents, ints and Dims."""
        trace, rest, arguments = Trace(), iter(extents), []
        for leaf in self._leaves:
            if _is_array(leaf):
                shape = tuple(next(rest) for _ in leaf.shape)
                leaf = trace.input(shape, leaf.dtype if type(leaf) is Tensor else dtypes.canonical(leaf.dtype))
            arguments.append(leaf)
        args, kwargs = tree.unflatten(self._structure, arguments)
        with tracing(trace):
            return trace, self._function(*args, **kwargs)

    def identity_at(self, member, values):
        """The Identity of the function traced with these values of the unknowns of `member`; None where it cannot be traced."""
        try:
            return Identity(*self.trace(member.extents_at(values)))
        except runtime.FAILURES:
            raise
        except Exception:  # raised by the function itself, such as for shapes that do not fit: it is traced anew for these values
            return None


def _is_array(leaf):
    return type(leaf) is Tensor or isinstance(leaf, (np.ndarray, np.generic))


class Bound:
    """A Compiled for one signature, so with values for its unknown extents.

    Attributes:
        values: the ints that the trace's unknown extents are.
        specs: (shape, dtype) of each result that is a tensor.
        leaves: the result's leaves, in which each run puts its tensors.
        device, used, held_bytes: see Cache.
    """

    def __init__(self, compiled, values=()):
        self.compiled, self.values, self.device = compiled, values, compiled.device
        self.specs, self.leaves = compiled.results_at(values)
        compiled.bounds += 1

    def __del__(self):
        self.compiled.bounds -= 1

    @property
    def held_bytes(self):
        """Its share of the bytes that the Compiled holds, which all its Bounds divide, and a kibibyte of its own."""
        return self.compiled.held_bytes // self.compiled.bounds + (1 << 10)


def _exact(number):
    """Text of a float or complex number that is equal for the same number only: 0.0 is not -0.0, and NaN is NaN."""
    return number.hex() if isinstance(number, float) else (number.real.hex(), number.imag.hex())


class Compiled:
    """One trace, compiled: runs on arrays for the trace's inputs and on the variables' current values.

    Args:
        besides: Tensors to compute in every run for their side effects, such as collectives that all ranks must join; not returned.
    """

    def __init__(self, trace, result, device, name, all_arguments=False, variables=(), unknowns=(), besides=()):
        self.device, self._unknowns = device, tuple(unknowns)
        leaves, self._structure = tree.flatten(result)
        self._leaves = list(leaves)
        self._places = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
        outputs = [leaves[k] for k in self._places]
        slots = trace.assigned()
        schedule = schedule_of(device.traits)
        graph = ir.build(trace.equations, outputs + [s.value for s in slots] + list(besides), schedule.splitting)
        if not all_arguments:
            row_sparse.rewrite(graph, [(s.entry, len(outputs) + k) for k, s in enumerate(slots)], schedule.sparse_table)
            readers = graph.readers()
            graph.outputs[: len(outputs)] = [ir.stored(n, readers) for n in graph.outputs[: len(outputs)]]
        entries = {id(s.entry): s for s in trace.states.values()}
        position = {id(t): k for k, t in enumerate(trace.inputs)}
        self._arguments = []  # position among the trace's inputs of each array that the executable takes, in its order
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
        self.executable = Executable(device, graph, [*inputs[0], *inputs[1], *inputs[2]], updates, all_arguments, name, inputs[1], unknowns)
        in_place = {node for node, state in zip(inputs[1], self.executable.program.states, strict=True) if state.overwritten}
        self._guarded = [k for k, node in enumerate(inputs[1]) if node in in_place]
        others = [(k, s) for k, s in enumerate(slots) if node_of.get(id(s.entry)) not in in_place or id(s.entry) not in node_of]
        self._assigned = [s.variable for _, s in others]
        self._assigned_values = [len(outputs) + k for k, _ in others]
        self.held_bytes = self.executable.held_bytes + sum(t.storage.nbytes for t in self._constants)
        self._results = [(tuple(t.shape), t.dtype) for t in outputs]
        self.bounds = 0  # number of its Bounds
        self.family = None  # the Family that it belongs to
        self._keep = trace.states, variables  # no other object gets the ids of these variables

    def results_at(self, values=()):
        """([(shape, dtype) of each tensor among the results], all leaves of the result) for these values of the unknown extents."""
        extents = [n for shape, _ in self._results for n in shape] + [leaf for leaf in self._leaves if isinstance(leaf, Dim)]
        now = iter(formulas(self._unknowns, extents)(*values) if self._unknowns else map(present, extents))
        specs = [(tuple(next(now) for _ in shape), dtype) for shape, dtype in self._results]
        return specs, [next(now) if isinstance(leaf, Dim) else leaf for leaf in self._leaves]

    def run(self, arrays, bound):
        """The function's result for the trace's inputs `arrays` (NumPy arrays or Tensors), with the shapes of the Bound."""
        results = self.launch(arrays, bound.values)
        leaves = list(bound.leaves)
        for place, storage, (shape, dtype) in zip(self._places, results, bound.specs, strict=False):
            leaves[place] = Tensor(shape, dtype, storage)
        return tree.unflatten(self._structure, leaves)

    def launch(self, arrays, values):
        """Runs on `arrays` with these values of the unknown extents; returns a list of Storages, those of the results first."""
        device = self.device
        storages = []
        for k in self._arguments:
            a = arrays[k]
            storages.append(on_device(a, device) if type(a) is Tensor else device.upload(a))
        constants = [on_device(t, device) for t in self._constants]
        if self._states or self._assigned:
            return self._run_on_states(storages, constants, values)
        return self.executable.run(storages + constants, values)

    def _run_on_states(self, storages, constants, values):
        """The executable's Storages for the variables' current values, which it updates; no other thread accesses them meanwhile."""
        device, states = self.device, self._states
        with device.state_lock:
            for k in self._guarded:
                owned = states[k]._owned
                if owned.is_held() or owned.storage.device is not device:
                    own_copy(states[k], device)
            storages += [on_device(variable._owned, device) for variable in states]
            return self.executable.run(storages + constants, values, self._assign)

    def _assign(self, results):
        """An iterator whose steps give the variables their new values."""
        values = [v._owned.in_storage(results[k]) for v, k in zip(self._assigned, self._assigned_values, strict=True)]
        return map(setattr, self._assigned, repeat("_owned"), values)


class Checked(Compiled):
    """A trace compiled with checks (core/checks.py) in it: `run` raises the error that they find, once the run is complete."""

    def __init__(self, trace, result, device, name, variables, unknowns):
        self._sites = checking.instrumented(trace, result, name)
        super().__init__(trace, (result, self._sites.found), device, name, variables=variables, unknowns=unknowns)

    def run(self, arrays, bound):
        result, found = super().run(arrays, bound)
        self._sites.judge(found)
        return result


def own_copy(variable, device):
    """Give a variable a copy of its own on `device`, because others hold its present value or it lies on another device."""
    old = variable._owned
    storage = device.allocate_state(old.storage.nbytes, variable.path)
    device.copy(on_device(old, device), storage)
    variable._owned = old.in_storage(storage)


def eager_graph(name, device, tensors, call):
    """The Bound of `call(symbolic, extents)` for tensors like these: one graph of eager code, whose extents are arguments of its kernels.

    `symbolic`: symbolic tensors in place of `tensors`; `extents`: function that turns an int into an unknown extent (a Dim).
    """
    extents, trace = Extents(), Trace()
    symbolic = [trace.input(tuple(extents(n) for n in t.shape), t.dtype) for t in tensors]
    with tracing(trace), scope(NOWHERE):  # it is kept for every caller
        result = call(symbolic, extents)
    return Bound(Compiled(trace, result, device, name, all_arguments=True))


def fused(function):
    """Decorator for a composite of primitives: eager calls run it as one compiled graph instead of operation by operation.

    The function takes tensors, and keywords of which `shape` is a tuple of extents; as in all eager code, extents
    become arguments of the kernels, so other sizes reuse them. Inside a trace or under a tape it is just called.
    """

    def compile_for(device, tensors, static):
        def call(symbolic, extents):
            given = {**static, "shape": tuple(extents(n) for n in static["shape"])} if "shape" in static else static
            return function(*symbolic, **given)

        return eager_graph(function.__name__.strip("_"), device, tensors, call)

    @functools.wraps(function)
    def run(*tensors, **static):
        if current_trace.get() is not None or active_tapes.get():
            return function(*tensors, **static)
        device = tensors[0].storage.device
        identity = (device, function, precision.active(), *((t.shape, t.dtype) for t in tensors), *sorted(static.items()))
        bound = compiled_once(identity, lambda: compile_for(device, tensors, static))
        return bound.compiled.run(tensors, bound)

    return run


autodiff.install_sums(fused(autodiff.add_pairs))

P = ParamSpec("P")
R = TypeVar("R")
_BEFORE_LEAVES = 4  # entries of a key before the leaves: structure, context, whether there are checks, and the precision
Dynamic = bool | tuple[int, ...] | None


@overload
def jit(function: Callable[P, R], *, dynamic: Dynamic = None, name: str | None = None) -> Callable[P, R]: ...


@overload
def jit(function: None = None, *, dynamic: Dynamic = None, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def jit(
    function: Callable[P, R] | None = None, *, dynamic: Dynamic = None, name: str | None = None
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Compiles a function: it is traced once per signature and from then on replayed as kernel launches.

        @keras_ocl.jit
        def step(x, y): ...

    Args:
        function: takes and returns lists, tuples and dicts of Tensors, arrays and Python values, of any shapes and dtypes; it may read and
            assign Keras variables, and make them from initializers, as layers do. Methods can be compiled too.
        dynamic: which axes of arrays may have any extent without another trace and without new kernels. None: those on which a second
            extent was seen; a tuple of numbers of axes: these at once, others at their second extent; True: all; False: none.
        name: what errors and profiles call the function; by default its own name.

    Returns:
        A function of the same arguments; without `function` a decorator that makes one. Its results are Tensors where the function computed
        them. A signature is the structure of the arguments, the shapes and dtypes of arrays, and the values of everything else: each new
        Python number is traced anew, so pass what changes as an array. Python code that looks at an extent that varies (`if x.shape[1] >
        100`) is traced once for each outcome; where it uses the number itself (`range(x.shape[1])`) each extent is a signature of its own.
        Python side effects happen with each trace; some traces are made only to compare them with earlier ones. Under a GradientTape or in
        another compiled function it is simply called.

    Raises:
        TypeError: `function` cannot be called, or `dynamic` is none of these; or, from the returned function, an argument that is no array
            is not hashable, or the device lacks a dtype.
        RuntimeError: (from the returned function) Python code asks for a value that is computed only later.
    """
    if function is None:
        return functools.partial(jit, dynamic=dynamic, name=name)
    if not callable(function):
        raise TypeError(f"keras_ocl.jit compiles functions, not {type(function).__name__}.")
    axes = dynamic if isinstance(dynamic, tuple) else ()
    if not (dynamic is None or isinstance(dynamic, (bool, tuple))) or any(not isinstance(a, int) or a < 0 for a in axes):
        raise TypeError(f"keras_ocl.jit: dynamic is {dynamic!r}; it is None, True, False or a tuple of numbers of axes, counted from 0.")
    return Jitted(function, dynamic, name)
