"""The tiled contraction with matrix units: as kernels/contraction.py, but each wave of a group multiplies its part of the block together.

Local memory holds the operands as they are stored, in rows (columns of the right operand) of `depth` steps of k side by side, so that most
units' registers are loaded from there as vectors.
"""

from dataclasses import dataclass, field

from keras_ocl.kernels import summation
from keras_ocl.kernels.contraction import Contraction, Fma, Loader, Tile, guarded, local
from keras_ocl.kernels.matrix.expansion import Expansion
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import MatrixUnit
from keras_ocl.kernels.prelude import vector_type
from keras_ocl.kernels.spec import Args

_VECTOR = 16  # bytes of the widest vector, and what keeps consecutive rows of local memory in different banks
_BESIDE = 4  # most adjacent results that are stored as one vector


@dataclass(frozen=True)
class MatrixTile(Tile):
    """A Tile whose work-items multiply by waves, with `unit`, the operands' elements or the terms of their `expansion`.

    across, down, rows and columns are multiples of what the work-items of one wave and their sums of one instruction are. Which results an
    item has follows from its wave and lane; the group's shape only says how many waves are across and down.
    """

    unit: MatrixUnit = field(kw_only=True)
    expansion: Expansion | None = field(default=None, kw_only=True)

    stored = True

    @property
    def packed(self) -> int:
        """Elements of an operand per register, as they are loaded from memory."""
        return 1 if self.expansion else self.unit.packed

    @property
    def terms(self) -> int:
        """Terms of an element in local memory."""
        return self.expansion.terms if self.expansion else 1

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(the left operand's term, the right one's) of the instructions that multiply two fragments."""
        return self.expansion.pairs if self.expansion else ((0, 0),)

    @property
    def apart(self) -> bool:
        """Whether a unit's sums begin at 0 in each step of its k, and are added to the results."""
        return len(self.pairs) > 1

    @classmethod
    def of(
        cls, unit: MatrixUnit, down: int, across: int, tall: int, wide: int, depth: int, expansion: Expansion | None = None
    ) -> "MatrixTile":
        """The tile of down x across waves, each with tall x wide instructions for every `unit.steps` of `depth` steps of k."""
        columns, rows = unit.columns // unit.lane_columns, unit.rows // unit.lane_rows  # lanes with results of one row, of one column
        return cls(
            across * columns,
            down * rows,
            tall * unit.lane_rows,
            wide * unit.lane_columns,
            depth,
            _VECTOR // unit.size,
            unit=unit,
            expansion=expansion,
        )

    @property
    def staged(self) -> str:
        """C type of an operand's bits in local memory."""
        return self.unit.staged

    @property
    def attributes(self) -> str:
        """What a kernel with this tile needs before its name."""
        return self.unit.attributes

    @property
    def together(self) -> int:
        """Steps of k of one instruction."""
        return self.unit.steps

    @property
    def manner(self) -> str:
        """How products are computed."""
        return f", by the matrix unit {self.unit.name}" + (f" as {self.expansion.name}" if self.expansion else "")

    @property
    def partial(self) -> str:
        """A clause that names a side which is no multiple of the unit's, "" where all are."""
        unit = self.unit
        sides = {"across": unit.columns // unit.lane_columns, "down": unit.rows // unit.lane_rows}
        sides |= {"rows": unit.lane_rows, "columns": unit.lane_columns, "depth": unit.steps}
        return next((f"{name} = {getattr(self, name)} is no multiple of {n}" for name, n in sides.items() if getattr(self, name) % n), "")

    @property
    def tall(self) -> int:
        """A wave's instructions below one another."""
        return self.rows // self.unit.lane_rows

    @property
    def wide(self) -> int:
        """A wave's instructions side by side."""
        return self.columns // self.unit.lane_columns

    @property
    def waves(self) -> int:
        """Waves of a group."""
        return self.items // self.unit.lanes

    @property
    def waves_across(self) -> int:
        """Waves side by side."""
        return self.width // (self.wide * self.unit.columns)

    @property
    def operands(self) -> int:
        """Registers of both operands' fragments for all instructions of a wave."""
        return self.terms * (self.tall * self.unit.registers(self.unit.a) + self.wide * self.unit.registers(self.unit.b))

    @property
    def holding(self) -> int:
        """Registers of an item that these operands take, and sums that are no results yet."""
        return self.operands * self.unit.copies + (self.wide * self.unit.c.elements if self.apart else 0)

    @property
    def room(self) -> int:
        """Registers that an item may have, in those that a device states."""
        return self.unit.room

    @property
    def beside(self) -> int:
        """Adjacent columns of an item, stored as one vector."""
        return min(_BESIDE, self.unit.lane_columns, self.unit.c.run(1))

    def row(self, r: int) -> str:
        """C text of the index in the group's block of an item's row `r`."""
        unit, (instruction, n) = self.unit, divmod(r, self.unit.lane_rows)
        return f"wave_row + {instruction * unit.rows} + {unit.c.texts(unit.sums(n, 0))[0]}"

    def column(self, c: int) -> str:
        """C text of the index in the group's block of an item's column `c`."""
        unit, (instruction, n) = self.unit, divmod(c, self.unit.lane_columns)
        return f"wave_column + {instruction * unit.columns} + {unit.c.texts(unit.sums(0, n))[1]}"

    def pitch(self, extent: int) -> int:
        """Elements of local memory from one row to the next."""
        return self.depth + self.fragment

    def offset(self, row: int, step: int) -> int:
        """Elements of local memory from a tile's first to that of a step of a row.

        Every `fragment` rows begin as many elements, 16 bytes, further on: items that load vectors of rows store these one step at a time,
        and the first rows of consecutive vectors would be in the same bank.
        """
        return row * self.pitch(0) + row // self.fragment * self.fragment + step

    def begin(self, row: str, of: int) -> str:
        """C text of offset(row, 0) of a row (C text) that is a multiple of `of`."""
        if of % self.fragment == 0:
            return f"({row}) * {self.pitch(0) + 1}"
        return f"({row}) * {self.pitch(0)} + (({row}) & ~{self.fragment - 1})"

    def elements(self, extent: int) -> int:
        """Elements of local memory of one term of a tile of `extent` rows or columns."""
        return extent * (self.pitch(extent) + 1)

    def local_bytes(self, size: int) -> int:
        """Bytes of local memory, of both operands' tiles, the waves' exchange and the slices' sums, with `size` bytes each."""
        elements = self.terms * (self.elements(self.height) + self.elements(self.width)) + self.waves * self.unit.exchange
        return self.slices * elements * self.unit.size + (self.slices - 1) * self.height * self.width * size

    def memory(self, args: Args, register: str, extent: int) -> str:
        elements = self.terms * self.elements(extent)
        pointer = MatrixContraction.memory(args, self, self.slices * elements)
        return f"({pointer} + slice * {elements})" if self.slices > 1 else pointer

    def contraction(self, args: Args, register: str, fma: Fma, index: str = "int", dtype: str = "") -> "MatrixContraction":
        """What writes the contraction of operands of `dtype` with this tile."""
        return MatrixContraction(args, self, register, fma, index, dtype)


class MatrixContraction(Contraction):
    """Writes the C text of contractions with a MatrixTile, of operands of `dtype`; the others as in Contraction.

    The C variables `wave_row` and `wave_column` are the first row and column of an item's wave, `lane` its number in the wave.
    """

    block = summation.UNIT
    tile: MatrixTile

    def __init__(
        self,
        args: Args,
        tile: MatrixTile,
        register: str,
        fma: Fma,
        index: str,
        dtype: str,
        memory: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(args, tile, register, fma, index, memory)
        self.unit, self.dtype, self.staged, self.fetched = tile.unit, dtype, tile.staged, tile.staged
        if tile.expansion:
            self.dtype, self.fetched = tile.expansion.dtype, "uint"

    @staticmethod
    def memory(args: Args, tile: MatrixTile, elements: int) -> str:
        """C text of a pointer to local memory for elements of a tile's operands."""
        return local(args, tile.staged, elements, tile.fragment)

    def head(self) -> str:
        """Statements that define the item's indices in the group and in its wave."""
        t, unit, args = self.tile, self.unit, self.args
        text = f"const int me = {args.place('local', 1)} * {t.across} + {args.place('local', 0)};\n"
        text += f"const int wave = me / {unit.lanes}, lane = me % {unit.lanes};\n"
        text += f"const int wave_row = wave / {t.waves_across} * {t.tall * unit.rows};\n"
        text += f"const int wave_column = wave % {t.waves_across} * {t.wide * unit.columns};\n"
        if unit.exchange:
            wave = f"(slice * {t.waves} + wave)" if t.slices > 1 else "wave"
            memory = self.memory(args, t, t.slices * t.waves * unit.exchange)
            text += f"__local {self.staged}* exchange = {memory} + {wave} * {unit.exchange};\n"
        return text

    def zero(self, lanes: int) -> str:
        """C text of zero in the type of loaded elements."""
        return f"({vector_type(self.fetched, lanes)})0"

    def stash(self, local: str, extent: int, loader: Loader, kept: str) -> str:
        v, tile, (rows, steps), text = loader.vector, self.tile, self.shares(extent, loader), ""
        for y in range(steps.rounds):
            for x in range(rows.rounds):
                name, step = f"{kept}{y}_{x}", steps.place(y)
                where = f"{tile.begin(rows.place(x), 1 if loader.along_k else v)} + {step}"
                if not tile.expansion:
                    text += self._put(local, where, name, loader)
                    continue
                terms = [f"term{n}" for n in range(tile.terms)]
                text += f"{{\n{tile.expansion.text(name, v, terms, self.staged)}"
                text += "".join(self._put(self._term(local, extent, n), where, term, loader) for n, term in enumerate(terms)) + "}\n"
        return guarded(rows, steps, text)

    def _term(self, local: str, extent: int, n: int) -> str:
        """C text of a pointer to the `n`th terms of a tile of `extent` rows or columns."""
        return f"({local} + {n * self.tile.elements(extent)})" if n else local

    def _put(self, local: str, where: str, name: str, loader: Loader) -> str:
        """Statements that store a loaded vector, the C variable `name`, at an offset (C text) in local memory."""
        v = loader.vector
        if loader.along_k:
            return f"{self.vector(local, where, v)} = {name};\n"
        lanes = [f"{name}.s{lane:x}" for lane in range(v)] if v > 1 else [name]
        return "".join(f"{local}[{where} + {self.tile.offset(lane, 0)}] = {value};\n" for lane, value in enumerate(lanes))

    def multiply(self, name: str = "s", skews: tuple[int, int] = (0, 0)) -> str:
        """Statements that add the products of the tiles self.a and self.b in local memory."""
        t, unit, lines = self.tile, self.unit, []
        for q in range(0, t.depth, unit.steps):
            lines.append("{\n")
            left = [self._terms(lines, f"x{i}_", self.a, t.height, unit.a, f"wave_row + {i * unit.rows}", q) for i in range(t.tall)]
            right = [self._terms(lines, f"y{j}_", self.b, t.width, unit.b, f"wave_column + {j * unit.columns}", q) for j in range(t.wide)]
            for i, a in enumerate(left):
                lines += self._row_of(a, right, i, name)
            lines.append("}\n")
        return "".join(lines)

    def multiply_in_turn(self, name: str, depth: int) -> str:
        """As multiply(), of the tiles' first `depth` steps, in a loop that holds one fragment of the right operand at a time.

        For tiles of many steps or columns: compilers hoist the loads of unrolled steps, and registers spill. Not of terms.
        """
        t, unit = self.tile, self.unit
        lines = [f"#pragma unroll 1\nfor (int q = 0; q < {depth}; q += {unit.steps}) {{\n"]
        left = [self._operand(lines, f"x{i}_", self.a, unit.a, f"wave_row + {i * unit.rows}", "q") for i in range(t.tall)]
        for j in range(t.wide):
            b = self._operand(lines, f"y{j}_", self.b, unit.b, f"wave_column + {j * unit.columns}", "q")
            lines += [self._instruction(a, b, self._sums(name, i, j)) for i, a in enumerate(left)]
        return "".join([*lines, "}\n"])

    def _terms(self, lines: list[str], name: str, local: str, extent: int, layout: Layout, first: str, step: int) -> list[list[str]]:
        """_operand() of each term."""
        suffixes = [f"{n}_" for n in range(self.tile.terms)] if self.tile.terms > 1 else [""]
        terms = [(f"{name}{suffix}", self._term(local, extent, n)) for n, suffix in enumerate(suffixes)]
        return [self._operand(lines, each, there, layout, first, str(step)) for each, there in terms]

    def _row_of(self, a: list[list[str]], right: list[list[list[str]]], i: int, name: str) -> list[str]:
        """Statements of the wave's instructions for its `i`th rows: of the terms `a` by those of all columns."""
        if not self.tile.apart:
            return [self._instruction(a[p], b[q], self._sums(name, i, j)) for j, b in enumerate(right) for p, q in self.tile.pairs]
        own = [self._sums("sum", 0, j) for j in range(len(right))]
        lines = ["{\nfloat " + ", ".join(f"{each} = 0" for names in own for each in names) + ";\n"]
        # Products that are added to other sums lie between two that are added to the same: no instruction waits for the one before it.
        *others, _ = self.tile.pairs
        lines += [self._instruction(a[p], b[q], own[j]) for p, q in others for j, b in enumerate(right)]
        lines += [f"{each} = isnan({each}) ? 0 : {each};\n" for names in own for each in names]  # what is not finite is in the first terms
        lines += [self._instruction(a[0], b[0], own[j]) for j, b in enumerate(right)]
        for j, names in enumerate(own):
            lines += [f"{total} += {each};\n" for total, each in zip(self._sums(name, i, j), names, strict=True)]
        return [*lines, "}\n"]

    def _operand(self, lines: list[str], name: str, local: str, layout: Layout, first: str, step: str) -> list[str]:
        """C names of a fragment's registers, which statements added to `lines` load, of the rows and steps from `first` and `step` on."""
        packed, names = self.unit.packed, [f"{name}{r}" for r in range(self.unit.registers(layout))]
        run, begin = min(self.tile.fragment, layout.run(1)), self.tile.begin(first, min(self.unit.rows, self.unit.columns))

        def place(e: int) -> str:
            return f"{begin} + {layout.text(e, self.tile.offset)} + {step}"

        if run < packed:  # the elements of a register lie apart
            for r, register in enumerate(names):
                parts = ", ".join(self.vector(local, place(r * packed + part), run) for part in range(0, packed, run))
                lines.append(f"const uint {register} = as_uint(({vector_type(self.staged, packed)})({parts}));\n")
            return names
        for e in range(0, layout.elements, run):
            vector, value = f"{name}of{e}", self.vector(local, place(e), run)
            if run == 1:
                lines.append(f"const uint {names[e]} = {value};\n")
                continue
            lines.append(f"const {vector_type(self.staged, run)} {vector} = {value};\n")
            for r in range(0, run, packed):
                lanes = "".join(f"{r + lane:x}" for lane in range(packed))
                lines.append(f"const uint {names[(e + r) // packed]} = as_uint({vector}.s{lanes});\n")
        return names

    def _sums(self, name: str, i: int, j: int) -> list[str]:
        """C variables of the fragment of sums of a wave's `i`th rows and `j`th columns."""
        unit, sums = self.unit, [""] * self.unit.c.elements
        for r in range(unit.lane_rows):
            for c in range(unit.lane_columns):
                sums[unit.sums(r, c)] = f"{name}{i * unit.lane_rows + r}_{j * unit.lane_columns + c}"
        return sums

    def _instruction(self, a: list[str], b: list[str], sums: list[str]) -> str:
        """Statements of a wave's instruction that adds the products of two fragments to `sums`."""
        return self.unit.instruction(self.dtype, a, b, sums, self.args.barrier())
