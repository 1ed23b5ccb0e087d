"""Profiles: how the time and the memory of Keras code divide among kernels, operations and layers."""

import contextlib
import csv
import html
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from keras_ocl import chrome_trace, runtime
from keras_ocl.core.origin import NOWHERE, Origin, current_origin, kept_in_eager_code
from keras_ocl.step_memory import StepMemory, step_memory

VIEWS = ("kernel", "operation", "layer")
_SPANS = {runtime.UPLOAD: "HostToDevice", runtime.READ_BACK: "DeviceToHost"}
_COPY = "Copy"
_ELSEWHERE = "(no layer)"


@dataclass
class Row:
    """A line of a profile, averaged over its steps.

    Attributes:
        name: name of the kernel, operation or layer; or "HostToDevice", "DeviceToHost" or "Copy" (within the device).
        gradient: whether it belongs to the backward pass.
        launches: number of kernels and host operations that computed it or a part of it; for copies their number.
        bytes: bytes of memory that it requested; for copies the bytes moved.
        in_place_bytes: bytes of results that overwrote the state they replace, so that no memory was requested.
        device_ms: time on the device, by the OpenCL runtime's clock.
        host_ms: time of the host for enqueueing, computing or copying it; without waiting.
    """

    name: str
    gradient: bool = False
    launches: float = 0.0
    bytes: float = 0.0
    in_place_bytes: float = 0.0
    device_ms: float = 0.0
    host_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Time on the device plus time on the host. The two overlap, so the sum of all rows may exceed the wall-clock time."""
        return self.device_ms + self.host_ms

    @property
    def title(self) -> str:
        """The name, with " gradient" for the backward pass."""
        return f"{self.name} gradient" if self.gradient else self.name


class Profile:
    """The measurements of a `profile()` block; complete when the block has ended.

    A kernel often computes several operations. Its times are divided among them in proportion to an estimate of their work: 2 per
    multiply-add of a product or convolution, an elementwise operation's cost per element, 1 per element that a reduction reads, 8 per
    element that is loaded or stored. The rows of every view add up to what was measured. Builds of kernels are not included.

    An operation's bytes are those of the buffers that it requests: results of the function, and intermediates, each once per step although
    they share an arena. An elementwise operation fused into the kernel of a product, convolution, pooling or reduction requests none, as it
    is applied to that operation's result.

    Attributes:
        by: the view that `print` shows: "kernel", "operation" or "layer".
        device: the runtime's Device.
        wall_ms: time of the block.
        peak_bytes: the most bytes that were handed out at once.
    """

    def __init__(self, device: runtime.Device, by: str, record: runtime.Record) -> None:
        self.device, self.by, self._record = device, by, record
        self.wall_ms, self.peak_bytes = 0.0, 0

    # ---- what ran

    @property
    def launches(self) -> list[tuple[str, float]]:
        """(label, milliseconds) of each kernel launch, in order, and of operations that the host computes, such as "host cholesky"."""
        return [(str(launch.label), (launch.end - launch.start) * 1e-6) for launch in self._timed()]

    @property
    def milliseconds(self) -> float:
        """The time that all launches took, on the device or the host."""
        return sum(launch.end - launch.start for launch in self._timed()) * 1e-6

    @property
    def matrix_unit_ms(self) -> float:
        """The part of `milliseconds` of kernels whose products, convolutions or attention a matrix unit computes."""
        sources = ((getattr(label, "source", None), device) for label, _, _, device, _ in self._sums())
        return sum(device for source, device in sources if source is not None and source.matrix_unit) * 1e-6

    def _timed(self) -> Iterator[Any]:
        return (launch for launch in self._record.launches() if launch.kind != "copy")

    def totals(self) -> list[tuple[str, int, float]]:
        """Sums up the launches by label.

        Returns:
            A list of (label, number of launches, milliseconds), the longest first.
        """
        times: defaultdict[str, list[float]] = defaultdict(list)
        for label, duration in self.launches:
            times[label].append(duration)
        return sorted(((label, len(each), sum(each)) for label, each in times.items()), key=lambda row: -row[2])

    @property
    def steps(self) -> int:
        """Number of runs of the most frequent step: of training, evaluation, prediction, or a compiled function; at least 1."""
        runs: defaultdict[str, int] = defaultdict(int, self._record.steps)
        for (executable, _), count in self._record.runs.items():
            if not executable.is_eager:
                runs[executable.name] += count
        return max(runs.values(), default=1)

    def _spans(self, kind: str) -> list[Any]:
        return [span for span in self._record.spans if span.label.partition(" ")[0] == kind or span.label == kind]

    @property
    def wait_ms(self) -> float:
        """The part of `wall_ms` that the host waited for the device."""
        return sum(span.end - span.start for span in self._spans(runtime.WAIT)) * 1e-6

    @property
    def overlapped_ms(self) -> float:
        """The part of `wall_ms` in which ranks exchanged sums while kernels ran."""
        return sum(overlap for _, overlap in self._record.overlaps()) * 1e-6

    @property
    def builds(self) -> int:
        """Number of builds, in each of which kernels were compiled or found in a cache."""
        return len(self._spans(runtime.BUILD))

    @property
    def build_ms(self) -> float:
        """Time of the builds."""
        return sum(span.end - span.start for span in self._spans(runtime.BUILD)) * 1e-6

    @property
    def arena_bytes(self) -> int:
        """Bytes that the intermediates of the largest compiled function share."""
        return max((executable.arena_bytes for executable, _ in self._record.runs), default=0)

    @property
    def state_bytes(self) -> int:
        """Bytes of the variables (weights, optimizer and metrics) of the compiled function with the most of them."""
        return max((executable.state_bytes() for executable, _ in self._record.runs), default=0)

    def memory(self) -> StepMemory:
        """What the intermediates of the compiled function with the largest arena take: at the peak, and kept for the gradient.

        Returns:
            A `StepMemory`, for the extents of the function's last run.

        Raises:
            RuntimeError: no compiled function ran.
        """
        compiled = [executable for executable, _ in self._record.runs if not executable.is_eager]
        if not compiled:
            raise RuntimeError("Profile.memory: no compiled function ran in the block; eager operations have no common memory plan.")
        return step_memory(max(compiled, key=lambda executable: executable.arena_bytes))

    # ---- views

    def table(self, by: str | None = None, steps: int | None = None) -> list[Row]:
        """The profile as data.

        Args:
            by: "kernel", "operation" or "layer"; by default the view given to `profile`.
            steps: the number to divide by for averages; by default `self.steps`.

        Returns:
            A list of `Row`s, the longest total time first.

        Raises:
            ValueError: there is no such view.
        """
        by = _checked(self.by if by is None else by)
        steps = self.steps if steps is None else steps
        rows: dict[tuple[str, bool], Row] = {}

        def row(name: str, gradient: bool = False) -> Row:
            key = name, gradient
            if key not in rows:
                rows[key] = Row(name, gradient)
            return rows[key]

        for label, context, count, device, host in self._sums():
            parts: dict[tuple[str, bool], float] = {}  # row -> fraction of the launch
            for origin, fraction in _shares(label, context):
                key = (str(label), False) if by == "kernel" else _key(origin, by)
                parts[key] = parts.get(key, 0.0) + fraction
            for key, fraction in parts.items():
                part = row(*key)
                part.launches += count
                part.device_ms += device * fraction * 1e-6
                part.host_ms += host * fraction * 1e-6
        if by != "kernel":
            for origin, nbytes, in_place in self._memory():
                part = row(*_key(origin, by))
                part.bytes += nbytes
                part.in_place_bytes += in_place
        for kind, name in _SPANS.items():
            for span in self._spans(kind):
                part = row(name)
                part.launches += 1
                part.bytes += span.nbytes
                part.host_ms += (span.end - span.start) * 1e-6
        for launch in self._record.launches():
            if launch.kind != "copy":
                continue
            part = row(_COPY)
            part.launches += 1
            part.bytes += launch.label.nbytes
            part.device_ms += (launch.end - launch.start) * 1e-6
            part.host_ms += launch.host * 1e-6
        for part in rows.values():
            for name in ("launches", "bytes", "in_place_bytes", "device_ms", "host_ms"):
                setattr(part, name, getattr(part, name) / steps)
        return sorted(rows.values(), key=lambda part: (-part.total_ms, part.title))

    def predicted_bytes(self, by: str = "operation", steps: int | None = None) -> dict[str, float]:
        """The `bytes` of `table`, predicted from shapes alone instead of measured by the memory that was handed out.

        Args:
            by: "operation" or "layer".
            steps: the number to divide by for averages; by default `self.steps`.

        Returns:
            A dict from a row's `title` to bytes.

        Raises:
            ValueError: `by` is not one of these two.
        """
        if _checked(by) == "kernel":
            raise ValueError('predicted_bytes: memory is known by "operation" and by "layer", not by "kernel".')
        steps = self.steps if steps is None else steps
        found: defaultdict[str, float] = defaultdict(float)
        for origin, nbytes, _ in self._memory(predicted=True):
            name, gradient = _key(origin, by)
            found[Row(name, gradient).title] += nbytes / steps
        return dict(found)

    def _sums(self) -> Iterable[list[Any]]:
        """(label, context, launches, ns on the device, ns on the host), summed over all launches of the same kernel of a function."""
        sums: dict[Any, list[Any]] = {}
        for launch in self._timed():
            one = sums.setdefault((id(launch.label), launch.context), [launch.label, launch.context, 0, 0, 0])
            one[2] += 1
            one[3] += 0 if launch.kind == "host" else launch.end - launch.start
            one[4] += launch.host
        return sums.values()

    def _memory(self, predicted: bool = False) -> Iterator[tuple[Origin, int, int]]:
        """(Origin, bytes, bytes in place) of every buffer, summed over all runs."""
        for (executable, context), count in self._record.runs.items():
            buffers = executable.requested() if predicted else self._record.handed_out[executable, context]
            for allocator, nbytes, in_place in buffers:
                origin = (
                    Origin(context.layer, "Identity", context.gradient)
                    if allocator is None
                    else _resolved(allocator[0], allocator[1], context)
                )
                yield origin, count * nbytes, count * in_place

    # ---- text and files

    def __str__(self) -> str:
        return self._by_kernel() if self.by == "kernel" else self._report(self.by)

    def _repr_html_(self) -> str:
        """The text for notebooks, in a box that scrolls, since notebooks wrap printed text."""
        return f'<pre style="white-space: pre; overflow-x: auto">{html.escape(str(self))}</pre>'

    def _by_kernel(self) -> str:
        total = self.milliseconds
        lines = [f"{'ms':>10} {'share':>6} {'launches':>8}  kernel"]
        lines += [f"{time:10.3f} {time / total if total else 0:6.1%} {count:8}  {label}" for label, count, time in self.totals()]
        lines.append(f"{total:10.3f} {'':6} {len(self.launches):8}  total")
        lines += self._on_units()
        return "\n".join(lines)

    def _on_units(self) -> list[str]:
        """A line with the share of the launches' time that matrix units' kernels take; none where the device has no units."""
        if not self.device.traits.matrix_units:
            return []
        return [f"kernels that multiply on matrix units: {_share(self.matrix_unit_ms, self.milliseconds)} of the time of all launches"]

    def _report(self, by: str) -> str:
        """A table like TensorFlow 1's profiler's: each value with the share of this and all rows below, and its own share."""
        rows = self.table(by)
        columns = (
            ("requested bytes", "bytes", _bytes_text),
            ("total time", "total_ms", _time_text),
            ("device time", "device_ms", _time_text),
            ("host time", "host_ms", _time_text),
        )
        cells = [["node name"], *([row.title] for row in rows)]
        for title, name, text in columns:
            values = [getattr(row, name) for row in rows]
            whole, left = sum(values), sum(values)
            cells[0].append(title)
            for line, value in zip(cells[1:], values, strict=True):
                line.append(f"{text(value)} ({_share(left, whole)}, {_share(value, whole)})")
                left = max(0.0, left - value)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [" | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in cells]
        lines.append("in brackets: the share of this row and those below, and its own")
        steps = self.steps
        lines.append(f"{self.device}, driver {self.device.driver_version}; averages of {steps} step{'s' * (steps != 1)}")
        lines.append(f"wall clock {_time_text(self.wall_ms / steps)}, of it waiting for the device {_time_text(self.wait_ms / steps)}")
        sizes = {"variables": self.state_bytes, "arena": self.arena_bytes, "peak": self.peak_bytes}
        lines.append("memory in all: " + ", ".join(f"{name} {_bytes_text(n)}" for name, n in sizes.items()))
        lines += self._on_units()
        if self.builds:
            lines.append(f"not in the table: {self.builds} builds of kernels, {_time_text(self.build_ms)} in all")
        return "\n".join(lines)

    def to_csv(self, path: str | PathLike[str], by: str | None = None, steps: int | None = None) -> None:
        """Writes `table(by, steps)` to a CSV file, whose first line has the columns' names.

        Args:
            path: the file.
            by: the view, as `table` takes it.
            steps: the number to divide by, as `table` takes it.

        Raises:
            ValueError: there is no such view.
        """
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(_plain(Row(""))))
            writer.writeheader()
            writer.writerows(map(_plain, self.table(by, steps)))

    def to_json(self, path: str | PathLike[str], by: str | None = None, steps: int | None = None) -> None:
        """Writes `table(by, steps)` to a JSON file as the list `rows`, together with the device, the number of steps and the attributes.

        Args:
            path: the file.
            by: the view, as `table` takes it.
            steps: the number to divide by, as `table` takes it.

        Raises:
            ValueError: there is no such view.
        """
        about = {name: getattr(self, name) for name in _ATTRIBUTES}
        rows = [_plain(row) for row in self.table(by, steps)]
        steps = self.steps if steps is None else steps
        content = {
            "device": str(self.device),
            "driver": self.device.driver_version,
            "by": by or self.by,
            "steps": steps,
            **about,
            "rows": rows,
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)

    def chrome_trace(self, path: str | PathLike[str]) -> None:
        """Writes every launch, and the host's activities meanwhile, to a file for https://ui.perfetto.dev or chrome://tracing.

        Its format is Chrome's trace event format.

        Args:
            path: the file, which is compressed if its name ends in ".gz".
        """
        chrome_trace.write(path, str(self.device), self._record)


_ATTRIBUTES = ("wall_ms", "wait_ms", "overlapped_ms", "matrix_unit_ms", "builds", "build_ms", "arena_bytes", "state_bytes", "peak_bytes")


def _plain(row: Row) -> dict[str, Any]:
    return {**asdict(row), "total_ms": row.total_ms}


def _checked(by: str) -> str:
    if by not in VIEWS:
        raise ValueError(f'keras_ocl.profile: by={by!r} is no view; use "kernel", "operation" or "layer".')
    return by


def _resolved(origin: Origin, primitive: str, context: Origin) -> Origin:
    """`origin` with the primitive's name; where it is unknown (eager code, compiled helpers), the launch's `context` instead."""
    return (context if origin == NOWHERE else origin).named(primitive)


def _shares(label: object, context: Origin) -> list[tuple[Origin, float]]:
    """(Origin, fraction) of each operation that a launch computed."""
    source = getattr(label, "source", None)
    if source is None:  # a kernel that a user launched directly
        return [(context if context.operation else context._replace(operation=str(label)), 1.0)]
    return [(_resolved(share.origin, share.primitive, context), share.fraction) for share in source.shares]


def _key(origin: Origin, by: str) -> tuple[str, bool]:
    return (origin.operation if by == "operation" else origin.layer or _ELSEWHERE), origin.gradient


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0:.2%}"


def _time_text(ms: float) -> str:
    return f"{ms * 1e3:.0f}us" if ms < 1 else f"{ms:.2f}ms" if ms < 1e3 else f"{ms / 1e3:.2f}sec"


def _bytes_text(n: float) -> str:
    """Bytes as text, in powers of 1000, as in TensorFlow's profiler."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if n >= unit:
            return f"{n / unit:.2f}{name}"
    return f"{n:.0f}B"


