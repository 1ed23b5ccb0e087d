"""Kernels that add partial results of other kernels' work-items, in order, so that the sums are the same from run to run."""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, Shape, ceil_div, hint, maximum, product
from keras_ocl.kernels import prelude, summation
from keras_ocl.kernels.coordinates import decode, index_type, unflattened
from keras_ocl.kernels.spec import Args, Epilogue, Handle, KernelSpec

_TITLE = "the sum of parts of a result"
_ITEMS = 256  # most work-items of a group of teams: as many as other reductions have, so that they can be joined


def team(count: Extent, elements: Extent, items: int, most: int = 16) -> int:
    """Number of work-items per element (a power of two up to `most`) for adding `count` parts, with at most `items` work-items in all."""
    size = 1
    while size < most and 2 * size * hint(elements) <= items and 8 * size <= hint(count):
        size *= 2
    return size


def kernel(
    name: str,
    parts: Handle,
    count: Extent,
    shape: Shape,
    dtype: str,
    sink: Epilogue,
    all_arguments: bool = False,
    team: int = 1,
    group: int = _ITEMS,
) -> KernelSpec:
    """The KernelSpec that adds `count` partial results of `shape`, with `team` work-items per element, and hands the sums to the sink.

    `group`: most work-items of a group of teams, a power of two that `team` divides.
    `parts`: handle of a buffer (count, *shape) of `dtype`, the accumulator's.
    """
    args, elements = Args(all_arguments), product(shape)
    source, register, i = args.pointer(parts, dtype), dtypes.register_ctype(dtype), index_type(elements)
    head = f"const {i} element = {args.place('global', 0)};\n{decode('element', shape, 'f', args, i)}{register} total = 0;\n"
    stop, total = args.int(count), args.int(elements, i)

    def walk(start: str, end: str) -> str:
        return f"for (int chunk = {start}; chunk < {end}; ++chunk) total += {source}[(long)chunk * {total} + element];\n"

    def add(start: str, end: str) -> str:
        steps = ceil_div(count, team)
        return summation.cut(dtype, register, ["total"], walk, start, end, steps, chain=summation.CHAIN, alone=summation.PARTS)

    store = sink.store(args, [f"f{i}" for i in range(len(shape))], "total", 1)
    helpers = frozenset(sink.helpers)
    if team == 1:
        text = f"{head}{add('0', stop)}{store}"
        return args.kernel(name, text, (maximum(1, elements),), None, helpers, title=_TITLE)
    teams = min(_ITEMS, group) // team  # of adjacent elements
    local = args.local(register, teams * team)
    text = (
        f"const int me = {args.place('local', 0)}, member = {args.place('local', 1)};\n{head}"
        f"const int each = ({stop} + {team - 1}) / {team}, end = element < {total} ? min({stop}, (member + 1) * each) : 0;\n"
        f"{add('member * each', 'end')}"
        f"{local}[member * {teams} + me] = total;\n{args.barrier()}\n"
        f"if (member == 0 && element < {total}) {{\n"
        f"for (int other = 1; other < {team}; ++other) total += {local}[other * {teams} + me];\n{store}}}\n"
    )
    grid = (ceil_div(elements, teams) * teams, team)
    return args.kernel(name, text, grid, (teams, team), helpers, title=f"{_TITLE}, by teams of work-items")


def in_vectors(
    name: str,
    parts: Handle,
    count: Extent,
    shape: Shape,
    dtype: str,
    sink: Epilogue,
    width: int,
    least: int = 1,
    all_arguments: bool = False,
) -> KernelSpec:
    """Like kernel(), with one work-item per row of `shape`, in vectors of at most `width` lanes along the row.

    Several rows shorter than `least` elements share a work-item.
    """
    args, elements = Args(all_arguments), product(shape)
    columns, rows = shape[-1], product(shape[:-1])
    per_item = max(1, least // max(1, hint(columns)))
    while width > max(1, hint(columns)):
        width //= 2
    i = index_type(count * elements)
    source, n, total, stop = args.pointer(parts, dtype), args.int(columns, i), args.int(elements, i), args.int(count, i)

    def summed(lanes: int, register: str) -> str:
        """Statements that declare `total` and sum the parts."""
        value = prelude.load(dtype, lanes, "part", "0")
        if hint(count) <= summation.PARTS or not summation.bounded(dtype):
            loop = f"for ({i} chunk = 1; chunk < {stop}; ++chunk) {{\npart += {total};\ntotal += {value};\n}}\n"
            return f"{register} total = {value};\n{loop}"

        def walk(start: str, end: str) -> str:
            return f"for ({i} chunk = {start}; chunk < {end}; ++chunk) {{\ntotal += {value};\npart += {total};\n}}\n"

        text = summation.cut(dtype, register, ["total"], walk, "0", stop, count, chain=summation.CHAIN, alone=summation.PARTS)
        return f"{register} total = 0;\n{text}"

    def add(lanes: int) -> str:
        register = prelude.register_type(dtype, lanes)
        return (
            f"__global const {dtypes.storage_ctype(dtype)}* part = {source} + row * {n} + column;\n"
            f"{summed(lanes, register)}"
            f"{sink.store(args, [*unflattened(args, 'row', shape[:-1]), 'column'], 'total', lanes)}"
        )

    walk = f"{i} column = 0;\n"
    if width > 1:
        walk += f"for (; column + {width} <= {n}; column += {width}) {{\n{add(width)}}}\n"
    if width == 1 or not isinstance(columns, int) or columns % width:
        walk += f"for (; column < {n}; ++column) {{\n{add(1)}}}\n"
    if per_item == 1:
        text = f"const {i} row = {args.place('global', 0)};\n{walk}"
    else:
        text = f"const {i} first = {args.place('global', 0)} * {per_item};\n"
        text += f"for ({i} row = first; row < min(first + {per_item}, ({i}){args.int(rows, i)}); ++row) {{\n{walk}}}\n"
    grid = (ceil_div(rows, per_item),)
    return args.kernel(name, text, grid, (1,), frozenset(sink.helpers), title=_TITLE)
