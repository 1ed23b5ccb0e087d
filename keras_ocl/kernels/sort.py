"""Stable sorting of rows, and the greatest elements of rows (top-k).

Sorting moves positions (with a single key of at most 32 bits packed beside them), not the operands' elements. One work-item sorts a block;
then runs are merged pairwise, where each work-item writes one piece of the merged run and finds its start by binary search along a diagonal
of the merge path (Green, McColl & Bader, "GPU Merge Path", 2012); finally the operands are gathered. For groups that sort in local memory
see sort_local.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Extent, Shape, ceil_div, hint, power_above, product
from keras_ocl.kernels import prelude
from keras_ocl.kernels.coordinates import index_type, wide_literal
from keras_ocl.kernels.schedule import Traits, schedule_of
from keras_ocl.kernels.spec import Args, Buffer, Handle, KernelSpec

_RUN = 16  # elements that insertion sort handles at a time


def plan(
    traits: Traits,
    *,
    shape: Shape,
    operands: Sequence[tuple[Handle, str]],
    keys: int,
    results: Sequence[Handle],
    all_arguments: bool = False,
) -> list[KernelSpec]:
    """KernelSpecs that sort rows along the last axis of `shape`.

    Args:
        operands: list of (handle, dtype); the first `keys` of them are compared lexicographically, NaN last.
        results: handles of the sorted operands.
    """
    n, rows = shape[-1], product(shape[:-1])
    if n == 0 or rows == 0:
        return []
    return schedule_of(traits).sort(Problem(traits, rows, n, operands, keys, all_arguments), results)


def top_k(
    traits: Traits, *, shape: Shape, k: Extent, x: Handle, dtype: str, results: Sequence[Handle], all_arguments: bool = False
) -> list[KernelSpec]:
    """KernelSpecs that find the `k` greatest of each row along the last axis of `shape`, descending, NaN first, equal ones in order.

    `results`: handles of the values (of `dtype`) and int32 positions.
    """
    n, rows = shape[-1], product(shape[:-1])
    if k == 0 or rows == 0:
        return []
    return schedule_of(traits).top_k(Problem(traits, rows, n, [(x, dtype)], 1, all_arguments), k, results)


@dataclass(frozen=True)
class Problem:
    """Sorting of `rows` rows of `n` elements each; `operands` is a list of (handle, dtype), of which the first `keys` are compared."""

    traits: Traits
    rows: Extent
    n: Extent
    operands: Sequence[tuple[Handle, str]]
    keys: int
    all_arguments: bool


def by_merging(problem: Problem, results: Sequence[Handle], gathered: int, **sizes: int) -> list[KernelSpec]:
    """KernelSpecs that sort blocks and merge them. `gathered`: result elements per work-item; `sizes`: arguments of _ordered()."""
    packed = problem.keys == 1 and dtypes.itemsize(problem.operands[0][1]) <= 4
    sorter = (Packed if packed else _Sorter)(problem)
    specs, elements = _ordered(sorter, **sizes)
    return [*specs, sorter.collect(elements, results, gathered)]


def _ordered(sorter: "_Sorter", block: int, piece: int) -> tuple[list[KernelSpec], Buffer]:
    """(KernelSpecs, the Buffer of the sorted representations of elements: positions, or keys with positions).

    `block`: elements that a work-item sorts. `piece`: elements of a merged run that a work-item writes.
    """
    n = sorter.n
    buffers = [Buffer(sorter.rows * n, sorter.dtype), Buffer(sorter.rows * n, sorter.dtype)]
    run = block_of(n, block, _RUN)
    specs, here = [sorter.blocks(run, buffers[0], buffers[1])], 0
    while run < n:
        specs.append(sorter.merge(run, buffers[here], buffers[1 - here], min(piece, 2 * run)))
        here, run = 1 - here, 2 * run
    return specs, buffers[here]


def by_counting(problem: Problem, results: Sequence[Handle]) -> list[KernelSpec]:
    """KernelSpecs of a counting sort: each work-item counts the elements of the row that come before its own."""
    sorter, positions = _Sorter(problem), Buffer(problem.rows * problem.n, _Sorter.dtype)
    return [sorter.count(positions), sorter.collect(positions, results, 1)]


def block_of(n: Extent, most: int, least: int) -> int:
    """Elements of a block, for rows of `n`: a power of two, between `least` and `most`.

    It follows the hint of `n`, so that one trace serves shorter rows too. Longer rows get longer blocks, by the same kernels, not merges.
    """
    block = min(most, max(least, power_above(hint(n))))
    while block < most and block < n:
        block *= 2
    return block


class _Sorter:
    """Sorts positions; to compare two, it loads their keys."""

    dtype, ctype = "int32", "int"
    helpers: set[str]

    def __init__(self, problem: Problem) -> None:
        p = problem
        self.rows, self.n, self.operands, self.keys, self.all_arguments = p.rows, p.n, p.operands, p.keys, p.all_arguments
        self.index = index_type(p.rows * p.n)
        self.group = schedule_of(p.traits).group

    def element(self, args: Args, position: str) -> tuple[str, str]:
        """(statements, C expression) of the sorted representation of the element at `position` of the row: here, the position."""
        return "", position

    def position(self, element: str) -> str:
        """C expression of an element's position in its row."""
        return element

    def less(self, args: Args, a: str, b: str) -> str:
        """C expression: whether position `a` comes before `b`."""
        text = "0"
        for handle, dtype in reversed(self.operands[: self.keys]):
            pointer = args.pointer(handle, dtype)
            self.helpers |= prelude.helpers_for(dtype, 1)
            x, y = (prelude.load(dtype, 1, pointer, f"(base + {i})") for i in (a, b))
            if dtype == "bool":
                x, y = f"-({x})", f"-({y})"
            less, more = f"({x}) < ({y})", f"({y}) < ({x})"
            if dtypes.is_float(dtype):
                less = f"({less} || (({y}) != ({y}) && ({x}) == ({x})))"
                more = f"({more} || (({x}) != ({x}) && ({y}) == ({y})))"
            text = f"({less})" if text == "0" else f"({less} || (!({more}) && {text}))"
        return text

    def begin(self) -> Args:
        self.helpers = set()
        return Args(self.all_arguments)

    def _spec(self, name: str, args: Args, body: str, grid: Shape) -> KernelSpec:
        return args.kernel(name, body, grid, self.group, frozenset(self.helpers), title=f"sort: {name}")

    def _merge(self, args: Args, left: str, nl: str, right: str, nr: str, target: str, limit: str = "1") -> str:
        """Statements that merge `left` from index a to nl and `right` from b to nr into `target` from o on, while `limit` holds."""
        c, less = self.ctype, self.less(args, "y", "x")
        return (
            f"while (a < {nl} && b < {nr} && {limit}) {{\n"
            f"const {c} x = {left}[a], y = {right}[b];\nconst int second = {less};\n"
            f"{target}[o++] = second ? y : x;\nb += second;\na += 1 - second;\n}}\n"
            f"while (a < {nl} && {limit}) {target}[o++] = {left}[a++];\n"
            f"while (b < {nr} && {limit}) {target}[o++] = {right}[b++];\n"
        )

    def blocks(self, block: int, target: Buffer, scratch: Buffer) -> KernelSpec:
        """The kernel in which each work-item sorts `block` elements: insertion sort of short runs, then merges between two buffers."""
        args, t, c = self.begin(), self.index, self.ctype
        p, q = args.pointer(target, self.dtype, out=True), args.pointer(scratch, self.dtype, out=True)
        n, size = args.int(self.n, t), args.scalar(block, "int")
        (prepare, element), less = self.element(args, "(first + i)"), self.less(args, "v", "p[j - 1]")
        body = (
            f"const {t} row = {args.place('global', 1)}, base = row * {n}, first = {args.place('global', 0)} * ({t}){size};\n"
            f"const int count = min(({t}){size}, {n} - first);\n"
            f"__global {c}* p = {p} + base + first;\n__global {c}* q = {q} + base + first;\n"
            f"for (int start = 0; start < count; start += {_RUN}) {{\n"
            f"const int stop = min(start + {_RUN}, count);\n"
            f"for (int i = start; i < stop; ++i) {{\n{prepare}const {c} v = {element};\nint j = i;\n"
            f"while (j > start && {less}) {{ p[j] = p[j - 1]; --j; }}\np[j] = v;\n}}\n}}\n"
            f"__global {c}* from = p;\n__global {c}* to = q;\n"
            f"for (int run = {_RUN}; run < count; run *= 2) {{\n"
            "for (int start = 0; start < count; start += 2 * run) {\n"
            "const int middle = min(start + run, count), stop = min(start + 2 * run, count);\nint a = start, b = middle, o = start;\n"
            f"{self._merge(args, 'from', 'middle', 'from', 'stop', 'to')}}}\n"
            f"__global {c}* other = from;\nfrom = to;\nto = other;\n}}\n"
            "if (from != p) for (int i = 0; i < count; ++i) p[i] = q[i];\n"
        )
        return self._spec("blocks", args, body, (ceil_div(self.n, block), self.rows))

    def merge(self, run: int, source: Buffer, target: Buffer, piece: int) -> KernelSpec:
        """The kernel that merges pairs of sorted runs of `run` elements; each work-item writes `piece` elements of the result."""
        args, t, c = self.begin(), self.index, self.ctype
        s, d = args.pointer(source, self.dtype), args.pointer(target, self.dtype, out=True)
        n, length = args.int(self.n, t), args.scalar(run, "int")
        less = self.less(args, "right[diagonal - 1 - m]", "left[m]")
        body = (
            f"const {t} row = {args.place('global', 1)}, base = row * {n};\n"
            f"const {t} first = {args.place('global', 0)} * {piece}, pair = first / (2 * ({t}){length}) * (2 * ({t}){length});\n"
            f"const {t} middle = min(pair + {length}, {wide_literal(t, n)}), last = min(pair + 2 * ({t}){length}, {wide_literal(t, n)});\n"
            f"__global const {c}* left = {s} + base + pair;\n__global const {c}* right = {s} + base + middle;\n"
            "const int nl = middle - pair, nr = last - middle, diagonal = first - pair;\n"
            "int low = max(0, diagonal - nr), high = min(diagonal, nl);\n"
            f"while (low < high) {{ const int m = (low + high) / 2; if ({less}) high = m; else low = m + 1; }}\n"
            f"int a = low, b = diagonal - low, o = 0;\nconst int count = min(({t}){piece}, last - first);\n"
            f"__global {c}* to = {d} + base + first;\n"
            f"{self._merge(args, 'left', 'nl', 'right', 'nr', 'to', 'o < count')}"
        )
        return self._spec("merge", args, body, (ceil_div(self.n, piece), self.rows))

    def count(self, target: Buffer) -> KernelSpec:
        """The kernel in which each work-item stores its element's position at the element's place in the order."""
        args, t = self.begin(), self.index
        p, n = args.pointer(target, self.dtype, out=True), args.int(self.n, t)
        body = (
            f"const {t} row = {args.place('global', 1)}, base = row * {n};\nconst int i = {args.place('global', 0)};\nint before = 0;\n"
            f"for (int j = 0; j < {n}; ++j) before += j < i ? !({self.less(args, 'i', 'j')}) : ({self.less(args, 'j', 'i')});\n"
            f"{p}[base + before] = i;\n"
        )
        return self._spec("count", args, body, (self.n, self.rows))

    def collect(self, elements: Buffer, results: Sequence[Handle], piece: int) -> KernelSpec:
        """The kernel that stores the operands in sorted order; each work-item writes `piece` elements."""
        args, t = self.begin(), self.index
        p = args.pointer(elements, self.dtype)
        n = args.int(self.n, t)
        body = [
            f"const {t} row = {args.place('global', 1)}, base = row * {n}, first = {args.place('global', 0)} * {piece};\n"
            f"for ({t} o = first; o < min(first + {piece}, {wide_literal(t, n)}); ++o) {{\n"
            f"const {t} at = base + {self.position(f'{p}[base + o]')};\n"
        ]
        body.append(self.gathered(args, "at", "(base + o)", results))
        return self._spec("collect", args, "".join(body) + "}\n", (ceil_div(self.n, piece), self.rows))

    def gathered(self, args: Args, at: str, place: str, results: Sequence[Handle]) -> str:
        """Statements that store the operands' elements at index `at` to index `place` of `results`."""
        text = []
        for (handle, dtype), result in zip(self.operands, results, strict=True):
            self.helpers |= prelude.helpers_for(dtype, 1)
            value = prelude.load(dtype, 1, args.pointer(handle, dtype), at)
            text.append(prelude.store(dtype, 1, args.pointer(result, dtype, out=True), place, value) + "\n")
        return "".join(text)


