"""Approximate instructions for floats of 32 bits: AMD's manuals allow an error of one unit of the last place.

They compute in double. Where the result is no float, it is rounded to the nearest one, or with a seed (EMULATED_ULPS) to either of the
two beside it, as a function of the argument: less than a unit away. What is exact stays so (1 / 4, 2 to the power of 3).
"""

from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

from tests.emulated.patches.arithmetic import c, replace_texts

_ULPS = 270  # of a wave's scalar registers, as in driver/waves.c
_FUNCTIONS = {
    "V_RCP_F32": "rcp",
    "V_RCP_IFLAG_F32": "rcp",
    "V_RSQ_F32": "rsq",
    "V_SQRT_F32": "root",
    "V_EXP_F32": "exp2",
    "V_LOG_F32": "log2",
}
# In C: {0} the result, {1} the argument, {2} the seed. Bits of a hash decide. A result near 0 or near infinity stays as it is.
_EITHER = (
    "({{double r_ = {0}; float f_ = (float)r_;"
    " unsigned x_ = __builtin_bit_cast(unsigned, {1}), u_ = __builtin_bit_cast(unsigned, f_), s_ = {2};"
    " unsigned h_ = (x_ ^ s_ * 2654435769u) * 2246822519u; h_ ^= h_ >> 15; h_ *= 3266489917u; h_ ^= h_ >> 16;"
    " unsigned e_ = u_ & 0x7F800000u;"
    " s_ && (h_ & 1) && (double)f_ != r_ && e_ > 0x00800000u && e_ < 0x7F000000u"
    " ? __builtin_bit_cast(float, u_ + ((r_ > (double)f_) == (f_ > 0) ? 1u : -1u)) : f_;}})"
)


def apply(emu, pcode):
    seed = emu._Ctx.sgpr

    def either(exact, x):
        word = seed.index(UOp.const(_ULPS, dtypes.uint32)).load()
        return c(_EITHER, dtypes.float32, exact, x, word)

    def double(x):
        return x.cast(dtypes.float64)

    def rcp(x):
        return either(c("(1.0 / {0})", dtypes.float64, double(x)), x)

    def rsq(x):
        return either(c("(1.0 / __builtin_sqrt({0}))", dtypes.float64, double(x)), x)

    def root(x):
        return either(c("__builtin_sqrt({0})", dtypes.float64, double(x)), x)

    def exp2(x):
        return either(UOp(Ops.EXP2, dtypes.float64, (double(x),)), x)

    def log2(x):
        return either(UOp(Ops.LOG2, dtypes.float64, (double(x),)), x)

    for function in (rcp, rsq, root, exp2, log2):
        pcode._FUNCS[f"near_{function.__name__}"] = function
    replace_texts(emu, {name: f"D0.f32 = near_{function}(S0.f32)" for name, function in _FUNCTIONS.items()})
