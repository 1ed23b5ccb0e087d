"""Attention for GPUs: a work-group owns a block of positions of one head and a chunk of the results' columns.

Logits of the block against a block of other positions are a product of tiles in local memory; their weights go to local memory too and
multiply the other rows, whose chunk of columns is the second tile. Depths beyond a chunk repeat the logits.
"""

from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, maximum
from keras_ocl.kernels.attention.parts import MASKED, Writer
from keras_ocl.kernels.spec import KernelSpec

ROWS = 2  # own and other positions of one work-item, in each direction
DEPTH = 16  # steps of a product in local memory


@dataclass(frozen=True)
class Tile:
    """A group of side x side work-items; each sums `columns` columns of its rows."""

    side: int
    columns: int

    @property
    def block(self):
        return ROWS * self.side

    @property
    def width(self):
        return self.columns * self.side


def choose(problem, scheme):
    """The Tile that fits the device's group and local memory, with as many columns as the rows have."""
    traits, size = problem.traits, dtypes.itemsize(problem.wide)
    wanted = max(1, *(hint(problem.depth if name in ("query", "key") else problem.value_depth) for _, name in scheme.sums))
    for side in (16, 8, 4, 2):
        columns = min(8, 1 << (-(-wanted // side) - 1).bit_length())
        while columns > 1 and local_bytes(Tile(side, columns), scheme, size) > traits.local_memory:
            columns //= 2
        if side * side <= traits.max_group and local_bytes(Tile(side, columns), scheme, size) <= traits.local_memory:
            return Tile(side, columns)
    return Tile(1, 1)


def local_bytes(tile, scheme, size):
    tiles = len({factor for factor, _ in scheme.sums})
    return size * (2 * DEPTH * (tile.block + 1) + tiles * tile.block * (tile.block + 1) + tile.block * tile.width)


def kernel(problem, scheme, sinks):
    """The KernelSpec of one scheme of `problem`."""
    tile = choose(problem, scheme)
    writer = _Writer(problem, scheme, sinks, tile)
    body = writer.body()
    p = problem
    extent, heads = (p.time, p.heads) if scheme.own == "query" else (p.source, p.key_heads)
    widths = [p.depth if name in ("query", "key") else p.value_depth for _, name in scheme.sums]
    chunks = ceil_div(maximum(widths[0], widths[-1]), tile.width)
    return KernelSpec(
        name=scheme.name,
        args=writer.args.args,
        body=body,
        grid=(chunks * tile.side, ceil_div(extent, tile.block) * tile.side, p.batch * heads),
        group=(tile.side, tile.side, 1),
        helpers=writer.all_helpers(),
    )


class _Writer(Writer):
    def __init__(self, problem, scheme, sinks, tile):
        super().__init__(problem, scheme, sinks)
        self.tile, self.rows_of_item = tile, range(ROWS)
        self.pitch = tile.block + 1  # so that consecutive rows lie in different banks
        self.left = self.args.local(self.register, DEPTH * self.pitch)
        self.right = self.args.local(self.register, DEPTH * self.pitch)
        factors = dict.fromkeys(factor for factor, _ in scheme.sums)
        self.factors = {factor: self.args.local(self.register, tile.block * self.pitch) for factor in factors}
        self.met = self.args.local(self.register, tile.block * tile.width)

    def body(self):
        p, t, scheme, register = self.p, self.tile, self.scheme, self.register
        asking = scheme.own == "query"
        lines = [
            self.head(2),
            f"const int across = get_local_id(0), down = get_local_id(1), me = down * {t.side} + across;\n",
            f"const int first = get_group_id(1) * {t.block}, column = get_group_id(0) * {t.width} + across;\n",
        ]
        lines += [f"const int own{r} = first + down + {r * t.side};\n" for r in self.rows_of_item]
        lines += [self.rows(name) for name in scheme.kept]
        for k in range(len(scheme.sums)):
            lines.append(f"{register} " + ", ".join(f"sum{k}_{r}_{c} = 0" for r in self.rows_of_item for c in range(t.columns)) + ";\n")
        for r in self.rows_of_item:
            if self.forward:
                lines.append(f"{register} peak{r} = -INFINITY, total{r} = 0;\n")
            elif asking:
                row = f"min(own{r}, {self.own} - 1)"
                lines += [f"const {register} {name}{r} = {self.statistic(name, row)};\n" for name in ("peak", "rescale", "delta")]
        if not asking:
            lines.append(f"for (int head = key_head * {self.group}; head < (key_head + 1) * {self.group}; ++head) {{\n")
        lines += [self.rows(name) for name in scheme.others]
        begin, end = "0", self.others
        if p.causal and asking and not (self.forward and self.any_row_may_be_masked):
            end = f"min(first + {t.block}, {self.others})"
        elif p.causal and not asking and not self.any_row_may_be_masked:
            begin = f"first / {t.block} * {t.block}"
        lines.append(f"for (int j = {begin}; j < {end}; j += {t.block}) {{\n")
        lines.append(self._product(0, "s"))
        lines.append(self._softmax() if self.forward else self._product(1, "g") + self._slopes())
        lines += [self._sum(k, factor, name) for k, (factor, name) in enumerate(scheme.sums)]
        lines.append("}\n" if asking else "}\n}\n")
        return "".join([*lines, self._store()])

    def _fill(self, local, name, first, limit):
        """Statements that copy steps d0... of a block's rows to local memory, zeros beyond the edges."""
        t = self.tile
        element = self.load(name, 1, f"{name}_rows", f"((({self.i}){first} + r) * {name}_row + d0 + d)")
        return (
            f"for (int e = me; e < {DEPTH * t.block}; e += {t.side * t.side}) {{\nconst int d = e % {DEPTH}, r = e / {DEPTH};\n"
            f"{local}[d * {self.pitch} + r] = {first} + r < {limit} && d0 + d < {self.width(name)} ? {element} : 0;\n}}\n"
        )

    def _product(self, k, result):
        """Statements that leave products of own and other rows in {result}{row}_{column}."""
        t, register, rows = self.tile, self.register, self.rows_of_item
        lines = [f"{register} " + ", ".join(f"{result}{r}_{c} = 0" for r in rows for c in rows) + ";\n"]
        lines.append(f"for (int d0 = 0; d0 < {self.width(self.scheme.met[k])}; d0 += {DEPTH}) {{\n")
        lines.append(self._fill(self.left, self.scheme.kept[k], "first", self.own))
        lines.append(self._fill(self.right, self.scheme.met[k], "j", self.others))
        lines.append(f"barrier(CLK_LOCAL_MEM_FENCE);\nfor (int d = 0; d < {DEPTH}; ++d) {{\n")
        lines += [f"const {register} x{r} = {self.left}[d * {self.pitch} + down + {r * t.side}];\n" for r in rows]
        lines += [f"const {register} y{c} = {self.right}[d * {self.pitch} + across + {c * t.side}];\n" for c in rows]
        lines += [f"{result}{r}_{c} = fma(x{r}, y{c}, {result}{r}_{c});\n" for r in rows for c in rows]
        return "".join([*lines, "}\nbarrier(CLK_LOCAL_MEM_FENCE);\n}\n"])

    def _logit(self, r, c):
        """Statements that turn the product s{r}_{c} into a logit, inside the bounds, and say in `allowed` whether it is not masked."""
        s, lines = f"s{r}_{c}", []
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
        """Expression of bias or mask at this item's row."""
        return self.load(name, 1, self.pointers[name], f"({self.place(name, f'own{r}', 'other')})")

    def _cell(self, r, c):
        """Place in a tile of factors of this item's row and column."""
        return f"[(down + {r * self.tile.side}) * {self.pitch} + across + {c * self.tile.side}]"

    def _softmax(self):
        """Logits to weights relative to the rows' maxima so far; `shrink` is what the sums so far are worth."""
        t, register, rows, tile = self.tile, self.register, self.rows_of_item, self.factors["weights"]
        lines = []
        for r in rows:
            for c in rows:
                lines.append(f"{{\nconst int other = j + across + {c * t.side};\ns{r}_{c} *= {self.scale};\n")
                lines.append(f"if (other >= {self.others}) s{r}_{c} = -INFINITY;\n")
                lines.append(f"else if (own{r} < {self.own}) {{\n{self._logit(r, c)}}}\n{tile}{self._cell(r, c)} = s{r}_{c};\n}}\n")
        lines.append("barrier(CLK_LOCAL_MEM_FENCE);\n")
        for r in rows:
            row = f"{tile}[(down + {r * t.side}) * {self.pitch} + c]"
            lines.append(f"{register} top{r} = peak{r};\n")
            lines.append(f"for (int c = 0; c < {t.block}; ++c) top{r} = {row} > top{r} ? {row} : top{r};\n")
            # The shift is finite, so that rows of -inf so far have weights of 0, not NaN.
            lines.append(f"const {register} shift{r} = isfinite(top{r}) ? top{r} : 0, shrink{r} = exp(peak{r} - shift{r});\n")
            lines.append(f"peak{r} = top{r};\n")
        lines.append("barrier(CLK_LOCAL_MEM_FENCE);\n")
        return "".join(lines + [f"{tile}{self._cell(r, c)} = exp(s{r}_{c} - shift{r});\n" for r in rows for c in rows])

    def _slopes(self):
        """Products to weights and slopes, 0 outside of the bounds."""
        t, lines = self.tile, []
        for r in self.rows_of_item:
            for c in self.rows_of_item:
                lines.append(f"{{\nconst int other = j + across + {c * t.side};\n{self.register} weight = 0, slope = 0;\n")
                lines.append(f"if (own{r} < {self.own} && other < {self.others}) {{\ns{r}_{c} *= {self.scale};\n{self._logit(r, c)}")
                if self.scheme.own == "key":
                    peak, rescale, delta = (self.statistic(name, "other") for name in ("peak", "rescale", "delta"))
                else:
                    peak, rescale, delta = (f"{name}{r}" for name in ("peak", "rescale", "delta"))
                lines.append(f"weight = exp(s{r}_{c} - {peak}) * {rescale};\n")
                slope = f"weight * (g{r}_{c} - {delta})"
                lines.append(f"slope = {f'allowed ? {slope} : 0' if self.masked else slope};\n}}\n")
                values = {"weights": "weight", "slopes": "slope"}
                lines += [f"{tile}{self._cell(r, c)} = {values[factor]};\n" for factor, tile in self.factors.items()]
                lines.append("}\n")
        return "".join(lines)

    def _sum(self, k, factor, name):
        """Adds the other rows, by their factors, to what result `k` is summed in."""
        t, register, rows, columns = self.tile, self.register, self.rows_of_item, range(self.tile.columns)
        element = self.load(name, 1, f"{name}_rows", f"((({self.i})j + q) * {name}_row + at)")
        lines = [
            f"for (int e = me; e < {t.block * t.width}; e += {t.side * t.side}) {{\n",
            f"const int q = e / {t.width}, at = get_group_id(0) * {t.width} + e % {t.width};\n",
            f"{self.met}[e] = j + q < {self.others} && at < {self.width(name)} ? {element} : 0;\n}}\n",
            "barrier(CLK_LOCAL_MEM_FENCE);\n",
        ]
        if self.forward:
            lines += [f"total{r} *= shrink{r};\n" for r in rows]
            lines += [f"sum{k}_{r}_{c} *= shrink{r};\n" for r in rows for c in columns]
        lines.append(f"for (int q = 0; q < {t.block}; ++q) {{\n")
        lines += [f"const {register} x{r} = {self.factors[factor]}[(down + {r * t.side}) * {self.pitch} + q];\n" for r in rows]
        if self.forward:
            lines += [f"total{r} += x{r};\n" for r in rows]
        for c in columns:
            lines.append(f"{{ const {register} y = {self.met}[q * {t.width} + across + {c * t.side}];\n")
            lines += [f"sum{k}_{r}_{c} = fma(x{r}, y, sum{k}_{r}_{c});\n" for r in rows]
            lines.append("}\n")
        return "".join([*lines, "}\nbarrier(CLK_LOCAL_MEM_FENCE);\n"])

    def _store(self):
        t, lines = self.tile, []
        head = "head" if self.scheme.own == "query" else "key_head"
        for r in self.rows_of_item:
            lines.append(f"if (own{r} < {self.own}) {{\nconst {self.i} own = own{r};\n")
            if self.forward:
                lines.append(f"const {self.register} factor = 1 / total{r};\nif (column == 0) {{\n")
                lines.append(f"const {self.register} value = isfinite(peak{r}) ? peak{r} : 0;\n")
                lines.append(self.finish(1, ("batch", "own", "head"), "value") + self.finish(2, ("batch", "own", "head"), "factor") + "}\n")
            for k, (factor, name) in enumerate(self.scheme.sums):
                by = "factor" if self.forward else self.scale if factor == "slopes" else "1"
                for c in range(t.columns):
                    lines.append(f"if (column + {c * t.side} < {self.width(name)}) {{\nconst int d = column + {c * t.side};\n")
                    lines.append(f"const {self.register} value = sum{k}_{r}_{c} * {by};\n")
                    lines.append(self.finish(k, ("batch", "own", head, "d"), "value") + "}\n")
            lines.append("}\n")
        return "".join(lines)
