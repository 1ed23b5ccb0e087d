"""Functions with gradients of their own: stop_gradient, custom_gradient, remat, and the assignment of variables."""

import contextlib
import functools
import inspect

from keras.src import tree
from keras.src.backend.common.variables import Variable as KerasVariable

from keras_ocl import primitives as P
from keras_ocl.core.autodiff import GradientTape, Recorder, differentiable
from keras_ocl.core.origin import current_origin, scope
from keras_ocl.core.primitive import Equation, active_tapes, bind, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.promotion import broadcast_to
from keras_ocl.ops.vectorization import vectorized


def stop_gradient(variable):
    """The value of `variable` as a constant to differentiation."""
    return P.stop_gradient(convert_to_tensor(variable))


class _Rule:
    """Stands where a Primitive does in an equation that only tapes see: `vjp` of several results, and `replay` to run it again.

    `same`: whether the gradient is the same function of the inputs in each run, so that it serves those that are run again.
    """

    multiple_results = True

    def __init__(self, name, vjp, replay, same=False):
        self.name, self.vjp, self.replay, self.same = name, vjp, replay, same

    def __repr__(self):
        return self.name

    def __call__(self, *inputs):
        """Run again, with this gradient."""
        with _recording_on(()):
            outputs = self.replay(*inputs)
        return _record(self, inputs, outputs) if active_tapes.get() else outputs

    def batch(self, inputs, batched, size):
        """The batching rule: of the function, and of its gradient as it is when the function runs again."""

        def replay(*xs):
            return vectorized(self.replay, xs, batched, plain=True)[0]

        def vjp(cotangents, _, *xs):
            given = [k for k, c in enumerate(cotangents) if c is not None]

            def one(*values):
                seeds, xs = values[: len(given)], list(values[len(given) :])
                with GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(xs)
                    ys = self.replay(*xs)
                return tape.gradient([ys[k] for k in given], xs, list(seeds), unconnected_gradients="zero")

            gradients, _ = vectorized(one, [*(cotangents[k] for k in given), *xs], (*(True for _ in given), *batched))
            return [g if differs else P.reduce_sum(g, (0,)) for g, differs in zip(gradients, batched, strict=True)]

        return _Rule(self.name, vjp, replay, self.same)(*inputs)


def _record(rule, inputs, result):
    """Record one equation of `rule` on every active tape; returns `result` with tensors of its own identity."""
    known = {id(x) for x in inputs}
    outputs = []

    def own(y):
        if not isinstance(y, Tensor):
            y = convert_to_tensor(y)
        if id(y) in known:  # an input handed through would be confused with itself
            y = P.stop_gradient(y)
        known.add(id(y))
        outputs.append(y)
        return y

    tapes = active_tapes.get()
    with _recording_on(()):
        result = tree.map_structure(lambda y: y if y is None else own(y), result)
    equation = Equation(rule, tuple(inputs), {}, tuple(outputs), current_origin.get())
    for tape in tapes:
        tape.record(equation)
    return result


class _recording_on:
    """Make exactly `tapes` the active ones for a while."""

    def __init__(self, tapes):
        self._tapes = tapes

    def __enter__(self):
        self._token = active_tapes.set(self._tapes)

    def __exit__(self, *_):
        active_tapes.reset(self._token)


def _follow(value, before):
    """`value` as the one that follows the value `before` of a variable: the gradient by it is a gradient by `before`."""
    tapes = active_tapes.get()
    with _recording_on(()):
        own = P.stop_gradient(value)
    equation = Equation(_FOLLOW, (value, before), {}, (own,), current_origin.get())
    for tape in tapes:
        tape.record(equation)
    return own


_FOLLOW = _Rule("assign", lambda cotangents, outputs, value, before: (None, cotangents[0]), lambda value, before: [_follow(value, before)])


def assigned(variable, value, before=None):
    """What `variable` holds once `value` is assigned to it; tapes are told.

    Args:
        before: the value that it follows; the present one where it is None.
    """
    tapes = active_tapes.get()
    if not tapes or not differentiable(value.dtype):
        return value
    if before is None:
        before = variable._tape_value()
        for tape in tapes:
            tape.read(variable, before)
    return _follow(value, before)


