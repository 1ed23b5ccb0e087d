"""Kernels of row-sparse tensors: the distinct rows that index tensors name, and the replacement of these rows of a tensor.

Each index has a slot, an int32 number below the number of indices; equal rows have the same slot. `rows` holds the row of each slot, -1 for
a slot that stands for none. A work-item that puts indices into a hash table one after the other numbers slots in the order in which rows
first appear; by sorting, which many work-items do together, a row's slot is the position of its first index in the sorted order.
"""

from collections.abc import Callable
from dataclasses import replace

from keras_ocl.core.dim import Extent, Shape, ceil_div, product
from keras_ocl.kernels import prelude, scatter, scatter_sorted, sort_local
from keras_ocl.kernels.coordinates import index_type, wide_literal
from keras_ocl.kernels.schedule import Traits, schedule_of
from keras_ocl.kernels.spec import Args, Buffer, Handle, KernelSpec


def distinct(
    traits: Traits,
    *,
    extent: Extent,
    count: Extent,
    clip: bool,
    indices: tuple[Handle, str],
    slots: Handle,
    rows: Handle,
    all_arguments: bool = False,
) -> list[KernelSpec]:
    """KernelSpecs that store the slot of each of `count` indices in `slots` (-1 if it is out of range), and each slot's row in `rows`.

    Args:
        extent: the number of rows that there are. clip: clip indices into range. indices: their handle and dtype.
    """
    problem = scatter.Problem(traits, (extent,), count, "set", clip, None, [indices], indices[0], "int32", slots, all_arguments)
    return schedule_of(traits).distinct_rows(problem, rows)


def by_hashing(problem: scatter.Problem, rows: Handle) -> list[KernelSpec]:
    """The KernelSpec in which one work-item visits all indices; half of the hash table's cells stay free."""
    args, t = Args(problem.all_arguments), problem.index
    slots, found = args.pointer(problem.result, "int32", out=True), args.pointer(rows, "int32", out=True)
    args.pointer(*problem.indices[0])
    cells = args.pointer(Buffer(2 * problem.count, "int32"), "int32", out=True)
    count, size = args.int(problem.count, t), args.int(2 * problem.count, t)
    body = (
        f"for ({t} c = 0; c < {size}; ++c) {cells}[c] = -1;\n{t} slot = 0;\n"
        f"for ({t} s = 0; s < {count}; ++s) {{\n{slots}[s] = -1;\n{problem.find(args, 'continue;')}"
        "uint mixed = (uint)row * 0x9e3779b9u;\nmixed ^= mixed >> 15;\nmixed *= 0x85ebca6bu;\n"
        f"{t} c = ({t})(((ulong)mixed * (ulong){size}) >> 32);\nint at;\n"
        f"while ((at = {cells}[c]) >= 0 && {found}[at] != row) c = c + 1 < {size} ? c + 1 : 0;\n"
        f"if (at < 0) {{\nat = slot++;\n{cells}[c] = at;\n{found}[at] = row;\n}}\n{slots}[s] = at;\n}}\n"
        f"for (; slot < {count}; ++slot) {found}[slot] = -1;\n"
    )
    return [args.kernel("", body, (1,), (1,), title="distinct rows: one work-item visits all indices")]


def by_sorting(problem: scatter.Problem, rows: Handle, group: int) -> list[KernelSpec]:
    """KernelSpecs that sort the indices, then look for the first of each row. `group`: work-items of a group."""
    specs, order = sort_local.ordered(scatter_sorted.ByRow(problem))
    args, t = Args(problem.all_arguments), problem.index
    ordered, count = args.pointer(order, "uint64"), args.int(problem.count, t)
    slots, found = args.pointer(problem.result, "int32", out=True), args.pointer(rows, "int32", out=True)
    item = args.place("global", 0)
    body = (
        f"const {t} p = {item};\n{args.leave(f'p >= {count}')}\nconst ulong element = {ordered}[p];\nconst uint row = element >> 32;\n"
        f"{t} low = 0, high = p;\n"  # the first element of the row is at `high` or before
        f"while (low < high) {{\nconst {t} middle = (low + high) / 2;\n"
        f"if ((uint)({ordered}[middle] >> 32) < row) low = middle + 1;\nelse high = middle;\n}}\n"
        f"const int there = row != {scatter_sorted.NOWHERE};\n"
        f"{slots}[(uint)element] = there ? (int)low : -1;\n{found}[p] = there && low == p ? (int)row : -1;\n"
    )
    grid = (ceil_div(problem.count, group) * group,)
    return [*specs, args.kernel("slots", body, grid, (group,), title="distinct rows: slots of sorted indices")] if specs else []


def put(
    traits: Traits,
    *,
    shape: Shape,
    count: Extent,
    x: Handle | None,
    rows: Handle,
    values: Handle,
    dtype: str,
    result: Handle,
    all_arguments: bool = False,
) -> list[KernelSpec]:
    """KernelSpecs that store `values` (count, *shape[1:]) as the rows `rows` of `result`, and all other rows of x there.

    x is None where the result lies in its memory. No two rows are equal; -1 stands for none.
    """
    if 0 in shape:
        return []
    height, columns = shape[0], product(shape[1:])
    t, schedule = index_type(height * columns, count * columns), schedule_of(traits)
    lanes = schedule.lanes(traits, dtype, columns)

    def kernel(name: str, title: str, height: Extent, source: Handle, find: Callable[[Args], str]) -> KernelSpec:
        args = Args(all_arguments)
        out, given = args.pointer(result, dtype, out=True), args.pointer(source, dtype)
        block_rows, block_columns = schedule.scatter_block(traits, height, columns, lanes)
        wide, high, deep, across = (args.int(n, t) for n in (columns, height, block_rows, block_columns))

        def move(width: int) -> str:
            return prelude.store(dtype, width, out, "(r + c)", prelude.load(dtype, width, given, "(u + c)"))

        walk = f"{t} c = c0;\nfor (; c + {lanes} <= c1; c += {lanes}) {{ {move(lanes)} }}\n" if lanes > 1 else f"{t} c = c0;\n"
        body = (
            f"const {t} c0 = {args.place('global', 0)} * {across}, c1 = min(c0 + {across}, {wide_literal(t, wide)});\n"
            f"const {t} s0 = {args.place('global', 1)} * {deep}, s1 = min(s0 + {deep}, {wide_literal(t, high)});\n"
            f"for ({t} s = s0; s < s1; ++s) {{\n{find(args)}const {t} r = row * {wide}, u = s * {wide};\n"
            f"{walk}for (; c < c1; ++c) {{ {move(1)} }}\n}}\n"
        )
        grid = (ceil_div(columns, block_columns), ceil_div(height, block_rows))
        helpers = frozenset({*prelude.helpers_for(dtype, lanes), *prelude.helpers_for(dtype, 1)})
        return args.kernel(name, body, grid, schedule.group, helpers, title=title)

    def named(args: Args) -> str:
        return f"const {t} row = {args.pointer(rows, 'int32')}[s];\nif (row < 0) continue;\n"

    changed = replace(kernel("", "put rows: a block of them per work-item", count, values, named), replaced=count * columns)
    if x is None:
        return [changed]
    return [kernel("copy", "put rows: a block of the other tensor per work-item", height, x, lambda args: f"const {t} row = s;\n"), changed]
