"""Scalar registers: modes of floats, which code_objects.py tells the driver, the program's counter, carries, and where local memory is."""

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import UOp

_LOCAL_BASE = 235  # the operand src_shared_base


def apply(emu, pcode):
    modes(emu)
    counters(emu)
    carries(emu)
    local_base(emu)


def modes(emu):
    """s_setreg and the like: there are no such registers."""
    for kind in ("SOPK", "SOPK_LIT", "SOPP"):
        for module in (emu.ir3, emu.ir4, emu.irc):
            cls = getattr(module, kind, None)
            handler = cls and next((emu._INST_HANDLERS[k] for k in cls.__mro__ if k in emu._INST_HANDLERS), None)
            if not handler:
                continue

            def handle(inst, ctx, handler=handler):
                name = getattr(inst.op, "name", "")
                if name.startswith("S_SETREG") or name in ("S_DENORM_MODE", "S_ROUND_MODE"):
                    return UOp.sink(*ctx.inc_pc())
                return handler(inst, ctx)

            emu._INST_HANDLERS[cls] = handle


def counters(emu):
    """s_getpc, by which the compiler finds tables of constants; s_setpc and s_swappc: returns and calls."""

    def scalar(inst, ctx, before):
        name = getattr(inst.op, "name", "").replace("_PC_I64", "PC_B64").replace("_PC_B64", "PC_B64")
        if name not in ("S_GETPC_B64", "S_SETPC_B64", "S_SWAPPC_B64"):
            return before(inst, ctx)
        stores = []
        if name != "S_GETPC_B64":
            start = ctx.inst_field(type(inst).ssrc0)
            low, high = ctx.rsgpr_dyn(start), ctx.rsgpr_dyn(start + emu._c(1))
            stores += [ctx.wsgpr_dyn(emu._c(emu.PC_LO_IDX), low), ctx.wsgpr_dyn(emu._c(emu.PC_HI_IDX), high)]
        if name != "S_SETPC_B64":
            to, behind = ctx.inst_field(type(inst).sdst), ctx.rpc() + UOp.const(ctx.inst_size, dtypes.uint64)
            low, high = emu._split64(behind)
            stores += [ctx.wsgpr_dyn(to, low), ctx.wsgpr_dyn(to + emu._c(1), high)]
        return UOp.sink(*stores, *(ctx.inc_pc() if name == "S_GETPC_B64" else ()))

    for module in (emu.ir3, emu.ir4, emu.irc):
        before = emu._INST_HANDLERS[module.SOP1]
        emu._INST_HANDLERS[module.SOP1] = lambda inst, ctx, before=before: scalar(inst, ctx, before)


def carries(emu):
    """Bits of work-items that are off are 0 in what vector instructions write: the compiler compares such masks with 0."""
    unroll, write = emu._Ctx.unroll_lanes, emu._Ctx.wmask_lane_bit

    def wmask_lane_bit(self, register, lane, value, active):
        bit = emu._lane_active(active, lane).where(emu._to_u32(value), emu._c(0))
        return write(self, register, lane, bit, UOp.const((1 << self.wave_size) - 1, active.dtype))

    emu._Ctx.unroll_lanes = lambda self, bit, active, apply_exec=True: unroll(self, bit, active)
    emu._Ctx.wmask_lane_bit = wmask_lane_bit


def local_base(emu):
    """The address of local memory among generic pointers: its upper half is in a scalar register, its lower half is 0."""
    before = emu._Ctx.rsrc_dyn

    def rsrc_dyn(self, off, lane, bits=32, *others, **more):
        value = before(self, off, lane, bits, *others, **more)
        if bits != 64 or lane is not None:
            return value
        upper = self.rsgpr_dyn(emu._c(_LOCAL_BASE)).cast(dtypes.uint64) << UOp.const(32, dtypes.uint64)
        return off.eq(emu._c(_LOCAL_BASE)).where(upper, value)

    emu._Ctx.rsrc_dyn = rsrc_dyn