def custom_gradient(f):
    """Decorate `f(*args) -> (result, grad)`: `grad(*upstream)` gives the gradients for the arguments."""

    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        args, kwargs = tree.map_structure(lambda x: x.value if isinstance(x, KerasVariable) else x, (args, kwargs))
        with _recording_on(()):
            result, grad = f(*args, **kwargs)
        if not active_tapes.get():
            return result
        leaves = tree.flatten(args)
        inputs = [x for x in leaves if isinstance(x, Tensor)]

        def vjp(cotangents, outputs, *_):
            upstream = [P.full(o.shape, 0, o.dtype) if c is None else c for c, o in zip(cotangents, outputs, strict=True)]
            found = tree.flatten(_call_with_upstream(grad, upstream))
            if len(found) == len(leaves):
                found = [g for g, x in zip(found, leaves, strict=True) if isinstance(x, Tensor)]
            if len(found) != len(inputs):
                raise ValueError(f"custom_gradient: {f.__name__} has {len(inputs)} tensor arguments but grad returned {len(found)}.")
            return [_shaped(g, x) for g, x in zip(found, inputs, strict=True)]

        def replay(*new):
            new = iter(new)
            renewed = tree.pack_sequence_as(args, [next(new) if isinstance(x, Tensor) else x for x in leaves])
            return [y for y in tree.flatten(wrapper(*renewed, **kwargs)) if y is not None]

        return _record(_Rule(f"custom_gradient({f.__name__})", vjp, replay), inputs, result)

    return wrapper


def _call_with_upstream(grad, upstream):
    """Call the user's gradient function as JAX and TensorFlow do, or by the keyword `upstream`."""
    try:
        parameters = inspect.signature(grad).parameters.values()
    except (TypeError, ValueError):
        return grad(*upstream)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if not positional and not rest:
        return grad(upstream=upstream[0] if len(upstream) == 1 else tuple(upstream))
    if len(positional) == 1 and not rest and len(upstream) > 1:
        return grad(tuple(upstream))
    return grad(*upstream)


def _shaped(gradient, x):
    if gradient is None or not differentiable(x.dtype):
        return None
    gradient = convert_to_tensor(gradient, x.dtype)
    return gradient if gradient.shape == x.shape else broadcast_to(gradient, x.shape)


class _Program:
    """Recorded equations without their values: what depends on `inputs`, or was traced, is run again, the rest is kept."""

    def __init__(self, equations, inputs, outputs):
        slots = {id(x): i for i, x in enumerate(inputs)}
        keep_alive = list(inputs)
        self._steps = []
        for eq in equations:
            if not any(id(x) in slots for x in eq.inputs) and not any(y.is_symbolic() for y in eq.outputs):
                continue
            arguments = [slots[id(x)] if id(x) in slots else x for x in eq.inputs]
            for y in eq.outputs:
                slots[id(y)] = len(slots)
                keep_alive.append(y)
            self._steps.append((eq.primitive, arguments, eq.params, eq.origin))
        self._outputs = [slots.get(id(y), y) for y in outputs]

    def __call__(self, *inputs):
        values = list(inputs)
        for primitive, arguments, params, origin in self._steps:
            arguments = [values[a] if isinstance(a, int) else a for a in arguments]
            with scope(origin.differentiated() if current_origin.get().gradient else origin):  # for a gradient, or run once more
                if isinstance(primitive, _Rule):
                    results = (primitive if primitive.same else primitive.replay)(*arguments)
                else:
                    results = bind(primitive, arguments, params)
            values.extend(results if primitive.multiple_results else (results,))
        return [values[y] if isinstance(y, int) else y for y in self._outputs]


def _apart():
    """In a trace: what is recorded inside is computed even where its value is known."""
    trace = current_trace.get()
    return contextlib.nullcontext() if trace is None else trace.apart()


def remat(f):
    """`f`, whose inner values are computed again for its gradient instead of being kept."""

    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        tapes = active_tapes.get()
        if not tapes:
            return f(*args, **kwargs)
        recorder = Recorder()
        with _recording_on((recorder,)):
            args, kwargs = tree.map_structure(lambda x: x.value if isinstance(x, KerasVariable) else x, (args, kwargs))
            result = f(*args, **kwargs)
        tensors = [x for x in tree.flatten((args, kwargs)) if isinstance(x, Tensor)] + [t for _, t in recorder.reads]
        inputs = list({id(x): x for x in tensors}.values())
        for variable, tensor in recorder.reads:
            for tape in tapes:
                tape.read(variable, tensor)
            now = variable._tape_value()
            if now is not tensor:
                variable._direct_assign(now, tensor)
        logits = [y._keras_logits for y in tree.flatten(result) if hasattr(y, "_keras_logits")]  # what a loss reads in place of y
        outputs = [y for y in tree.flatten((result, logits)) if isinstance(y, Tensor)]
        program = _Program(recorder.equations, inputs, outputs)

        def vjp(cotangents, _, *values):
            with _apart():
                with GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(list(values))
                    again = program(*values)
                pairs = [(y, c) for y, c in zip(again, cotangents, strict=True) if c is not None]
                return tape.gradient([y for y, _ in pairs], list(values), [c for _, c in pairs])

        return _record(_Rule("remat", vjp, program, same=True), inputs, (result, logits))[0]

    return wrapper
