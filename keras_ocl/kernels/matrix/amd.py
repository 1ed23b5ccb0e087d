"""AMD's matrix units, by AMD's "Matrix Instruction Calculator" and its instruction set manuals: "RDNA3" (2023) and "RDNA4" (2025) for WMMA,
"CDNA3" (2024) for MFMA. The compiler's functions are those of LLVM's AMDGPU target."""

from keras_ocl.kernels.matrix.builtin import Builtin
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import MatrixUnit

_LINES = ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0))
_STEPS = ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16))
_NAMES = {"float16": "f16", "bfloat16": "bf16"}

# gfx11: both halves of a wave hold the operands, and a half's lanes every other row of the sums.
_OPERAND = Layout((*_LINES[:4], (0, 0)), _STEPS[:4])
WMMA_GFX11 = MatrixUnit(
    name="wmma_gfx11",
    rows=16,
    columns=16,
    steps=16,
    dtypes=("float16", "bfloat16"),
    accumulator="float32",
    lanes=32,
    a=_OPERAND,
    b=_OPERAND,
    c=Layout((*_STEPS[:4], (1, 0)), _LINES[1:4]),
    instruction=Builtin(
        {dtype: f"__builtin_amdgcn_wmma_f32_16x16x16_{name}_w32" for dtype, name in _NAMES.items()},
        {"float16": ("half16", "half16"), "bfloat16": ("short16", "short16")},
    ),
    replicas=2,
)

_OPERAND = Layout((*_LINES[:4], (0, 8)), _STEPS[:3])
WMMA_GFX12 = MatrixUnit(
    name="wmma_gfx12",
    rows=16,
    columns=16,
    steps=16,
    dtypes=("float16", "bfloat16"),
    accumulator="float32",
    lanes=32,
    a=_OPERAND,
    b=_OPERAND,
    c=Layout((*_STEPS[:4], (8, 0)), _LINES[:3]),
    instruction=Builtin(
        {dtype: f"__builtin_amdgcn_wmma_f32_16x16x16_{name}_w32_gfx12" for dtype, name in _NAMES.items()},
        {"float16": ("half8", "half8"), "bfloat16": ("short8", "short8")},
    ),
)


def _mfma(name: str, side: int, steps: int, functions: dict[str, str], operands: dict[str, tuple[str, str]]) -> MatrixUnit:
    """A row of MFMA: blocks of side x side sums, of which a lane has four rows of one column, and again every eight or sixteen rows."""
    bits = side.bit_length() - 1
    parts = 64 // side  # of a wave, each of which holds some steps of all lines
    each = steps // parts  # steps of a lane
    operand = Layout((*_LINES[:bits], *((0, each << i) for i in range(parts.bit_length() - 1))), _STEPS[: each.bit_length() - 1])
    rows = [(4 << i, 0) for i in range(bits - 2)]  # the rows of the blocks of four: first the parts of a wave, then a lane's own
    lanes, own = rows[: parts.bit_length() - 1], rows[parts.bit_length() - 1 :]
    return MatrixUnit(
        name=name,
        rows=side,
        columns=side,
        steps=steps,
        dtypes=tuple(functions),
        accumulator="float32",
        lanes=64,
        a=operand,
        b=operand,
        c=Layout((*_STEPS[:bits], *lanes), (*_LINES[:2], *own)),
        instruction=Builtin({d: f"__builtin_amdgcn_mfma_f32_{side}x{side}x{f}" for d, f in functions.items()}, operands, ", 0, 0, 0"),
    )


_HALVES = {"float16": ("half4", "half4"), "bfloat16": ("short4", "short4")}
MFMA_16X16X16 = _mfma("mfma_16x16x16", 16, 16, {"float16": "16f16", "bfloat16": "16bf16_1k"}, _HALVES)  # bfloat16 from gfx90a on
MFMA_32X32X8 = _mfma("mfma_32x32x8", 32, 8, {"float16": "8f16", "bfloat16": "8bf16_1k"}, _HALVES)
MFMA_32X32X2 = _mfma("mfma_32x32x2", 32, 2, {"float32": "2f32"}, {"float32": ("float", "float")})  # exact: fused multiply-adds
