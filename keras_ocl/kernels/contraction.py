"""One tiled contraction for devices with local memory: sums over k of a(row, k) * b(k, column) for a block of rows and columns.

A work-group of across x down items copies `depth` steps of both operands to local memory, and each item multiplies them into rows x
columns results in its registers. What the operands are is their loaders' business: matrices in memory (`Strided`), the patches of images
(conv/gpu.py), rows of queries and keys (attention/gpu.py). All extents of a tile are powers of two.
"""

from dataclasses import dataclass

BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);\n"


@dataclass(frozen=True)
class Tile:
    """A work-group of across x down items, each with rows x columns results; `depth` steps of k in local memory."""

    across: int
    down: int
    rows: int
    columns: int
    depth: int

    @property
    def items(self):
        return self.across * self.down

    @property
    def height(self):
        return self.down * self.rows

    @property
    def width(self):
        return self.across * self.columns

    def local_bytes(self, size):
        """Bytes of both operands' tiles, with elements of `size` bytes."""
        return self.depth * (self.height + 1 + self.width + 1) * size


@dataclass(frozen=True)
class _Axis:
    """How items share `extent` places: each begins at `first` (C text), of `side` items side by side, and goes on in rounds."""

    first: str
    side: int
    extent: int

    @property
    def rounds(self):
        return max(1, self.extent // self.side)

    def place(self, round):
        """C text of the place in a round (C text)."""
        return self.first if self.rounds == 1 else f"{self.first} + {round} * {self.side}"

    def guard(self, place):
        """C condition of there being such a place, "" where there always is."""
        return f"{place} < {self.extent}" if self.side > self.extent else ""


class Loader:
    """Where an operand's elements come from.

    `first`: C text of the row (or column) at which the work-group's block begins, `limit`: C text of how many there are. along_k: whether
    neighbours along k are neighbours in memory, and so are loaded by neighbouring items; else neighbours along rows (or columns) are.
    """

    def __init__(self, first, limit, along_k):
        self.first, self.limit, self.along_k = first, limit, along_k

    def prepare(self, count):
        """Statements before the loop over k that declare arrays of `count` elements, for the rows that an item loads."""
        return ""

    def row(self, x):
        """Statements that fill these arrays at `x` (C text) for row `at` (a C variable)."""
        return ""

    def move(self):
        """Statements that move what is kept on to the next step that an item loads, once for each; the first move is to the first step."""
        return ""

    def step(self):
        """Statements for the step `k` (a C variable), before the rows that an item loads of it."""
        return ""

    def element(self, x):
        """(statements, condition, value) of the element at row `at` and step `k` (C variables), both inside of their limits."""
        raise NotImplementedError


class Strided(Loader):
    """A matrix in memory: `load(offset)` gives the C text of the element at an offset (C text) from its first."""

    def __init__(self, first, limit, along_k, load, offset):
        super().__init__(first, limit, along_k)
        self.load, self.offset = load, offset

    def element(self, x):
        return "", "", self.load(self.offset("at", "k"))


class Contraction:
    """Texts of contractions.

    Results are C variables {name}{row}_{column}; `across`, `down` and `me` say which of the group's items this one is.

    Args:
        args: the kernel's Args, which gets two __local parameters.
        register: C type of the results. fma: function of three C texts. index: C type of rows, columns and k.
    """

    def __init__(self, args, tile, register, fma, index="int"):
        self.tile, self.register, self.fma, self.index = tile, register, fma, index
        # One more than the rows or columns, so that consecutive k lie in different banks.
        self.pitch_a, self.pitch_b = tile.height + 1, tile.width + 1
        self.a = args.local(register, tile.depth * self.pitch_a)
        self.b = args.local(register, tile.depth * self.pitch_b)

    @property
    def rows(self):
        return range(self.tile.rows)

    @property
    def columns(self):
        return range(self.tile.columns)

    def head(self):
        """Statements that say who this item is."""
        return f"const int across = get_local_id(0), down = get_local_id(1), me = down * {self.tile.across} + across;\n"

    def results(self, name="s"):
        """Statements that declare the results and set them to 0."""
        return f"{self.register} " + ", ".join(f"{name}{r}_{c} = 0" for r in self.rows for c in self.columns) + ";\n"

    def walk(self, begin, end, a, b, name="s"):
        """Statements that add the products of all k from `begin` to `end` (C texts), of operands that these loaders load."""
        t, i = self.tile, self.index
        return (
            f"{self._prepare(a, t.height)}{self._prepare(b, t.width)}"
            "#pragma unroll 1\n"  # AMD's compiler unrolls short loops whole, barriers included, and spills
            f"for ({i} k_begin = {begin}; k_begin < {end}; k_begin += {t.depth}) {{\n"
            f"{self.fill(self.a, t.height, self.pitch_a, a, end)}{self.fill(self.b, t.width, self.pitch_b, b, end)}"
            f"{BARRIER}{self.multiply(self.a, name)}{BARRIER}}}\n"
        )

    def shares(self, extent, loader):
        """The _Axis of the rows and that of the steps of k by which a tile's elements are shared by the items."""
        depth, items = self.tile.depth, self.tile.items
        fast, slow = (depth, extent) if loader.along_k else (extent, depth)
        side = min(fast, items)
        near, far = _Axis(f"me % {side}", side, fast), _Axis(f"me / {side}", items // side, slow)
        return (far, near) if loader.along_k else (near, far)

    def _prepare(self, loader, extent):
        rows, _ = self.shares(extent, loader)
        arrays = loader.prepare(rows.rounds)
        if not arrays:
            return ""
        at = f"const {self.index} at = {loader.first} + {rows.place('x')};\n"
        return f"{arrays}for (int x = 0; x < {rows.rounds}; ++x) {{\n{at}{loader.row('x')}}}\n"

    def fill(self, local, extent, pitch, loader, end):
        """Statements that copy `extent` rows of the steps from k_begin on to local memory, zeros beyond the edges."""
        i, (rows, steps) = self.index, self.shares(extent, loader)
        statements, condition, value = loader.element("x")
        inside = " && ".join(filter(None, (f"at < {loader.limit}", f"k < {end}", condition)))
        guard = " && ".join(filter(None, (steps.guard("q"), rows.guard("o"))))
        store = f"{local}[q * {pitch} + o] = {inside} ? {value} : 0;\n"
        return (
            f"for (int y = 0; y < {steps.rounds}; ++y) {{\nconst int q = {steps.place('y')};\nconst {i} k = k_begin + q;\n"
            f"{loader.move()}{loader.step()}"
            f"for (int x = 0; x < {rows.rounds}; ++x) {{\nconst int o = {rows.place('x')};\nconst {i} at = {loader.first} + o;\n"
            f"{statements}{f'if ({guard}) ' if guard else ''}{store}}}\n}}\n"
        )

    def multiply(self, a, name="s", also=None):
        """Statements that add the products of the tiles `a` and self.b in local memory; `also(r)`: more, with a's element in `e`."""
        t, register = self.tile, self.register
        lines = [f"for (int q = 0; q < {t.depth}; ++q) {{\n"]
        lines += [f"const {register} y{c} = {self.b}[q * {self.pitch_b} + across + {c * t.across}];\n" for c in self.columns]
        for r in self.rows:
            lines.append(f"{{\nconst {register} e = {a}[q * {self.pitch_a} + down + {r * t.down}];\n{also(r) if also else ''}")
            lines += [f"{name}{r}_{c} = {self.fma('e', f'y{c}', f'{name}{r}_{c}')};\n" for c in self.columns]
            lines.append("}\n")
        return "".join([*lines, "}\n"])

    def each(self, first_row, rows, first_column, columns, body, name="s"):
        """Statements that run `body` for each result inside the limits: `value` at `row` and `column`."""
        t, i, text = self.tile, self.index, []
        for r in self.rows:
            for c in self.columns:
                row, column = f"{first_row} + down + {r * t.down}", f"{first_column} + across + {c * t.across}"
                text.append(f"{{\nconst {i} row = {row}, column = {column};\nif (row < {rows} && column < {columns}) {{\n")
                text.append(f"const {self.register} value = {name}{r}_{c};\n{body}}}\n}}\n")
        return "".join(text)
