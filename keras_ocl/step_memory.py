"""What a compiled step's intermediates take: which are live at the peak, and which the forward part keeps for the gradient."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from keras_ocl.compiler.run.intermediates import Intermediate, peak
from keras_ocl.core.origin import Origin
from keras_ocl.runtime.errors import readable

_SHOWN = 20  # rows of the printed table of all that is live at the peak


@dataclass(frozen=True)
class StepMemory:
    """The intermediates of a compiled step. They share one arena, in which each has its place while it is live.

    `print` shows the peak by layer and operation.

    Attributes:
        name: of the step, such as "train".
        arena_bytes: bytes of the arena that the step needs: at least those live at the peak, and the gaps between them.
        state_bytes: bytes of the variables that it reads or assigns.
        read: bytes of memory that all launches read in a step.
        written: bytes of memory that they write.
        intermediates: every buffer of the arena, each with its `origin` (layer, operation, gradient), the `primitive` that computes it,
            `shape`, `dtype`, `nbytes`, the numbers of the `first` and the `last` launch that use it, and whether it is `kept`.
    """

    name: str
    arena_bytes: int
    state_bytes: int
    read: int
    written: int
    intermediates: tuple[Intermediate, ...]

    @property
    def peak(self) -> list[Intermediate]:
        """Those that are live while the most bytes are, the largest first."""
        return peak(self.intermediates)[1]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are live at once."""
        return sum(one.nbytes for one in self.peak)

    @property
    def kept(self) -> list[Intermediate]:
        """The residuals (saved activations): what the forward part writes and the gradient reads, the largest first."""
        return sorted((one for one in self.intermediates if one.kept), key=lambda one: -one.nbytes)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the residuals."""
        return sum(one.nbytes for one in self.kept)

    def table(self) -> list[tuple[Origin, int, int]]:
        """The peak by layer and operation.

        Returns:
            A list of (origin, bytes, those of them that are residuals), the most bytes first.
        """
        sums: defaultdict[Origin, list[int]] = defaultdict(lambda: [0, 0])
        for one in self.peak:
            sums[one.origin][0] += one.nbytes
            sums[one.origin][1] += one.nbytes if one.kept else 0
        return sorted(((origin, nbytes, kept) for origin, (nbytes, kept) in sums.items()), key=lambda row: -row[1])

    def __str__(self) -> str:
        rows = self.table()
        cells = [(readable(nbytes), readable(kept) if kept else "", _title(origin)) for origin, nbytes, kept in rows[:_SHOWN]]
        if rows[_SHOWN:]:
            rest = [sum(amounts) for amounts in zip(*(row[1:] for row in rows[_SHOWN:]), strict=True)]
            cells.append((readable(rest[0]), readable(rest[1]), f"{len(rows) - _SHOWN} more"))
        sizes = {"arena": self.arena_bytes, "kept for the gradient": self.kept_bytes, "variables": self.state_bytes}
        moved = {"read": self.read, "written": self.written}
        head = [
            f"{self.name}: peak {readable(self.peak_bytes)} at launch {peak(self.intermediates)[0]}",
            "  " + ", ".join(f"{what} {readable(nbytes)}" for what, nbytes in (sizes | moved).items()),
        ]
        return "\n".join([*head, *_aligned([("at the peak", "of it kept", "layer: operation"), *cells])])

    def kept_text(self) -> str:
        """The residuals as a table: bytes, shape, layer and operation of each, and their sum."""
        cells = [(readable(one.nbytes), f"{one.dtype}{list(one.shape)}", f"{_title(one.origin)} ({one.primitive})") for one in self.kept]
        head = f"{self.name}: {len(cells)} results of the forward part are kept for the gradient, {readable(self.kept_bytes)}"
        return "\n".join([head, *_aligned(cells)])


def step_memory(executable: Any) -> StepMemory:
    """The StepMemory of a compiler Executable."""
    read, written = executable.traffic()
    return StepMemory(executable.name, executable.arena_bytes, executable.state_bytes(), read, written, executable.intermediates())


def _title(origin: Origin) -> str:
    return f"{origin.layer or '(no layer)'}: {origin.operation}{' gradient' if origin.gradient else ''}"


def _aligned(cells: list[tuple[str, str, str]]) -> list[str]:
    """Lines of cells in columns, the last one flush left."""
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [f"  {a:>{widths[0]}}  {b:>{widths[1]}}  {c}" for a, b, c in cells]
