"""Sorting rows and selecting their greatest elements in local memory, by groups of work-items.

A group loads a block of 2^i elements and sorts it by Batcher's bitonic network (1968); several short rows share a group. Longer rows are
sorted block by block and merged pairwise: a group computes one tile of a merged run, finds the two input ranges along the merge path
(Green, McColl & Bader, "GPU Merge Path", 2012), and merges them in local memory, so that global memory is accessed sequentially. For the
greatest k elements of a row, each block keeps k: it merges runs of that length and drops the smaller half (Shanbhag, Pirk & Madden,
"Efficient top-k query processing on GPUs", 2018); the kept elements are the row of the next launch.

No two elements are equal, since each contains its position; so the sorts are stable.
"""

from collections.abc import Callable, Sequence

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, Extent, Shape, ceil_div, hint, power_above, power_below
from keras_ocl.kernels import sort
from keras_ocl.kernels.coordinates import wide_literal
from keras_ocl.kernels.spec import Args, Buffer, Handle, KernelSpec

_GROUP = 256  # most work-items of a group
_OF_LOCAL = 2  # a group takes 1/2 of the local memory, so that a unit has several
_BLOCK = 16384  # most bytes of a block
_REDUCTION = 4  # least ratio of a row's elements to those that one launch keeps

_Finish = Callable[[Args, str, str, str], str]


def by_merging(problem: sort.Problem, results: Sequence[Handle]) -> list[KernelSpec] | None:
    """KernelSpecs that sort a sort.Problem into `results`; None where its keys are more than 64 bits."""
    sizes = [dtypes.itemsize(dtype) for _, dtype in problem.operands[: problem.keys]]
    if len(sizes) > 1 and max(sizes) > 4 or len(sizes) > 2:
        return None
    sorter = sort.Packed(problem) if sizes[1:] == [] and sizes[0] <= 4 else Wide(problem)
    return _Kernels(sorter).sort(_gather(sorter, results))


def greatest(problem: sort.Problem, k: Extent, results: Sequence[Handle]) -> list[KernelSpec]:
    """KernelSpecs that store the `k` greatest of each row, descending, and their positions in `results`."""
    narrow = dtypes.itemsize(problem.operands[0][1]) <= 4
    sorter = (sort.Packed if narrow else Wide)(problem, descending=True)
    return _Kernels(sorter).select(k, _gather(sorter, results[:1], results[1]))


def ordered(sorter: sort.Packed) -> tuple[list[KernelSpec], Buffer]:
    """(KernelSpecs, the Buffer with a sort.Packed's elements in order)."""
    target = Buffer(sorter.rows * sorter.n, sorter.dtype)
    return _Kernels(sorter).sort(_keep(sorter, target)), target


class Wide(sort.Packed):
    """Sorts one key of 64 bits, or two of at most 32, with the position, as a pair of 64-bit integers."""

    ctype, words = "ulong2", 2
    last = "(ulong2)(0xffffffffffffffffUL)"

    def element(self, args: Args, position: str) -> tuple[str, str]:
        (prepare, bits), *more = self.bits(args, position)
        for further, low in more:
            prepare, bits = prepare + further, f"((ulong)({bits}) << 32) | (ulong)({low})"
        return prepare, f"(ulong2)({bits}, (ulong)({position}))"

    def position(self, element: str) -> str:
        return f"(int){element}.s1"

    def after(self, a: str, b: str) -> str:
        # Without branches, for which Oclgrind's optimised code is wrong.
        return f"(({a}.s0 > {b}.s0) | (({a}.s0 == {b}.s0) & ({a}.s1 > {b}.s1)))"

    def memory(self, args: Args, buffer: Buffer, out: bool = False) -> str:
        return f"((__global {'' if out else 'const '}ulong2*){args.pointer(buffer, self.dtype, out=out)})"


