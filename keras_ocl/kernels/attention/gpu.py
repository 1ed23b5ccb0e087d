"""Attention for GPUs: a work-group owns a block of positions of one head and a chunk of the results' columns.

The logits of the block against a block of other positions are a tiled contraction (kernels/contraction.py) of rows of both. Their weights
go to local memory and are the left operand of the next contraction; its right operand is the chunk of columns of the other positions' rows.
If the depth exceeds a chunk, the logits are computed again for each chunk.
"""

import functools
import itertools
import math
from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, maximum, power_above
from keras_ocl.kernels import contraction
from keras_ocl.kernels.attention.parts import FORWARD, KEY_VALUE_GRADIENT, MASKED, QUERY_GRADIENT, Writer
from keras_ocl.kernels.contraction import Contraction, Strided
from keras_ocl.kernels.gemm import gpu_choice
from keras_ocl.kernels.overrides import tuning_of

_AHEAD = 32  # registers that NVIDIA's compiler uses beyond the estimate of registers()
_STEPS = 8  # unrolled steps of k: with more, compilers hoist so many loads that registers spill


@dataclass(frozen=True)
class Tile:
    """A group of side x side work-items that loops over other positions in blocks.

    rows, others: own and other positions of an item's logits. columns: result columns of an item. depth: steps of k of the logits'
    products in local memory. fragment: adjacent elements that are loaded from there as one vector.
    """

    side: int
    rows: int
    others: int
    columns: int
    depth: int
    fragment: int = 1

    @property
    def items(self):
        """Work-items of a group."""
        return self.side * self.side

    @property
    def block(self):
        """Own positions of a group."""
        return self.rows * self.side

    @property
    def met(self):
        """Other positions of one block of the loop."""
        return self.others * self.side

    @property
    def width(self):
        """Result columns of a group."""
        return self.columns * self.side

    @property
    def logits(self):
        """The contraction.Tile of the product of own and other rows."""
        return contraction.Tile(self.side, self.side, self.rows, self.others, self.depth, self.fragment)

    @property
    def results(self):
        """The contraction.Tile of the product of factors (weights or slopes) and other rows."""
        return contraction.Tile(self.side, self.side, self.rows, self.columns, self.met, self.fragment)

    @property
    def shared(self):
        """Elements of local memory that the operands of both products use in turn; the factors have their own."""
        logits, results = self.logits, self.results
        return max(logits.elements(logits.height) + logits.elements(logits.width), results.elements(results.width))

    def local_bytes(self, size):
        """Bytes of local memory of a group, with elements of `size` bytes."""
        return (self.shared + self.results.elements(self.block)) * size


def choose(problem, scheme):
    """The fastest Tile by estimate for a scheme of `problem`, of those that fit the device."""
    p = problem
    extents = tuple(max(1, hint(n)) for n in (p.depth, p.value_depth, p.time, p.source, p.batch * p.heads, p.batch * p.key_heads))
    # Both gradient kernels get the same group size, so that they can be fused horizontally if short (compiler/launch/horizontal.py).
    schemes = (FORWARD,) if scheme is FORWARD else (QUERY_GRADIENT, KEY_VALUE_GRADIENT)
    near = ("bias" in p.operands) + ("mask" in p.operands)
    return _best(p.traits, schemes, near, dtypes.itemsize(p.wide), *extents, p.all_arguments)[schemes.index(scheme)]


@functools.lru_cache(4096)
def _best(traits, schemes, near, size, depth, value_depth, time, source, heads, key_heads, shared):
    """A Tile for each of the schemes. near: number of bias and mask operands. shared: whether the kernel serves all sizes."""
    found = []
    for side in _sides(traits):
        total, tiles = 0, []
        for scheme in schemes:
            asking, widths = scheme.own == "query", _widths(scheme, depth, value_depth)
            extents = (time, source, heads) if asking else (source, time, key_heads)
            tiles_of_side = _tiles(traits, side, scheme, near, widths, size)
            costs = {t: _cost(traits, scheme, near, t, widths, size, *extents, shared) for t in tiles_of_side}
            best = min(costs, key=costs.get)
            total, tiles = total + costs[best], [*tiles, best]
        found.append((total, tiles))
    return min(found, key=lambda pair: pair[0])[1]


