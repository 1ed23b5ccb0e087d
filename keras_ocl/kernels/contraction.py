"""One tiled contraction for devices with local memory: sums over k of a(row, k) * b(k, column) for a block of rows and columns.

A work-group of across x down items copies `depth` steps of k of both operands to local memory. Each item multiplies them into a register
tile of rows x columns results, while the next steps are being loaded into other registers. Loaders say what the operands are: matrices in
memory (`Strided`), the patches of images (conv/gpu.py), rows of queries and keys (attention/gpu.py). All extents of a tile are powers of
two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from keras_ocl.core.dim import Extent, Shape, hint, product
from keras_ocl.kernels import summation
from keras_ocl.kernels.prelude import vector_type
from keras_ocl.kernels.spec import Args, Buffer

Fma = Callable[[str, str, str], str]  # from C texts of x, y and z to that of x * y + z

_BANKS = 32  # banks of local memory, of four bytes each
_UNROLLED = 512  # most multiply-adds that are unrolled: instruction caches hold them


@dataclass(frozen=True)
class Tile:
    """A work-group of across x down items, each with rows x columns results; `depth` steps of k in local memory.

    fragment: most adjacent rows (or columns) of an item; they are loaded from local memory as one vector. slices: so many times as many
    items share the steps of k of the group's results (sliced k, as in CUTLASS), each across x down of them with tiles of their own.
    """

    across: int
    down: int
    rows: int
    columns: int
    depth: int
    fragment: int = 4
    slices: int = 1

    stored = False  # whether operands are in local memory as they are stored, else in the results' type

    @property
    def packed(self) -> int:
        """Elements of an operand per register."""
        return 1

    @property
    def items(self) -> int:
        """Work-items of a group, of one slice."""
        return self.across * self.down

    @property
    def height(self) -> int:
        """Rows of a group's block."""
        return self.down * self.rows

    @property
    def width(self) -> int:
        """Columns of a group's block."""
        return self.across * self.columns

    @property
    def attributes(self) -> str:
        """What a kernel with this tile needs before its name."""
        return ""

    @property
    def together(self) -> int:
        """Steps of k that are multiplied at a time."""
        return 1

    @property
    def operands(self) -> int:
        """Registers of an item that hold the operands of so many steps: each is loaded from local memory."""
        return self.rows + self.columns

    @property
    def holding(self) -> int:
        """Registers of an item that these operands take."""
        return self.operands

    @property
    def room(self) -> int:
        """Registers that an item may have, in those that a device states."""
        return 1

    @property
    def manner(self) -> str:
        """What a kernel's title says of the way products are computed, if it is not the items' own arithmetic."""
        return ""

    @property
    def beside(self) -> int:
        """Adjacent columns of an item, loaded as one vector."""
        return min(self.fragment, self.columns)

    @property
    def below(self) -> int:
        """Adjacent rows of an item, loaded as one vector."""
        return min(self.fragment, self.rows)

    def row(self, r: int) -> str:
        """C text of the index in the group's block of an item's row `r`."""
        return _place("down", self.down, self.below, r)

    def column(self, c: int) -> str:
        """C text of the index in the group's block of an item's column `c`."""
        return _place("across", self.across, self.beside, c)

    def pitch(self, extent: int) -> int:
        """Elements of local memory per step of k, for `extent` rows or columns: consecutive steps start in different banks."""
        return extent + self.fragment

    def skew(self, loader: "Loader") -> int:
        """Extra elements of local memory after every eight steps of k of a Loader's tile, a multiple of the fragment.

        Items that load vectors along k store several steps at once. The rows of eight consecutive steps start in different banks; without
        a skew the next eight would start in the same banks and conflict.
        """
        return loader.vector * _BANKS // self.depth if loader.along_k and loader.vector > 1 and self.depth > 8 and self.fragment == 4 else 0

    def elements(self, extent: int) -> int:
        """Elements of local memory of a tile of `extent` rows or columns, with the largest possible skew."""
        return self.depth * self.pitch(extent) + (2 * self.fragment if self.depth > 8 else 0)

    def local_bytes(self, size: int) -> int:
        """Bytes of local memory of both operands' tiles, and of the slices' sums, with elements of `size` bytes."""
        tiles = self.slices * (self.elements(self.height) + self.elements(self.width))
        return (tiles + (self.slices - 1) * self.height * self.width) * size

    def sliced(self, k: int) -> int:
        """Steps of k of a slice, of `k` in all: the last slice may have fewer."""
        return -(-k // (self.slices * self.depth)) * self.depth

    @property
    def places(self) -> tuple[str, str]:
        """(C text of item `me`'s index across, C text of its index down) in the group.

        Consecutive items form patches of 8 x 4 if the group is large enough: the fewer distinct rows and columns a warp reads from local
        memory, the fewer cycles that takes. Items 2i and 2i + 1 are adjacent in the down direction, as in Gray's maxas (2014), since 128
        bytes are read per cycle: four columns and two rows of vectors.
        """
        if self.across < 8 or self.down < 4:
            return f"me % {self.across}", f"me / {self.across}"
        rest = self.across // 8
        across, down = "(me >> 1 & 7)", "(me & 1 | (me >> 3 & 2))"
        if rest > 1:
            across += f" + (me >> 5) % {rest} * 8"
        if self.down > 4:
            down += f" + (me >> 5) / {rest} * 4"
        return across, down

    def memory(self, args: Args, register: str, extent: int) -> str:
        """C text of a pointer to local memory for `extent` rows or columns of an operand, of the item's `slice` (a C variable)."""
        elements = self.elements(extent)
        if self.slices == 1:
            return local(args, register, elements)
        elements = -(-elements // 4) * 4  # aligned for vectors
        return f"({local(args, register, self.slices * elements)} + slice * {elements})"

    def contraction(self, args: Args, register: str, fma: "Fma", index: str = "int", dtype: str = "") -> "Contraction":
        """What writes the contraction of operands of `dtype` with this tile; the others as in Contraction."""
        return Contraction(args, self, register, fma, index)


def _place(item: str, items: int, run: int, n: int) -> str:
    """C text of the index of an item's `n`th row or column: runs of `run` adjacent ones, interleaved with the runs of the other items."""
    first = item if run == 1 else f"{item} * {run}"
    return f"{first} + {n // run * run * items + n % run}"


@dataclass(frozen=True)
class _Axis:
    """How `side` items share `extent` positions: an item starts at `first` (C text) and continues in strides of `side`, its rounds.

    vector: elements of one position.
    """

    first: str
    side: int
    extent: int
    vector: int = 1

    @property
    def rounds(self) -> int:
        return max(1, self.extent // self.side)

    def place(self, round: int) -> str:
        """C text of an item's first element in round number `round`."""
        first = self.first if self.vector == 1 else f"{self.first} * {self.vector}"
        return f"{first} + {round * self.side * self.vector}" if round else first

    @property
    def guard(self) -> str:
        """C condition that an item has a position at all, "" if every item has one."""
        return f"{self.first} < {self.extent}" if self.side > self.extent else ""


def guarded(rows: _Axis, steps: _Axis, body: str) -> str:
    """`body`, guarded so that only items with a position on both axes run it."""
    guard = " && ".join(axis.guard for axis in (rows, steps) if axis.guard)
    return f"if ({guard}) {{\n{body}}}\n" if guard else body


class Loader:
    """Where an operand's elements come from.

    `first`: C text of the first row (or column) of the work-group's block, `limit`: C text of the number of rows. along_k: whether
    consecutive k are adjacent in memory, and so are loaded by consecutive items; else consecutive rows (or columns) are. exact: whether no
    block exceeds the limit. vector: adjacent elements that are loaded as one vector; it divides the block and the limit, or the steps of
    k if it lies along k.
    """

    safe = False  # whether a load at any row and step inside the limits is legal, so that no condition need guard it

    def __init__(self, first: str, limit: str, along_k: bool, exact: bool = False, vector: int = 1) -> None:
        self.first, self.limit, self.along_k, self.exact, self.vector = first, limit, along_k, exact, vector

    def prepare(self, count: int) -> str:
        """Statements before the loop over k that declare the loader's variables, one per row (of `count`) that an item loads."""
        return ""

    def row(self, x: int) -> str:
        """Statements that set the `x`th variable of prepare() for row `at` (a C variable)."""
        return ""

    def move(self) -> str:
        """Statements that advance the loader's state to the item's next step of k; the first call of them advances to the first step."""
        return ""

    def step(self) -> str:
        """Statements for step `k` (a C variable), run once per step of a tile that an item loads, before the step's rows."""
        return ""

    def element(self, x: int) -> tuple[str, str, str]:
        """(statements, condition, value) of the element, or vector, at row `at`, the item's `x`th, and step `k` (C variables)."""
        raise NotImplementedError


class Strided(Loader):
    """A matrix in memory: `load(offset)` gives the C text of the element, or vector, at an offset (C text) from its first."""

    safe = True

    def __init__(
        self,
        first: str,
        limit: str,
        along_k: bool,
        load: Callable[..., Any],
        offset: Callable[[str, str], str] | None,
        exact: bool = False,
        vector: int = 1,
    ) -> None:
        super().__init__(first, limit, along_k, exact, vector)
        self.load, self.offset = load, offset

    def element(self, x: int) -> tuple[str, str, str]:
        assert self.offset is not None
        return "", "", self.load(self.offset("at", "k"))


class Computed(Strided):
    """A matrix computed in a prologue: `load(row, k)` gives (statements, C text) that compute the element, or vector, at that index."""

    def element(self, x: int) -> tuple[str, str, str]:
        statements, value = self.load("at", "k")
        return statements, "", value


def _skewed(skew: int, step: str) -> str:
    """C text of the elements that the skew adds to the offset of a step of k."""
    return f" + ({step}) / 8 * {skew}" if skew else ""


def local(args: Args, ctype: str, elements: int, lanes: int = 4) -> str:
    """C text of a pointer to `elements` elements of local memory, aligned for vectors of `lanes`."""
    return f"((__local {ctype}*){args.local(vector_type(ctype, lanes), -(-elements // lanes))})"


class Contraction:
    """Writes the C text of contractions.

    Results are C variables {name}{row}_{column}; the C variables `across`, `down` and `me` are the item's indices in the group.

    Args:
        args: the kernel's Args, which gets two __local parameters unless `memory` has C texts of pointers for both operands' tiles.
        register: C type of the results. fma: function of three C texts. index: C type of rows, columns and k. steps: most steps of k that
            are unrolled; compilers hoist the loads of unrolled steps.
    """

    block = summation.TILE  # steps of k after which sums leave their registers, where there are more than twice as many

    def __init__(
        self,
        args: Args,
        tile: Tile,
        register: str,
        fma: Fma,
        index: str = "int",
        memory: tuple[str, str] | None = None,
        steps: int = 16,
    ) -> None:
        self.args, self.tile, self.register, self.fma, self.index, self.steps = args, tile, register, fma, index, steps
        self.pitch_a, self.pitch_b = tile.pitch(tile.height), tile.pitch(tile.width)
        self.a, self.b = memory or (tile.memory(args, register, extent) for extent in (tile.height, tile.width))
        self.staged = self.fetched = register  # C types of elements in local memory, and as they are loaded for it
        self.kept = ""  # C text of a pointer to where an item keeps its sums in global memory between blocks of k; "" if it need not

    @property
    def rows(self) -> range:
        return range(self.tile.rows)

    @property
    def columns(self) -> range:
        return range(self.tile.columns)

    def head(self) -> str:
        """Statements that define the item's indices `me`, `across` and `down`."""
        across, down = self.tile.places
        me = f"const int me = {self.args.place('local', 1)} * {self.tile.across} + {self.args.place('local', 0)};\n"
        return f"{me}const int across = {across}, down = {down};\n"

    def results(self, name: str = "s") -> str:
        """Statements that declare the results and set them to 0."""
        return f"{self.register} " + ", ".join(f"{name}{r}_{c} = 0" for r in self.rows for c in self.columns) + ";\n"

    def cut(self, dtype: str, groups: Shape, steps: Extent) -> None:
        """Let walk() sum in blocks if there are many `steps` of k, to bound rounding errors. groups: the grid's work-groups."""
        if not summation.bounded(dtype) or hint(steps) <= 2 * self.block:
            return
        t, (across, down, _) = self.tile, groups
        pointer = self.args.pointer(Buffer(product(groups) * t.height * t.width, dtype), dtype, out=True)
        x, y, z = (self.args.place("group", k) for k in range(3))
        group = f"((long){z} * {self.args.int(down)} + {y}) * {self.args.int(across)} + {x}"
        self.kept = f"{pointer} + ({group}) * {t.height * t.width} + me"

    def _keep(self, name: str) -> tuple[str, str, str]:
        """(statements before the loop over k, after each tile of k, after the loop) that add the blocks' sums in global memory."""
        if not self.kept:
            return "", "", ""
        t = self.tile
        places = [(f"{name}{r}_{c}", f"kept[{(r * t.columns + c) * t.items}]") for r in self.rows for c in self.columns]
        store = "".join(f"{place} = again ? {place} + {total} : {total};\n{total} = 0;\n" for total, place in places)
        return (
            f"__global {self.register}* kept = {self.kept};\nint turn = 0, again = 0;\n",
            f"if (++turn == {self.block // t.depth} && k_begin < {{}}) {{{{\n{store}turn = 0;\nagain = 1;\n}}}}\n",
            f"if (again) {{\n{''.join(f'{total} += {place};' + chr(10) for total, place in places)}}}\n",
        )

    def walk(self, begin: str, end: str, a: Loader, b: Loader, name: str = "s", exact: bool = False, until: str = "") -> str:
        """Statements that add the products of all k from `begin` to `end` (C texts); `a` and `b` are the operands' Loaders.

        exact: whether the number of steps is a multiple of the tile's depth. until: C text of an end that is the same for all items of a
        group, which wait for one another, where `end` is not.
        """
        until = until or end
        t, i = self.tile, self.index
        sides = ((self.a, t.height, a, "left"), (self.b, t.width, b, "right"))
        declared = "".join(self.declare(extent, loader, kept) + self._prepare(loader, extent) for _, extent, loader, kept in sides)
        fetch = "".join(self.fetch(extent, loader, end, kept, exact) for _, extent, loader, kept in sides)
        stash = "".join(self.stash(local, extent, loader, kept) for local, extent, loader, kept in sides)
        before, between, behind = self._keep(name)
        barrier = self.args.barrier()
        return (
            f"{{\n{before}{declared}{i} k_begin = {begin};\nif (k_begin < {until}) {{\n{fetch}}}\n"
            "#pragma unroll 1\n"  # whatever a short loop's length (quirk unrolled_barriers)
            f"while (k_begin < {until}) {{\n{stash}{barrier}\nk_begin += {t.depth};\nif (k_begin < {until}) {{\n{fetch}}}\n"
            f"{self.multiply(name, skews=(t.skew(a), t.skew(b)))}{between.format(until)}{barrier}\n}}\n{behind}}}\n"
        )

    def shares(self, extent: int, loader: Loader) -> tuple[_Axis, _Axis]:
        """(the _Axis of rows, the _Axis of steps of k): how the items share the loads of a tile's elements."""
        depth, items, v = self.tile.depth, self.tile.items, loader.vector
        fast, slow = (depth // v, extent) if loader.along_k else (extent // v, depth)
        side = min(fast, items)
        near, far = _Axis(f"me % {side}", side, fast, v), _Axis(f"me / {side}", items // side, slow)
        return (far, near) if loader.along_k else (near, far)

    def _row(self, loader: Loader, place: str) -> str:
        """Statement that declares `at`, the row at index `place` of the tile, clamped to the last; results beyond it are not stored."""
        at = f"{loader.first} + {place}"
        if not loader.exact:
            last = loader.vector if not loader.along_k else 1
            at = f"min(({self.index})({at}), ({self.index})({loader.limit} - {last}))"
        return f"const {self.index} at = {at};\n"

    def _prepare(self, loader: Loader, extent: int) -> str:
        rows, _ = self.shares(extent, loader)
        text = loader.prepare(rows.rounds)
        if text:
            for x in range(rows.rounds):
                text += f"{{\n{self._row(loader, rows.place(x))}{loader.row(x)}}}\n"
        return text

    def declare(self, extent: int, loader: Loader, kept: str) -> str:
        """Statement that declares variables for all elements, or vectors, of a tile that an item loads."""
        rows, steps = self.shares(extent, loader)
        names = ", ".join(f"{kept}{y}_{x}" for y in range(steps.rounds) for x in range(rows.rounds))
        return f"{vector_type(self.fetched, loader.vector)} {names};\n"

    def fetch(self, extent: int, loader: Loader, end: str, kept: str, exact: bool = False) -> str:
        """Statements that load an item's share of the tile from k_begin on into the variables of declare(), zeros beyond `end`."""
        i, (rows, steps), text = self.index, self.shares(extent, loader), ""
        last, zero = loader.vector if loader.along_k else 1, self.zero(loader.vector)
        for y in range(steps.rounds):
            step = f"k_begin + {steps.place(y)}"
            inside = "" if exact else f"{step} < {end}"
            # Rows and steps beyond the end load the last one, so that no load waits for a condition.
            k = step if exact or not loader.safe else f"min(({i})({step}), ({i})({end} - {last}))"
            text += f"{{\nconst {i} k = {k};\n{loader.move()}{loader.step()}"
            for x in range(rows.rounds):
                name, (statements, condition, value) = f"{kept}{y}_{x}", loader.element(x)
                text += f"{{\n{self._row(loader, rows.place(x))}{statements}"
                if loader.safe:
                    text += f"{name} = {value};\n" + (f"{name} = {inside} ? {name} : {zero};\n" if inside else "")
                else:
                    condition = " && ".join(filter(None, (inside, condition)))
                    text += f"{name} = {f'{condition} ? {value} : {zero}' if condition else value};\n"
                text += "}\n"
            text += "}\n"
        return guarded(rows, steps, text)

    def stash(self, local: str, extent: int, loader: Loader, kept: str) -> str:
        """Statements that store the elements loaded by fetch() to local memory."""
        v, pitch, (rows, steps), text = loader.vector, self.tile.pitch(extent), self.shares(extent, loader), ""
        skew = partial(_skewed, self.tile.skew(loader))
        for y in range(steps.rounds):
            for x in range(rows.rounds):
                name, where = f"{kept}{y}_{x}", f"({steps.place(y)}) * {pitch}{skew(steps.place(y))} + {rows.place(x)}"
                if loader.along_k and v > 1:
                    text += "".join(f"{local}[{where} + {lane * pitch}] = {name}.s{lane:x};\n" for lane in range(v))
                else:
                    text += f"{self.vector(local, where, v)} = {name};\n"
        return guarded(rows, steps, text)

    def zero(self, lanes: int) -> str:
        """C text of zero in the type of loaded elements, which a condition chooses in place of a vector of `lanes`."""
        return "0"

    def vector(self, local: str, where: str, lanes: int) -> str:
        """C text of `lanes` elements of local memory from the offset `where` (C text) on."""
        return f"{local}[{where}]" if lanes == 1 else f"*(__local {vector_type(self.staged, lanes)}*)({local} + {where})"

    def fill(self, local: str, extent: int, loader: Loader, end: str) -> str:
        """Statements that copy `extent` rows of a tile from k_begin on to local memory: zeros beyond `end`, any values beyond the limit."""
        text = self.declare(extent, loader, "kept") + self._prepare(loader, extent) + self.fetch(extent, loader, end, "kept")
        return f"{{\n{text}{self.stash(local, extent, loader, 'kept')}}}\n"

    def multiply(self, name: str = "s", skews: tuple[int, int] = (0, 0)) -> str:
        """Statements that add the products of the tiles self.a and self.b in local memory; skews: Tile.skew of both."""
        t, register = self.tile, self.register
        times = max(1, min(t.depth, self.steps, _UNROLLED // (t.rows * t.columns)))
        lines = [f"#pragma unroll {times}\nfor (int q = 0; q < {t.depth}; ++q) {{\n"]
        parts = []
        for local, pitch, skew, side, run, count, place in (
            (self.a, self.pitch_a, skews[0], "x", t.below, t.rows, t.row),
            (self.b, self.pitch_b, skews[1], "y", t.beside, t.columns, t.column),
        ):
            kind = vector_type(register, run)
            step = f"q * {pitch}{_skewed(skew, 'q')}"
            lines += [f"const {kind} {side}{n} = {self.vector(local, f'{step} + {place(n)}', run)};\n" for n in range(0, count, run)]
            parts.append([f"{side}{n - n % run}" + (f".s{n % run:x}" if run > 1 else "") for n in range(count)])
        for r in self.rows:
            lines += [f"{name}{r}_{c} = {self.fma(parts[0][r], parts[1][c], f'{name}{r}_{c}')};\n" for c in self.columns]
        return "".join([*lines, "}\n"])

    def each(self, first_row: str, rows: str, first_column: str, columns: str, body: str, name: str = "s", vectors: bool = False) -> str:
        """Statements that run `body` for each result inside the limits, with `value`, `row` and `column` defined.

        vectors: `body` runs once per vector of Tile.beside adjacent results of a row, from `column` on; the limit is a multiple of that.
        """
        t, i, text = self.tile, self.index, []
        run = t.beside if vectors else 1
        kind = vector_type(self.register, run)
        for r in self.rows:
            text.append(f"{{\nconst {i} row = {first_row} + {t.row(r)};\nif (row < {rows}) {{\n")
            for c in range(0, t.columns, run):
                results = ", ".join(f"{name}{r}_{n}" for n in range(c, c + run))
                text.append(f"{{\nconst {i} column = {first_column} + {t.column(c)};\nif (column < {columns}) {{\n")
                text.append(f"const {kind} value = {f'({kind})({results})' if run > 1 else results};\n{body}}}\n}}\n")
            text.append("}\n}\n")
        return "".join(text)
