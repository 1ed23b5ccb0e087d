"""Matrix units: instructions that multiply small matrices by the work-items of a wave together, as data.

A MatrixUnit multiplies `rows` x `steps` elements of A by `steps` x `columns` elements of B and adds the products to `rows` x `columns`
sums. Each lane of a wave holds a fragment of each matrix in registers; Layouts say which elements. Two elements of an operand, of 16 bits
each, share a register.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

PACKED = 2  # elements of an operand in one register of 32 bits


@dataclass(frozen=True)
class Layout:
    """Where a wave's lanes hold the elements of a matrix, as a linear layout (Zhou et al., "Linear Layouts", 2025).

    Each bit of a lane's number, and each of an element's number in the lane's fragment, moves the element by (lines, steps): the place of
    an element is the sum over the bits that are set. lane, element: those of all bits, the lowest first.
    """

    lane: tuple[tuple[int, int], ...]
    element: tuple[tuple[int, int], ...]

    @property
    def elements(self) -> int:
        """Elements of a lane's fragment."""
        return 1 << len(self.element)

    def place(self, lane: int, element: int) -> tuple[int, int]:
        """(line, step) of an element of a lane."""
        moves = [move for number, bits in ((lane, self.lane), (element, self.element)) for i, move in enumerate(bits) if number >> i & 1]
        return sum(line for line, _ in moves), sum(step for _, step in moves)

    def texts(self, element: int) -> tuple[str, str]:
        """C texts of (line, step) of an element of the lane `lane`, a C variable."""
        line, step = self.place(0, element)
        return _text([move[0] for move in self.lane], line), _text([move[1] for move in self.lane], step)

    def run(self, axis: int) -> int:
        """Elements of a fragment from any multiple of this number on that are adjacent along an axis: 0 of lines, 1 of steps."""
        count = 1
        for move in self.element:
            if move[axis] != count or move[1 - axis]:
                break
            count *= 2
        return count


def _text(moves: Sequence[int], first: int) -> str:
    """C text of `first` plus what each bit of `lane` moves by."""
    terms, bit = [], 0
    while bit < len(moves):
        count = 1
        while bit + count < len(moves) and moves[bit + count] == moves[bit] << count:
            count += 1
        if moves[bit]:
            terms.append(f"(lane >> {bit} & {(1 << count) - 1})" + (f" * {moves[bit]}" if moves[bit] > 1 else ""))
        bit += count
    return " + ".join([*terms, *([str(first)] if first or not terms else [])])


class Instruction(Protocol):
    """Writes the statements that multiply the registers `a` by `b`, of a `dtype`, and add the products to the sums `c` (C variables).

    All work-items of a group run them. They may use the C variable `lane`, the statement `barrier` and, of a unit with an `exchange`, the
    C pointer `exchange` to the wave's local memory.
    """

    def __call__(self, dtype: str, a: Sequence[str], b: Sequence[str], c: Sequence[str], barrier: str, /) -> str: ...


@dataclass(frozen=True)
class MatrixUnit:
    """A matrix unit: the extents, dtypes and layouts of its instruction. All extents are powers of two.

    rows, columns, steps: m, n and k of one instruction. dtypes: those that both operands may have. accumulator: the sums' dtype. lanes:
    work-items that execute an instruction together (a wave), with consecutive local ids. a: layout of (row, step), b: of (column, step),
    c: of (row, column), none of whose elements' bits moves both. instruction: how it is written in OpenCL C. exchange: elements of 16 bits
    in local memory that a wave's instruction needs.
    """

    name: str
    rows: int
    columns: int
    steps: int
    dtypes: tuple[str, ...]
    accumulator: str
    lanes: int
    a: Layout
    b: Layout
    c: Layout
    instruction: Instruction
    exchange: int = 0

    @cached_property
    def lane_rows(self) -> int:
        """Rows of a lane's sums."""
        return 1 << sum(row > 0 for row, _ in self.c.element)

    @cached_property
    def lane_columns(self) -> int:
        """Columns of a lane's sums."""
        return 1 << sum(column > 0 for _, column in self.c.element)

    def sums(self, row: int, column: int) -> int:
        """The number, in a lane's fragment of sums, of its `row`th row and `column`th column."""
        number, counted = 0, [row, column]
        for bit, (down, _) in enumerate(self.c.element):
            axis = 0 if down else 1
            number |= (counted[axis] & 1) << bit
            counted[axis] >>= 1
        return number

    def registers(self, layout: Layout) -> int:
        """Registers of 32 bits of an operand's fragment."""
        return layout.elements // PACKED


