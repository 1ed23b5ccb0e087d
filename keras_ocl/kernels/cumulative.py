"""Cumulative sums, products and extremes, and linear recurrences, along one axis.

A work-item scans the axis for one vector of adjacent elements of the other axes (one element if the schedule has no vectors). A
long axis with few such scans is cut into parts: one kernel computes each part's total, and the second scans each part from
the combined totals of those before it. The number of parts depends on extents only.
On GPUs, groups of work-items scan a row together (cumulative_gpu.py).
"""

from collections.abc import Sequence

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, Shape, ceil_div, hint, product, size_hint
from keras_ocl.kernels import elementwise, prelude, summation
from keras_ocl.kernels.coordinates import index_type, unflattened, wide_literal
from keras_ocl.kernels.schedule import Traits, schedule_of
from keras_ocl.kernels.spec import Args, Buffer, Epilogue, Handle, KernelSpec

_OPS = {"cumsum": ("add", "sum"), "cumprod": ("mul", "prod"), "cummax": ("max", "max"), "cummin": ("min", "min")}  # op, reduction
_BLOCK = 64  # elements that a sum adds one after the other; 64 such sums form a block of the next level


def plan(
    traits: Traits,
    *,
    kind: str,
    shape: Sequence[Extent],
    axis: int,
    reverse: bool,
    handles: Sequence[Handle],
    dtype: str,
    sink: Epilogue,
    all_arguments: bool = False,
) -> list[KernelSpec]:
    """KernelSpecs of a running operation over `shape` along `axis`.

    Args:
        kind: cumsum, cumprod, cummax, cummin, or linear_recurrence (two handles a, b: s = a * s + b).
        handles: the operands, row-major buffers of `shape` and `dtype`.
        sink: gets every running value, with lanes along the last axis.
    """
    if 0 in shape:
        return []
    problem = Scan(traits, kind, tuple(shape), axis, reverse, handles, dtype, sink, all_arguments)
    n, walks = hint(shape[axis]), size_hint(shape) // max(1, hint(shape[axis]))
    schedule = problem.schedule
    together = schedule.scan(problem)
    if together:
        return together
    if kind == "linear_recurrence" or n < schedule.scan_steps or walks > schedule.scan_walks:
        return [problem.kernel()]
    part = -(-n // schedule.scan_parts)
    count = ceil_div(shape[axis], part)
    totals = Buffer(count * product((*shape[:axis], *shape[axis + 1 :])), dtype)
    return [problem.kernel(part, totals, True), problem.kernel(part, totals, False)]


class Scan:
    """A running operation, and helpers of its kernels; arguments as for plan()."""

    def __init__(
        self,
        traits: Traits,
        kind: str,
        shape: Shape,
        axis: int,
        reverse: bool,
        handles: Sequence[Handle],
        dtype: str,
        sink: Epilogue,
        all_arguments: bool,
    ) -> None:
        self.traits, self.schedule = traits, schedule_of(traits)
        self.kind, self.shape, self.axis, self.reverse = kind, shape, axis, reverse
        self.handles, self.dtype, self.sink, self.all_arguments = handles, dtype, sink, all_arguments
        self.ctype = index_type(product(shape))
        self.last = axis == len(shape) - 1
        self.helpers: set[str] = set()
        neutral = 0 if kind not in _OPS else dtypes.neutral(_OPS[kind][1], dtype)
        self.start = elementwise.literal(neutral, dtype)  # C text

    def args(self) -> Args:
        """A new Args for one of its kernels."""
        return Args(self.all_arguments)

    def load(self, pointer: str, offset: str, width: int = 1) -> str:
        """C text of the `width` elements at an offset (C text)."""
        self.helpers |= prelude.helpers_for(self.dtype, width)
        return prelude.load(self.dtype, width, pointer, f"({offset})")

    def apply(self, a: str, b: str, width: int = 1) -> str:
        """C text of the operation on two registers; not for a recurrence."""
        return self._apply(_OPS[self.kind][0], a, b, width)

    def kernel(self, part: int = 0, totals: Buffer | None = None, first: bool = False) -> KernelSpec:
        """The KernelSpec of a scan, or of parts of `part` elements: the `first` kernel stores each part's total, the second uses them."""
        args, t, shape, axis = self.args(), self.ctype, self.shape, self.axis
        n, inner = shape[axis], product(shape[axis + 1 :])
        outer, middle, last = product(shape[:axis]), product(shape[axis + 1 : -1]), 1 if self.last else shape[-1]
        width = self.schedule.lanes(self.traits, self.dtype, last)
        pointers = [args.pointer(h, self.dtype) for h in self.handles]
        total = args.pointer(totals, self.dtype, out=first) if totals else ""
        n_text, inner_text, last_text = args.int(n, t), args.int(inner, t), args.int(last, t)
        walks, middle_text = args.int(outer * middle, t), args.int(middle, t)
        line = [f"const {t} walk = {args.place('global', 1)};\nconst {t} outer = walk / {middle_text}, middle = walk % {middle_text};\n"]
        start, stop, piece = "0", n_text, "0"
        if part:
            size = args.int(part, t)
            end = f"min(begin + {size}, {wide_literal(t, n_text)})"
            line.append(f"const {t} piece = {args.place('global', 2)}, begin = piece * {size}, end = {end};\n")
            start, stop, piece = "begin", "end", "piece"
        before = unflattened(args, "outer", shape[:axis])
        between = unflattened(args, "middle", shape[axis + 1 : -1])
        slot = f"({{piece}} * {walks} + walk) * {last_text} + column"

        def walk(w: int) -> str:
            register = prelude.register_type(self.dtype, w)
            text = [
                f"__global const {dtypes.storage_ctype(self.dtype)}* x{k} = {p} + (outer * {n_text} * {inner_text}"
                f" + middle * {last_text} + column);\n"
                for k, p in enumerate(pointers)
            ]
            text.append(f"{register} state = ({register})({self.start});\n")
            if part and not first:
                # Combine the totals of the parts before this one, in order.
                earlier = self.load(total, slot.format(piece="q"), w)
                text.append(f"for ({t} q = 0; q < {piece}; ++q) state = {self._step('state', [earlier], w)};\n")
            values = [self.load(f"x{k}", f"at * {inner_text}", w) for k in range(len(pointers))]
            at = f"const {t} at = {f'{n_text} - 1 - i' if self.reverse else 'i'};\n"
            column = () if self.last else ("column",)

            def stored(value: str) -> str:
                return "" if first else self.sink.store(args, (*before, "at", *between, *column), value, w)

            if self.long(part or n):
                text.append(self.in_blocks(register, start, stop, f"{at}own += {values[0]};\n", stored("value")))
            else:
                step = f"state = {self._step('state', values, w)};\n"
                text.append(f"for ({t} i = {start}; i < {stop}; ++i) {{\n{at}{step}{stored('state')}}}\n")
            if first:
                self.helpers |= prelude.helpers_for(self.dtype, w)
                text.append(prelude.store(self.dtype, w, total, slot.format(piece=piece), "state") + "\n")
            return "".join(text)

        if width == 1:
            body = f"const {t} column = {args.place('global', 0)};\n{walk(1)}"
        else:
            body = (
                f"{t} column = {args.place('global', 0)} * {width};\nif (column + {width} <= {last_text}) {{\n{walk(width)}}} else\n"
                f"for (; column < {last_text}; ++column) {{\n{walk(1)}}}\n"
            )
        grid = (ceil_div(last, width), outer * middle, ceil_div(n, part) if part else 1)
        helpers = frozenset(self.helpers | self.sink.helpers)
        name, text = "totals of parts" if first else "", "".join(line) + body
        title = f"{self.kind}: {'totals of parts' if first else 'a walk along the axis per work-item'}"
        return args.kernel(name, text, grid, self.schedule.group, helpers, title=title)

    def long(self, steps: Extent) -> bool:
        """Whether `steps` terms are too many for one chain of additions."""
        return self.kind == "cumsum" and summation.bounded(self.dtype) and hint(steps) > 2 * _BLOCK

    def in_blocks(self, register: str, start: str, stop: str, add: str, store: str) -> str:
        """Statements of a running sum in `state`, in blocks, such that no value results from a long chain of additions.

        register: a C type. add: statements that add the `i`th element to `own`. store: statements that store `value`, or "".
        """
        return (
            f"{register} blocks = 0;\nint turn = 0;\nfor ({self.ctype} b = {start}; b < {stop}; b += {_BLOCK}) {{\n"
            f"const {register} base = state + blocks;\n{register} own = 0;\n"
            f"for ({self.ctype} i = b; i < min(b + {_BLOCK}, ({self.ctype})({stop})); ++i) {{\n{add}"
            f"{f'const {register} value = base + own;' + chr(10) if store else ''}{store}}}\n"
            f"blocks += own;\nif (++turn == {_BLOCK}) {{\nstate += blocks;\nblocks = 0;\nturn = 0;\n}}\n}}\nstate += blocks;\n"
        )

    def _apply(self, op: str, a: str, b: str, width: int) -> str:
        text, helpers = elementwise.emit(op, width, self.dtype, [self.dtype] * 2, [a, b])
        self.helpers |= helpers
        return text

    def _step(self, state: str, values: Sequence[str], width: int) -> str:
        if self.kind == "linear_recurrence":
            return self._apply("add", self._apply("mul", values[0], state, width), values[1], width)
        return self.apply(state, values[0], width)
