"""AMD's matrix units, by AMD's "Matrix Instruction Calculator" and its instruction set manuals: "RDNA3" (2023) and "RDNA4" (2025) for WMMA,
"CDNA3" (2024) for MFMA. The compiler's functions are those of LLVM's AMDGPU target."""

from dataclasses import replace

from keras_ocl.core import dtypes
from keras_ocl.kernels.matrix.builtin import Builtin
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import TF32, MatrixUnit

_LINES = ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0))
_STEPS = ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16))
_NAMES = {"float16": "f16", "bfloat16": "bf16"}


def _shuffle(name: str, value: str, mask: int, barrier: str, /) -> str:
    return f"const float {name} = as_float(__builtin_amdgcn_ds_bpermute((lane ^ {mask}) << 2, as_int({value})));\n"


def _wmma(name: str, suffix: str, operand: Layout, sums: Layout, elements: int, replicas: int = 1) -> MatrixUnit:
    """A row of WMMA 16x16x16 with such layouts; elements: those of an operand's fragment."""
    return MatrixUnit(
        name=name,
        rows=16,
        columns=16,
        steps=16,
        dtypes=("float16", "bfloat16"),
        accumulator="float32",
        lanes=32,
        a=operand,
        b=operand,
        c=sums,
        instruction=Builtin(
            {dtype: f"__builtin_amdgcn_wmma_f32_16x16x16_{kind}_{suffix}" for dtype, kind in _NAMES.items()},
            {"float16": (f"half{elements}",) * 2, "bfloat16": (f"short{elements}",) * 2},
        ),
        shuffle=_shuffle,
        replicas=replicas,
    )


# gfx11: both halves of a wave hold the operands, and a half's lanes every other row of the sums. gfx12: a half holds half of the steps.
WMMA_GFX11 = _wmma(
    "wmma_gfx11", "w32", Layout((*_LINES[:4], (0, 0)), _STEPS[:4]), Layout((*_STEPS[:4], (1, 0)), _LINES[1:4]), elements=16, replicas=2
)
WMMA_GFX12 = _wmma(
    "wmma_gfx12", "w32_gfx12", Layout((*_LINES[:4], (0, 8)), _STEPS[:3]), Layout((*_STEPS[:4], (8, 0)), _LINES[:3]), elements=8
)


def _wmma_i8(unit: MatrixUnit, suffix: str, operand: str) -> MatrixUnit:
    """The row of signed bytes with the layouts of `unit`; operand: C type of an operand's fragment."""
    function = f"__builtin_amdgcn_wmma_i32_16x16x16_iu8_{suffix}"
    instruction = Builtin({"int8": function}, {"int8": (operand, operand)}, ", false", each="true, ", kind="int")
    return replace(unit, name=f"{unit.name}_i8", dtypes=("int8",), accumulator="int32", instruction=instruction, shuffle=None)


WMMA_GFX11_I8 = _wmma_i8(WMMA_GFX11, "w32", "int4")
WMMA_GFX12_I8 = _wmma_i8(WMMA_GFX12, "w32_gfx12", "int2")


def _mfma(name: str, side: int, steps: int, functions: dict[str, str], operands: dict[str, tuple[str, str]]) -> MatrixUnit:
    """A row of MFMA: blocks of side x side sums, of which a lane has four rows of one column, and again every eight or sixteen rows."""
    bits = side.bit_length() - 1
    parts = 64 // side  # of a wave, each of which holds some steps of all lines
    each = steps // parts  # steps of a lane
    operand = Layout((*_LINES[:bits], *((0, each << i) for i in range(parts.bit_length() - 1))), _STEPS[: each.bit_length() - 1])
    rows = [(4 << i, 0) for i in range(bits - 2)]  # the rows of the blocks of four: first the parts of a wave, then a lane's own
    lanes, own = rows[: parts.bit_length() - 1], rows[parts.bit_length() - 1 :]
    accumulator, kind = ("int32", "i32") if "int8" in functions else ("float32", "f32")
    calls = {d: f"__builtin_amdgcn_mfma_{kind}_{side}x{side}x{f}" for d, f in functions.items()}
    return MatrixUnit(
        name=name,
        rows=side,
        columns=side,
        steps=steps,
        dtypes=tuple(functions),
        accumulator=accumulator,
        lanes=64,
        a=operand,
        b=operand,
        c=Layout((*_STEPS[:bits], *lanes), (*_LINES[:2], *own)),
        instruction=Builtin(calls, operands, ", 0, 0, 0", kind=dtypes.register_ctype(accumulator)),
        shuffle=_shuffle if accumulator == "float32" else None,
    )


_HALVES = {"float16": ("half4", "half4"), "bfloat16": ("short4", "short4")}
MFMA_16X16X16 = _mfma("mfma_16x16x16", 16, 16, {"float16": "16f16", "bfloat16": "16bf16_1k"}, _HALVES)  # bfloat16 from gfx90a on
MFMA_32X32X8 = _mfma("mfma_32x32x8", 32, 8, {"float16": "8f16", "bfloat16": "8bf16_1k"}, _HALVES)
MFMA_32X32X2 = _mfma("mfma_32x32x2", 32, 2, {"float32": "2f32"}, {"float32": ("float", "float")})  # exact: fused multiply-adds

_XF32 = {TF32: ("float2", "float2")}
MFMA_16X16X8_XF32 = _mfma("mfma_16x16x8_xf32", 16, 8, {TF32: "8_xf32"}, _XF32)  # gfx940 to gfx942
MFMA_32X32X4_XF32 = _mfma("mfma_32x32x4_xf32", 32, 4, {TF32: "4_xf32"}, _XF32)

_FOUR, _EIGHT = {"int8": ("int", "int")}, {"int8": ("long", "long")}
MFMA_16X16X16_I8 = _mfma("mfma_16x16x16_i8", 16, 16, {"int8": "16i8"}, _FOUR)  # up to gfx90a
MFMA_32X32X8_I8 = _mfma("mfma_32x32x8_i8", 32, 8, {"int8": "8i8"}, _FOUR)
MFMA_16X16X32_I8 = _mfma("mfma_16x16x32_i8", 16, 32, {"int8": "32_i8"}, _EIGHT)  # from gfx940 on
MFMA_32X32X16_I8 = _mfma("mfma_32x32x16_i8", 32, 16, {"int8": "16_i8"}, _EIGHT)
