"""Matrix product A (m, k) x B (k, n) for CPUs: one work-item computes a chunk of register tiles with explicit vectors.

Two formulations. *rows*: lanes run along n; an element of A is broadcast against vectors of B, which is read in place
or, when its columns are strided, converted, short or far apart, packed block by block into private memory.
*dots*: lanes run along k, for few rows of A and a B that is contiguous in k.
Tiles at the end of m or n are shifted back so that they are whole, and store only results that the previous tile did not.
"""

from dataclasses import dataclass

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, hint
from keras_ocl.kernels import summation
from keras_ocl.kernels.gemm.parts import Names, scaled, summed
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.prelude import pointer, runs
from keras_ocl.kernels.register_tile import RegisterTile, halved
from keras_ocl.kernels.spec import Args


@dataclass(frozen=True)
class Tile:
    """One work-item computes `chunk` rows of one column panel, in register tiles.

    A tile of kind "rows" has rows x vectors accumulators (vectors of n), and the panel is `across` such tiles wide; `block` is the number
    of steps of k in a packed block of B, 0 when B is read in place. With `steps` above 1 the accumulators are in memory, and each pass
    over a wide panel of B in place takes `steps` rows of B: long runs, which prefetchers follow. A tile of kind "dots" has rows x
    `vectors` results, each an accumulator vector along k; the panel is `across` such tiles.
    """

    kind: str
    rows: int
    vectors: int
    chunk: int
    block: int = 0
    across: int = 1
    steps: int = 1

    @property
    def splits(self):
        """Whether the product can be split along k, between work-items."""
        return self.kind == "rows"

    def panel(self, lanes):
        """Number of columns of a work-item."""
        return self.across * self.vectors * (lanes if self.kind == "rows" else 1)


