"""Attention for GPUs: a work-group owns a block of positions of one head and a chunk of the results' columns.

The logits of the block against a block of other positions are a tiled contraction (kernels/contraction.py) of rows of both. Their weights
go to local memory and are the left operand of the next contraction; its right operand is the chunk of columns of the other positions' rows.
If the depth exceeds a chunk, the logits are computed again for each chunk.
"""

import itertools

from keras_ocl.core.dim import ceil_div, maximum
from keras_ocl.kernels import contraction
from keras_ocl.kernels.attention.gpu_choice import lengths
from keras_ocl.kernels.attention.parts import MASKED, Writer
from keras_ocl.kernels.contraction import Contraction, Strided

_STEPS = 8  # unrolled steps of k: with more, compilers hoist so many loads that registers spill


def kernel(problem, scheme, sinks, tile):
    """The KernelSpec of one Scheme of `problem` with a Tile."""
    return written(GpuWriter(problem, scheme, sinks, tile))


def written(writer):
    """The KernelSpec of a GpuWriter."""
    p, scheme, t, body = writer.p, writer.scheme, writer.tile, writer.body()
    extent, heads = (p.time, p.heads) if scheme.own == "query" else (p.source, p.key_heads)
    _, widths = lengths(scheme, p.depth, p.value_depth)
    chunks, (across, down) = ceil_div(maximum(widths[0], widths[-1]), t.width), t.group
    block = f"{t.block} positions of one head and {t.width} columns per work-group, {t.met} others at a time"
    return writer.args.kernel(
        name=scheme.name,
        body=body,
        grid=(chunks * across, ceil_div(extent, t.block) * down, p.batch * heads),
        group=(across, down, 1),
        helpers=writer.all_helpers(),
        title=f"{scheme.name}: {block}{t.logits.manner}",
        attributes=t.logits.attributes,
    )


