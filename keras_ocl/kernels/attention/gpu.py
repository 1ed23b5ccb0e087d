"""Attention for GPUs: a work-group owns a block of positions of one head and a chunk of the results' columns.

Logits of the block against a block of other positions are a tiled contraction (kernels/contraction.py) of rows of both; their weights
go to local memory and are one operand of the next contraction, the other being the other rows' chunk of columns. For depths beyond a
chunk the logits are computed again for each chunk.
"""

from dataclasses import dataclass, replace

from keras_ocl.core import dtypes
from keras_ocl.core.dim import ceil_div, hint, maximum, power_above
from keras_ocl.kernels import contraction
from keras_ocl.kernels.attention.parts import MASKED, Writer
from keras_ocl.kernels.contraction import BARRIER, Contraction, Strided
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import KernelSpec


@dataclass(frozen=True)
class Tile:
    """A group of side x side work-items; each sums `columns` columns of its rows, with `depth` steps of the logits in local memory."""

    side: int
    columns: int
    rows: int
    depth: int

    @property
    def block(self):
        return self.rows * self.side

    @property
    def width(self):
        return self.columns * self.side

    @property
    def logits(self):
        """The tile of the product of own and other rows."""
        return contraction.Tile(self.side, self.side, self.rows, self.rows, self.depth, fragment=1)

    @property
    def results(self):
        """The tile of the product of factors and other rows."""
        return contraction.Tile(self.side, self.side, self.rows, self.columns, self.block, fragment=1)


def choose(problem, scheme):
    """The Tile that fits the device's group and local memory, with as many columns as the rows have."""
    traits, size = problem.traits, dtypes.itemsize(problem.wide)
    wanted = max(1, *(hint(problem.depth if name in ("query", "key") else problem.value_depth) for _, name in scheme.sums))
    tuning = schedule_of(traits).tuning
    for side in (16, 8, 4, 2):
        tile = Tile(side, min(8, power_above(-(-wanted // side))), tuning.attention_rows, tuning.depth)
        while tile.columns > 1 and local_bytes(tile, scheme, size) > traits.local_memory:
            tile = replace(tile, columns=tile.columns // 2)
        if side * side <= traits.max_group and local_bytes(tile, scheme, size) <= traits.local_memory:
            return tile
    return Tile(1, 1, tuning.attention_rows, tuning.depth)


def local_bytes(tile, scheme, size):
    more = len({factor for factor, _ in scheme.sums}) - 1  # tiles of factors besides the one that is an operand
    return tile.logits.local_bytes(size) + tile.results.local_bytes(size) + size * more * tile.block * (tile.block + 1)


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
        title=f"{scheme.name}: {tile.block} positions of one head and {tile.width} columns per work-group",
    )


class _Writer(Writer):
    def __init__(self, problem, scheme, sinks, tile):
        super().__init__(problem, scheme, sinks)
        self.tile, self.rows_of_item = tile, range(tile.rows)
        self.logits = Contraction(self.args, tile.logits, self.register, "fma({}, {}, {})".format)
        self.results = Contraction(self.args, tile.results, self.register, "fma({}, {}, {})".format)
        self.pitch = self.results.pitch_a
        first, *more = dict.fromkeys(factor for factor, _ in scheme.sums)
        self.factors = {first: self.results.a}
        self.factors.update({factor: self.results.local(tile.block * self.pitch) for factor in more})

    def body(self):
        p, t, scheme, register = self.p, self.tile, self.scheme, self.register
        asking = scheme.own == "query"
        lines = [
            self.head(2),
            self.logits.head(),
            f"const int first = get_group_id(1) * {t.block}, column = get_group_id(0) * {t.width} + across;\n",
        ]
        lines += [f"const int own{r} = first + down + {r * t.side};\n" for r in self.rows_of_item]
        lines += [self.rows(name) for name in scheme.kept]
        lines += [self.results.results(f"sum{k}_") for k in range(len(scheme.sums))]
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

    def _rows_of(self, name, first, limit):
        """The Loader of a block of rows, summed over along the rows."""

        def load(where):
            return self.load(name, 1, f"{name}_rows", f"({where})")

        return Strided(first, limit, True, load, lambda at, d: f"({self.i}){at} * {name}_row + {d}")

    def _columns_of(self, name):
        """The Loader of the chunk of columns of other rows, summed over along the positions."""

        def load(where):
            return self.load(name, 1, f"{name}_rows", f"({where})")

        first = f"get_group_id(0) * {self.tile.width}"
        return Strided(first, self.width(name), False, load, lambda at, other: f"({self.i}){other} * {name}_row + {at}")

    def _product(self, k, name):
        """Statements that leave products of own and other rows in {name}{row}_{column}."""
        kept, met = self.scheme.kept[k], self.scheme.met[k]
        own, other = self._rows_of(kept, "first", self.own), self._rows_of(met, "j", self.others)
        return self.logits.results(name) + self.logits.walk("0", self.width(met), own, other, name)

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
        return f"[(across + {c * self.tile.side}) * {self.pitch} + down + {r * self.tile.side}]"

    def _softmax(self):
        """Logits to weights relative to the rows' maxima so far; `shrink` is what the sums so far are worth."""
        t, register, rows, tile = self.tile, self.register, self.rows_of_item, self.factors["weights"]
        lines = []
        for r in rows:
            for c in rows:
                lines.append(f"{{\nconst int other = j + across + {c * t.side};\ns{r}_{c} *= {self.scale};\n")
                lines.append(f"if (other >= {self.others}) s{r}_{c} = -INFINITY;\n")
                lines.append(f"else if (own{r} < {self.own}) {{\n{self._logit(r, c)}}}\n{tile}{self._cell(r, c)} = s{r}_{c};\n}}\n")
        lines.append(BARRIER)
        for r in rows:
            row = f"{tile}[c * {self.pitch} + down + {r * t.side}]"
            lines.append(f"{register} top{r} = peak{r};\n")
            lines.append(f"for (int c = 0; c < {t.block}; ++c) top{r} = {row} > top{r} ? {row} : top{r};\n")
            # The shift is finite, so that rows of -inf so far have weights of 0, not NaN.
            lines.append(f"const {register} shift{r} = isfinite(top{r}) ? top{r} : 0, shrink{r} = exp(peak{r} - shift{r});\n")
            lines.append(f"peak{r} = top{r};\n")
        lines.append(BARRIER)
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
        results, rows = self.results, self.rows_of_item
        lines = ["{\nconst int k_begin = j;\n"]
        lines.append(results.fill(results.b, self.tile.width, self._columns_of(name), self.others))
        lines.append(BARRIER)
        if self.forward:
            lines += [f"total{r} *= shrink{r};\n" for r in rows]
            lines += [f"sum{k}_{r}_{c} *= shrink{r};\n" for r in rows for c in results.columns]
        also = "total{0} += e;\n".format if self.forward else None
        return "".join([*lines, results.multiply(self.factors[factor], f"sum{k}_", also), BARRIER, "}\n"])

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