def most_rows(kept, rows, vectors, across=1):
    """Most rows of a chunk that needs at most `kept` vectors of partial sums (times `across`), a multiple of the tile's `rows`.

    Wide panels are for a B that no cache holds, which is best read once: they get more rows as well.
    """
    return max(1, kept * across // vectors // rows) * rows


def kernel(problem, tile):
    """The KernelSpec of a product `problem` with the Tile `tile`."""
    args = Args(problem.all_arguments)
    names = Names(problem, args)
    build = _Dots if tile.kind == "dots" else _Rows
    writer = build(problem, tile, args, names)
    body = writer.body()
    splits = ceil_div(problem.k, problem.split) if problem.split else 1
    grid = (
        ceil_div(problem.n, writer.panel),
        ceil_div(problem.m, tile.chunk),
        splits * (1 if problem.batch is None else problem.batch),
    )
    return args.kernel(
        name="matrix product",
        body=body,
        grid=grid,
        group=(1, 1, 1),
        helpers=frozenset(problem.helpers) | frozenset(problem.sink.helpers),
        title=f"matrix product: {tile.rows} rows x {writer.panel // tile.across} columns per tile, lanes along {writer.lanes_along}",
    )


class _Writer:
    """Base of both formulations: the loop over row tiles and the store of a finished tile."""

    def __init__(self, problem, tile, args, names):
        self.p, self.tile, self.args, self.names = problem, tile, args, names
        self.index, self.tuning = names.index, tuning_of(problem.traits).product
        # A Dim may differ from the value for which the tile was chosen, and be less than a tile's rows.
        self.few_rows = isinstance(problem.m, Dim) and tile.rows > 1

    def head(self):
        i = self.index
        chunk = self.args.int(self.tile.chunk, i)
        return [
            *self.names.lines,
            f"const {i} i_first = ({i}){self.args.place('global', 1)} * {chunk};\n",
            f"const {i} i_last = min(i_first + {chunk}, ({i}){self.names.m});\n",
        ]

    def moved_back(self, first, size, extent, end):
        """C text of where a tile of `size` rows or columns begins: at `first`, or moved back where it would pass the end."""
        if self.p.literal(extent) and extent % size == 0:
            return first
        return f"min({first}, ({self.index}){end} - {size})"

    def whole_rows(self):
        """C text of the first row of the tile at `i`, once whole."""
        return self.moved_back("i", self.tile.rows, self.p.m, self.names.m)

    def step(self):
        if not self.few_rows:
            return [f"const {self.index} step = {self.tile.rows};\n"]
        return [f"const {self.index} step = {self.names.m} < {self.tile.rows} ? 1 : {self.tile.rows};\n"]

    def compute(self):
        """Statements that compute the tile at row `i` into kept[] and set `top`, its first row."""
        whole = [f"top = {self.whole_rows()};\n", *self.accumulate(self.tile.rows)]
        if not self.few_rows:
            return whole
        return ["if (step == 1) {\ntop = i;\n", *self.accumulate(1), "} else {\n", *whole, "}\n"]

    def sink(self, column, value, width):
        return self.p.sink.store(self.args, (*self.names.coordinates, "row", column), value, width)


class _Rows(_Writer):
    lanes_along = "n"

    def __init__(self, problem, tile, args, names):
        super().__init__(problem, tile, args, names)
        self.width = problem.lanes
        self.panel = tile.panel(self.width)
        n = problem.n
        self.n_known = problem.literal(n)
        self.wide = not isinstance(n, Dim) and n >= self.panel  # every panel is whole once shifted back
        # If one block holds all of k, no partial sums are kept between blocks.
        self.blocked = bool(tile.block) and not (problem.literal(problem.k) and not problem.split and problem.k <= tile.block)
        self.depth = tile.block if self.blocked or not tile.block else max(1, problem.k)
        self.first = "first" if tile.across > 1 else "0"  # the tile's first column in the panel

    def body(self):
        t, i, vector = self.tile, self.index, self.p.vector(self.width)
        lines = [*self.head(), f"const {i} j_first = ({i}){self.args.place('global', 0)} * {self.panel};\n"]
        lines.append(f"const {i} left = {self.left()};\n")
        lines += self.step()
        # In eager code the chunk is an argument, so kept[] is sized for the largest.
        chunk = most_rows(self.tuning.kept, t.rows, t.vectors) if self.p.all_arguments else t.chunk
        kept = (chunk * t.across if t.block else t.rows) * t.vectors
        lines.append(f"{vector} kept[{kept}];\n{i} top;\n")
        if not t.block:
            lines.append(f"const int base = 0;\nconst {i} depth = {self.names.k};\n")
            lines += [f"for ({i} i = i_first; i < i_last; i += step) {{\n", *self.compute(), *self.epilogue(), "}\n"]
            return "".join(lines)
        lines.append(f"{self.p.register} panel[{self.depth * self.panel}] __attribute__((aligned(64)));\n{i} k0 = 0;\n")
        depth = f"min(({i}){t.block}, {self.names.k} - k0)" if self.blocked else self.names.k
        again = f"while ((k0 += {self.depth}) < {self.names.k})" if self.blocked else "while (0)"
        lines += [f"do {{\nconst {i} depth = {depth};\nint base = 0;\n", *self.pack(), *self._tiles(self.compute()), f"}} {again};\n"]
        # In a loop of its own: what compilers hoist out of an epilogue would take registers from the sums.
        place = f"step == 1 ? i : {self.whole_rows()}" if self.few_rows else self.whole_rows()
        return "".join([*lines, "int base = 0;\n", *self._tiles([f"top = {place};\n", *self.epilogue()])])

    def _tiles(self, body):
        """Statements that run `body` for each tile of the chunk: its first row is `i`, its sums are at `base`."""
        i, t = self.index, self.tile
        across = f"for (int first = 0; first < {self.panel}; first += {self.width * t.vectors}) {{\n" if t.across > 1 else "{\n"
        return [f"for ({i} i = i_first; i < i_last; i += step)\n", across, *body, f"base += step * {t.vectors};\n}}\n"]

    def left(self):
        """C text of the panel's first column, once the panel is whole."""
        if self.n_known and self.p.n < self.panel:
            return "0"
        first = self.moved_back("j_first", self.panel, self.p.n, self.names.n)
        return first if self.wide else f"max({first}, ({self.index})0)"

    def accumulate(self, rows):
        p, t, n, width = self.p, self.tile, self.names, self.width
        if t.steps > 1:
            return self._passes(rows)
        vector, columns = p.vector(width), range(t.vectors)
        sums = RegisterTile(rows, t.vectors, vector, p.fma)
        lines = [sums.begin()]
        k0 = "k0" if t.block else "0"
        start = summed("a", scaled("i" if p.strips else "top", n.a_row), scaled(k0, n.a_column))
        lines.append(pointer(p.a.dtype, "x", start))
        if t.block:
            lines.append(f"const {p.register}* y = {summed('panel', self.first)};\n")
        elif not p.b.source:
            lines.append(pointer(p.b.dtype, "y", summed("b", "left")))
        step, right, computed = "", [], p.b.source and not t.block
        for v in columns:
            if computed:
                statements, value = p.computed(self.args, p.b, summed(n.k_start, "q"), summed("left", str(v * width)), width)
                step += f"{vector} right{v};\n{{\n{statements}right{v} = {value};\n}}\n"
                right.append(f"right{v}")
            else:
                right.append(f"vload{width}(0, y + {v * width})" if t.block else p.load(p.b, width, "y", str(v * width)))
        row = "1" if p.strips else n.a_row
        step += sums.step(lambda r: p.load(p.a, 1, "x", scaled(str(r), row)), right)
        further = "" if computed else f"y += {self.panel if t.block else n.b_row};\n"
        step += f"x += {n.a_column};\n{further}"

        def walk(start, stop):
            return f"for ({self.index} q = {start}; q < {stop}; ++q) {{\n{step}}}\n"

        def keep(assign):
            return sums.each(lambda r, v, name: f"kept[base + {r * t.vectors + v}] {assign} {name};\n")

        if not self.blocked:
            return [*lines, summation.cut(p.accumulator, vector, sums.sums, walk, "0", "depth", p.split or p.k), keep("=")]
        return [*lines, walk("0", "depth"), f"if (k0 == 0) {{\n{keep('=')}}} else {{\n{keep('+=')}}}\n"]

    def _passes(self, rows):
        """Statements of accumulate() in passes over the panel: `Tile.steps` steps of k per pass, and single steps for the remainder."""
        p, t, i = self.p, self.tile, self.index
        count, vector = rows * t.vectors, p.vector(self.width)
        clear = f"for (int v = 0; v < {count}; ++v) kept[v] = ({vector})(0);\n"

        def passes(stop):
            for steps in (t.steps, 1) if not p.literal(p.k) or p.split or p.k % t.steps else (t.steps,):
                yield from (f"for (; q + {steps} <= {stop}; q += {steps}) {{\n", *self._pass(rows, range(steps)), "}\n")

        if hint(p.split or p.k) <= summation.PRODUCT_ALONE or not summation.bounded(p.accumulator):
            return [clear, f"{i} q = 0;\n", *passes("depth")]
        # kept[] is in memory anyway, and so are the totals of its blocks.
        block = summation.PRODUCT
        return [
            f"{vector} totals[{count}];\n{i} q = 0;\ndo {{\n{clear}const {i} stop = q + min(({i}){block}, depth - q);\n",
            *passes("stop"),
            f"for (int v = 0; v < {count}; ++v) totals[v] = stop <= {block} ? kept[v] : totals[v] + kept[v];\n}} while (q < depth);\n",
            f"for (int v = 0; v < {count}; ++v) kept[v] = totals[v];\n",
        ]

    def _pass(self, rows, steps):
        p, t, n, width = self.p, self.tile, self.names, self.width
        vector, lines = p.vector(width), []

        def at(u):
            return f"(q + {u})" if u else "q"

        for r in range(rows):
            x = f"({summed('a', scaled(str(r), n.a_row))})"
            lines += [f"const {vector} e{r}_{u} = ({vector})({p.load(p.a, 1, x, scaled(at(u), n.a_column))});\n" for u in steps]
        lines.append(f"for (int v = 0; v < {t.vectors}; ++v) {{\n")
        for u in steps:
            column = f"v * {width}"
            if p.b.source:
                statements, value = p.computed(self.args, p.b, summed(n.k_start, at(u)), summed("left", column), width)
                lines.append(f"{vector} y{u};\n{{\n{statements}y{u} = {value};\n}}\n")
            else:
                load = p.load(p.b, width, summed("b", "left", scaled(at(u), n.b_row)), column)
                lines.append(f"const {vector} y{u} = {load};\n")
        for r in range(rows):
            total = f"kept[{r * t.vectors} + v]"
            for u in steps:
                total = p.fma(f"e{r}_{u}", f"y{u}", total if u == 0 else f"({total})")
            lines.append(f"kept[{r * t.vectors} + v] = {total};\n")
        return [*lines, "}\n"]

    def pack(self):
        """Statements that fill panel[depth][columns] with a block of B."""
        p, n, i = self.p, self.names, self.index
        if n.b_column == "1":
            return self._pack_contiguous()
        if n.b_row == "1" and self.panel % 4 == 0:
            return self._pack_transposed()
        return [
            f"for (int l = 0; l < {self.panel}; ++l) {{\n{self._column('y', 'l')}",
            f"for ({i} q = 0; q < depth; ++q) panel[q * {self.panel} + l] = {p.load(p.b, 1, 'y', scaled('q', n.b_row))};\n}}\n",
        ]

    def _column(self, name, lane):
        """Statement that declares a pointer to column `lane` of B, from the packed block on; columns past the end repeat the last."""
        n = self.names
        column = f"left + {lane}" if self.wide else f"min(left + {lane}, ({self.index}){n.n} - 1)"
        start = summed("b", scaled("k0" if self.blocked else "0", n.b_row), scaled(f"({column})", n.b_column))
        return pointer(self.p.b.dtype, name, start)

    def _pack_transposed(self):
        """Packs a B that is contiguous in k: blocks of 4 x 4 are transposed in registers, few steps of k at a time for all columns."""
        p, i, four, turned = self.p, self.index, self.p.vector(4), self.tuning.turned
        lines = [f"for ({i} start = 0; start < depth; start += {turned}) {{\nconst {i} end = min(start + {turned}, depth);\n"]
        lines.append(f"for (int l = 0; l < {self.panel}; l += 4) {{\n")
        lines += [self._column(f"y{c}", f"l + {c}") for c in range(4)]
        lines.append(f"{p.register}* to = panel + start * {self.panel} + l;\n{i} q = start;\n")
        lines.append(f"for (; q + 4 <= end; q += 4, to += {4 * self.panel}) {{\n")
        lines += [f"const {four} v{c} = {p.load(p.b, 4, f'y{c}', 'q')};\n" for c in range(4)]
        for r in range(4):
            lines.append(f"vstore4(({four})({', '.join(f'v{c}.s{r}' for c in range(4))}), 0, to + {r * self.panel});\n")
        lines.append(f"}}\nfor (; q < end; ++q, to += {self.panel}) {{\n")
        lines += [f"to[{c}] = {p.load(p.b, 1, f'y{c}', 'q')};\n" for c in range(4)]
        return [*lines, "}\n}\n}\n"]

    def _pack_contiguous(self):
        p, n, i, width = self.p, self.names, self.index, self.width
        if p.b.source:
            place, text = summed(n.k_start, "k0" if self.blocked else "0", "q"), ""
            for v in range(self.panel // width):
                statements, value = p.computed(self.args, p.b, place, summed("left", str(v * width)), width)
                text += f"{{\n{statements}vstore{width}({value}, 0, panel + q * {self.panel} + {v * width});\n}}\n"
            return [f"for ({i} q = 0; q < depth; ++q) {{\n{text}}}\n"]
        row = pointer(p.b.dtype, "y", summed("b", scaled("(k0 + q)" if self.blocked else "q", n.b_row), "left"))
        copies = "".join(
            f"vstore{width}({p.load(p.b, width, 'y', str(v * width))}, 0, panel + q * {self.panel} + {v * width});\n"
            for v in range(self.panel // width)
        )
        if self.wide:
            return [f"for ({i} q = 0; q < depth; ++q) {{\n{row}{copies}}}\n"]
        # Whole vectors may read past a row's end into the next rows, which exist except after the last few.
        last = f"{n.total} - max({self.panel - 1} - ({i}){n.n} + {n.b_row}, ({i})0) / {n.b_row}"
        if not isinstance(p.b.row_stride, Dim) and p.b.row_stride < 1:
            last = "0"
        done = "k0" if self.blocked else "0"
        if p.split:
            done = f"(k_first + {done})"
        return [
            f"const {i} whole = clamp({last} - {done}, ({i})0, ({i})depth);\n",
            f"for ({i} q = 0; q < whole; ++q) {{\n{row}{copies}}}\n",
            f"for ({i} q = whole; q < depth; ++q) {{\n{row}",
            f"for (int l = 0; l < {self.panel}; ++l)\n",
            f"panel[q * {self.panel} + l] = {p.load(p.b, 1, 'y', f'min(({i})l, ({i}){n.n} - 1 - left)')};\n}}\n",
        ]

    def epilogue(self):
        """Statements that hand the results in kept[] to the sink."""
        t, n, i, width = self.tile, self.names, self.index, self.width
        vector = self.p.vector(width)
        lines = [
            f"for ({i} row = i; row < min(i + step, i_last); ++row)\nfor (int v = 0; v < {t.vectors}; ++v) {{\n",
            f"const {i} column = {summed('left', self.first, f'v * {width}')};\n",
            f"const {vector}* source = kept + base + (row - top) * {t.vectors} + v;\n",
        ]
        full = f"{{\nconst {vector} value = *source;\n{self.sink('column', 'value', width)}}}\n"
        if self.n_known:
            tail = self.p.n % width
            if self.p.n % self.panel == 0:
                return [*lines, full, "}\n"]
            inside, part = f"column + {width} <= {n.n}", f"column < {n.n}"
            if self.wide:
                inside, part = "column >= j_first", f"column + {width} > j_first"
            lines.append(f"if ({inside}) {full}")
            if tail:
                lines.append(f"else if ({part}) {{\n")
                first = width - tail if self.wide else 0
                lines += [self._part(first + start, size) for start, size in runs(tail)]
                lines.append("}\n")
            return [*lines, "}\n"]
        lines.append(f"if (column >= j_first && column + {width} <= {n.n}) {full}")
        lines.append(f"else for ({i} lane = max(j_first - column, ({i})0); lane < min(({i}){width}, {n.n} - column); ++lane) ")
        lines.append(self._part("lane", 1))
        return [*lines, "}\n"]

    def _part(self, lane, size):
        p = self.p
        value = f"((const {p.register}*)source)[{lane}]" if size == 1 else f"vload{size}(0, (const {p.register}*)source + {lane})"
        return (
            f"{{\nconst {self.index} column_{size} = column + {lane};\nconst {p.vector(size)} value = {value};\n"
            f"{self.sink(f'column_{size}', 'value', size)}}}\n"
        )


class _Dots(_Writer):
    """Lanes along k: both operands contiguous in k, k at least one vector, n at least the tile's columns, neither k nor n a Dim."""

    lanes_along = "k"

    def __init__(self, problem, tile, args, names):
        super().__init__(problem, tile, args, names)
        self.width = problem.lanes
        self.panel = tile.panel(self.width)

    def body(self):
        t, i, n = self.tile, self.index, self.names
        lines = [*self.head(), f"const {i} j_first = ({i}){self.args.place('global', 0)} * {self.panel};\n"]
        lines.append(f"const {i} j_last = min(j_first + {self.panel}, ({i}){n.n});\n")
        lines += self.step()
        lines.append(f"{self.p.register} kept[{t.rows * t.vectors}];\n{i} top;\nconst {i} depth = {n.k};\n")
        lines.append(self._mask())
        lines.append(f"for ({i} j = j_first; j < j_last; j += {t.vectors})\nfor ({i} i = i_first; i < i_last; i += step) {{\n")
        lines.append(f"const {i} left = min(j, ({i}){n.n} - {t.vectors});\n")
        lines += [*self.compute(), *self.epilogue(), "}\n"]
        return "".join(lines)

    def _mask(self):
        """Statement that declares `fresh`: the last vector of k is shifted back, and this masks its lanes that were summed before."""
        width = self.width
        kind = "long" if dtypes.itemsize(self.p.accumulator) == 8 else "int"
        lanes = ", ".join(map(str, range(width)))
        return f"const {kind}{width} fresh = ({kind}{width})({lanes}) >= ({kind}{width})({width} - depth % {width});\n"

    def accumulate(self, rows):
        p, n, width = self.p, self.names, self.width
        vector, columns = p.vector(width), range(self.tile.vectors)
        sums = RegisterTile(rows, self.tile.vectors, vector, p.fma)
        lines = [sums.begin()]
        lines.append(pointer(p.a.dtype, "x", summed("a", scaled("top", n.a_row))))
        lines.append(pointer(p.b.dtype, "y", summed("b", scaled("left", n.b_column))))

        def step(mask):
            def read(operand, pointer, offset):
                text = p.load(operand, width, pointer, offset)
                return f"select(({vector})(0), {text}, fresh)" if mask else text

            right = [read(p.b, "y", scaled(str(c), n.b_column)) for c in columns]
            return sums.step(lambda r: read(p.a, "x", scaled(str(r), n.a_row)), right)

        def walk(start, stop):
            first = width if start == "0" else f"{start} + {width}"
            header = f"for ({self.index} q = {first}; q <= {stop}; q += {width})"
            return f"{header} {{\n{step(False)}x += {width}; y += {width};\n}}\n"

        lines.append(summation.cut(p.accumulator, vector, sums.sums, walk, "0", "depth", ceil_div(p.split or p.k, width), width))
        if not (p.literal(p.k) and not p.split and p.k % width == 0):
            lines += [f"if (depth % {width}) {{\nx -= {width} - depth % {width}; y -= {width} - depth % {width};\n", step(True), "}\n"]

        def keep(r, c, name):
            halves, pair = halved(p.vector, name, width, lambda _, lanes: f"h{lanes}", until=2)
            return f"{{\n{halves}kept[{r * len(columns) + c}] = {pair}.x + {pair}.y;\n}}\n"

        return [*lines, sums.each(keep)]

    def epilogue(self):
        p, i, count = self.p, self.index, self.tile.vectors
        lines = [
            f"for ({i} row = i; row < min(i + step, i_last); ++row) {{\n",
            f"const {p.register}* source = kept + (row - top) * {count};\n",
        ]
        whole = p.literal(p.n) and p.n % count == 0
        if count > 1:
            vector = p.vector(count)
            full = f"{{\nconst {vector} value = vload{count}(0, source);\n{self.sink('left', 'value', count)}}}\n"
            lines.append(full if whole else f"if (left == j) {full}else ")
        if count == 1 or not whole:
            lines.append(f"for (int c = j - left; c < {count}; ++c) {{\nconst {i} column = left + c;\n")
            lines.append(f"const {p.register} value = source[c];\n{self.sink('column', 'value', 1)}}}\n")
        return [*lines, "}\n"]