class GpuWriter(Writer):
    """Writes the kernel of a scheme with a Tile."""

    def __init__(self, problem, scheme, sinks, tile):
        super().__init__(problem, scheme, sinks)
        self.tile, self.rows_of_item, self.others_of_item = tile, range(tile.rows), range(tile.others)
        self.contractions()

    def contractions(self):
        """Sets what writes the products: `logits`, of own and other rows, and `results`, of factors and other rows."""
        tile = self.tile
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
            self.indices(),
            f"const int first = {self.args.place('group', 1)} * {t.block}, column_first = {self.args.place('group', 0)} * {t.width};\n",
        ]
        # Positions beyond the end read the last one's operands; their sums are not stored.
        lines += [f"const int own{r} = min(first + {t.logits.row(r)}, {self.own} - 1);\n" for r in self.rows_of_item]
        lines += [self.rows(name) for name in scheme.kept] + [self.keep()]
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
        lines += [self.enter(begin, end), f"#pragma unroll 1\nfor (int j = {begin}; j < {end}; j += {t.met}) {{\n"]
        lines.append(self.product(0, "s", end))
        lines.append(self._softmax() if self.forward else self.product(1, "g", end) + self._slopes())
        lines += [self.sum(k, factor, name, end) for k, (factor, name) in enumerate(scheme.sums)]
        lines.append("}\n" if asking else "}\n}\n")
        return "".join([*lines, self._store()])

    def indices(self):
        """Statements that define the item's place in its group; `across` is 0 in items that store rows' statistics."""
        return self.logits.head()

    def keep(self):
        """Statements before all loops, which load what the group keeps of its own rows."""
        return ""

    def enter(self, begin, end):
        """Statements before the loop over other positions from `begin` to `end` (C texts)."""
        return ""

    def vectors(self, name, along):
        """Elements of a row loaded or stored as one vector: the fragment if it divides the row and the tile's extent `along` it, else 1."""
        width, v = self.p.depth if name in ("query", "key") else self.p.value_depth, self.tile.fragment
        return v if isinstance(width, int) and not self.p.all_arguments and width % v == along % v == 0 else 1

    def loader(self, name, first, limit, along_k, along):
        """The Loader of rows `first` to `limit` of an operand; `along`: a tile's extent along a row."""
        v = self.vectors(name, along)

        def load(where):
            return self.elements(name, v, where)

        def offset(at, k):
            row, place = (at, k) if along_k else (k, at)
            return f"({self.i}){row} * {name}_row + {place}"

        return Strided(first, limit, along_k, load, offset, vector=v)

    def exp(self, value):
        """C text of the exponential of a float's C text."""
        return f"exp({value})"

    def elements(self, name, vector, where):
        """Expression that loads a vector of an operand at an offset (C text) for local memory."""
        return self.load(name, vector, f"{name}_rows", f"({where})", aligned=vector > 1)

    def product(self, k, name, end):
        """Statements that compute the dot products of own and other rows of the scheme's pair `k` in {name}{row}_{column}.

        end: C text of the end of the loop over other positions.
        """
        kept, met = self.scheme.kept[k], self.scheme.met[k]
        own = self.loader(kept, "first", self.own, True, self.tile.depth)
        other = self.loader(met, "j", self.others, True, self.tile.depth)
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

    def across(self, name, first, combine):
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
        lines.append(self.across("top", lambda r: f"own_top{r}", greater))
        for r in rows:
            # The shift is finite, so that rows with only -inf so far have weights of 0, not NaN.
            shrink = self.exp(f"peak{r} - shift{r}")
            lines.append(f"const {register} shift{r} = isfinite(top{r}) ? top{r} : 0, shrink{r} = {shrink};\n")
            lines.append(f"peak{r} = top{r};\ntotal{r} *= shrink{r};\n")
            lines += [f"s{r}_{c} = {self.exp(f's{r}_{c} - shift{r}')};\ntotal{r} += s{r}_{c};\n" for c in others]
            lines += [f"sum0_{r}_{c} *= shrink{r};\n" for c in self.results.columns]
        return "".join(lines)

    def _slopes(self):
        """Statements that turn the products into weights, in s, and slopes (gradients of the logits), in g; 0 beyond the end."""

        def cell(c):
            lines, names = [], ("peak", "rescale", "delta")
            if self.scheme.own == "key":
                lines += [f"const {self.register} {name} = {self.statistic(name, 'other')};\n" for name in names]
            for r in self.rows_of_item:
                peak, rescale, delta = names if self.scheme.own == "key" else (f"{name}{r}" for name in names)
                lines.append(f"{{\n{self._logit(r, c)}s{r}_{c} = within ? {self.exp(f's{r}_{c} - {peak}')} * {rescale} : 0;\n")
                slope = f"s{r}_{c} * (g{r}_{c} - {delta})"
                lines.append(f"g{r}_{c} = {f'allowed ? {slope} : 0' if self.masked else slope};\n}}\n")
            return "".join(lines)

        return self._cells(cell)

    def sum(self, k, factor, name, end):
        """Statements that add the other rows of operand `name`, times their factors, to the sum of result `k`; end: as for product()."""
        results, chunk = self.results, self.loader(name, "column_first", self.width(name), False, self.tile.width)
        lines = [f"{self.args.barrier()}\n" if self.forward else "", "{\nconst int k_begin = j;\n"]
        lines.append(self._put("s" if factor == "weights" else "g"))
        lines.append(results.fill(results.b, self.tile.width, chunk, self.others))
        barrier = f"{self.args.barrier()}\n"
        return "".join([*lines, barrier, results.multiply(f"sum{k}_"), barrier, "}\n"])

    def _store(self):
        t, rows, lines = self.tile, self.rows_of_item, []
        head = "head" if self.scheme.own == "query" else "key_head"
        if self.forward:
            lines.append(self.across("whole", lambda r: f"total{r}", lambda a, b, width: f"{b} + {a}"))
        for r in rows:
            lines.append(f"if (first + {t.logits.row(r)} < {self.own}) {{\nconst {self.i} own = own{r};\n")
            if self.forward:
                lines.append(f"const {self.register} factor = 1 / whole{r};\nif ({self.args.place('group', 0)} == 0 && across == 0) {{\n")
                lines.append(f"const {self.register} value = isfinite(peak{r}) ? peak{r} : 0;\n")
                lines.append(self.finish(1, ("batch", "own", "head"), "value") + self.finish(2, ("batch", "own", "head"), "factor") + "}\n")
            for k, (factor, name) in enumerate(self.scheme.sums):
                by = "factor" if self.forward else self.scale if factor == "slopes" else "1"
                run = min(t.results.beside, self.vectors(name, t.width))
                for c in range(0, t.columns, run):
                    lines.append(f"{{\nconst int d = column_first + {t.results.column(c)};\nif (d < {self.width(name)}) {{\n")
                    values = ", ".join(f"sum{k}_{r}_{n}" for n in range(c, c + run))
                    lines.append(f"const {self.vector(run)} value = {f'({self.vector(run)})({values})' if run > 1 else values} * {by};\n")
                    lines.append(self.finish(k, ("batch", "own", head, "d"), "value", run) + "}\n}\n")
            lines.append("}\n")
        return "".join(lines)
