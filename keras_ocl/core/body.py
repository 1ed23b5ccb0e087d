"""Closed sub-graphs: the bodies of loops, traced once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from typing import Any

from keras_ocl.core.autodiff import Recorder
from keras_ocl.core.dim import Extent
from keras_ocl.core.primitive import Equation, Result, Tape, active_tapes, current_trace
from keras_ocl.core.tensor import Tensor
from keras_ocl.core.trace import StateSlot, Trace, tracing


class Body:
    """Equations from `inputs` to `outputs` (Tensors of the body's own trace, or, for constants, of the trace around it).

    `recorded`: the equations that a gradient tape recorded. Bodies that share `equations` are one function with different results.
    """

    __slots__ = ("equations", "inputs", "outputs", "recorded")

    def __init__(self, inputs: Iterable[Tensor], outputs: Iterable[Tensor], equations: list[Equation], recorded: list[Equation]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.equations, self.recorded = equations, recorded

    def __repr__(self) -> str:
        return f"<Body of {len(self.equations)} equations>"

    def specs(self) -> list[Result]:
        """(shape, dtype) of each output."""
        return [(tuple(o.shape), o.dtype) for o in self.outputs]


class Draft:
    """A body while it is being traced:

        with Draft() as draft:
            x = draft.input(shape, dtype)
            ...
        body = Body(draft.inputs + draft.constants(results), results, draft.equations, draft.recorded)

    Tapes outside do not see the equations recorded inside. `assigned()` lists the variables that were assigned; all that were read or
    assigned are in `trace.states`.
    """

    _tracing: AbstractContextManager[Trace | None]
    _token: Token[tuple[Tape, ...]]

    def __init__(self) -> None:
        self.outer: Trace | None = current_trace.get()
        self.trace = Trace()
        self._recorder = Recorder()

    def __enter__(self) -> Draft:
        self._tracing = tracing(self.trace)
        self._tracing.__enter__()
        self._token = active_tapes.set((self._recorder,))
        return self

    def __exit__(self, *error: Any) -> None:
        active_tapes.reset(self._token)
        self._tracing.__exit__(*error)

    @property
    def inputs(self) -> list[Tensor]:
        return self.trace.inputs

    @property
    def equations(self) -> list[Equation]:
        return self.trace.equations

    @property
    def recorded(self) -> list[Equation]:
        return self._recorder.equations

    def input(self, shape: Iterable[Extent], dtype: str) -> Tensor:
        return self.trace.input(shape, dtype)

    def assigned(self) -> list[StateSlot]:
        """StateSlots of the variables that got a new value."""
        return self.trace.assigned()

    def value_outside(self, slot: StateSlot) -> Tensor:
        """The value in the surrounding trace of a variable that the body read; the tapes there note the read."""
        value = slot.variable._value if self.outer is None else self.outer.read(slot.variable)  # type: ignore[attr-defined]  # Keras's
        for tape in active_tapes.get():
            tape.read(slot.variable, value)
        return value

    def captured(self, outputs: Sequence[Tensor], but: Iterable[Tensor] = ()) -> list[tuple[Tensor, Tensor]]:
        """Values from outside that `outputs` depend on, besides the body's inputs and the Tensors `but`.

        Returns pairs (Tensor in the body, Tensor outside).
        """
        own = {id(t) for t in (*self.inputs, *but)}
        entries = {id(s.entry): s for s in self.trace.states.values()}
        pairs = []
        for t in free(self.equations, outputs):
            if id(t) not in own:
                slot = entries.get(id(t))
                pairs.append((t, t if slot is None else self.value_outside(slot)))
        return pairs


def needed(equations: Sequence[Equation], outputs: Iterable[Tensor]) -> list[Equation]:
    """The equations that `outputs` (Tensors) depend on, in order."""
    wanted = {id(o) for o in outputs}
    kept: list[Equation] = []
    for eq in reversed(equations):
        if any(id(o) in wanted for o in eq.outputs):
            kept.append(eq)
            wanted.update(id(i) for i in eq.inputs)
    return kept[::-1]


def free(equations: Sequence[Equation], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The Tensors that `outputs` depend on and no equation computes, in order of first use."""
    used = needed(equations, outputs)
    made = {id(o) for eq in used for o in eq.outputs}
    found: dict[int, Tensor] = {}
    for t in (*(t for eq in used for t in eq.inputs), *outputs):
        if id(t) not in made:
            found[id(t)] = t
    return list(found.values())