@dataclass(frozen=True)
class Emulation:
    """The Instruction of a unit that any device has: lanes exchange their fragments by way of local memory.

    Every product is exact and each sum is rounded to nearest. The layouts are the instruction's own, as those of hardware are.
    """

    rows: int
    columns: int
    steps: int
    a: Layout
    b: Layout
    c: Layout

    def __call__(self, dtype: str, a: Sequence[str], b: Sequence[str], c: Sequence[str], barrier: str, /) -> str:
        text, beside = "", self.rows * self.steps
        for names, layout, start in ((a, self.a, 0), (b, self.b, beside)):
            for e in range(layout.elements):
                line, step = layout.texts(e)
                half = f"as_ushort2({names[e // PACKED]}).s{e % PACKED}"
                text += f"exchange[{start} + ({line}) * {self.steps} + {step}] = {half};\n"
        places = [self.c.texts(e) for e in range(self.c.elements)]
        rows, columns = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
        loop = f"#pragma unroll 1\nfor (int i = 0; i < {self.steps}; ++i) {{\n"
        for n, row in enumerate(rows):
            loop += f"const float x{n} = {_element(dtype, f'({row}) * {self.steps} + i')};\n"
        for n, column in enumerate(columns):
            loop += f"const float y{n} = {_element(dtype, f'{beside} + ({column}) * {self.steps} + i')};\n"
        for name, (row, column) in zip(c, places, strict=True):
            loop += f"{name} = fma(x{rows.index(row)}, y{columns.index(column)}, {name});\n"
        return f"{text}{barrier}\n{loop}}}\n{barrier}\n"


def _element(dtype: str, where: str) -> str:
    """C text of the element at an offset (C text) in the exchange, as a float."""
    if dtype == "float16":
        return f"vload_half({where}, (const __local half*)exchange)"
    return f"as_float((uint)exchange[{where}] << 16)"


def emulated(name: str, rows: int, columns: int, steps: int, lanes: int, a: Layout, b: Layout, c: Layout) -> MatrixUnit:
    """A MatrixUnit with these extents and layouts whose instruction is emulated."""
    dtypes, instruction = ("float16", "bfloat16"), Emulation(rows, columns, steps, a, b, c)
    return MatrixUnit(name, rows, columns, steps, dtypes, "float32", lanes, a, b, c, instruction, exchange=(rows + columns) * steps)


# The layouts are those of NVIDIA's mma.m16n8k16 (Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16").
EMULATED = emulated(
    "emulated",
    rows=16,
    columns=8,
    steps=16,
    lanes=32,
    a=Layout(lane=((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), element=((0, 1), (8, 0), (0, 8))),
    b=Layout(lane=((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), element=((0, 1), (0, 8))),
    c=Layout(lane=((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), element=((0, 1), (8, 0))),
)

_UNITS = {unit.name: unit for unit in (EMULATED,)}


def fitting(names: Sequence[str], dtype: str, accumulator: str) -> MatrixUnit | None:
    """The first of a device's units, by their names, that multiplies operands of `dtype` with such sums; None if there is none.

    Raises:
        ValueError: there is no unit of such a name.
    """
    if unknown := [name for name in names if name not in _UNITS]:
        raise ValueError(f"there is no matrix unit {unknown[0]!r}; the units are {', '.join(_UNITS)}")
    units = (_UNITS[name] for name in names)
    return next((unit for unit in units if dtype in unit.dtypes and accumulator == unit.accumulator), None)
