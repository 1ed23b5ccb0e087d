"""Attention of the reference schedule: a work-item computes one element of each result, and all logits that it needs."""

from keras_ocl.core.dim import maximum
from keras_ocl.kernels.attention.parts import MASKED, Writer


def kernel(problem, scheme, sinks):
    """The KernelSpec of one scheme of `problem`."""
    writer = _Writer(problem, scheme, sinks)
    body = writer.body()
    p = problem
    extent, heads = (p.time, p.heads) if scheme.own == "query" else (p.source, p.key_heads)
    widths = [p.depth if name in ("query", "key") else p.value_depth for _, name in scheme.sums]
    grid = (maximum(widths[0], widths[-1]), extent, p.batch * heads)
    return writer.args.kernel(scheme.name, body, grid, None, writer.all_helpers(), title=f"{scheme.name}: one element per work-item")


class _Writer(Writer):
    def body(self):
        scheme, register = self.scheme, self.register
        lines = [self.head(2), f"const int d = {self.args.place('global', 0)}, own = {self.args.place('global', 1)};\n"]
        lines += [self.rows(name) for name in scheme.kept]
        lines.append(f"{register} " + ", ".join(f"sum{k} = 0" for k in range(len(scheme.sums))) + ";\n")
        if self.forward:
            lines += [self.rows(name) for name in scheme.others] + [self._peak(), self._weigh()]
        elif scheme.own == "query":
            lines += [self.rows(name) for name in scheme.others] + [self._slopes("own")]
        else:
            lines.append(f"for (int head = key_head * {self.group}; head < (key_head + 1) * {self.group}; ++head) {{\n")
            lines += [self.rows(name) for name in scheme.others] + [self._slopes("other"), "}\n"]
        return "".join([*lines, self._store()])

    def _meet(self, statements):
        """C text of the loop over other positions: it computes the logit `s`, then runs `statements`."""
        terms = []
        if "bias" in self.p.operands:
            terms.append(f"s += {self._near('bias')};\n")
        allowed = [self._near("mask")] if "mask" in self.p.operands else []
        if self.p.causal:
            allowed.append("own >= other" if self.scheme.own == "query" else "other >= own")
        if allowed:
            terms.append(f"const int allowed = {' && '.join(allowed)};\ns = allowed ? s : {self.number(MASKED, 1)};\n")
        return (
            f"for (int other = 0; other < {self.others}; ++other) {{\n"
            f"{self._product('s', 0)}s *= {self.scale};\n{''.join(terms)}{statements}}}\n"
        )

    def _near(self, name):
        """Expression of bias or mask at the pair of positions (own, other)."""
        return self.load(name, 1, self.pointers[name], f"({self.place(name, 'own', 'other')})")

    def _element(self, name, row, column):
        return self.load(name, 1, f"{name}_rows", f"(({self.i}){row} * {name}_row + {column})")

    def _product(self, result, k):
        """Statements that compute in `result` the dot product of the own and the other row of the scheme's pair `k`."""
        kept, met = self.scheme.kept[k], self.scheme.met[k]
        x, y = self._element(kept, "own", "i"), self._element(met, "other", "i")
        return f"{self.register} {result} = 0;\nfor (int i = 0; i < {self.width(met)}; ++i) {result} = fma({x}, {y}, {result});\n"

    def _peak(self):
        # The shift is finite, so that rows of -inf have weights of 0, not NaN.
        walk = self._meet("peak = s > peak ? s : peak;\n")
        return f"{self.register} peak = -INFINITY, total = 0;\n{walk}const {self.register} shift = isfinite(peak) ? peak : 0;\n"

    def _weigh(self):
        ((_, name),) = self.scheme.sums
        element = self._element(name, "other", "d")
        return self._meet(f"const {self.register} weight = exp(s - shift);\ntotal += weight;\nsum0 = fma(weight, {element}, sum0);\n")

    def _slopes(self, row):
        """C text of the loop that sums by weights and slopes; `row` is the C name of the query's position."""
        peak, rescale, delta = (self.statistic(name, row) for name in ("peak", "rescale", "delta"))
        slope = f"weight * (g - {delta})"
        lines = [self._product("g", 1), f"const {self.register} weight = exp(s - {peak}) * {rescale};\n"]
        lines.append(f"const {self.register} slope = {f'allowed ? {slope} : 0' if self.masked else slope};\n")
        for k, (factor, name) in enumerate(self.scheme.sums):
            value = {"weights": "weight", "slopes": "slope"}[factor]
            lines.append(f"if (d < {self.width(name)}) sum{k} = fma({value}, {self._element(name, 'other', 'd')}, sum{k});\n")
        return self._meet("".join(lines))

    def _store(self):
        head, lines = "head" if self.scheme.own == "query" else "key_head", []
        if self.forward:
            lines.append(f"const {self.register} factor = 1 / total;\nif (d == 0) {{\n")
            lines.append(self.finish(1, ("batch", "own", "head"), "shift") + self.finish(2, ("batch", "own", "head"), "factor") + "}\n")
        for k, (factor, name) in enumerate(self.scheme.sums):
            by = "factor" if self.forward else self.scale if factor == "slopes" else "1"
            lines.append(f"if (d < {self.width(name)}) {{\nconst {self.register} value = sum{k} * {by};\n")
            lines.append(self.finish(k, ("batch", "own", head, "d"), "value") + "}\n")
        return "".join(lines)
