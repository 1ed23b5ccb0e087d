"""NVIDIA's matrix units: the PTX instructions mma.sync and shfl.sync, by "Parallel Thread Execution ISA" (8.5, 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import TF32, MatrixUnit

_PTX = {"float16": "f16", "bfloat16": "bf16", TF32: "tf32", "int8": "s8"}
_SUMS = {"float32": ("f32", "f"), "int32": ("s32", "r")}  # in PTX, and the constraint of inline PTX
_LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))  # a group of four lanes has a line, two steps each
_SINGLE = ((0, 1), (0, 2), (1, 0), (2, 0), (4, 0))  # one step each


@dataclass(frozen=True)
class Mma:
    """The Instruction mma.sync of a shape, as inline PTX, which NVIDIA's OpenCL C takes."""

    shape: str
    accumulator: str = "float32"

    def __call__(self, dtype: str, a: Sequence[str], b: Sequence[str], c: Sequence[str], barrier: str, /) -> str:
        operands, names = [], iter(range(len(c) + len(a) + len(b)))
        for values in (c, a, b):
            operands.append("{" + ", ".join(f"%{next(names)}" for _ in values) + "}")
        sums, left, right = operands
        kind, (total, constraint) = _PTX[dtype], _SUMS[self.accumulator]
        code = f"mma.sync.aligned.{self.shape}.row.col.{total}.{kind}.{kind}.{total} {sums}, {left}, {right}, {sums};"
        outputs, inputs = ", ".join(f'"+{constraint}"({name})' for name in c), ", ".join(f'"r"({name})' for name in (*a, *b))
        return f'asm volatile("{code}" : {outputs} : {inputs});\n'


def _shuffle(name: str, value: str, mask: int, barrier: str, /) -> str:
    return f'float {name};\nasm volatile("shfl.sync.bfly.b32 %0, %1, {mask}, 31, -1;" : "=f"({name}) : "f"({value}));\n'


def _unit(name: str, steps: int, dtypes: tuple[str, ...], a: Layout, b: Layout) -> MatrixUnit:
    """A row with these operands; the sums are those of all of them."""
    c = Layout(_LANES, ((0, 1), (8, 0)))
    return MatrixUnit(name, 16, 8, steps, dtypes, "float32", 32, a, b, c, Mma(f"m16n8k{steps}"), _shuffle)


_HALVES = "float16", "bfloat16"
M16N8K16 = _unit("mma_m16n8k16", 16, _HALVES, Layout(_LANES, ((0, 1), (8, 0), (0, 8))), Layout(_LANES, ((0, 1), (0, 8))))  # from sm_80 on
M16N8K8 = _unit("mma_m16n8k8", 8, ("float16",), Layout(_LANES, ((0, 1), (8, 0))), Layout(_LANES, ((0, 1),)))  # sm_75
M16N8K8_TF32 = _unit("mma_m16n8k8_tf32", 8, (TF32,), Layout(_SINGLE, ((8, 0), (0, 4))), Layout(_SINGLE, ((0, 4),)))  # from sm_80 on


def _bytes(rows: int, steps: int, a: Layout, b: Layout, c: Layout) -> MatrixUnit:
    """A row of bytes: a group of four lanes has a line, four steps each."""
    shape = f"m{rows}n8k{steps}"
    return MatrixUnit(f"mma_{shape}_i8", rows, 8, steps, ("int8",), "int32", 32, a, b, c, Mma(shape, "int32"), None)


_FOURS = ((0, 4), (0, 8), (1, 0), (2, 0), (4, 0))
_BYTE = Layout(_FOURS, ((0, 1), (0, 2)))
M16N8K32_I8 = _bytes(  # from sm_80 on
    16, 32, Layout(_FOURS, (*_BYTE.element, (8, 0), (0, 16))), Layout(_FOURS, (*_BYTE.element, (0, 16))), Layout(_LANES, ((0, 1), (8, 0)))
)
M8N8K16_I8 = _bytes(8, 16, _BYTE, _BYTE, Layout(_LANES, ((0, 1),)))  # sm_75
