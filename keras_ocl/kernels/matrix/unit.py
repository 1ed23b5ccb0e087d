"""A matrix unit as data: an instruction by which the work-items of a wave multiply small matrices together.

A MatrixUnit multiplies `rows` x `steps` elements of A by `steps` x `columns` elements of B and adds the products to `rows` x `columns`
sums. Each lane of a wave holds a fragment of each matrix in registers of 32 bits; Layouts say which elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from keras_ocl.core import dtypes
from keras_ocl.kernels.matrix.layout import Layout

REGISTER = 4  # bytes
TF32 = "tf32"  # in place of a dtype: float32 of which a unit reads the leading 19 bits, 11 of them the number's digits


def in_memory(dtype: str) -> str:
    """The dtype of an operand's elements in memory, for one of a unit's `dtypes`."""
    return "float32" if dtype == TF32 else dtype


class Instruction(Protocol):
    """Writes the statements that multiply the registers `a` by `b`, of a `dtype`, and add the products to the sums `c` (C variables).

    All work-items of a group run them. They may use the C variable `lane`, the statement `barrier` and, of a unit with an `exchange`, the
    C pointer `exchange` to the wave's local memory.
    """

    def __call__(self, dtype: str, a: Sequence[str], b: Sequence[str], c: Sequence[str], barrier: str, /) -> str: ...


class Shuffle(Protocol):
    """Writes the statements that define the float `name`: the C variable `value` of the lane whose number differs in the bit `mask`.

    All work-items of a group run them. They may use what those of an Instruction may.
    """

    def __call__(self, name: str, value: str, mask: int, barrier: str, /) -> str: ...


@dataclass(frozen=True)
class MatrixUnit:
    """A matrix unit: the extents, dtypes and layouts of its instruction. All extents are powers of two.

    Attributes:
        name: its name in Traits.matrix_units.
        rows, columns, steps: m, n and k of one instruction.
        dtypes: those that both operands may have, of equal size; TF32 alone where the unit reads no more of float32.
        accumulator: the sums' dtype.
        lanes: work-items that execute an instruction together (a wave), with consecutive local ids.
        a: layout of (row, step) of the left operand.
        b: layout of (column, step) of the right operand.
        c: layout of (row, column) of the sums, none of whose elements' bits moves both.
        instruction: how it is written in OpenCL C.
        shuffle: how a wave's lanes exchange sums in OpenCL C; None of integers, which nothing exchanges.
        attributes: what kernels with the instruction need before their name.
        exchange: elements, of an operand, in local memory that a wave's instruction needs.
        replicas: lanes that hold each element of an operand.
        copies: how often a fragment is held: more than once where the compiler moves it to consecutive registers for the instruction.
        room: registers that a work-item may have, in those of a kernel without the instruction: 2 where its waves are half as long.
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
    shuffle: Shuffle | None
    attributes: str = ""
    exchange: int = 0
    replicas: int = 1
    copies: int = 1
    room: int = 1

    @property
    def size(self) -> int:
        """Bytes of an operand's element."""
        return dtypes.itemsize(in_memory(self.dtypes[0]))

    @property
    def packed(self) -> int:
        """Elements of an operand in a register."""
        return REGISTER // self.size

    @property
    def staged(self) -> str:
        """C type of an operand's element as it is stored: its bits, if it is a float."""
        return {1: "char", 2: "ushort", 4: "uint"}[self.size]

    @property
    def sum(self) -> str:
        """C type of a sum."""
        return dtypes.register_ctype(self.accumulator)

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

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """The bits in which the numbers of lanes with sums of the same rows differ, from the lowest on."""
        return tuple(1 << bit for bit, (_, column) in enumerate(self.c.lane) if column)

    def registers(self, layout: Layout) -> int:
        """Registers of an operand's fragment."""
        return layout.elements // self.packed
