"""Scatter without atomics: a work-item owns a block of the result (rows by columns) and visits all updates in order.

The result is a matrix: the indexed axes, flattened, are its rows and the trailing axes its columns. It is cut into
blocks along columns first, where work is even whatever the indices; every block sees the updates in the same order,
so results do not depend on the cutting. If there are too many visits, updates are sorted by row (scatter_sorted.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, Extent, Shape, ceil_div, hint, product
from keras_ocl.kernels import elementwise, prelude, summation
from keras_ocl.kernels.coordinates import index_type, wide_literal
from keras_ocl.kernels.schedule import Traits, schedule_of
from keras_ocl.kernels.spec import Args, Buffer, Handle, KernelSpec

_OPS = {"add": "add", "max": "max", "min": "min", "mul": "mul"}


@dataclass(frozen=True)
class Problem:
    """One scatter; attributes as the arguments of plan()."""

    traits: Traits
    shape: Shape
    count: Extent  # number of updates
    mode: str
    clip: bool
    x: Handle | None
    indices: Sequence[tuple[Handle, str]]
    updates: Handle
    dtype: str
    result: Handle
    all_arguments: bool

    @property
    def extents(self) -> Shape:
        """Extents of the indexed axes."""
        return self.shape[: len(self.indices)]

    @property
    def rows(self) -> Extent:
        """Rows of the result: the product of the indexed extents."""
        return product(self.extents)

    @property
    def columns(self) -> Extent:
        """Columns of the result: the product of the trailing extents."""
        return product(self.shape[len(self.indices) :])

    @property
    def index(self) -> str:
        """C type of indices."""
        return index_type(self.rows * self.columns, self.count * self.columns)

    def find(self, args: Args, dropped: str) -> str:
        """Statements that define `row`, the row of update `s`; `dropped` is the statement for an update out of range."""
        t, text, row = self.index, [], "at0"
        for k, ((handle, dtype), extent) in enumerate(zip(self.indices, self.extents, strict=True)):
            n = args.int(extent, t)
            # Beyond 32 bits an index is out of range anyway, whichever end it is clipped to.
            text.append(f"const {dtypes.register_ctype(dtype)} i{k} = {args.pointer(handle, dtype)}[s];\n")
            if self.clip:
                text.append(f"const {t} at{k} = {_clipped(f'i{k}', dtype, n)};\n")
            else:
                negative = f"i{k} < 0 || " if dtypes.is_signed(dtype) else ""
                text.append(f"if ({negative}i{k} >= {_as(dtype, n)}) {dropped}\nconst {t} at{k} = i{k};\n")
        for k, extent in enumerate(self.extents[1:], 1):
            row = f"({row} * {args.int(extent, t)} + at{k})"
        return f"{''.join(text)}const {t} row = {row};\n"

    def combine(self, a: str, b: str, width: int, helpers: set[str]) -> str:
        """C expression of the result's new value, from its value `a` and the update `b`."""
        if self.mode == "set":
            return b
        text, called = elementwise.emit(_OPS[self.mode], width, self.dtype, [self.dtype] * 2, [a, b])
        helpers |= called
        return text

    @property
    def block(self) -> int:
        """Number of updates whose sums are added to the result as a block, to bound rounding errors; 0 if rows get few updates."""
        rows, count = max(1, hint(self.rows)), hint(self.count)
        many = self.mode == "add" and summation.bounded(self.dtype) and count >= 32 * rows and count > 2 * summation.TILE
        return max(8 * rows, summation.PRODUCT_ALONE, count // summation.PRODUCT_ALONE) if many else 0

    def start(self, args: Args, offset: str, width: int) -> str:
        """C expression of the result's initial value at `offset`."""
        if self.x is None:
            return elementwise.splat(elementwise.literal(0, self.dtype), self.dtype, width)
        return prelude.load(self.dtype, width, args.pointer(self.x, self.dtype), offset)


def plan(
    traits: Traits,
    *,
    shape: Sequence[Extent],
    count: Sequence[Extent],
    mode: str,
    clip: bool,
    x: Handle | None,
    indices: Sequence[tuple[Handle, str]],
    updates: Handle,
    dtype: str,
    result: Handle,
    all_arguments: bool = False,
) -> list[KernelSpec]:
    """KernelSpecs that scatter into `result`, a buffer of `shape`.

    Args:
        count: shape of the index tensors; `updates` has it followed by the trailing extents of `shape`.
        mode: set, add, max, min or mul. clip: clip indices into range, instead of dropping updates that are out of range.
        x: handle of the result's initial value, or None for zeros.
        indices: list of (handle, dtype), one for each of the leading axes of `shape`.
    """
    if 0 in shape:
        return []
    problem = Problem(traits, tuple(shape), product(count), mode, clip, x, indices, updates, dtype, result, all_arguments)
    return schedule_of(traits).scatter_sorted(problem) or [_by_walking(problem)]


def _by_walking(problem: Problem) -> KernelSpec:
    """The KernelSpec in which each work-item visits all updates."""
    traits, dtype = problem.traits, problem.dtype
    helpers: set[str]
    args, helpers = Args(problem.all_arguments), set()
    rows, columns, t = problem.rows, problem.columns, problem.index
    schedule = schedule_of(traits)
    lanes = schedule.lanes(traits, dtype, columns)
    block_rows, block_columns = schedule.scatter_block(traits, rows, columns, lanes)
    out = args.pointer(problem.result, dtype, out=True)
    if problem.x is not None:
        args.pointer(problem.x, dtype)
    updates = args.pointer(problem.updates, dtype)
    for handle, index_dtype in problem.indices:
        args.pointer(handle, index_dtype)
    row_text, column_text, count_text = (args.int(n, t) for n in (rows, columns, problem.count))
    rows_each, columns_each = args.int(block_rows, t), args.int(block_columns, t)

    def columns_loop(statement: Callable[[int], str]) -> str:
        """C loop of `statement(width)` over the block's columns; the C variable `c` is the first lane's column."""
        if lanes == 1:
            return f"for ({t} c = c0; c < c1; ++c) {{ {statement(1)} }}\n"
        return f"{t} c = c0;\nfor (; c + {lanes} <= c1; c += {lanes}) {{ {statement(lanes)} }}\nfor (; c < c1; ++c) {{ {statement(1)} }}\n"

    def begin(width: int) -> str:
        helpers.update(prelude.helpers_for(dtype, width))
        return prelude.store(dtype, width, out, "(r + c)", problem.start(args, "(r + c)", width))

    block = problem.block
    sums = args.pointer(Buffer(rows * columns, dtype), dtype, out=True) if block else out

    def clear(width: int) -> str:
        return prelude.store(dtype, width, sums, "(r + c)", elementwise.splat(elementwise.literal(0, dtype), dtype, width))

    def update(width: int) -> str:
        old = prelude.load(dtype, width, sums, "(r + c)")
        value = problem.combine(old, prelude.load(dtype, width, updates, "(u + c)"), width, helpers)
        return prelude.store(dtype, width, sums, "(r + c)", value)

    def add(width: int) -> str:
        old, more = (prelude.load(dtype, width, p, "(r + c)") for p in (out, sums))
        total = problem.combine(old, more, width, helpers)
        return f"{prelude.store(dtype, width, out, '(r + c)', total)} {clear(width)}"

    def each_row(statement: Callable[[int], str]) -> str:
        return f"for ({t} row = r0; row < r1; ++row) {{\nconst {t} r = row * {column_text};\n{columns_loop(statement)}}}\n"

    find = problem.find(args, "continue;")
    alone = not isinstance(rows, Dim) and not problem.all_arguments and hint(block_rows) >= rows  # a Dim may grow to several blocks
    mine = "" if alone else "if (row < r0 || row >= r1) continue;\n"
    body = (
        f"const {t} c0 = {args.place('global', 0)} * {columns_each}, c1 = min(c0 + {columns_each}, {wide_literal(t, column_text)});\n"
        f"const {t} r0 = {args.place('global', 1)} * {rows_each}, r1 = min(r0 + {rows_each}, {wide_literal(t, row_text)});\n"
        f"{each_row(begin)}"
    )
    walk = f"{find}{mine}const {t} r = row * {column_text}, u = s * {column_text};\n{columns_loop(update)}}}\n"
    if block:
        body += (
            f"{each_row(clear)}for (long first = 0; first < {count_text}; first += {block}) {{\n"
            f"for ({t} s = first; s < min(first + {block}, (long){count_text}); ++s) {{\n{walk}{each_row(add)}}}\n"
        )
    else:
        body += f"for ({t} s = 0; s < {count_text}; ++s) {{\n{walk}"
    grid = (ceil_div(columns, block_columns), ceil_div(rows, block_rows))
    return args.kernel("", body, grid, schedule.group, frozenset(helpers), title="scatter: a block of the result per work-item")


def _as(dtype: str, text: str) -> str:
    """C text of an extent, in a type that holds it and any index of `dtype`, for comparisons."""
    return f"({'u' if dtype.startswith('u') else ''}long){text}"


def _clipped(name: str, dtype: str, extent: str) -> str:
    if dtype.startswith("u"):
        return f"min((ulong){name}, (ulong)({extent} - 1))"
    return f"clamp((long){name}, 0L, (long)({extent} - 1))"