class Packed(_Sorter):
    """Sorts one key of at most 32 bits together with its position, as one 64-bit integer with the key in the upper half.

    The key is mapped to an unsigned integer with the same order. No two elements are equal. With `descending` the greatest come first;
    equal keys stay in the order of their positions.
    """

    dtype, ctype, words = "uint64", "ulong", 1
    last = "0xffffffffffffffffUL"  # greater than all elements

    def __init__(self, problem: Problem, descending: bool = False) -> None:
        super().__init__(problem)
        self.traits, self.descending = problem.traits, descending

    def element(self, args: Args, position: str) -> tuple[str, str]:
        ((prepare, bits),) = self.bits(args, position)
        return prepare, f"((ulong)({bits}) << 32) | (ulong){position}"

    def bits(self, args: Args, position: str) -> list[tuple[str, str]]:
        """[(statements, C expression)], one per key: an unsigned integer of the key's size with the same order, NaN above all others."""
        found = []
        for k, (handle, dtype) in enumerate(self.operands[: self.keys]):
            self.helpers |= prelude.helpers_for(dtype, 1)
            value = prelude.load(dtype, 1, args.pointer(handle, dtype), f"(base + {position})")
            wide, s = dtypes.itemsize(dtype) > 4, k or ""
            c, top, greatest = ("ulong", "0x8000000000000000UL", "0xffffffffffffffffUL") if wide else ("uint", "0x80000000u", "0xffffffffu")
            prepare = ""
            if dtype == "bool":
                bits = f"(uint)-({value})"
            elif dtypes.is_float(dtype):
                # +0 and -0 are equal keys.
                f, zero = ("double", "0.0") if wide else ("float", "0.0f")
                prepare = f"const {f} key{s} = {value};\nconst {c} bits{s} = as_{c}(key{s} == {zero} ? {zero} : key{s});\n"
                bits = f"(key{s} != key{s} ? {greatest} : bits{s} >> {63 if wide else 31} ? ~bits{s} : bits{s} ^ {top})"
            elif dtypes.is_signed(dtype):
                bits = f"(({c})({'long' if wide else 'int'})({value}) ^ {top})"
            else:
                bits = f"({c})({value})"
            found.append((prepare, f"~{bits}" if self.descending else bits))
        return found

    def position(self, element: str) -> str:
        return f"(int)({element} & 0xffffffffUL)"

    def less(self, args: Args, a: str, b: str) -> str:
        return f"({a} < {b})"

    def after(self, a: str, b: str) -> str:
        """C expression, 0 or 1: whether the element `a` comes after `b`."""
        return f"({a} > {b})"

    def memory(self, args: Args, buffer: Buffer, out: bool = False) -> str:
        """C text of the pointer to the elements in a Buffer."""
        return args.pointer(buffer, self.dtype, out=out)