def _widths(scheme, depth, value_depth):
    """([lengths that the products sum over], [row lengths of the results])."""

    def width(name):
        return depth if name in ("query", "key") else value_depth

    return [width(name) for name in scheme.kept], [width(name) for _, name in scheme.sums]


def _sides(traits):
    """Candidate sides of groups: with fewer than 8 x 8 work-items, lanes of a hardware wave are idle."""
    fit = [side for side in (16, 8, 4, 2, 1) if side * side <= min(traits.max_group, tuning_of(traits).product_items)]
    return [side for side in fit if side >= 8] or fit[:1]


def _tiles(traits, side, scheme, near, widths, size):
    depth, found = tuning_of(traits).depth, []
    most = power_above(ceil_div(max(widths[1]), 8))
    for rows, others, columns in itertools.product((8, 4, 2), (4, 2), (8, 4, 2, 1)):
        tile = Tile(side, rows, others, columns, depth, gpu_choice.fragment(size))
        # 1.6: spare registers for loads that compilers hoist.
        fits = 1.6 * registers(tile, scheme, near) * size <= traits.item_registers * 4 and tile.local_bytes(size) <= traits.local_memory
        if fits and columns <= most:
            found.append(tile)
    return found or [Tile(min(side, 2), 2, 2, 1, depth)]


