"""Arithmetic whose result is defined exactly, but which the emulator computed in a way that rounds, overflows or loses a sign."""

from tinygrad.dtype import dtypes
from tinygrad.runtime.support import compiler_cpu
from tinygrad.uop.ops import Ops, UOp


def c(text, dtype, *sources):
    """An expression in C, of `sources` as {0}, {1}..."""
    return UOp(Ops.CUSTOMI, dtype, sources, text)


def apply(emu, pcode):
    pcode._FUNCS.update(fma=fma, ldexp=ldexp, exact_frexp_mant=frexp_mant, exact_frexp_exp=frexp_exp)
    pcode._FUNCS.update(exact_quotient=quotient, exact_rndne=rndne)
    unfused(compiler_cpu.ClangCompiler)
    texts = {}
    for kind, product in (("i", signed_product), ("u", unsigned_product)):
        pcode._FUNCS[f"product_{kind}24"] = product
        name, factors = f"{kind}32_{kind}24".upper(), f"product_{kind}24(S0.u32, S1.u32)"
        texts[f"V_MUL_{name}"] = f"D0.u32 = {factors}.u32"
        texts[f"V_MUL_HI_{name}"] = f"D0.u32 = ({factors} >> 32).u32"
        texts[f"V_MAD_{name}"] = f"D0.u32 = {factors}.u32 + S2.u32"
    for bits in (16, 32, 64):
        whole = 16 if bits == 16 else 32
        texts[f"V_RNDNE_F{bits}"] = f"D0.f{bits} = exact_rndne(S0.f{bits})"
        texts[f"V_FREXP_MANT_F{bits}"] = f"D0.f{bits} = exact_frexp_mant(S0.f{bits})"
        texts[f"V_FREXP_EXP_I{whole}_F{bits}"] = f"D0.i{whole} = exact_frexp_exp(S0.f{bits})"
        texts[f"V_DIV_FIXUP_F{bits}"] = f"D0.f{bits} = exact_quotient(S1.f{bits}, S2.f{bits})"
        texts[f"V_LDEXP_F{bits}"] = f"D0.f{bits} = ldexp(S0.f{bits}, S1.i{whole})"
    replace_texts(emu, texts)


def replace_texts(emu, texts):
    """Makes the emulator read `texts` (name of an operation -> its pseudocode) in place of the instruction set's own."""
    before = emu.get_pcode

    def get_pcode(op):
        return texts.get(op.name.replace("_E64", "").replace("_E32", "")) or before(op)

    emu.get_pcode = get_pcode


def unfused(compiler):
    """Products and sums of several instructions must not become one rounding."""
    before = compiler.compile

    def compile_unfused(self, source):
        arguments = self.args
        try:
            self.args = [*arguments, "-ffp-contract=off"]
            return before(self, source)
        finally:
            self.args = arguments

    compiler.compile = compile_unfused


def fma(a, b, x):
    """One rounding; it was a product and a sum."""
    if a.dtype == dtypes.float32:
        return c("__builtin_fmaf({0}, {1}, {2})", a.dtype, a, b.cast(a.dtype), x.cast(a.dtype))
    if a.dtype == dtypes.float64:
        return c("__builtin_fma({0}, {1}, {2})", a.dtype, a, b.cast(a.dtype), x.cast(a.dtype))
    if a.dtype == dtypes.half:
        f = dtypes.float32
        return c("__builtin_fmaf({0}, {1}, {2})", f, a.cast(f), b.cast(f), x.cast(f)).cast(dtypes.half)
    return a * b + x


# In C, without a call: the emulator's loader places calls of libraries that are too far away wrongly.
_POWER = "__builtin_bit_cast(double, (long)(1023 + {n}) << 52)"
_BITS = "__builtin_bit_cast(unsigned long, {x})"
# {0} a double, {1} an int. A step to below the normal numbers leaves 53 bits above them, so that the result is rounded once.
_LDEXP = (
    "({{double y_ = {0}; int n_ = {1}; for (int k_ = 0; k_ < 2 && n_ > 1023; ++k_) y_ *= 0x1p1023, n_ -= 1023;"
    " for (int k_ = 0; k_ < 2 && n_ < -1022; ++k_) y_ *= 0x1p-969, n_ += 969;"
    " n_ = n_ > 1023 ? 1023 : n_ < -1022 ? -1022 : n_; y_ * " + _POWER.replace("{n}", "n_") + ";}})"
)
# {0} a double that is neither 0 nor infinite nor NaN.
_FREXP = (
    "double y_ = {0}; int e_ = -1022; if (!(" + _BITS.replace("{x}", "y_") + " >> 52 & 2047)) y_ *= 0x1p54, e_ -= 54;"
    " unsigned long b_ = " + _BITS.replace("{x}", "y_") + "; e_ += b_ >> 52 & 2047;"
)
_MANTISSA = "__builtin_bit_cast(double, (b_ & ~(2047ul << 52)) | 1022ul << 52)"
_SPECIAL = "{0} == 0 || __builtin_isinf({0}) || __builtin_isnan({0})"


def ldexp(x, n):
    """x times a power of two; it was infinite or 0 wherever that power is."""
    if x.dtype in (dtypes.uint32, dtypes.uint64):
        x = x.bitcast(dtypes.float32 if x.dtype == dtypes.uint32 else dtypes.float64)
    return c(_LDEXP, dtypes.float64, x.cast(dtypes.float64), n.cast(dtypes.int)).cast(x.dtype)


def frexp_mant(x):
    """The mantissa in [0.5, 1), also of denormal numbers; 0, infinities and NaN as they are."""
    text = f"({_SPECIAL} ? {{0}} : ({{{{{_FREXP} {_MANTISSA};}}}}))"
    return c(text, dtypes.float64, x.cast(dtypes.float64)).cast(x.dtype)


def frexp_exp(x):
    """The exponent of that mantissa; 0 for 0, infinities and NaN."""
    return c(f"({_SPECIAL} ? 0 : ({{{{{_FREXP} e_;}}}}))", dtypes.int, x.cast(dtypes.float64))


def quotient(d, n):
    """A division's last instruction gives what those before it are for, the quotient correctly rounded, also of denormal numbers."""
    if d.dtype == dtypes.half:
        return c("({1} / {0})", dtypes.float32, d.cast(dtypes.float32), n.cast(dtypes.float32)).cast(dtypes.half)
    return c("({1} / {0})", d.dtype, d, n)


def rndne(x):
    """To the nearest whole number, half to even; it was floor(x + 0.5), and x + 0.5 may be rounded."""
    if x.dtype == dtypes.float64:
        return c("__builtin_rint({0})", x.dtype, x)
    return c("__builtin_rintf({0})", dtypes.float32, x.cast(dtypes.float32)).cast(x.dtype)


def signed_product(a, b):
    """Of the lower 24 bits of two registers; the upper ones counted, and the sign was lost in the product's upper half."""
    factors = "(long)((int)({0} << 8) >> 8) * ((int)({1} << 8) >> 8)"
    return c(f"((unsigned long)({factors}))", dtypes.uint64, a.cast(dtypes.uint32), b.cast(dtypes.uint32))


def unsigned_product(a, b):
    """The same of numbers without a sign."""
    factors = "({0} & 0xFFFFFFu) * (unsigned long)({1} & 0xFFFFFFu)"
    return c(f"({factors})", dtypes.uint64, a.cast(dtypes.uint32), b.cast(dtypes.uint32))