def by_insertion(problem: Problem, k: Extent, results: Sequence[Handle]) -> list[KernelSpec]:
    """The kernel that keeps the `k` greatest of each row in a sorted list: it reads a row once and inserts elements above the least kept.

    The work is proportional to k times the number of insertions, besides reading the row; one work-item per row.
    """
    n, rows, traits, ((x, dtype),) = problem.n, problem.rows, problem.traits, problem.operands
    args = Args(problem.all_arguments)
    t = index_type(rows * n)
    pointer = args.pointer(x, dtype)
    values, positions = args.pointer(results[0], dtype, out=True), args.pointer(results[1], "int32", out=True)
    n_text, k_text = args.int(n, t), args.int(k)
    register = prelude.register_type(dtype, 1)
    greater = "v > {0}"
    if dtype == "bool":
        greater = "v < {0}"  # lanes of 0 and -1
    elif dtypes.is_float(dtype):
        greater = "(v > {0} || (v != v && {0} == {0}))"
    load = prelude.load(dtype, 1, pointer, f"(row * {n_text} + i)")
    kept = prelude.load(dtype, 1, values, "(at + j - 1)")
    body = (
        f"const {t} row = {args.place('global', 0)}, at = row * {k_text};\n{register} least = 0;\n"
        f"for (int i = 0; i < {n_text}; ++i) {{\nconst {register} v = {load};\n"
        f"if (i >= {k_text} && !({greater.format('least')})) continue;\n"
        f"int j = min(i, {k_text} - 1);\n"
        f"while (j > 0) {{\nconst {register} w = {kept};\nif (!({greater.format('w')})) break;\n"
        f"{prelude.store(dtype, 1, values, '(at + j)', 'w')}\n{positions}[at + j] = {positions}[at + j - 1];\n--j;\n}}\n"
        f"{prelude.store(dtype, 1, values, '(at + j)', 'v')}\n{positions}[at + j] = i;\n"
        f"least = {prelude.load(dtype, 1, values, f'(at + min(i, {k_text} - 1))')};\n}}\n"
    )
    helpers = frozenset(prelude.helpers_for(dtype, 1))
    return [args.kernel("", body, (rows,), schedule_of(traits).group, helpers, title="the greatest elements of a row per work-item")]
