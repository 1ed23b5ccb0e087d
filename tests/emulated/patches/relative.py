"""Moves between vector registers whose numbers depend on a scalar register, which were unknown: arrays in registers.

RDNA's v_movrels and v_movreld add M0. On CDNA, v_mov between s_set_gpr_idx_on and s_set_gpr_idx_off adds an index.
"""

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

_M0 = 125  # on RDNA
_FIRST = 256  # number of the first vector register among sources
_MOVES = ("V_MOVRELS_B32_E32", "V_MOVRELD_B32_E32")
_SOURCE, _TO = 271, 272  # scalar registers of ours: the index of sources and of results. They begin as 0 (driver/waves.c).
_SOURCE_BIT, _TO_BIT = 0, 3  # of the second operand of s_set_gpr_idx_on


def apply(emu, pcode):
    for module in (emu.ir3, emu.ir4):
        _before(emu, module.VOP1, moved_by_m0)
    _before(emu, emu.irc.VOP1, moved_by_index)
    _before(emu, emu.irc.SOPC, index_on)
    _before(emu, emu.irc.SOPP, index_off)


def _before(emu, cls, handler):
    """`handler` is asked first for the instructions of a class; it gives None for those that it does not know."""
    otherwise = emu._INST_HANDLERS[cls]

    def handle(inst, ctx):
        done = handler(emu, inst, ctx)
        return otherwise(inst, ctx) if done is None else done

    emu._INST_HANDLERS[cls] = handle


def moved_by_m0(emu, inst, ctx):
    name = emu._op_name(inst)
    if name not in _MOVES:
        return None
    lane, source, to = ctx.range(), ctx.inst_field(type(inst).src0), ctx.inst_field(type(inst).vdst)
    offset = ctx.rsgpr_dyn(emu._c(_M0))
    if name == "V_MOVRELS_B32_E32":
        value = ctx.rvgpr_dyn(source - emu._c(_FIRST) + offset, lane)
    else:
        value, to = ctx.rsrc_dyn(source, lane, 32, ctx.optional_field(inst, "literal")), to + offset
    return UOp.sink(ctx.wvgpr_dyn(to, lane, value, ctx.rexec()).end(lane), *ctx.inc_pc())


def moved_by_index(emu, inst, ctx):
    if emu._op_name(inst) != "V_MOV_B32_E32":
        return None
    lane, source, to = ctx.range(), ctx.inst_field(type(inst).src0), ctx.inst_field(type(inst).vdst)
    source = source + (source >= emu._c(_FIRST)).where(ctx.rsgpr_dyn(emu._c(_SOURCE)), emu._c(0))
    value, to = ctx.rsrc_dyn(source, lane, 32, ctx.optional_field(inst, "literal")), to + ctx.rsgpr_dyn(emu._c(_TO))
    return UOp.sink(ctx.wvgpr_dyn(to, lane, value, ctx.rexec()).end(lane), *ctx.inc_pc())


def index_on(emu, inst, ctx):
    if emu._op_name(inst) != "S_SET_GPR_IDX_ON":
        return None
    index = ctx.rsrc_dyn(ctx.inst_field(type(inst).ssrc0), None, 32) & emu._c(0xFF)
    which = ctx.inst_field(type(inst).ssrc1)
    stores = [
        ctx.wsgpr_dyn(emu._c(slot), ((which >> UOp.const(bit, dtypes.uint32)) & emu._c(1)) * index)
        for slot, bit in ((_SOURCE, _SOURCE_BIT), (_TO, _TO_BIT))
    ]
    return UOp.sink(*stores, *ctx.inc_pc())


def index_off(emu, inst, ctx):
    if emu._op_name(inst) != "S_SET_GPR_IDX_OFF":
        return None
    return UOp.sink(*(ctx.wsgpr_dyn(emu._c(slot), emu._c(0)) for slot in (_SOURCE, _TO)), *ctx.inc_pc())
