"""RDNA's moves between vector registers whose number the scalar register M0 is added to, which were unknown: arrays in registers."""

from tinygrad.uop.ops import UOp

_M0 = 125
_FIRST = 256  # number of the first vector register among sources
_NAMES = ("V_MOVRELS_B32_E32", "V_MOVRELD_B32_E32")


def apply(emu, pcode):
    def moved(inst, ctx, before):
        name = emu._op_name(inst)
        if name not in _NAMES:
            return before(inst, ctx)
        lane, active, offset = ctx.range(), ctx.rexec(), ctx.rsgpr_dyn(emu._c(_M0))
        source, to = ctx.inst_field(type(inst).src0), ctx.inst_field(type(inst).vdst)
        if name == "V_MOVRELS_B32_E32":
            value = ctx.rvgpr_dyn(source - emu._c(_FIRST) + offset, lane)
        else:
            value, to = ctx.rsrc_dyn(source, lane, 32), to + offset
        return UOp.sink(ctx.wvgpr_dyn(to, lane, value, active).end(lane), *ctx.inc_pc())

    for module in (emu.ir3, emu.ir4):
        before = emu._INST_HANDLERS[module.VOP1]
        emu._INST_HANDLERS[module.VOP1] = lambda inst, ctx, before=before: moved(inst, ctx, before)