@contextlib.contextmanager
def profile(device: str | None = None, by: str = "kernel") -> Iterator[Profile]:
    """Measures what a ``with`` block runs on a device: the time of every kernel, copy and host operation, and the memory requested.

        with keras_ocl.profile(by="operation") as profile:
            model.fit(...)
        print(profile)

    It works on any Keras code, compiled or eager. Run a training step before, so that tracing and building kernels are not included.

    Args:
        device: a device's name such as "gpu:0"; by default the current one.
        by: the rows of the printed table: a "kernel" each; an "operation" each, such as Conv2D, BiasAdd or MaxPool, separately for
            forward and gradient (a layer of a user's class is one operation, and so are the loss, the metrics and the optimizer's
            update); or a "layer" each.

    Yields:
        A `Profile`.

    Raises:
        RuntimeError: no device has that name; lists those there are.
        ValueError: there is no such view.
    """
    used = runtime.current_device() if device is None else runtime.find_device(device)
    result = Profile(used, _checked(by), runtime.Record(current_origin.get))
    with runtime.profiled(used, result._record), kept_in_eager_code():
        memory, begin = used.memory, time.perf_counter()
        before, memory.peak = memory.peak, memory.current
        try:
            yield result
        finally:
            used.finish()
            result.wall_ms = (time.perf_counter() - begin) * 1e3
            result.peak_bytes, memory.peak = memory.peak, max(before, memory.peak)