def _gather(sorter: sort.Packed, results: Sequence[Handle], positions: Handle | None = None) -> _Finish:
    """A `finish` function for sorted elements: it stores the operands' elements, and their positions unless `positions` is None."""

    def finish(args: Args, element: str, row: str, place: str) -> str:
        n = args.int(sorter.n, sorter.index)
        text = f"const int position = {sorter.position(element)};\n"
        text += sorter.gathered(args, f"({row} * {n} + position)", f"({place})", results)
        return text if positions is None else f"{text}{args.pointer(positions, 'int32', out=True)}[{place}] = position;\n"

    return finish


def _keep(sorter: sort.Packed, target: Buffer) -> _Finish:
    """A `finish` function for elements that another launch reads: it stores them in the Buffer `target`."""

    def finish(args: Args, element: str, row: str, place: str) -> str:
        return f"{sorter.memory(args, target, out=True)}[{place}] = {element};\n"

    return finish


class _Kernels:
    def __init__(self, sorter: sort.Packed) -> None:
        self.sorter, self.index = sorter, sorter.index
        traits = sorter.traits
        self.most = power_below(min(_BLOCK, traits.local_memory // _OF_LOCAL) // (8 * sorter.words))  # most elements of a block
        self.items = min(_GROUP, traits.max_group)

    def sort(self, finish: _Finish) -> list[KernelSpec]:
        """KernelSpecs that sort; `finish(args, element, row, place)`: statements that store an element at its place in the result."""
        sorter, n = self.sorter, self.sorter.n
        run = sort.block_of(n, self.most, 2)
        if run >= n:
            return [self.blocks(run, None, None, n, None, finish)]
        buffers = [Buffer(sorter.rows * n * sorter.words, "uint64") for _ in range(2)]
        specs, here = [self.blocks(run, None, None, n, None, _keep(sorter, buffers[0]))], 0
        while run < n:
            last = 2 * run >= n
            specs.append(self.merge(run, buffers[here], finish if last else _keep(sorter, buffers[1 - here])))
            here, run = 1 - here, 2 * run
        return specs

    def select(self, k: Extent, finish: _Finish) -> list[KernelSpec]:
        """KernelSpecs that find the `k` first elements of each row; `finish` as for sort()."""
        source: Buffer | None
        specs: list[KernelSpec]
        sorter, n, source, specs = self.sorter, self.sorter.n, None, []
        kept = max(2, power_above(int(k)))
        if n > self.most and kept * _REDUCTION > self.most:
            return self.sort(_first(k, finish, n, sorter.index))
        while True:
            block = max(kept, sort.block_of(n, self.most, 2))
            if block >= n:
                return [*specs, self.blocks(block, kept, source, n, k, finish)]
            count = ceil_div(n, block) * kept
            target = Buffer(sorter.rows * count * sorter.words, "uint64")
            specs.append(self.blocks(block, kept, source, n, kept, _keep(sorter, target)))
            source, n = target, count

    def blocks(self, block: int, kept: int | None, source: Buffer | None, n: Extent, stored: Extent | None, finish: _Finish) -> KernelSpec:
        """The kernel in which each group sorts blocks of rows of `n` elements and passes the first `stored` (None: all) to `finish`.

        `kept`: a power of two to which merged runs are truncated; None: runs are merged to the whole block. `source`: a Buffer of
        elements, None: the operands. If other calls may have longer rows, the block's length is a kernel argument.
        """
        sorter, t, any_length = self.sorter, self.index, self.sorter.all_arguments or isinstance(n, Dim)
        args, c = sorter.begin(), sorter.ctype
        several = max(1, min(2 * self.items, self.most) // block)  # rows that share a group
        if not any_length:
            several = min(several, power_above(hint(sorter.rows)))
        total = several * block
        group = self.items if any_length else max(1, min(self.items, total // 2))
        here, barrier, block_id = args.local(c, total), args.barrier(), args.place("group", 0)
        rows, length = args.int(sorter.rows, t), args.int(n, t)
        size, shift, whole = (args.own(v) if any_length else str(v) for v in (block, block.bit_length() - 1, total))
        # Loop ends are arguments, so that no compiler unrolls the loops.
        stop = size if any_length else args.scalar(block, "int")
        keeps = stop if kept is None else args.own(kept) if any_length else args.scalar(kept, "int")
        if source is None:
            prepare, element = sorter.element(args, "at")
        else:
            prepare, element = "", f"{sorter.memory(args, source)}[base + at]"
        row_of = f"const {t} row = {args.place('group', 1)} * ({t})({whole} >> {shift}) + (i >> {shift})"
        text = (
            f"const {t} first = {block_id} * ({t}){size};\n"
            f"const int own = {args.place('local', 0)};\n"
            f"for (int i = own; i < {whole}; i += {group}) {{\n"
            f"{row_of}, base = row * {length}, at = first + (i & ({size} - 1));\n"
            f"{here}[i] = {sorter.last};\n"
            f"if (row < {rows} && at < {length}) {{\n{prepare}{here}[i] = {element};\n}}\n}}\n"
            f"{barrier}\n"
            f"for (int run = 2; run <= {keeps}; run *= 2) {{\nfor (int step = run / 2; step > 0; step /= 2) {{\n"
            f"for (int k = own; k < {whole} >> 1; k += {group}) {{\n"
            f"const int a = 2 * k - (k & (step - 1)), b = a + step;\n{self._exchange(here, f'(a & run & ({size} - 1)) == 0')}}}\n"
            f"{barrier}\n}}\n}}\n"
        )
        if kept is not None and (any_length or kept < block):
            text += (
                f"for (int apart = {keeps}; apart < {stop}; apart *= 2) {{\n"
                f"const int pairs = {whole} / (2 * apart);\n"
                f"for (int k = own; k < pairs * {kept}; k += {group}) {{\n"
                f"const int a = k / {kept} * 2 * apart + k % {kept};\nconst {c} x = {here}[a], y = {here}[a + apart];\n"
                f"if ({sorter.after('x', 'y')}) {here}[a] = y;\n}}\n{barrier}\n"
                f"for (int step = {kept // 2}; step > 0; step /= 2) {{\n"
                f"for (int k = own; k < pairs * {kept // 2}; k += {group}) {{\n"
                f"const int i = k % {kept // 2}, a = k / {kept // 2} * 2 * apart + 2 * i - (i & (step - 1)), b = a + step;\n"
                f"{self._exchange(here, f'(a & (2 * apart) & ({size} - 1)) == 0')}}}\n{barrier}\n}}\n}}\n"
            )
        if stored is None:
            text += (
                f"for (int i = own; i < {whole}; i += {group}) {{\n"
                f"{row_of}, o = first + (i & ({size} - 1));\n"
                f"if (row < {rows} && o < {length}) {{\n{finish(args, f'{here}[i]', 'row', f'row * {length} + o')}}}\n}}\n"
            )
        else:
            each, blocks = args.int(stored), args.int(ceil_div(n, block), t)
            text += (
                f"for (int i = own; i < ({whole} >> {shift}) * {each}; i += {group}) {{\n"
                f"const {t} row = {args.place('group', 1)} * ({t})({whole} >> {shift}) + i / {each}, o = i % {each};\n"
                f"if (row < {rows}) {{\n"
                f"{finish(args, f'{here}[i / {each} * {size} + o]', 'row', f'(row * {blocks} + {block_id}) * {each} + o')}}}\n}}\n"
            )
        name = "blocks" if kept is None else "the first of blocks"
        return self._spec(name, args, text, (ceil_div(n, block) * group, ceil_div(sorter.rows, several)), group)

    def merge(self, run: int, source: Buffer, finish: _Finish) -> KernelSpec:
        """The kernel in which each group merges two sorted runs of `source` into one tile of the merged run, and passes it to `finish`."""
        sorter, t, size = self.sorter, self.index, min(self.most, 2 * run)
        args, c, group = sorter.begin(), sorter.ctype, min(self.items, size // 2)
        s, here, cut, barrier = sorter.memory(args, source), args.local(c, size), args.local("int", 2), args.barrier()
        n, length, half = args.int(sorter.n, t), args.scalar(run, "int"), args.scalar(size // 2, "int")
        text = (
            f"const {t} row = {args.place('group', 1)}, base = row * {n}, first = {args.place('group', 0)} * ({t}){size};\n"
            f"const {t} pair = first / (2 * ({t}){length}) * (2 * ({t}){length});\n"
            f"const {t} middle = min(pair + {length}, {wide_literal(t, n)}), last = min(pair + 2 * ({t}){length}, {wide_literal(t, n)});\n"
            f"__global const {c}* left = {s} + base + pair;\n__global const {c}* right = {s} + base + middle;\n"
            f"const int own = {args.place('local', 0)}, nl = middle - pair, nr = last - middle, count = min(({t}){size}, last - first);\n"
            f"const int begin = first - pair;\n"
            f"for (int q = own; q < 2; q += {group}) {{\nconst int diagonal = begin + q * count;\n"
            "int low = max(0, diagonal - nr), high = min(diagonal, nl);\nwhile (low < high) {\nconst int m = (low + high) / 2;\n"
            f"const {c} x = left[m], y = right[diagonal - 1 - m];\nif ({sorter.after('x', 'y')}) high = m; else low = m + 1;\n}}\n"
            f"{cut}[q] = low;\n}}\n{barrier}\n"
            f"const int from = {cut}[0], lefts = {cut}[1] - from, end = begin + count - {cut}[1], rights = count - lefts;\n"
            # One run ascending, the other descending: a bitonic sequence, padded with `last` if the tile is not full.
            f"for (int i = own; i < {size}; i += {group}) {{\n{here}[i] = {sorter.last};\n"
            f"const int back = {size} - 1 - i;\n"
            f"if (i < lefts) {here}[i] = left[from + i];\nif (back < rights) {here}[i] = right[end - rights + back];\n}}\n"
            f"{barrier}\n"
            f"for (int step = {half}; step > 0; step /= 2) {{\nfor (int k = own; k < {size // 2}; k += {group}) {{\n"
            f"const int a = 2 * k - (k & (step - 1)), b = a + step;\n{self._exchange(here, '1')}}}\n{barrier}\n}}\n"
            f"for (int i = own; i < count; i += {group}) {{\n{finish(args, f'{here}[i]', 'row', 'base + first + i')}}}\n"
        )
        return self._spec("merge", args, text, (ceil_div(sorter.n, size) * group, sorter.rows), group)

    def _exchange(self, here: str, ascending: str) -> str:
        return (
            f"const {self.sorter.ctype} x = {here}[a], y = {here}[b];\n"
            f"if ({self.sorter.after('x', 'y')} == ({ascending})) {{ {here}[a] = y; {here}[b] = x; }}\n"
        )

    def _spec(self, name: str, args: Args, text: str, grid: Shape, group: int) -> KernelSpec:
        title = f"sort: {name} in local memory"
        return args.kernel(name, text, grid, (group, 1), frozenset(self.sorter.helpers), title=title)


def _first(k: Extent, finish: _Finish, n: Extent, index: str) -> _Finish:
    """`finish` restricted to the first `k` of each row of a result with rows of `n`; it is passed places in rows of `k`."""

    def limited(args: Args, element: str, row: str, place: str) -> str:
        inside = f"const {index} at = {place} - {row} * {args.int(n, index)};\n"
        stored = finish(args, element, row, f"{row} * {args.int(k, index)} + at")
        return f"{inside}if (at < {args.int(k, index)}) {{\n{stored}}}\n"

    return limited
