"""Scatter of updates that are sorted by row: the work is proportional to updates plus results, not to their product.

The sort is stable. The sorted updates are cut into chunks: a work-item combines the updates of one chunk, row after row, for one column.
If a chunk starts inside a row, its partial result for that row (the chunk's head) is stored separately. A second kernel adds the heads in
order, by the item of the chunk where the row begins; so a row that gets all updates costs no more than others.
"""

from collections.abc import Iterable

from keras_ocl.core.dim import Extent, ceil_div, product
from keras_ocl.kernels import prelude, scatter, sort, sort_local
from keras_ocl.kernels.coordinates import wide_literal
from keras_ocl.kernels.spec import Args, Buffer, KernelSpec

NOWHERE = "0xffffffffu"  # the row key of dropped updates, which sort last


class ByRow(sort.Packed):
    """A sorter of the updates of a scatter.Problem, by row."""

    def __init__(self, problem: scatter.Problem) -> None:
        super().__init__(sort.Problem(problem.traits, 1, problem.count, [], 1, problem.all_arguments))
        self.scatter = problem

    def element(self, args: Args, position: str) -> tuple[str, str]:
        find = self.scatter.find(args, "break;")
        text = f"uint key = {NOWHERE};\ndo {{\nconst {self.scatter.index} s = {position};\n{find}key = row;\n}} while (0);\n"
        return text, f"((ulong)key << 32) | (ulong){position}"


def kernels(problem: scatter.Problem, chunk: int, group: int) -> list[KernelSpec]:
    """KernelSpecs of a scatter.Problem.

    `chunk`: updates that a work-item combines. `group`: work-items of a group.
    """
    specs, order = sort_local.ordered(ByRow(problem))
    heads = Buffer(ceil_div(problem.count, chunk) * problem.columns, problem.dtype)
    make = _Kernels(problem, order, heads, chunk, group)
    return [make.start(), *specs, make.chunks(), make.across()] if specs else [make.start()]


class _Kernels:
    def __init__(self, problem: scatter.Problem, order: Buffer, heads: Buffer, chunk: int, group: int) -> None:
        self.problem, self.order, self.heads, self.chunk, self.group = problem, order, heads, chunk, group

    def start(self) -> KernelSpec:
        """The kernel that stores the result's initial values, one element per work-item."""
        p, args = self.problem, Args(self.problem.all_arguments)
        out = args.pointer(p.result, p.dtype, out=True)
        elements = product(p.shape)
        store = prelude.store(p.dtype, 1, out, "item", p.start(args, "item", 1))
        text = f"const {p.index} item = {args.place('global', 0)};\nif (item < {args.int(elements, p.index)}) {store}\n"
        return self._spec("start", args, text, elements, set(prelude.helpers_for(p.dtype, 1)))

    def _begin(self) -> tuple[Args, str, str, str, str, str]:
        """(Args, statements, C texts order, columns, count, size): the common start of both kernels, which defines chunk and column."""
        p, t, args = self.problem, self.problem.index, Args(self.problem.all_arguments)
        order, columns, count = args.pointer(self.order, "uint64"), args.int(p.columns, t), args.int(p.count, t)
        size = args.scalar(self.chunk, "int")
        text = (
            f"const {t} item = {args.place('global', 0)}, chunk = item / {columns}, c = item % {columns}, first = chunk * {size};\n"
            f"{args.leave(f'first >= {count}')}\nconst {t} stop = min(first + {size}, {wide_literal(t, count)});\n"
        )
        return args, text, order, columns, count, size

    def chunks(self) -> KernelSpec:
        """The kernel in which each work-item combines the updates of a chunk for one column."""
        p, t, helpers = self.problem, self.problem.index, set(prelude.helpers_for(self.problem.dtype, 1))
        args, text, order, columns, _, _ = self._begin()
        out, heads = args.pointer(p.result, p.dtype, out=True), args.pointer(self.heads, p.dtype, out=True)
        updates, register = args.pointer(p.updates, p.dtype), prelude.register_type(p.dtype, 1)
        place = f"(({t})row * {columns} + c)"
        update = prelude.load(p.dtype, 1, updates, f"(({t})(uint)element * {columns} + c)")
        old, more = prelude.load(p.dtype, 1, out, place), p.combine("total", update, 1, helpers)
        nowhere = args.leave(f"row == {NOWHERE}")
        keep = f"if (began) {prelude.store(p.dtype, 1, out, place, 'total')}\nelse {prelude.store(p.dtype, 1, heads, 'item', 'total')}\n"
        text += (
            f"ulong element = {order}[first];\nuint row = element >> 32;\n{nowhere}\n"
            f"int began = first == 0 || (uint)({order}[first - 1] >> 32) != row;\n"
            f"{register} total = {update};\nif (began) {{\nconst {register} next = total;\ntotal = {old};\n"
            f"total = {p.combine('total', 'next', 1, helpers)};\n}}\n"
            f"for ({t} s = first + 1; s < stop; ++s) {{\nelement = {order}[s];\n"
            f"if ((uint)(element >> 32) != row) {{\n{keep}row = element >> 32;\n{nowhere}\n"
            f"began = 1;\ntotal = {old};\n}}\ntotal = {more};\n}}\n{keep}"
        )
        return self._spec("chunks of updates", args, text, self.heads.elements, helpers)

    def across(self) -> KernelSpec:
        """The kernel in which each work-item completes the row that begins in its chunk and continues in later chunks."""
        p, t, helpers = self.problem, self.problem.index, set(prelude.helpers_for(self.problem.dtype, 1))
        args, text, order, columns, count, size = self._begin()
        out, heads = args.pointer(p.result, p.dtype, out=True), args.pointer(self.heads, p.dtype)
        register = prelude.register_type(p.dtype, 1)
        place, head = f"(({t})row * {columns} + c)", prelude.load(p.dtype, 1, heads, f"(q * {columns} + c)")
        text += (
            f"const uint row = {order}[stop - 1] >> 32;\n"
            f"{args.leave(f'row == {NOWHERE} || stop == {count} || (uint)({order}[stop] >> 32) != row')}\n"
            f"{args.leave(f'first > 0 && (uint)({order}[first - 1] >> 32) == row')}\n"
            f"{register} total = {prelude.load(p.dtype, 1, out, place)};\n"
            f"for ({t} q = chunk + 1; q * {size} < {count} && (uint)({order}[q * {size}] >> 32) == row; ++q)"
            f" total = {p.combine('total', head, 1, helpers)};\n"
            f"{prelude.store(p.dtype, 1, out, place, 'total')}\n"
        )
        return self._spec("rows across chunks", args, text, self.heads.elements, helpers)

    def _spec(self, name: str, args: Args, text: str, items: Extent, helpers: Iterable[str]) -> KernelSpec:
        grid = (ceil_div(items, self.group) * self.group,)
        return args.kernel(name, text, grid, (self.group,), frozenset(helpers), title=f"scatter of sorted updates: {name}")
