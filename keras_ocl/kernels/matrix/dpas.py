"""Intel's matrix units (XMX): dpas, by the OpenCL extension cl_intel_subgroup_matrix_multiply_accumulate (1.1, 2022)."""

from dataclasses import replace

from keras_ocl.kernels.matrix.builtin import Builtin
from keras_ocl.kernels.matrix.layout import Layout
from keras_ocl.kernels.matrix.unit import MatrixUnit

_EXTENSION = "cl_intel_subgroup_matrix_multiply_accumulate"
_NAMES = {"float16": "f16", "bfloat16": "bf16"}
_LINES = ((1, 0), (2, 0), (4, 0), (8, 0))
_STEPS = ((0, 1), (0, 2), (0, 4), (0, 8))


def _shuffle(name: str, value: str, mask: int, barrier: str, /) -> str:
    return f"const float {name} = intel_sub_group_shuffle_xor({value}, {mask}u);\n"


def _unit(lanes: int, a: Layout, left: str) -> MatrixUnit:
    """The row of sub-groups of so many lanes, each of which has a column of the sums; `left`: C type of the left operand's fragment."""
    bits = lanes.bit_length() - 1
    functions = {dtype: f"intel_sub_group_{name}_{name}_matrix_mad_k16" for dtype, name in _NAMES.items()}
    return MatrixUnit(
        name=f"dpas_{lanes}",
        rows=8,
        columns=lanes,
        steps=16,
        dtypes=tuple(_NAMES),
        accumulator="float32",
        lanes=lanes,
        a=a,
        b=Layout(_LINES[:bits], _STEPS),
        c=Layout(_STEPS[:bits], _LINES[:3]),
        instruction=Builtin(functions, dict.fromkeys(_NAMES, (left, "int8")), declared=_EXTENSION),
        shuffle=_shuffle,
        copies=3,  # as Intel's compiler uses them
        room=16 // lanes,
        attributes=f"__attribute__((intel_reqd_sub_group_size({lanes})))\n",
    )


DPAS_8 = _unit(8, Layout(((0, 2), (0, 4), (0, 8)), ((0, 1), *_LINES[:3])), "int8")  # Arc (Xe-HPG): a register has two steps of a row
DPAS_16 = _unit(16, Layout(_STEPS, _LINES[:3]), "short8")  # Xe-HPC, Xe2: a register has a step of two rows


def _bytes(unit: MatrixUnit, a: Layout, left: str) -> MatrixUnit:
    """The row of bytes beside `unit`, with twice as many steps; the others as of _unit()."""
    function, kinds = "intel_sub_group_i8_i8_matrix_mad_k32", {"int8": (left, "int8")}
    return replace(
        unit,
        name=f"{unit.name}_i8",
        steps=32,
        dtypes=("int8",),
        accumulator="int32",
        a=a,
        b=Layout(unit.b.lane, (*_STEPS, (0, 16))),
        instruction=Builtin({"int8": function}, kinds, declared=_EXTENSION, kind="int"),
        shuffle=None,
    )


DPAS_8_I8 = _bytes(DPAS_8, Layout(((0, 4), (0, 8), (0, 16)), ((0, 1), (0, 2), *_LINES[:3])), "int8")  # a register has four steps of a row
