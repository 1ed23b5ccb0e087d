"""CDNA's accumulation registers and matrix instructions (MFMA).

Which operands are accumulation registers, some instructions ignored. Of matrix instructions the types int8 and xf32 did not compile or were
taken for others, infinities and subnormal numbers of float16 became other numbers, and results of 32 rows lay in other registers than AMD's
matrix instruction calculator says: row 8 (i / 4) + 4 (lane / 32) + i mod 4 in register i.
"""

import ast

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

from tests.emulated.patches.arithmetic import c
from tests.emulated.patches.text import ask_in_place_of, changed, inner, statements


def apply(emu, pcode):
    memory_operands(emu)
    matrix_types(emu)
    matrix_operands(emu)


def memory_operands(emu):
    """Data that local memory's stores and atomic operations take from accumulation registers."""
    before = emu._compile_mem_op

    def compile_mem_op(inst, ctx):
        if emu._iattr(inst, "acc"):
            fields = [getattr(type(inst), name) for name in ("data0", "data1", "data") if hasattr(type(inst), name)]
            ctx = _Accumulating(emu, ctx, [ctx.inst_field(field) for field in fields])
        return before(inst, ctx)

    _replace(emu, before, compile_mem_op)
    emu._compile_mem_op = compile_mem_op


def matrix_operands(emu):
    """Left and right operands of matrix instructions in accumulation registers."""
    before = emu._compile_mfma

    def compile_mfma(inst, ctx):
        which = emu._iattr(inst, "acc") or not hasattr(inst, "acc") and emu._iattr(inst, "opsel_hi")
        fields = [getattr(type(inst), f"src{k}") for k in (0, 1) if which >> k & 1]
        return before(inst, _Accumulating(emu, ctx, [ctx.inst_field(field) for field in fields]) if fields else ctx)

    emu._compile_mfma = compile_mfma


def _replace(emu, before, now):
    for cls, handler in list(emu._INST_HANDLERS.items()):
        if handler is before:
            emu._INST_HANDLERS[cls] = now


class _Accumulating:
    """An instruction's context in which vector registers that are counted from the `fields` are accumulation registers."""

    def __init__(self, emu, context, fields):
        self._context, self._fields = context, set(fields)

    def __getattr__(self, name):
        return getattr(self._context, name)

    def rvgpr_dyn(self, register, lane, valid=None):
        read = self._context.raccvgpr_dyn if self._fields & {register, *register.toposort()} else self._context.rvgpr_dyn
        return read(register, lane, valid)


def matrix_types(emu):
    """Words of int8, xf32 as float32, all values of float16, and the places of 32 rows."""
    emu._as_word = lambda value: value.bitcast(dtypes.uint32) if value.dtype == dtypes.int32 else value
    emu._type_of = lambda name: "F32" if name == "XF32" else name

    def half_as_float(word, which):
        half = (word >> UOp.const(16 * which, dtypes.uint32)).cast(dtypes.uint16)
        return c("__builtin_bit_cast(unsigned, (float)__builtin_bit_cast(__fp16, {0}))", dtypes.uint32, half)

    emu._half_as_float = half_as_float

    def row_of_32(group, register):
        return group * UOp.const(4, dtypes.int) + UOp.const(register // 4 * 8 + register % 4, dtypes.int)

    emu._row_of_32 = row_of_32

    # xf32's are decoded as other instructions, which have names of their own for the same bits.
    emu._accumulates = lambda inst: emu._iattr(inst, "acc_cd") if hasattr(inst, "acc_cd") else emu._iattr(inst, "clmp")

    def change(tree):
        ask_in_place_of(tree, "acc_cd", "_accumulates")
        for node in ast.walk(inner(tree, "cvt_elem")):
            if isinstance(node, ast.Return):
                node.value = _call("_as_word", node.value)
        inner(tree, "cvt_elem").body[:0] = statements("if src_type == 'F16': return _half_as_float(raw, sub_idx)")
        types = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "src_type" for target in node.targets)
        ]
        assert len(types) == 1, f"this version of the emulator sets src_type {len(types)} times where once is expected"
        types[0].value = _call("_type_of", types[0].value)
        rows = "if M == 32: return _row_of_32(c_grp, out_reg) * UOp.const(K, dtypes.int), b_off + c_mn * UOp.const(K, dtypes.int)"
        inner(tree, "out_ab").body[:0] = statements(rows)

    changed(emu, "_compile_mfma", change)


def _call(name, value):
    return ast.Call(ast.Name(name, ast.Load()), [value], [])