def registers(tile, scheme, near=0):
    """Estimated registers of a work-item: the maximum over the product of rows, the softmax of its logits, and the sums.

    near: number of bias and mask operands.
    """
    t = tile
    sums, cells = t.rows * t.columns * len(scheme.sums), t.rows * t.others * len(scheme.kept)
    product = cells + t.rows + t.others + t.depth * (t.block + t.met) // t.items
    summed = cells // 2 + max(t.rows + t.columns, t.met * t.width // t.items)
    places = len(scheme.kept) * (t.block + t.met) * t.depth // (2 * t.items)  # addresses of rows
    always = 3 * t.rows + 2 * near * t.rows + places  # statistics, and addresses in bias and mask
    return sums + max(product, 7 * cells // 4, summed) + always


def _cost(traits, scheme, near, tile, widths, size, own, others, heads, shared):
    """Cost per unit in multiply-adds, summed over its work-items (gemm/gpu_choice.py).

    If the kernel is `shared` by all sizes: the cost per logit of an item, for a unit that is full.
    """
    t, tuning, (summed, wide) = tile, tuning_of(traits), widths

    def step(columns, fetched):
        """An item's cost per step of k: arithmetic or loads from local memory, whichever is longer, plus loads to local memory."""
        return max(t.rows * columns, tuning.attention_local * (t.rows + columns)) + tuning.product_fetch * fetched / t.items

    steps = sum(ceil_div(n, t.depth) * t.depth for n in summed)
    logits = steps * (step(t.others, t.block + t.met) + tuning.product_turn / t.depth) + t.rows * t.others * tuning.attention_weight
    block = logits + len(wide) * (t.met * step(t.columns, t.width) + tuning.product_turn)
    chunks = ceil_div(max(wide), t.width)
    if shared:
        return chunks * block / (t.rows * t.others)
    blocks = ceil_div(others, t.met)
    work = blocks * block + tuning.product_start + tuning.product_store * t.rows * t.columns * len(wide)
    groups = math.ceil(chunks * ceil_div(own, t.block) * heads / gpu_choice.units(traits))
    room = 2 * traits.local_memory // t.local_bytes(size)  # NVIDIA's and AMD's units have at least twice the limit of a group
    resident = max(1, min(room, gpu_choice.UNIT // ((registers(t, scheme, near) + _AHEAD) * t.items)))
    waits = blocks * (len(summed) + len(wide)) * tuning.attention_wait * groups / min(groups, resident)
    return work * (groups * t.items + tuning.product_hiding * math.ceil(groups / resident)) + waits


def kernel(problem, scheme, sinks):
    """The KernelSpec of one Scheme of `problem`."""
    tile = choose(problem, scheme)
    writer = _Writer(problem, scheme, sinks, tile)
    body = writer.body()
    p = problem
    extent, heads = (p.time, p.heads) if scheme.own == "query" else (p.source, p.key_heads)
    _, widths = _widths(scheme, p.depth, p.value_depth)
    chunks = ceil_div(maximum(widths[0], widths[-1]), tile.width)
    return writer.args.kernel(
        name=scheme.name,
        body=body,
        grid=(chunks * tile.side, ceil_div(extent, tile.block) * tile.side, p.batch * heads),
        group=(tile.side, tile.side, 1),
        helpers=writer.all_helpers(),
        title=f"{scheme.name}: {tile.block} positions of one head and {tile.width} columns per work-group, {tile.met} others at a time",
    )


class _Writer(Writer):
    def __init__(self, problem, scheme, sinks, tile):
        super().__init__(problem, scheme, sinks)
        self.tile, self.rows_of_item, self.others_of_item = tile, range(tile.rows), range(tile.others)
        shared = contraction.local(self.args, self.register, tile.shared)
        self.factors = contraction.local(self.args, self.register, tile.results.elements(tile.block))
        beside = f"({shared} + {tile.logits.elements(tile.block)})"
        self.logits, self.results = (
            Contraction(self.args, of, self.register, "fma({}, {}, {})".format, memory=memory, steps=_STEPS)
            for of, memory in ((tile.logits, (shared, beside)), (tile.results, (self.factors, shared)))
        )

    def body(self):
        p, t, scheme, register = self.p, self.tile, self.scheme, self.register
        asking = scheme.own == "query"
        lines = [
            self.head(2),
            self.logits.head(),
            f"const int first = {self.args.place('group', 1)} * {t.block}, column_first = {self.args.place('group', 0)} * {t.width};\n",
        ]
        # Positions beyond the end read the last one's operands; their sums are not stored.
        lines += [f"const int own{r} = min(first + {t.logits.row(r)}, {self.own} - 1);\n" for r in self.rows_of_item]
        lines += [self.rows(name) for name in scheme.kept]
        lines += [self.results.results(f"sum{k}_") for k in range(len(scheme.sums))]
        for r in self.rows_of_item:
            if self.forward:
                lines.append(f"{register} peak{r} = -INFINITY, total{r} = 0;\n")
            elif asking:
                lines += [f"const {register} {name}{r} = {self.statistic(name, f'own{r}')};\n" for name in ("peak", "rescale", "delta")]
        if not asking:
            lines.append(f"for (int head = key_head * {self.group}; head < (key_head + 1) * {self.group}; ++head) {{\n")
        lines += [self.rows(name) for name in scheme.others]
        begin, end = "0", self.others
        if p.causal and asking and not (self.forward and self.any_row_may_be_masked):
            end = f"min(first + {t.block}, {self.others})"
        elif p.causal and not asking and not self.any_row_may_be_masked:
            begin = f"first / {t.met} * {t.met}"
        lines.append(f"#pragma unroll 1\nfor (int j = {begin}; j < {end}; j += {t.met}) {{\n")
        lines.append(self._product(0, "s"))
        lines.append(self._softmax() if self.forward else self._product(1, "g") + self._slopes())
        lines += [self._sum(k, factor, name) for k, (factor, name) in enumerate(scheme.sums)]
        lines.append("}\n" if asking else "}\n}\n")
        return "".join([*lines, self._store()])

    def _vector(self, name, along):
        """Elements of a row loaded or stored as one vector: the fragment if it divides the row and the tile's extent `along` it, else 1."""
        width, v = self.p.depth if name in ("query", "key") else self.p.value_depth, self.tile.fragment
        return v if isinstance(width, int) and not self.p.all_arguments and width % v == along % v == 0 else 1

    def _loader(self, name, first, limit, along_k, along):
        """The Loader of rows `first` to `limit` of an operand; `along`: a tile's extent along a row."""
        v = self._vector(name, along)

        def load(where):
            return self.load(name, v, f"{name}_rows", f"({where})", aligned=v > 1)

        def offset(at, k):
            row, place = (at, k) if along_k else (k, at)
            return f"({self.i}){row} * {name}_row + {place}"

        return Strided(first, limit, along_k, load, offset, vector=v)

    def _product(self, k, name):
        """Statements that compute the dot products of own and other rows of the scheme's pair `k` in {name}{row}_{column}."""
        kept, met = self.scheme.kept[k], self.scheme.met[k]
        own = self._loader(kept, "first", self.own, True, self.tile.depth)
        other = self._loader(met, "j", self.others, True, self.tile.depth)
        return self.logits.results(name) + self.logits.walk("0", self.width(met), own, other, name)

    def _cells(self, statements):
        """Runs `statements(c)` for each other position c of an item; C variables `other`: the position, clamped; `within`: it exists."""
        lines = []
        for c in self.others_of_item:
            place = f"const int place = j + {self.tile.logits.column(c)}, within = place < {self.others}"
            lines.append(f"{{\n{place}, other = min(place, {self.others} - 1);\n{statements(c)}}}\n")
        return "".join(lines)

    def _logit(self, r, c):
        """Statements that turn the product s{r}_{c} into a logit; the C variable `allowed` says whether it is not masked."""
        s = f"s{r}_{c}"
        lines = [f"{s} *= {self.scale};\n"]
        if "bias" in self.p.operands:
            lines.append(f"{s} += {self._near('bias', r)};\n")
        allowed = []
        if "mask" in self.p.operands:
            allowed.append(self._near("mask", r))
        if self.p.causal:
            allowed.append(f"own{r} >= other" if self.scheme.own == "query" else f"other >= own{r}")
        if allowed:
            lines.append(f"const int allowed = {' && '.join(allowed)};\n{s} = allowed ? {s} : {self.number(MASKED, 1)};\n")
        return "".join(lines)

    def _near(self, name, r):
        """Expression of bias or mask at the item's row `r` and position `other`."""
        return self.load(name, 1, self.pointers[name], f"({self.place(name, f'own{r}', 'other')})")

    def _runs(self):
        """[(first row, number of rows)] of an item's runs of rows that are adjacent in local memory."""
        below = self.tile.logits.below
        return [(r, below) for r in range(0, self.tile.rows, below)]

    def _there(self, place, r, run):
        """C text of the factors at other position `place` (C text) and the item's `run` own positions from row `r` on, a vector."""
        return self.results.vector(self.factors, f"({place}) * {self.results.pitch_a} + {self.tile.logits.row(r)}", run)

    def _put(self, name):
        """Statements that store {name}{row}_{column} in the factors' local memory."""
        lines = []
        for c, (r, run) in itertools.product(self.others_of_item, self._runs()):
            value = ", ".join(f"{name}{n}_{c}" for n in range(r, r + run))
            lines.append(f"{self._there(self.tile.logits.column(c), r, run)} = ({self.vector(run)})({value});\n")
        return "".join(lines)

    def _across(self, name, first, combine):
        """Statements that declare {name}{row}: the values `first(row)` of all items that share the row, combined in a fixed order."""
        lines, vector = [], {}
        for r, run in self._runs():
            value = ", ".join(first(n) for n in range(r, r + run))
            lines.append(f"{self._there('across', r, run)} = ({self.vector(run)})({value});\n")
            vector[r] = f"{name}_{r}"
        lines.append(f"{self.args.barrier()}\n")
        lines += [f"{self.vector(run)} {vector[r]} = {self._there('0', r, run)};\n" for r, run in self._runs()]
        lines.append(f"#pragma unroll 4\nfor (int c = 1; c < {self.tile.side}; ++c) {{\n")
        for r, run in self._runs():
            lines.append(f"const {self.vector(run)} more_{r} = {self._there('c', r, run)};\n")
            lines.append(f"{vector[r]} = {combine(f'more_{r}', vector[r], run)};\n")
        lines.append("}\n")
        for r, run in self._runs():
            lines += [f"const {self.register} {name}{r + n} = {vector[r]}{f'.s{n:x}' if run > 1 else ''};\n" for n in range(run)]
        return "".join(lines)

    def _softmax(self):
        """Online softmax: logits to weights relative to the rows' running maxima; `shrink` rescales the earlier sums."""
        register, rows, others = self.register, self.rows_of_item, self.others_of_item

        def logits(c):
            return "".join(f"{{\n{self._logit(r, c)}s{r}_{c} = within ? s{r}_{c} : -INFINITY;\n}}\n" for r in rows)

        def greater(a, b, width):
            return self.op("select", width, self.compare("gt", width, a, b), a, b)

        lines = [self._cells(logits)]
        for r in rows:
            lines.append(f"{register} own_top{r} = peak{r};\n")
            lines += [f"own_top{r} = s{r}_{c} > own_top{r} ? s{r}_{c} : own_top{r};\n" for c in others]
        lines.append(self._across("top", lambda r: f"own_top{r}", greater))
        for r in rows:
            # The shift is finite, so that rows with only -inf so far have weights of 0, not NaN.
            lines.append(f"const {register} shift{r} = isfinite(top{r}) ? top{r} : 0, shrink{r} = exp(peak{r} - shift{r});\n")
            lines.append(f"peak{r} = top{r};\ntotal{r} *= shrink{r};\n")
            lines += [f"s{r}_{c} = exp(s{r}_{c} - shift{r});\ntotal{r} += s{r}_{c};\n" for c in others]
            lines += [f"sum0_{r}_{c} *= shrink{r};\n" for c in self.results.columns]
        return "".join([*lines, f"{self.args.barrier()}\n"])

    def _slopes(self):
        """Statements that turn the products into weights, in s, and slopes (gradients of the logits), in g; 0 beyond the end."""

        def cell(c):
            lines, names = [], ("peak", "rescale", "delta")
            if self.scheme.own == "key":
                lines += [f"const {self.register} {name} = {self.statistic(name, 'other')};\n" for name in names]
            for r in self.rows_of_item:
                peak, rescale, delta = names if self.scheme.own == "key" else (f"{name}{r}" for name in names)
                lines.append(f"{{\n{self._logit(r, c)}s{r}_{c} = within ? exp(s{r}_{c} - {peak}) * {rescale} : 0;\n")
                slope = f"s{r}_{c} * (g{r}_{c} - {delta})"
                lines.append(f"g{r}_{c} = {f'allowed ? {slope} : 0' if self.masked else slope};\n}}\n")
            return "".join(lines)

        return self._cells(cell)

    def _sum(self, k, factor, name):
        """Statements that add the other rows of operand `name`, times their factors, to the sum of result `k`."""
        results, chunk = self.results, self._loader(name, "column_first", self.width(name), False, self.tile.width)
        lines = ["{\nconst int k_begin = j;\n", self._put("s" if factor == "weights" else "g")]
        lines.append(results.fill(results.b, self.tile.width, chunk, self.others))
        barrier = f"{self.args.barrier()}\n"
        return "".join([*lines, barrier, results.multiply(f"sum{k}_"), barrier, "}\n"])

    def _store(self):
        t, rows, lines = self.tile, self.rows_of_item, []
        head = "head" if self.scheme.own == "query" else "key_head"
        if self.forward:
            lines.append(self._across("whole", lambda r: f"total{r}", lambda a, b, width: f"{b} + {a}"))
        for r in rows:
            lines.append(f"if (first + {t.logits.row(r)} < {self.own}) {{\nconst {self.i} own = own{r};\n")
            if self.forward:
                lines.append(f"const {self.register} factor = 1 / whole{r};\nif ({self.args.place('group', 0)} == 0 && across == 0) {{\n")
                lines.append(f"const {self.register} value = isfinite(peak{r}) ? peak{r} : 0;\n")
                lines.append(self.finish(1, ("batch", "own", "head"), "value") + self.finish(2, ("batch", "own", "head"), "factor") + "}\n")
            for k, (factor, name) in enumerate(self.scheme.sums):
                by = "factor" if self.forward else self.scale if factor == "slopes" else "1"
                run = min(t.results.beside, self._vector(name, t.width))
                for c in range(0, t.columns, run):
                    lines.append(f"{{\nconst int d = column_first + {t.results.column(c)};\nif (d < {self.width(name)}) {{\n")
                    values = ", ".join(f"sum{k}_{r}_{n}" for n in range(c, c + run))
                    lines.append(f"const {self.vector(run)} value = {f'({self.vector(run)})({values})' if run > 1 else values} * {by};\n")
                    lines.append(self.finish(k, ("batch", "own", head, "d"), "value", run) + "}\n}\n")
            lines.append("}\n")
        return "".join(lines)
