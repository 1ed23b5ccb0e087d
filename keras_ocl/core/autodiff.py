"""Reverse-mode automatic differentiation over recorded equations.

A tape is a list of equations, concrete or traced; `backward` walks it once from the end, applying each
primitive's VJP rule, whose results are again primitives (so gradients of gradients work).
See Griewank & Walther, "Evaluating Derivatives", 2nd ed., chapter 3.
"""

from collections.abc import Callable, Sequence
from contextvars import Token
from typing import Any

from keras_ocl.core import dtypes, tree
from keras_ocl.core.origin import scope
from keras_ocl.core.primitive import Equation, Tape, active_tapes
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.variable import Variable, is_variable

Reached = dict[int, tuple[Tensor, Tensor]]  # id of a Tensor -> (the Tensor, its cotangent)

# The addition primitive and the zeros function, installed by keras_ocl.primitives before anything is differentiated.
_add: Callable[[Tensor, Tensor], Tensor] = None  # type: ignore[assignment]  # see above
_zeros_like: Callable[[Tensor, int], Tensor] = None  # type: ignore[assignment]  # see above
_AT_ONCE = 8  # most pairs in one such call, so that few graphs serve equations with any number of inputs


def install(add: Callable[[Tensor, Tensor], Tensor], zeros_like: Callable[[Tensor, int], Tensor]) -> None:
    """Called by keras_ocl.primitives with the functions that add gradients and fill tensors with zeros or ones."""
    global _add, _zeros_like
    _add, _zeros_like = add, zeros_like


def add_pairs(*tensors: Tensor) -> list[Tensor]:
    """[a + b, ...] of (*a, *b)."""
    half = len(tensors) // 2
    return [_add(a, b) for a, b in zip(tensors[:half], tensors[half:], strict=True)]


_sums: Callable[..., Sequence[Tensor]] = add_pairs  # where the compiler is loaded, as one graph


def install_sums(sums: Callable[..., Sequence[Tensor]]) -> None:
    """Called by the compiler with the function that adds several pairs of tensors in one compiled graph."""
    global _sums
    _sums = sums


def differentiable(dtype: str) -> bool:
    """Whether tensors of a dtype have gradients: floating-point and complex ones."""
    return dtypes.is_float(dtype) or dtypes.is_complex(dtype)


def zeros_like(tensor: Tensor) -> Tensor:
    """Zeros in the tensor's shape and dtype: the gradient with respect to a tensor that nothing depends on."""
    return _zeros_like(tensor, 0)


def backward(equations: Sequence[Equation], cotangents: Reached) -> Reached:
    """Propagate cotangents.

    Args:
        equations: in order of recording.
        cotangents: dict from id of a Tensor to (Tensor, its cotangent).
    Returns:
        dict from id to (Tensor, cotangent) of every tensor reached, the inputs included.
    """
    reached = dict(cotangents)
    needed = _reaching(equations, reached)
    for eq, live in zip(reversed(equations), reversed(needed), strict=True):
        if not live:
            continue
        cts = [reached[id(o)][1] if id(o) in reached else None for o in eq.outputs]
        if all(c is None for c in cts):
            continue
        if eq.primitive.vjp is None:
            continue
        with scope(eq.origin.differentiated()):
            if eq.primitive.multiple_results:
                grads = eq.primitive.vjp(cts, list(eq.outputs), *eq.inputs, **eq.params)
            else:
                grads = eq.primitive.vjp(cts[0], eq.outputs[0], *eq.inputs, **eq.params)
            _accumulate(reached, [(x, g) for x, g in zip(eq.inputs, grads, strict=True) if g is not None and differentiable(x.dtype)])
    return reached


