"""Attention of a single query, such as a token against a key/value cache, for CPUs: lanes run along the depth, each row is read once.

A work-item has adjacent heads of one example, as many as leave a work-item per compute unit: their rows are adjacent in memory, so that a
key/value cache too large for the processor's caches is read in long runs. The online softmax keeps a running maximum and sum per block.
"""

from keras_ocl.core.dim import Dim, hint
from keras_ocl.core.index import is_one
from keras_ocl.kernels.attention.parts import FORWARD, MASKED, Writer
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.register_tile import halved


def suits(traits, query, key, value_depth):
    """Whether shapes `query` and `key`, (batch, time or source, heads, depth), fit: one query per head, known and small depths."""
    extents = (query[2], key[2], query[3], value_depth)
    widest = tuning_of(traits).attention.row_depth
    return is_one(query[1]) and not any(isinstance(n, Dim) for n in extents) and 0 < query[3] <= widest and 0 < value_depth <= widest


def kernel(problem, sinks):
    """The KernelSpec of the forward scheme for one query per head."""
    writer = _Writer(problem, sinks)
    body = writer.body()
    p = problem
    return writer.args.kernel(
        name=FORWARD.name,
        body=body,
        grid=(p.key_heads // writer.each, p.batch, 1),
        group=(1, 1, 1),
        helpers=writer.all_helpers(),
        title=f"attention of one query: {writer.each * writer.shared} heads per work-item, {writer.block} positions at a time",
    )


class _Writer(Writer):
    def __init__(self, problem, sinks):
        super().__init__(problem, FORWARD, sinks)
        p = problem
        self.block = p.lanes  # positions per block: their logits are one vector
        self.shared = p.heads // p.key_heads  # query heads per key head
        wanted = max(1, -(-p.traits.compute_units // max(1, hint(p.batch))))  # work-items per example
        self.each = next(n for n in range(p.key_heads, 0, -1) if p.key_heads % n == 0 and (p.key_heads // n >= wanted or n == 1))
        self.queries = range(self.shared)

    def chunks(self, depth):
        """Yields (offset, lanes) of the vectors into which a row of `depth` elements is split."""
        at, lanes = 0, self.p.lanes
        while at < depth:
            while lanes > depth - at:
                lanes //= 2
            yield at, lanes
            at += lanes

    def body(self):
        p, heads = self.p, self.each * self.shared
        aligned = "__attribute__((aligned(64)))"
        sizes = {"asked": heads * p.depth, "sums": heads * p.value_depth, "peaks": heads, "totals": heads * self.block}
        lines = [f"{self.register} {name}[{n}] {aligned};\n" for name, n in sizes.items()]
        lines.append(f"{self.register} weights[{self.shared * self.block}] {aligned};\n")
        lines.append(f"const int batch = {self.args.place('global', 1)}, first = {self.args.place('global', 0)} * {self.each}, own = 0;\n")
        lines.append(self._each(self.rows("query") + self._begin()))
        count = f"const int count = min({self.block}, {self.source} - j);\n"
        lines.append(f"for (int j = 0; j < {self.source}; j += {self.block}) {{\n{count}{self._each(self._block(), True)}}}\n")
        lines.append(self._each(self._finish()))
        return "".join(lines)

    def _each(self, text, keys_only=False):
        """C loops that run `text` for each of the item's heads, `slot` being a head's index in the item, or for its key heads alone."""
        start = f"for (int k = 0; k < {self.each}; ++k) {{\nconst int key_head = first + k;\n"
        if keys_only:
            return f"{start}{text}}}\n"
        inner = f"const int slot = k * {self.shared} + i, head = key_head * {self.shared} + i;\n{text}"
        return f"{start}for (int i = 0; i < {self.shared}; ++i) {{\n{inner}}}\n}}\n"

    def _begin(self):
        lines = ["peaks[slot] = -INFINITY;\n", self._put("totals", "slot", self.block, 0, self.block, self.number(0, self.block))]
        for at, lanes in self.chunks(self.p.depth):
            value = f"{self.load('query', lanes, 'query_rows', at)} * {self.number(self.p.scale, lanes)}"
            lines.append(self._put("asked", "slot", self.p.depth, at, lanes, value))
        for at, lanes in self.chunks(self.p.value_depth):
            lines.append(self._put("sums", "slot", self.p.value_depth, at, lanes, self.number(0, lanes)))
        return "".join(lines)

    def _put(self, array, row, width, at, lanes, value):
        place = f"{row} * {width} + {at}"
        return f"{array}[{place}] = {value};\n" if lanes == 1 else f"vstore{lanes}({value}, 0, {array} + {place});\n"

    def _at(self, array, row, width, at, lanes):
        place = f"{row} * {width} + {at}"
        return f"{array}[{place}]" if lanes == 1 else f"vload{lanes}(0, {array} + {place})"

    def _block(self):
        """Statements for a block of positions from `j` on, and all query heads of a key head."""
        names = "".join(f"const int slot{q} = k * {self.shared} + {q}, head{q} = key_head * {self.shared} + {q};\n" for q in self.queries)
        return "".join([names, self.rows("key"), self.rows("value"), self._products(), *map(self._softmax, self.queries), self._sums()])

    def _walk(self, name, text):
        """C loop that runs `text` for each position `c` of the block, with `row` its row of operand `name`."""
        row = f"{name}_rows + ({self.i})(j + c) * {name}_row"
        return f"for (int c = 0; c < count; ++c) {{\n{self.pointer(name, 'row', row)}{text}}}\n"

    def _products(self):
        lines, chunks = [], list(self.chunks(self.p.depth))
        for q in self.queries:
            for v, (at, lanes) in enumerate(chunks):
                lines.append(f"const {self.vector(lanes)} x{q}_{v} = {self._at('asked', f'slot{q}', self.p.depth, at, lanes)};\n")
        text = [f"const {self.vector(lanes)} y{v} = {self.load('key', lanes, 'row', at)};\n" for v, (at, lanes) in enumerate(chunks)]
        for q in self.queries:
            totals = []
            for width in dict.fromkeys(lanes for _, lanes in chunks):
                total = ""
                for v in (v for v, (_, lanes) in enumerate(chunks) if lanes == width):
                    total = f"fma(x{q}_{v}, y{v}, {total})" if total else f"x{q}_{v} * y{v}"
                text.append(f"const {self.vector(width)} t{q}_{width} = {total};\n")
                totals.append(self._across(f"t{q}_{width}", width, text))
            text.append(f"weights[{q * self.block} + c] = {' + '.join(totals)};\n")
        return f"{{\n{''.join(lines)}{self._walk('key', ''.join(text))}}}\n"

    def _across(self, name, lanes, text, op=None):
        """Name of the reduction of a vector's lanes, as halved() makes it; the statements are appended to `text`."""
        halves, name = halved(self.vector, name, lanes, lambda before, _: f"{before}h", op=op)
        text.append(halves)
        return name

    def _greater(self, a, b, lanes):
        return self.op("select", lanes, self.compare("gt", lanes, a, b), a, b)

    def _softmax(self, q):
        """Online softmax of query `q`: products to weights relative to its running maximum; `shrink{q}` rescales its earlier sums."""
        block, vector = self.block, self.vector(self.block)
        lines = [f"{self.register} shrink{q};\n{{\nconst int head = head{q};\n", self._near()]
        lines.append(f"{vector} s = vload{block}(0, weights + {q * block});\n")
        if "bias" in self.p.operands:
            lines.append(f"s += vload{block}(0, near_bias);\n")
        integer, ids = f"int{block}", ", ".join(map(str, range(block)))
        if "mask" in self.p.operands:
            lines.append(f"const {integer} allowed = vload{block}(0, near_mask);\n")
            lines.append(f"s = {self.op('select', block, 'allowed', 's', self.number(MASKED, block))};\n")
        past = self.op("select", block, "within", "s", f"({vector})(-INFINITY)")
        within = self.compare("lt", block, f"({integer})({ids})", f"({integer})(count)", "int32")
        lines.append(f"if (count < {block}) {{\nconst {integer} within = {within};\ns = {past};\n}}\n")
        top = self._across("s", block, lines, self._greater)
        lines.append(f"const {self.register} top = {self._greater(f'peaks[slot{q}]', top, 1)};\n")
        # The shift is finite, so that rows with only -inf so far have weights of 0, not NaN.
        lines.append(f"const {self.register} shift = isfinite(top) ? top : 0;\n")
        lines.append(f"shrink{q} = exp(peaks[slot{q}] - shift);\npeaks[slot{q}] = top;\n")
        lines.append(f"const {vector} e = {self.op('exp', block, 's - shift')};\nvstore{block}(e, 0, weights + {q * block});\n")
        totals = self._at("totals", f"slot{q}", block, 0, block)
        lines.append(self._put("totals", f"slot{q}", block, 0, block, f"{totals} * shrink{q} + e") + "}\n")
        return "".join(lines)

    def _near(self):
        """Statements that gather a head's bias and mask at the positions of the block."""
        lines = []
        for name in self.strides:
            kind = "int" if name == "mask" else self.register
            element = self.load(name, 1, self.pointers[name], f"({self.place(name, 'own', 'other')})")
            lines.append(f"{kind} near_{name}[{self.block}] __attribute__((aligned(64)));\n")
            lines.append("for (int c = 0; c < count; ++c) {\nconst int other = j + c;\n")
            lines.append(f"near_{name}[c] = {f'-({element} != 0)' if name == 'mask' else element};\n}}\n")
        return "".join(lines)

    def _sums(self):
        """Statements that add the block's rows of values, times their weights."""
        p, chunks, lines, after = self.p, list(self.chunks(self.p.value_depth)), [], []
        text = [f"const {self.vector(lanes)} y{v} = {self.load('value', lanes, 'row', at)};\n" for v, (at, lanes) in enumerate(chunks)]
        for q in self.queries:
            text.append(f"const {self.register} w{q} = weights[{q * self.block} + c];\n")
            for v, (at, lanes) in enumerate(chunks):
                sums = self._at("sums", f"slot{q}", p.value_depth, at, lanes)
                lines.append(f"{self.vector(lanes)} z{q}_{v} = {sums} * shrink{q};\n")
                text.append(f"z{q}_{v} = fma(({self.vector(lanes)})(w{q}), y{v}, z{q}_{v});\n")
                after.append(self._put("sums", f"slot{q}", p.value_depth, at, lanes, f"z{q}_{v}"))
        return f"{{\n{''.join(lines)}{self._walk('value', ''.join(text))}{''.join(after)}}}\n"

    def _finish(self):
        lines = [f"const {self.vector(self.block)} total = {self._at('totals', 'slot', self.block, 0, self.block)};\n"]
        total = self._across("total", self.block, lines)
        lines.append(f"const {self.register} factor = 1 / {total}, peak = isfinite(peaks[slot]) ? peaks[slot] : 0;\n")
        lines.append(self.finish(1, ("batch", "own", "head"), "peak") + self.finish(2, ("batch", "own", "head"), "factor"))
        for at, lanes in self.chunks(self.p.value_depth):
            value = f"{self._at('sums', 'slot', self.p.value_depth, at, lanes)} * factor"
            lines.append(f"{{\nconst {self.vector(lanes)} value = {value};\n")
            lines.append(self.finish(0, ("batch", "own", "head", str(at)), "value", lanes) + "}\n")
        return "".join(lines)
