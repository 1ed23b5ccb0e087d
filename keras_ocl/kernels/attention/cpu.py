"""Attention for CPUs: a work-item owns a block of positions of one head, which run along the lanes.

Its own rows are transposed into private memory once. In every product an element of another position's row, read in place, is then
broadcast against vectors of own positions, and the softmax needs no operation across lanes.
"""

from keras_ocl.core.dim import ceil_div, hint, power_above
from keras_ocl.kernels.attention.parts import MASKED, Writer
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.register_tile import RegisterTile


def kernel(problem, scheme, sinks):
    """The KernelSpec of one scheme of `problem`."""
    writer = CpuWriter(problem, scheme, sinks)
    body = writer.body()
    p = problem
    extent, heads = (p.time, p.heads) if scheme.own == "query" else (p.source, p.key_heads)
    return writer.args.kernel(
        name=scheme.name,
        body=body,
        grid=(ceil_div(extent, writer.block), p.batch * heads, 1),
        group=(1, 1, 1),
        helpers=writer.all_helpers(),
        title=f"{scheme.name}: a block of positions of one head per work-item",
    )


class CpuWriter(Writer):
    """Writes the kernel of one scheme."""

    result = 0  # index of the sink of the scheme's first sum

    def __init__(self, problem, scheme, sinks):
        super().__init__(problem, scheme, sinks)
        p = problem
        self.steps = 8 if p.traits.vector_width >= 16 else 4  # other positions per step, which share the loads of own ones
        own = hint(p.time if scheme.own == "query" else p.source)
        self.lanes, self.vectors = p.lanes, 2 if own > p.lanes else 1
        self.room = {name: self._room(p.depth if name in ("query", "key") else p.value_depth) for name in ("query", "key", "value", "do")}
        columns = sum(self.room[name] for name in (*scheme.kept, *(x for _, x in scheme.sums)))
        size, private = 8 if p.wide == "float64" else 4, tuning_of(p.traits).attention.private
        while columns * self.block * size > private and self.block > 1:
            self.vectors, self.lanes = (1, self.lanes) if self.vectors > 1 else (1, self.lanes // 2)

    def _room(self, depth):
        """Elements of private memory for a row of `depth`; in eager code, for the longest row of its size class."""
        return max(16, power_above(hint(depth))) if self.p.all_arguments else max(1, depth)

    @property
    def block(self):
        """Own positions of a work-item."""
        return self.lanes * self.vectors

    def body(self):
        start = f"const int first = {self.args.place('global', 0)} * {self.block};\n"
        return "".join([self.head(1), self.private(), *(self.rows(name) for name in self.scheme.kept), start, self.own_block()])

    def own_block(self):
        """Statements that compute and store the results of the block of own positions from `first` on."""
        p, scheme, block = self.p, self.scheme, self.block
        lines = [self._pack(f"kept{k}", name) for k, name in enumerate(scheme.kept)]
        asking = scheme.own == "query"
        if asking:
            lines.append(f"for (int r = 0; r < {block}; ++r) {{\nconst {self.i} own = min(first + r, {self.own} - 1);\n")
            given = {name: self.statistic(name, "own") for name in ("peak", "rescale", "delta") if name in p.operands}
            lines += [f"{name}[r] = {value};\n" for name, value in (given or {"peak": "-INFINITY", "total": "0"}).items()]
            lines.append("}\n")
        for k, (_, name) in enumerate(scheme.sums):
            lines.append(f"for (int d = 0; d < {self.width(name)} * {block}; ++d) sum{k}[d] = 0;\n")
        if p.causal:
            ids = ", ".join(str(n) for n in range(self.lanes))
            for v in range(self.vectors):
                vector = f"int{self.lanes}" if self.lanes > 1 else "int"
                lines.append(f"const {vector} place{v} = first + {v * self.lanes} + ({vector})({ids});\n")
        if asking:
            return "".join([*lines, self._meet(), self._store()])
        return "".join([*lines, self.every_head(self._meet()), self._store()])

    def every_head(self, text):
        """C loop that runs `text` for each query head that shares the key head."""
        return f"for (int head = key_head * {self.group}; head < (key_head + 1) * {self.group}; ++head) {{\n{text}}}\n"

    def private(self):
        """Statements that declare the arrays in private memory."""
        aligned = "__attribute__((aligned(64)))"
        sizes = {f"kept{k}": self.room[name] * self.block for k, name in enumerate(self.scheme.kept)}
        sizes |= {f"sum{k}": self.room[name] * self.block for k, (_, name) in enumerate(self.scheme.sums)}
        sizes["weights"] = self.steps * self.block
        if not self.forward:
            sizes["slopes"] = self.steps * self.block
        if self.scheme.own == "query":
            sizes |= {name: self.block for name in (("peak", "total") if self.forward else ("peak", "rescale", "delta"))}
        sizes |= {f"near_{name}": self.block for name in self.strides if self.own_stride(name) != "0"}
        types = {"near_mask": "int"}
        return "".join(f"{types.get(name, self.register)} {name}[{n}] {aligned};\n" for name, n in sizes.items())

    def _fours(self, width, wide, narrow):
        """C loops over `d`, 0 to `width`: statements `wide` for four elements at a time, `narrow` for each remaining one."""
        lines = ["int d = 0;\n"]
        if self.block >= 4 and (not width.isdigit() or int(width) >= 4):
            lines.append(f"for (; d + 4 <= {width}; d += 4) {{\n{wide}}}\n")
        if self.block < 4 or not width.isdigit() or int(width) % 4:
            lines.append(f"for (; d < {width}; ++d) {{\n{narrow}}}\n")
        return "".join(lines)

    def _pack(self, kept, name):
        """Statements that transpose own rows of operand `name` into array `kept`, 4 x 4 in registers; rows past the end repeat the last."""
        group, four = min(4, self.block), self.vector(4)
        row = f"min(first + r + {{k}}, {self.own} - 1)"
        first = "".join(self.pointer(name, f"x{k}", f"{name}_rows + ({self.i}){row.format(k=k)} * {name}_row") for k in range(group))
        narrow = "".join(f"{kept}[d * {self.block} + r + {k}] = {self.load(name, 1, f'x{k}', 'd')};\n" for k in range(group))
        wide = "".join(f"const {four} v{k} = {self.load(name, 4, f'x{k}', 'd')};\n" for k in range(group))
        for s in range(4):
            lanes = ", ".join(f"v{k}.s{s}" for k in range(group))
            wide += f"vstore4(({four})({lanes}), 0, {kept} + (d + {s}) * {self.block} + r);\n"
        return f"for (int r = 0; r < {self.block}; r += {group}) {{\n{first}{self._fours(self.width(name), wide, narrow)}}}\n"

    # ---- the loop over the other positions

    def _meet(self):
        lines = [self.rows(name) for name in self.scheme.others]
        begin, goes_on, leave = "0", "", ""
        if self.p.causal and self.scheme.own == "query":
            lines.append(f"const int needed = min(first + {self.block}, {self.others});\n")
            goes_on = " && j < needed"
            if self.forward and self.any_row_may_be_masked:
                # A row without any allowed position gives all masked positions equal weight, including the later ones.
                low = [self.compare("le", self.lanes, self._at("peak", v), self.number(MASKED, self.lanes)) for v in range(self.vectors)]
                goes_on, leave = "", f"if (j >= needed && !({' || '.join(self._any(t) for t in low)})) break;\n"
        elif self.p.causal and not self.any_row_may_be_masked:
            begin = f"min(first, {self.others}) / {self.steps} * {self.steps}"
        lines.append(f"int j = {begin};\n")
        lines.append(f"for (; j + {self.steps} <= {self.others}{goes_on}; j += {self.steps}) {{\n{leave}{self.step(self.steps)}}}\n")
        if self.p.all_arguments or not self.others.isdigit() or int(self.others) % self.steps:
            lines.append(f"for (; j < {self.others}{goes_on}; ++j) {{\n{leave}{self.step(1)}}}\n")
        return "".join(lines)

    def _any(self, lanes):
        return f"any({lanes})" if self.lanes > 1 else f"({lanes})"

    def _at(self, array, v, step=None):
        """Expression that loads vector `v` of a private array, or of its row `step`."""
        offset = f"{v * self.lanes}" if step is None else f"{step} * {self.block} + {v * self.lanes}"
        return f"{array}[{offset}]" if self.lanes == 1 else f"vload{self.lanes}(0, {array} + {offset})"

    def _put(self, array, v, value, step=None):
        offset = f"{v * self.lanes}" if step is None else f"{step} * {self.block} + {v * self.lanes}"
        return f"{array}[{offset}] = {value};\n" if self.lanes == 1 else f"vstore{self.lanes}({value}, 0, {array} + {offset});\n"

    def step(self, count):
        """Statements for `count` other positions from `j` on."""
        lines = [self._product(0, count, "weights")]
        if not self.forward:
            lines.append(self._product(1, count, "slopes"))
        lines.append(self._softmax(count) if self.forward else self._slopes(count))
        for k, (factor, name) in enumerate(self.scheme.sums):
            lines.append(self._sum(k, factor, name, count))
        return "".join(lines)

    def _met(self, name, count):
        return "".join(self.pointer(name, f"row{c}", f"{name}_rows + (j + {c}) * {name}_row") for c in range(count))

    def _product(self, k, count, target):
        """Statements that store in `target` the dot products of own rows with `count` other rows, for the scheme's pair `k`."""
        name, vector, vs = self.scheme.met[k], self.vector(self.lanes), range(self.vectors)
        sums = RegisterTile(count, self.vectors, vector)
        step = sums.step(lambda c: self.load(name, 1, f"row{c}", "d"), [self._at(f"kept{k}", v, "d") for v in vs])
        stored = sums.each(lambda c, v, total: self._put(target, v, total, c))
        return f"{{\n{self._met(name, count)}{sums.begin()}for (int d = 0; d < {self.width(name)}; ++d) {{\n{step}}}\n{stored}}}\n"

    def _sum(self, k, factor, name, count):
        """Statements that add `count` other rows of operand `name`, times their factors, to the sum of result `k`."""
        vector, vs = self.vector(self.lanes), range(self.vectors)
        lines = ["{\n", self._met(name, count)]
        lines += [f"const {vector} f{v}_{c} = {self._at(factor, v, c)};\n" for v in vs for c in range(count)]
        lines.append(f"for (int d = 0; d < {self.width(name)}; ++d) {{\n")
        for v in vs:
            shrink = f" * shrink{v}" if self.forward else ""
            lines.append(f"{vector} s{v} = {self._at(f'sum{k}', v, 'd')}{shrink};\n")
        for c in range(count):
            lines.append(f"{{ const {vector} e = ({vector})({self.load(name, 1, f'row{c}', 'd')});\n")
            lines += [f"s{v} = fma(e, f{v}_{c}, s{v});\n" for v in vs]
            lines.append("}\n")
        lines += [self._put(f"sum{k}", v, f"s{v}", "d") for v in vs]
        return "".join([*lines, "}\n}\n"])

    def _logits(self, v):
        """Statements that turn the products in `weights` into logits `s{v}`; `allowed{v}` has the lanes that are not masked."""
        width, vector = self.lanes, self.vector(self.lanes)
        lines = [f"{vector} s{v} = {self._at('weights', v, 'c')} * {self.scale};\n"]
        if "bias" in self.p.operands:
            lines.append(f"s{v} += {self._near('bias', v)};\n")
        allowed = []
        if "mask" in self.p.operands:
            allowed.append(self._near("mask", v))
        if self.p.causal:
            other = f"(int{width})(other)" if width > 1 else "other"
            query, key = (f"place{v}", other) if self.scheme.own == "query" else (other, f"place{v}")
            allowed.append(self.compare("ge", width, query, key, "int32"))
        if allowed:
            integer = f"int{width}" if width > 1 else "int"
            lines.append(f"const {integer} allowed{v} = {' & '.join(allowed)};\n")
            lines.append(f"s{v} = {self.op('select', width, f'allowed{v}', f's{v}', self.number(MASKED, width))};\n")
        return "".join(lines)

    def _near(self, name, v):
        """Expression of a vector of bias or mask: a broadcast if own positions share it, else what _gather() collected."""
        if self.own_stride(name) != "0":
            return self._at(f"near_{name}", v)
        element = self.load(name, 1, self.pointers[name], f"({self.place(name, 'first', 'other')})")
        kind = "int" if name == "mask" else self.register
        return f"({kind}{self.lanes})({element})" if self.lanes > 1 else f"({element})"

    def _gather(self):
        """Statements that gather bias and mask of all own positions at position `other`."""
        lines = []
        for name in self.strides:
            if self.own_stride(name) == "0":
                continue
            element = self.load(name, 1, self.pointers[name], f"({self.place(name, f'min(first + r, {self.own} - 1)', 'other')})")
            if self.own_stride(name) == "1":
                start = self.place(name, "first", "other")
                near = [self.load(name, self.lanes, self.pointers[name], f"({start} + {v * self.lanes})") for v in range(self.vectors)]
                near = "".join(self._put(f"near_{name}", v, value) for v, value in enumerate(near))
                lines.append(f"if (first + {self.block} <= {self.own}) {{\n{near}}} else\n")
            lines.append(f"for (int r = 0; r < {self.block}; ++r) near_{name}[r] = {element};\n")
        return "".join(lines)

    def _softmax(self, count):
        """Online softmax: logits to weights relative to the rows' running maxima; `shrink` rescales the earlier sums."""
        vector, width, vs = self.vector(self.lanes), self.lanes, range(self.vectors)
        lines = [f"{vector} " + ", ".join(f"top{v} = {self._at('peak', v)}" for v in vs) + ";\n"]
        lines.append(f"for (int c = 0; c < {count}; ++c) {{\nconst int other = j + c;\n{self._gather()}")
        for v in vs:
            lines.append(self._logits(v))
            lines.append(self._put("weights", v, f"s{v}", "c"))
            lines.append(f"top{v} = {self.op('select', width, self.compare('gt', width, f's{v}', f'top{v}'), f's{v}', f'top{v}')};\n")
        lines.append("}\n")
        for v in vs:
            # The shift is finite, so that rows with only -inf so far have weights of 0, not NaN.
            finite = self.op("is_finite", width, f"top{v}", out="bool")
            lines.append(f"const {vector} shift{v} = {self.op('select', width, finite, f'top{v}', self.number(0, width))};\n")
            before = self._at("peak", v)
            lines.append(f"const {vector} shrink{v} = {self.op('exp', width, f'{before} - shift{v}')};\n")
            lines.append(self._put("peak", v, f"top{v}"))
            lines.append(f"{vector} total{v} = {self._at('total', v)} * shrink{v};\n")
        lines.append(f"for (int c = 0; c < {count}; ++c) {{\n")
        for v in vs:
            logit = self._at("weights", v, "c")
            lines.append(f"const {vector} e{v} = {self.op('exp', width, f'{logit} - shift{v}')};\n")
            lines.append(f"total{v} += e{v};\n{self._put('weights', v, f'e{v}', 'c')}")
        lines.append("}\n")
        lines += [self._put("total", v, f"total{v}") for v in vs]
        return "".join(lines)

    def _slopes(self, count):
        """Statements that turn the two products into weights and slopes (gradients of the logits)."""
        vector, width = self.vector(self.lanes), self.lanes
        lines = [f"for (int c = 0; c < {count}; ++c) {{\nconst int other = j + c;\n{self._gather()}"]
        if self.scheme.own == "key":
            for name in ("peak", "rescale", "delta"):
                lines.append(f"const {vector} {name} = ({vector})({self.statistic(name, 'other')});\n")
        for v in range(self.vectors):
            peak, rescale, delta = (n if self.scheme.own == "key" else self._at(n, v) for n in ("peak", "rescale", "delta"))
            lines.append(self._logits(v))
            lines.append(f"const {vector} e{v} = {self.op('exp', width, f's{v} - {peak}')} * {rescale};\n")
            lines.append(f"{vector} g{v} = e{v} * ({self._at('slopes', v, 'c')} - {delta});\n")
            if self.masked:
                lines.append(f"g{v} = {self.op('select', width, f'allowed{v}', f'g{v}', self.number(0, width))};\n")
            lines.append(self._put("weights", v, f"e{v}", "c") + self._put("slopes", v, f"g{v}", "c"))
        return "".join([*lines, "}\n"])

    # ---- results

    def _store(self):
        lines, head = [], "head" if self.scheme.own == "query" else "key_head"
        if self.forward:
            lines.append(f"for (int r = 0; r < min({self.block}, {self.own} - first); ++r) {{\nconst {self.i} own = first + r;\n")
            lines.append(f"const {self.register} factor = 1 / total[r], value = isfinite(peak[r]) ? peak[r] : 0;\ntotal[r] = factor;\n")
            lines.append(self.finish(1, ("batch", "own", "head"), "value") + self.finish(2, ("batch", "own", "head"), "factor") + "}\n")
        for k, (factor, name) in enumerate(self.scheme.sums):
            by = "total[r + {k}]" if self.forward else self.scale if factor == "slopes" else "1"
            lines.append(self._unpack(k, name, by, ("batch", "own", head, "d")))
        return "".join(lines)

    def _unpack(self, k, name, by, coordinates):
        """Statements that hand the sums of own rows, times `by`, to the result's sink, transposed 4 x 4 in registers."""
        result, group, four = self.result + k, min(4, self.block), self.vector(4)
        wide = "".join(f"const {four} v{s} = vload4(0, sum{k} + (d + {s}) * {self.block} + r);\n" for s in range(4))
        narrow = ""
        for q in range(group):
            row = f"if (first + r + {q} < {self.own}) {{\nconst {self.i} own = first + r + {q};\n"
            lanes = ", ".join(f"v{s}.s{q}" for s in range(4))
            wide += f"{row}const {four} value = ({four})({lanes}) * {by.format(k=q)};\n{self.finish(result, coordinates, 'value', 4)}}}\n"
            narrow += f"{row}const {self.register} value = sum{k}[d * {self.block} + r + {q}] * {by.format(k=q)};\n"
            narrow += f"{self.finish(result, coordinates, 'value')}}}\n"
        loops = self._fours(self.width(name), wide, narrow)
        return f"for (int r = 0; r < min({self.block}, {self.own} - first); r += {group}) {{\n{loops}}}\n"