def _accumulate(reached: Reached, gradients: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Adds (tensor, gradient) pairs to the dict `reached`, for several tensors at a time."""
    while gradients:
        again: list[tuple[Tensor, Tensor]]
        pairs: Reached
        again, pairs = [], {}
        for x, g in gradients:
            if id(x) in pairs or len(pairs) == _AT_ONCE:
                again.append((x, g))
            elif id(x) in reached:
                pairs[id(x)] = (x, g)
            else:
                reached[id(x)] = (x, g)
        before = [reached[key][1] for key in pairs]
        add = _sums if len(pairs) > 1 else add_pairs
        for (key, (x, _)), total in zip(pairs.items(), add(*before, *(g for _, g in pairs.values())), strict=True):
            reached[key] = (x, total)
        gradients = again


def _reaching(equations: Sequence[Equation], cotangents: Reached) -> list[bool]:
    """For each equation, whether one of its results leads to a tensor with a cotangent."""
    wanted = set(cotangents)
    live = []
    for eq in reversed(equations):
        hit = any(id(o) in wanted for o in eq.outputs)
        if hit:
            wanted.update(id(x) for x in eq.inputs)
        live.append(hit)
    return live[::-1]


class GradientTape:
    """Records operations for differentiation, in eager code and inside `jit` alike.

    Same use as TensorFlow's:

        with keras_ocl.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)

    Where a variable is assigned, its value before and its value after both count for its gradient, and no gradient flows to the tensors
    that the assigned value was computed from.

    Args:
        persistent: whether `gradient` may be called more than once, also with other targets.
        watch_accessed_variables: whether trainable variables are watched when they are read; False leaves it to `watch`.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self.persistent = persistent
        self._watch_accessed = watch_accessed_variables
        self._equations: list[Equation] = []
        self._tracked: set[int] = set()  # ids of tensors whose dependents are recorded
        self._alive: list[Tensor] = []  # keeps ids of tracked tensors from being reused
        # id of a variable -> (the variable, its values: the gradients by these add up to the gradient by it)
        self._reads: dict[int, tuple[Any, list[Tensor]]] = {}
        self._token: Token[tuple[Tape, ...]] | None = None
        self._used = False

    def __enter__(self) -> "GradientTape":
        if self._token is not None:
            raise ValueError("GradientTape: the tape is already recording.")
        self._token = active_tapes.set((*active_tapes.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        active_tapes.set(tuple(t for t in active_tapes.get() if t is not self))
        self._token = None

    def watch(self, tensor: Any) -> None:
        """Also records operations that depend on a tensor.

        Args:
            tensor: a Tensor, a Variable, or lists, tuples and dicts of them.

        Raises:
            TypeError: something else is in it, such as a NumPy array: the tape could not recognise its copy on the device.
        """
        for t in tree.flatten(tensor)[0]:
            if is_variable(t):
                self.read(t, t._tape_value(), True)
            else:
                self._track(_checked("watch", t))

    def _track(self, tensor: Tensor) -> None:
        self._tracked.add(id(tensor))
        self._alive.append(tensor)

    def read(self, variable: Any, tensor: Tensor, watched: bool = False) -> None:
        """Notes that a variable was read; variables call it.

        Args:
            variable: the Keras variable.
            tensor: its value.
            watched: whether `watch` named it, so that it counts even where it is not trainable.
        """
        if watched or (self._watch_accessed and variable.trainable):
            values = self._reads.setdefault(id(variable), (variable, []))[1]
            if not values or id(tensor) not in self._tracked:  # else its gradient flows on to a value noted before
                values.append(tensor)
                self._track(tensor)

    def follows(self, tensor: Tensor) -> bool:
        """Whether operations on a tensor are recorded.

        Args:
            tensor: a Tensor.

        Returns:
            Whether the tape watches the tensor, or one that it was computed from.
        """
        return id(tensor) in self._tracked

    def wants(self, variable: Any) -> bool:
        """Whether operations on a variable's value are recorded.

        Args:
            variable: a Keras variable.

        Returns:
            Whether it is trainable and the tape watches variables that are read, or the tape has noted a read of it (as `watch` does).
        """
        return (self._watch_accessed and variable.trainable and differentiable(variable.dtype)) or id(variable) in self._reads

    def record(self, equation: Any) -> None:
        """Keeps an operation that depends on a watched tensor; primitives call it.

        Args:
            equation: the core.primitive.Equation that ran or was traced.
        """
        if any(id(x) in self._tracked for x in equation.inputs):
            self._equations.append(equation)
            for o in equation.outputs:
                if differentiable(o.dtype):
                    self._track(o)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: str = "none") -> Any:
        """Gradient of `target` (summed when it has several elements) with respect to `sources`.

        Args:
            target: a Tensor, or a list of them (their gradients add up).
            sources: Variables or watched Tensors, in any nest of lists, tuples and dicts.
            output_gradients: cotangent(s) for the target(s); ones when None.
            unconnected_gradients: "none" gives None, "zero" gives zeros, for a source the target does not depend on.

        Returns:
            The nest of `sources` with a Tensor of the source's shape and dtype (or None) in each place.

        Raises:
            RuntimeError: it was called before, and the tape is not persistent.
            TypeError: a target, source or cotangent is not a Tensor or Variable.
            ValueError: a target's dtype is not floating-point, a cotangent's shape is not its target's, or their numbers differ.
        """
        if self._used and not self.persistent:
            raise RuntimeError("GradientTape.gradient was already called; use GradientTape(persistent=True) to call it again.")
        if unconnected_gradients not in ("none", "zero"):
            raise ValueError(f'GradientTape.gradient: unconnected_gradients is {unconnected_gradients!r}; it must be "none" or "zero".')
        leaves, structure = tree.flatten(sources)
        for source in leaves:
            _checked("gradient", source)
        if self._token is not None and not self.persistent:
            self._stop()  # inside the `with` block: the gradient's own operations are not recorded
        self._used = True
        targets = list(target) if isinstance(target, (list, tuple)) else [target]
        seeds = output_gradients if isinstance(output_gradients, (list, tuple)) else [output_gradients] * len(targets)
        if len(seeds) != len(targets):
            raise ValueError(f"GradientTape.gradient: there are {len(targets)} targets, but {len(seeds)} output_gradients.")
        cotangents: Reached = {}
        for t, seed in zip(targets, seeds, strict=True):
            t, seed = _value(_checked("gradient", t)), seed if seed is None else _value(_checked("gradient", seed))
            if not differentiable(t.dtype):
                raise ValueError(f"GradientTape.gradient: the target has dtype {t.dtype}; only floating-point targets have gradients.")
            if seed is not None and tuple(seed.shape) != tuple(t.shape):
                shapes = f"{tuple(seed.shape)}, but its target {tuple(t.shape)}"
                raise ValueError(f"GradientTape.gradient: one of the output_gradients has the shape {shapes}; both must be the same.")
            seed = _zeros_like(t, 1) if seed is None else seed
            old = cotangents.get(id(t))
            cotangents[id(t)] = (t, seed if old is None else _add(old[1], seed))
        reached = backward(self._equations, cotangents)
        result = tree.unflatten(structure, [self._of(source, reached, unconnected_gradients) for source in leaves])
        if not self.persistent:
            self._equations, self._alive, self._tracked = [], [], set()
        return result

    def _of(self, source: Any, reached: Reached, unconnected: str) -> Tensor | None:
        total: Tensor | None = None
        tensors: Sequence[Tensor] = self._reads.get(id(source), (None, ()))[1] if is_variable(source) else (source,)
        for key in dict.fromkeys(id(t) for t in tensors):
            if key in reached:
                g = reached[key][1]
                total = g if total is None else _add(total, g)
        if total is None and unconnected == "zero":
            return zeros_like(_value(source))
        return total


class Recorder:
    """A tape that keeps every equation, and (variable, tensor) for every read of a variable whose value no equation computed."""

    equations: list[Equation]
    reads: list[tuple[Variable, Tensor]]

    def __init__(self) -> None:
        self.equations, self.reads = [], []
        self._made: set[int] = set()

    def record(self, equation: Equation) -> None:
        self.equations.append(equation)
        self._made.update(map(id, equation.outputs))

    def read(self, variable: Variable, tensor: Tensor, watched: bool | None = None) -> None:
        if id(tensor) not in self._made:
            self.reads.append((variable, tensor))


def _checked(method: str, x: Any) -> Any:
    """`x`, if it is a Tensor or Variable; else raises a TypeError that names the `method`."""
    if not isinstance(x, Tensor) and not is_variable(x):
        kind = type(x).__name__
        raise TypeError(f"GradientTape.{method}: a {kind} is neither a Tensor nor a Variable; use keras.ops.convert_to_tensor first.")
    return x


def _value(x: Any) -> Tensor:
    return x._tape_value() if is_variable(x) else x
