"""Stable sorting of rows, and the greatest elements of rows.

Sorting moves int positions, not elements: blocks are sorted by one work-item each, then runs are merged
pairwise, each work-item producing one piece of the merged run, whose start it finds by binary search along a
diagonal of the merge path (Green, McColl & Bader, "GPU Merge Path", 2012); last, operands are gathered.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, product
from keras_ocl.kernels import prelude
from keras_ocl.kernels.spec import Args, KernelSpec, Workspace

INT_MAX = 2**31 - 1
_RUN = 16  # elements that insertion sort handles


def plan(traits, *, shape, operands, keys, results, all_arguments=False):
    """Kernels that sort rows along the last axis of `shape`.

    Args:
        operands: (handle, dtype) of each; the first `keys` are compared lexicographically, NaN last.
        results: handles of the sorted operands.
    """
    n, rows = shape[-1], product(shape[:-1])
    if int(n) == 0 or int(rows) == 0:
        return []
    sorter = _Sorter(traits, rows, n, operands, keys, all_arguments)
    buffers = [Workspace(rows * n, "int32"), Workspace(rows * n, "int32")]
    block = 64 if traits.schedule == "gpu" else 4096
    specs, here = [], 0
    specs.append(sorter.blocks(min(block, _power_above(hint(n))), buffers[0], buffers[1]))
    # The bound is a number, so that extents of one class share kernels; passes depend on the extent itself.
    run = block
    while run < int(n):
        specs.append(sorter.merge(run, buffers[here], buffers[1 - here]))
        here, run = 1 - here, 2 * run
    specs.append(sorter.collect(buffers[here], results))
    return specs


def _power_above(n):
    return max(_RUN, 1 << max(0, n - 1).bit_length())


class _Sorter:
    def __init__(self, traits, rows, n, operands, keys, all_arguments):
        self.traits, self.rows, self.n, self.operands, self.keys = traits, rows, n, operands, keys
        self.all_arguments = all_arguments
        self.ctype = "long" if int(rows * n) > INT_MAX else "int"
        self.group = None if traits.schedule == "gpu" else (1, 1, 1)

    def _less(self, args, a, b):
        """C expression of whether element `a` of the row must come before `b` (positions)."""
        text = "0"
        for handle, dtype in reversed(self.operands[: self.keys]):
            pointer = args.pointer(handle, dtype)
            self.helpers |= prelude.helpers_for(dtype, 1)
            x, y = (prelude.load(dtype, 1, pointer, f"(base + {i})") for i in (a, b))
            if dtype == "bool":
                x, y = f"-({x})", f"-({y})"
            less = f"({x}) < ({y})"
            if dtypes.is_float(dtype):
                less = f"({less} || (({y}) != ({y}) && ({x}) == ({x})))"
            if text == "0":
                text = f"({less})"
            else:
                more = f"({y}) < ({x})"
                if dtypes.is_float(dtype):
                    more = f"({more} || (({x}) != ({x}) && ({y}) == ({y})))"
                text = f"({less} || (!({more}) && {text}))"
        return text

    def _begin(self):
        self.helpers = set()
        return Args(self.all_arguments)

    def _spec(self, name, args, body, grid):
        return KernelSpec(name, args.args, body, grid, self.group, frozenset(self.helpers))

    def blocks(self, block, target, scratch):
        """Each work-item sorts `block` elements of a row: insertion sort of short runs, then merges to and fro."""
        args, t = self._begin(), self.ctype
        p, q = args.pointer(target, "int32", out=True), args.pointer(scratch, "int32", out=True)
        n, size = args.int(self.n, t), args.scalar(block, "int")
        less_insert = self._less(args, "v", "p[j - 1]")
        less_merge = self._less(args, "from[b]", "from[a]")
        body = (
            f"const {t} row = get_global_id(1), base = row * {n}, first = get_global_id(0) * ({t}){size};\n"
            f"const int count = min(({t}){size}, {n} - first);\n"
            f"__global int* p = {p} + base + first;\n__global int* q = {q} + base + first;\n"
            f"for (int start = 0; start < count; start += {_RUN}) {{\n"
            f"const int stop = min(start + {_RUN}, count);\n"
            "for (int i = start; i < stop; ++i) {\nconst int v = first + i;\nint j = i;\n"
            f"while (j > start && {less_insert}) {{ p[j] = p[j - 1]; --j; }}\np[j] = v;\n}}\n}}\n"
            "__global int* from = p;\n__global int* to = q;\n"
            f"for (int run = {_RUN}; run < count; run *= 2) {{\n"
            "for (int start = 0; start < count; start += 2 * run) {\n"
            "const int middle = min(start + run, count), stop = min(start + 2 * run, count);\nint a = start, b = middle;\n"
            f"for (int o = start; o < stop; ++o) to[o] = (a < middle && !(b < stop && {less_merge})) ? from[a++] : from[b++];\n"
            "}\n__global int* other = from;\nfrom = to;\nto = other;\n}\n"
            "if (from != p) for (int i = 0; i < count; ++i) p[i] = q[i];\n"
        )
        return self._spec("blocks", args, body, (ceil_div(self.n, block), self.rows))

    def merge(self, run, source, target):
        """Merge pairs of sorted runs; each work-item writes `piece` positions of the result."""
        args, t = self._begin(), self.ctype
        s, d = args.pointer(source, "int32"), args.pointer(target, "int32", out=True)
        piece = 32 if self.traits.schedule == "gpu" else 2048
        n, length = args.int(self.n, t), args.scalar(run, "int")
        less_search = self._less(args, "right[diagonal - 1 - m]", "left[m]")
        less_merge = self._less(args, "right[b]", "left[a]")
        body = (
            f"const {t} row = get_global_id(1), base = row * {n};\n"
            f"const {t} first = get_global_id(0) * {piece}, pair = first / (2 * ({t}){length}) * (2 * ({t}){length});\n"
            f"const {t} middle = min(pair + {length}, {n}), last = min(pair + 2 * ({t}){length}, {n});\n"
            f"__global const int* left = {s} + base + pair;\n__global const int* right = {s} + base + middle;\n"
            "const int nl = middle - pair, nr = last - middle, diagonal = first - pair;\n"
            "int low = max(0, diagonal - nr), high = min(diagonal, nl);\n"
            f"while (low < high) {{ const int m = (low + high) / 2; if ({less_search}) high = m; else low = m + 1; }}\n"
            "int a = low, b = diagonal - low;\n"
            f"const {t} stop = min(first + {piece}, last);\n"
            f"for ({t} o = first; o < stop; ++o)\n"
            f"{d}[base + o] = (a < nl && !(b < nr && {less_merge})) ? left[a++] : right[b++];\n"
        )
        return self._spec("merge", args, body, (ceil_div(self.n, piece), self.rows))

    def collect(self, positions, results):
        """Operands in sorted order."""
        args, t = self._begin(), self.ctype
        p = args.pointer(positions, "int32")
        piece = 1 if self.traits.schedule == "gpu" else 4096
        n = args.int(self.n, t)
        body = [
            f"const {t} row = get_global_id(1), base = row * {n}, first = get_global_id(0) * {piece};\n"
            f"for ({t} o = first; o < min(first + {piece}, {n}); ++o) {{\nconst {t} at = base + {p}[base + o];\n"
        ]
        for (handle, dtype), result in zip(self.operands, results, strict=True):
            self.helpers |= prelude.helpers_for(dtype, 1)
            value = prelude.load(dtype, 1, args.pointer(handle, dtype), "at")
            body.append(prelude.store(dtype, 1, args.pointer(result, dtype, out=True), "(base + o)", value) + "\n")
        return self._spec("collect", args, "".join(body) + "}\n", (ceil_div(self.n, piece), self.rows))


def top_k(traits, *, shape, k, x, dtype, results, all_arguments=False):
    """The kernel that keeps the `k` greatest of each row, in order: a row is walked once, and only what beats the least kept moves.

    `results`: handles of the values (of `dtype`) and int32 positions. Work grows with k times how often the kept change;
    rows are independent work-items.
    """
    n, rows = shape[-1], product(shape[:-1])
    if int(k) == 0 or int(rows) == 0:
        return []
    args = Args(all_arguments)
    t = "long" if int(rows * n) > INT_MAX else "int"
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
        f"const {t} row = get_global_id(0), at = row * {k_text};\n{register} least = 0;\n"
        f"for (int i = 0; i < {n_text}; ++i) {{\nconst {register} v = {load};\n"
        f"if (i >= {k_text} && !({greater.format('least')})) continue;\n"
        f"int j = min(i, {k_text} - 1);\n"
        f"while (j > 0) {{\nconst {register} w = {kept};\nif (!({greater.format('w')})) break;\n"
        f"{prelude.store(dtype, 1, values, '(at + j)', 'w')}\n{positions}[at + j] = {positions}[at + j - 1];\n--j;\n}}\n"
        f"{prelude.store(dtype, 1, values, '(at + j)', 'v')}\n{positions}[at + j] = i;\n"
        f"least = {prelude.load(dtype, 1, values, f'(at + min(i, {k_text} - 1))')};\n}}\n"
    )
    group = None if traits.schedule == "gpu" else (1, 1, 1)
    return [KernelSpec("", args.args, body, (rows,), group, frozenset(prelude.helpers_for(dtype, 1)))]
