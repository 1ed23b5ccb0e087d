"""Scatter without atomics: a work-item owns a block of the result (rows by columns) and walks all updates in order.

The result is a matrix: the indexed axes, flattened, are its rows and the trailing axes its columns. Blocks
are cut along columns first, where work is even whatever the indices; every block sees the updates in the same
order, so results do not depend on the cutting.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint, product
from keras_ocl.kernels import elementwise, prelude
from keras_ocl.kernels.coordinates import index_type
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import Args, KernelSpec

_OPS = {"add": "add", "max": "max", "min": "min", "mul": "mul"}


def plan(traits, *, shape, count, mode, clip, x, indices, updates, dtype, result, all_arguments=False):
    """The kernel that scatters into `result`, a buffer of `shape`.

    Args:
        count: shape of the index tensors; `updates` has it followed by the trailing extents of `shape`.
        mode: set, add, max, min or mul. clip: clip indices into range, instead of dropping updates out of it.
        x: handle of what the result starts as, or None for zeros.
        indices: (handle, dtype) of each, for the leading axes of `shape`.
    """
    if 0 in shape:
        return []
    args = Args(all_arguments)
    extents, trailing = shape[: len(indices)], shape[len(indices) :]
    rows, columns, updates_count = product(extents), product(trailing), product(count)
    t = index_type(rows * columns, updates_count * columns)
    schedule = schedule_of(traits)
    lanes = schedule.lanes(traits, dtype, columns)
    block_rows, block_columns = schedule.scatter_block(traits, rows, columns, lanes)
    out = args.pointer(result, dtype, out=True)
    start = args.pointer(x, dtype) if x is not None else None
    updates = args.pointer(updates, dtype)
    places = [(args.pointer(h, d), d) for h, d in indices]
    row_text, column_text, count_text = (args.int(n, t) for n in (rows, columns, updates_count))
    rows_each, columns_each = args.int(block_rows, t), args.int(block_columns, t)
    helpers = set()

    def columns_loop(statement):
        """`statement(width)` over the block's columns, c being the first of its lanes."""
        if lanes == 1:
            return f"for ({t} c = c0; c < c1; ++c) {{ {statement(1)} }}\n"
        return (
            f"{t} c = c0;\nfor (; c + {lanes} <= c1; c += {lanes}) {{ {statement(lanes)} }}\n"
            f"for (; c < c1; ++c) {{ {statement(1)} }}\n"
        )

    def begin(width):
        helpers.update(prelude.helpers_for(dtype, width))
        zero = elementwise.splat(elementwise.literal(0, dtype), dtype, width)
        return prelude.store(dtype, width, out, "(r + c)", prelude.load(dtype, width, start, "(r + c)") if start else zero)

    def update(width):
        value = prelude.load(dtype, width, updates, "(u + c)")
        if mode != "set":
            old = prelude.load(dtype, width, out, "(r + c)")
            helpers.update(elementwise.helpers(_OPS[mode], width, dtype, [dtype] * 2))
            value = elementwise.emit(_OPS[mode], width, dtype, [dtype] * 2, [old, value])
        return prelude.store(dtype, width, out, "(r + c)", value)

    find = []
    for k, ((pointer, index_dtype), extent) in enumerate(zip(places, extents, strict=True)):
        n = args.int(extent, t)
        # Beyond 32 bits an index is out of range anyway, whichever end it is clipped to.
        find.append(f"const {dtypes.register_ctype(index_dtype)} i{k} = {pointer}[s];\n")
        if clip:
            find.append(f"const {t} at{k} = {_clipped(f'i{k}', index_dtype, n)};\n")
        else:
            negative = f"i{k} < 0 || " if dtypes.is_signed(index_dtype) else ""
            find.append(f"if ({negative}i{k} >= {_as(index_dtype, n)}) continue;\nconst {t} at{k} = i{k};\n")
    row = "at0"
    for k, extent in enumerate(extents[1:], 1):
        row = f"({row} * {args.int(extent, t)} + at{k})"
    alone = not isinstance(rows, Dim) and not all_arguments and hint(block_rows) >= rows  # rows that grow make several blocks
    mine = "" if alone else "if (row < r0 || row >= r1) continue;\n"
    body = (
        f"const {t} c0 = get_global_id(0) * {columns_each}, c1 = min(c0 + {columns_each}, {column_text});\n"
        f"const {t} r0 = get_global_id(1) * {rows_each}, r1 = min(r0 + {rows_each}, {row_text});\n"
        f"for ({t} row = r0; row < r1; ++row) {{\nconst {t} r = row * {column_text};\n{columns_loop(begin)}}}\n"
        f"for ({t} s = 0; s < {count_text}; ++s) {{\n{''.join(find)}const {t} row = {row};\n{mine}"
        f"const {t} r = row * {column_text}, u = s * {column_text};\n{columns_loop(update)}}}\n"
    )
    grid = (ceil_div(columns, block_columns), ceil_div(rows, block_rows))
    return [KernelSpec("", args.args, body, grid, schedule.group, frozenset(helpers), title="scatter: a block of the result per work-item")]


def _as(dtype, text):
    """An extent compared with an index of `dtype`, in a type that holds both."""
    return f"({'u' if dtype.startswith('u') else ''}long){text}"


def _clipped(name, dtype, extent):
    if dtype.startswith("u"):
        return f"min((ulong){name}, (ulong)({extent} - 1))"
    return f"clamp((long){name}, 0L, (long)({extent} - 1))"
