"""Tracing: running a Python function on symbolic tensors records its graph."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from keras_ocl.core.dim import Extent, Shape, noting
from keras_ocl.core.origin import Origin, current_origin, kept_eagerly, scope
from keras_ocl.core.primitive import Equation, current_trace
from keras_ocl.core.tensor import Tensor

if TYPE_CHECKING:
    from keras_ocl.core.checks import IndexCheck
    from keras_ocl.core.variable import Variable

logger = logging.getLogger("keras_ocl")

_tags = itertools.count(1)
_told: set[tuple[str, type[BaseException | None]]] = set()  # (name, type of error) of the warnings that were logged


class ValueUnknown(RuntimeError):
    """Python code asked for a value in a trace, where there is none yet."""


class ConditionUnknown(TypeError):
    """Python code used a tensor as a condition in a trace, where it has no value yet."""


class NotTraced(Exception):
    """A function that is compiled without being asked for raised the cause while it was traced; operation by operation it may work."""

    def told(self, name: str) -> None:
        """Logs the cause once, unless the function only asked for values, which eager code has."""
        cause = self.__cause__
        known = (name, type(cause))
        if not isinstance(cause, (ValueUnknown, ConditionUnknown)) and known not in _told:
            _told.add(known)
            logger.warning("%s runs operation by operation, for it could not be traced: %s: %s", name, type(cause).__name__, cause)


class StateSlot:
    """A variable's (core.variable.Variable) part in a trace: the graph input holding its value, and its newest value."""

    __slots__ = ("variable", "entry", "value")

    def __init__(self, variable: Variable, entry: Tensor) -> None:
        self.variable, self.entry, self.value = variable, entry, entry


class Trace:
    """The graph under construction.

    `equations`: in order of recording; `inputs`: the symbolic arguments; `states`: dict from the id of a variable that was read or
    assigned to its StateSlot; `checks`: the core.checks.IndexChecks noted. Assignments take effect only when the
    compiled graph runs, so a failed trace leaves every variable as it was.
    """

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.inputs: list[Tensor] = []
        self.states: dict[int, StateSlot] = {}
        self.checks: list[IndexCheck] = []
        self.tag = 0  # tag of new equations, see apart()

    def input(self, shape: Iterable[Extent], dtype: str) -> Tensor:
        """A new symbolic argument."""
        tensor = Tensor(tuple(shape), dtype, None, self)
        self.inputs.append(tensor)
        return tensor

    def read(self, variable: Variable) -> Tensor:
        """The variable's current value in this trace."""
        slot = self.states.get(id(variable))
        return self.enter(variable, variable._owned.shape) if slot is None else slot.value

    def enter(self, variable: Variable, shape: Shape) -> Tensor:
        """A Tensor of this shape for the value that a variable has when the graph begins; it must not have been read before."""
        # The dtype of the raw value: a Keras variable's own `dtype` depends on the autocast scope.
        entry = Tensor(shape, variable._owned.dtype, None, self)
        self.states[id(variable)] = StateSlot(variable, entry)
        return entry

    def assign(self, variable: Variable, tensor: Tensor) -> None:
        self.read(variable)
        self.states[id(variable)].value = tensor

    def assigned(self) -> list[StateSlot]:
        """Slots whose variable has a new value."""
        return [s for s in self.states.values() if s.value is not s.entry]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context: equations recorded inside are never merged with equal ones outside."""
        before, self.tag = self.tag, next(_tags)
        try:
            yield
        finally:
            self.tag = before

    def snapshot(self) -> dict[int, Tensor]:
        """Newest values of all variables, for restore()."""
        return {k: s.value for k, s in self.states.items()}

    def restore(self, snapshot: dict[int, Tensor]) -> None:
        """Forget assignments made since snapshot(); variables first seen since go back to their entry value."""
        for k, slot in self.states.items():
            slot.value = snapshot.get(k, slot.entry)


@contextmanager
def tracing(trace: Trace | None) -> Iterator[Trace | None]:
    """Context in which primitives are recorded into `trace`; None suspends tracing (eager), and the noting of facts about extents."""
    token = current_trace.set(trace)
    try:
        with noting(None) if trace is None else nullcontext():
            yield trace
    finally:
        current_trace.reset(token)


def origins_kept() -> bool:
    """Whether operations now keep their origin: in a trace, and in eager code that is profiled or checked."""
    return current_trace.get() is not None or kept_eagerly()


def operation(name: str) -> AbstractContextManager[Any]:
    """Context in which all recorded equations belong to the operation `name`, whatever functions it calls."""
    if not origins_kept():
        return nullcontext()
    around = current_origin.get()
    return scope(Origin(around.layer, name, around.gradient))
