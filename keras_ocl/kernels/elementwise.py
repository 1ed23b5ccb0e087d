"""Elementwise primitives in OpenCL C: the expression of each op on registers, at any vector width.

Operands are names of registers (or other expressions) of the types of `prelude.register_type`: bool is int lanes of 0 and -1 at
every width, floats of 16 and 8 bits are float. Their arithmetic keeps float's precision and range within a fused kernel; `convert`
and `rounded` round to the narrower type.

OPS has a row for each op: its cost, and its text by class of dtype. The text is a format string of the operands, or a function that
takes the Types it is written for and returns such a string; None where there is no expression.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.kernels.prelude import library
from keras_ocl.kernels.prelude.library import vector_type

CHEAP, MEDIUM, TRANSCENDENTAL = 1, 4, 20

# The least magnitude that rounds to infinity (or NaN) in the stored type: a register's range may exceed the type's.
_OVERFLOW = {
    "float16": "65520.0f",
    "bfloat16": "0x1.ffp127f",
    "float8_e4m3fn": "464.0f",
    "float8_e5m2": "61440.0f",
}
_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "float": 32, "double": 64}


class Expression(NamedTuple):
    """C text, and the names of the prelude's functions that it calls."""

    text: str
    helpers: frozenset[str]


@dataclass
class Types:
    """What an op's text is written for: lanes, the result's dtype and that of the first operand, C types of a lane (of a complex number: of
    a part) and of all lanes. `operands` are the placeholders of the operands; `helpers` collects the prelude's functions that are called.
    """

    op: str
    width: int
    out: str
    dtype: str
    operands: list[str]
    helpers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ctype = dtypes.register_ctype(dtypes.part(self.dtype))
        self.register = vector_type(self.ctype, self.width)
        self.bits, self.signed = 8 * dtypes.itemsize(self.dtype), dtypes.is_signed(self.dtype)

    def call(self, stem: str, *operands: str) -> str:
        """A call of the prelude's function of this stem, with all operands unless some are given."""
        name = f"{stem}_{self.width}"
        self.helpers.add(name)
        return f"{name}({', '.join(operands or self.operands)})"

    def mask(self, comparison: str, ctype: str | None = None) -> str:
        """A bool register from a comparison of registers of the operands' type, or of lanes of `ctype`."""
        if self.width == 1:
            return f"(-({comparison}))"
        bits = _BITS[(ctype or self.ctype).removeprefix("u")]
        return f"({comparison})" if bits == 32 else f"convert_int{self.width}({comparison})"

    def wrapped(self, text: str) -> str:
        """An integer in the range of its type: C computes those of few bits in int."""
        return f"({self.ctype})({text})" if self.width == 1 and self.bits < 32 else f"({text})"


_Text = str | Callable[[Types], str | None] | None


@dataclass(frozen=True)
class Op:
    """An elementwise op: its number of operands, its approximate cost per element in cheap operations (additions), its text by dtype.

    The class is that of the first operand's dtype. Complex numbers have one lane only, as their register is a vector of two parts already.
    """

    arity: int
    cost: int
    floats: _Text = None
    integers: _Text = None
    bools: _Text = None
    complexes: _Text = None


def emit(op: str, width: int, out_dtype: str, in_dtypes: Sequence[str], operands: Sequence[str]) -> Expression:
    """Expression of `op` on registers.

    `operands` are C expressions of `width` lanes, of the register types of `in_dtypes`; the result has that of `out_dtype`.
    Binary ops expect both operands in one dtype. TypeError if the op is not defined for its dtypes.
    """
    text, helpers = _form(op, width, out_dtype, tuple(in_dtypes))
    return Expression(text.format(*[o if o.isidentifier() else _operand(o) for o in operands]), helpers)


@functools.cache
def has_form(op: str, out_dtype: str, in_dtypes: tuple[str, ...]) -> bool:
    """Whether emit() has an expression of `op` for operands of `in_dtypes`, a tuple."""
    try:
        _form(op, 1, out_dtype, in_dtypes)
    except TypeError:
        return False
    return True


@functools.cache
def _form(op: str, width: int, out_dtype: str, in_dtypes: tuple[str, ...]) -> Expression:
    """The Expression whose text is a format string of the operands."""
    if op not in OPS:
        raise ValueError(f"there is no elementwise op {op!r}; known: {', '.join(sorted(OPS))}")
    row = OPS[op]
    if len(in_dtypes) != row.arity:
        raise TypeError(f"elementwise op {op!r} takes {row.arity} operands, got {len(in_dtypes)} ({', '.join(in_dtypes)})")
    is_complex = dtypes.is_complex(out_dtype) or dtypes.is_complex(in_dtypes[0])
    types = Types(op, width, out_dtype, in_dtypes[0], [f"{{{k}}}" for k in range(row.arity)])
    text: _Text
    if is_complex:
        text = row.complexes if width == 1 else None
    elif in_dtypes[0] == "bool":
        text = row.bools
    else:
        text = row.floats if dtypes.is_float(in_dtypes[0]) else row.integers
    if callable(text):
        text = text(types)
    if text is None:
        wide = " at vector width" if width > 1 and is_complex else ""
        raise TypeError(f"elementwise op {op!r} has no form for {', '.join(in_dtypes)}{wide}; convert the operands first")
    return Expression(text, frozenset(types.helpers))


def _operand(text: str) -> str:
    """`text` in parentheses, unless it is a number or in parentheses already."""
    alone = text.isalnum() or text[0] == "(" and text.find(")") == len(text) - 1
    return text if alone else f"({text})"


def literal(value: Any, dtype: str) -> str:
    """C text of the number `value`, rounded to `dtype`, in a register of one lane (in vector expressions it is broadcast)."""
    dtype = dtypes.canonical(dtype)
    if dtype == "bool":
        return "-1" if value else "0"
    if dtypes.is_complex(dtype):
        part, number = dtypes.part(dtype), complex(value)
        return f"({dtypes.register_ctype(dtype)})({literal(number.real, part)}, {literal(number.imag, part)})"
    if dtypes.is_float(dtype):
        with np.errstate(over="ignore"):
            number = float(np.asarray(value).astype(dtypes.numpy_dtype(dtype)))
        ctype = dtypes.register_ctype(dtype)
        if not math.isfinite(number):
            return f"(({ctype}){'NAN' if math.isnan(number) else 'INFINITY' if number > 0 else '-INFINITY'})"
        mantissa, exponent = number.hex().split("p")
        text = f"{mantissa.rstrip('0').rstrip('.')}p{exponent}{'f' if ctype == 'float' else ''}"
        return f"({text})" if text.startswith("-") else text
    bits, unsigned = 8 * dtypes.itemsize(dtype), not dtypes.is_signed(dtype)
    number = int(value) & ((1 << bits) - 1)
    if not unsigned and number >> (bits - 1):
        number -= 1 << bits
    suffix = ("u" if unsigned and bits >= 32 else "") + ("L" if bits == 64 else "")
    if number == -(1 << (bits - 1)) and bits >= 32:
        text = f"({number + 1}{suffix} - 1)"
    else:
        text = f"{number}{suffix}" if number >= 0 else f"({number}{suffix})"
    return f"(({dtypes.register_ctype(dtype)}){text})" if bits < 32 else text


def splat(text: str, dtype: str, width: int) -> str:
    """Expression of a register of `width` lanes, all of the value of the scalar expression `text`."""
    return text if width == 1 else f"({vector_type(dtypes.register_ctype(dtype), width)})({text})"


# ---- texts


def _prelude(otherwise: str | None = None) -> Callable[[Types], str | None]:
    """A call of the prelude's function `<op>_<C type>`, or where there is none the text `otherwise`."""

    def text(t: Types) -> str | None:
        stem = f"{t.op}_{t.ctype}"
        return t.call(stem) if library.exists(stem) else otherwise

    return text


def _complex_prelude(t: Types) -> str:
    return t.call(f"complex_{t.op}_{t.ctype}")


def _mask(comparison: str) -> Callable[[Types], str]:
    return lambda t: t.mask(comparison)


def _all(value: str) -> Callable[[Types], str]:
    """A bool that is the same for all numbers: "-1" or "0"."""
    return lambda t: splat(value, "bool", t.width)


def _arithmetic(symbol: str) -> Callable[[Types], str]:
    """Integers that wrap."""

    def text(t: Types) -> str:
        if t.width == 1 and (t.bits >= 32 and t.signed or t.bits == 16 and symbol == "*"):
            # Overflow of signed scalars is undefined in C (a product of two shorts overflows int as well).
            unsigned = "ulong" if t.bits == 64 else "uint"
            return f"({t.ctype})(({unsigned}){{0}} {symbol} ({unsigned}){{1}})"
        return t.wrapped(f"{{0}} {symbol} {{1}}")

    return text


def _wrapped(text: str) -> Callable[[Types], str]:
    return lambda t: t.wrapped(text)


def _negative_integer(t: Types) -> str:
    return f"({t.ctype})(0{'ul' if t.bits == 64 else 'u'} - {{0}})" if t.width == 1 else "(-{0})"


def _sign_of_integer(t: Types) -> str:
    if t.width == 1:
        return t.wrapped("({0} > 0) - ({0} < 0)")
    # A vector comparison gives -1 where true.
    return f"(({{0}} < ({t.register})0) - ({{0}} > ({t.register})0))" if t.signed else f"min({{0}}, ({t.register})1)"


def _relu(t: Types) -> str:
    zero = splat(literal(0, t.dtype), t.dtype, t.width)
    return f"({{0}} < {zero} ? {zero} : {{0}})"  # a NaN is not below 0, so it stays


def _limit(dtype: str) -> str:
    return _OVERFLOW.get(dtype, literal(math.inf, dtype))


def _is_inf(t: Types) -> str:
    if t.dtype == "float8_e4m3fn":  # has no infinity
        return splat("0", "bool", t.width)
    return t.mask(f"fabs({{0}}) >= {_limit(t.dtype)}")


def _nextafter(t: Types) -> str:
    return t.call(f"nextafter_{t.dtype}") if t.dtype in ("float16", "bfloat16") else "nextafter({0}, {1})"


def _select(t: Types) -> str:
    if t.width == 1:
        return "({0} ? {1} : {2})"
    bits = 32 if t.out == "bool" else _BITS[dtypes.register_ctype(t.out).removeprefix("u")]
    mask = "{0}" if bits == 32 else f"convert_{ {8: 'char', 16: 'short', 64: 'long'}[bits] }{t.width}({{0}})"
    return f"select({{2}}, {{1}}, {mask})"


def _is_small_float(dtype: str) -> bool:
    return dtypes.is_float(dtype) and dtypes.itemsize(dtype) < 4


def _rounded(t: Types, text: str, dtype: str) -> str:
    """`text` rounded to the values of a stored `dtype`, still in a register (floats of 16 and 8 bits; else unchanged)."""
    return t.call(f"round_{dtype}", text) if _is_small_float(dtype) else text


def _convert(t: Types) -> str | None:
    return _converted(t, t.dtype, "{0}", t.out)


def _converted(t: Types, source: str, x: str, out: str) -> str | None:
    if out == source:
        return x
    if dtypes.is_complex(source):
        if t.width != 1:
            return None
        if out == "bool":
            return f"(-({x}.x != 0 || {x}.y != 0))"
        if dtypes.is_complex(out):
            return f"convert_{dtypes.register_ctype(out)}({x})"
        return _converted(t, dtypes.part(source), f"{x}.x", out)
    if dtypes.is_complex(out):
        return f"({dtypes.register_ctype(out)})({_converted(t, source, x, dtypes.part(out))}, 0)" if t.width == 1 else None
    there = dtypes.register_ctype(out)
    register = vector_type(there, t.width)
    if out == "bool":
        return t.mask(f"{x} != {literal(0, source)}")
    if source == "bool":
        if there == "float":
            return f"as_{register}({x} & 0x3f800000)"
        return f"(-{x})" if there == "int" else f"convert_{register}(-{x})"
    if dtypes.is_integer(source):
        return _rounded(t, f"convert_{register}({x})", out)
    if dtypes.is_integer(out):
        return f"convert_{register}_sat({t.call(f'nan_to_zero_{t.ctype}', x)})"
    if source == "float64":
        return t.call("double_to_float16", x) if out == "float16" else _rounded(t, f"convert_{register}({x})", out)
    if out == "float64":
        return f"convert_{register}({x})"
    # Both are in float registers; rounding is needed only if `out` lacks some numbers of `source`.
    return x if out == "float32" or (source.startswith("float8") and not out.startswith("float8")) else _rounded(t, x, out)


def _bitcast(t: Types) -> str | None:
    out, source, x = t.out, t.dtype, "{0}"
    if dtypes.itemsize(out) != dtypes.itemsize(source):
        return None
    if out == source:
        return x
    if source == "bool":
        x, raw = f"convert_{vector_type('uchar', t.width)}(-{x})", "uchar"
    elif _is_small_float(source):
        raw = "uchar" if dtypes.itemsize(source) == 1 else "ushort"
        x = t.call(f"to_{source}", x)
    else:
        raw = dtypes.register_ctype(source)
    if out == "bool":
        return t.mask(f"as_{vector_type('uchar', t.width)}({x}) != 0", "uchar")
    if _is_small_float(out):
        bits = vector_type("uchar" if dtypes.itemsize(out) == 1 else "ushort", t.width)
        return t.call(f"from_{out}", f"as_{bits}({x})")
    return x if raw == dtypes.register_ctype(out) else f"as_{vector_type(dtypes.register_ctype(out), t.width)}({x})"


# ---- the table


def _of_floats(text: _Text, arity: int = 1, cost: int = TRANSCENDENTAL) -> Op:
    return Op(arity, cost, text)


def _rounding(text: str) -> Op:
    return Op(1, CHEAP, text, "{0}", "{0}")


def _bitwise(symbol: str) -> Op:
    return Op(2, CHEAP, None, _wrapped(f"{{0}} {symbol} {{1}}"), f"({{0}} {symbol} {{1}})")


def _comparison(symbol: str, bools: _Text, complexes: _Text = None) -> Op:
    text = _mask(f"{{0}} {symbol} {{1}}")
    return Op(2, CHEAP, text, text, bools, complexes)


def _of_all(arity: int, cost: int, text: _Text) -> Op:
    return Op(arity, cost, text, text, text, text)


# Columns: operands, cost; text for floats, integers, bools, complex numbers. Registers of bools hold 0 and -1: their order is reversed, and
# maximum and minimum are bitwise.
OPS = {
    "neg": Op(1, CHEAP, "(-{0})", _negative_integer, None, "(-{0})"),
    "abs": Op(
        1,
        CHEAP,
        "fabs({0})",
        lambda t: f"as_{t.register}(abs({{0}}))" if t.signed else "{0}",
        "{0}",
        lambda t: t.call(f"hypot_{t.ctype}", "{0}.x", "{0}.y"),
    ),
    "sign": Op(1, CHEAP, _prelude(), _sign_of_integer, "{0}"),
    "relu": Op(1, CHEAP, _relu, lambda t: f"max({{0}}, ({t.register})0)" if t.signed else "{0}", "{0}"),
    "floor": _rounding("floor({0})"),
    "ceil": _rounding("ceil({0})"),
    "round": _rounding("rint({0})"),
    "trunc": _rounding("trunc({0})"),
    "is_finite": Op(
        1, CHEAP, lambda t: t.mask(f"fabs({{0}}) < {_limit(t.dtype)}"), _all("-1"), _all("-1"), "(-(isfinite({0}.x) && isfinite({0}.y)))"
    ),
    "is_nan": Op(1, CHEAP, _mask("{0} != {0}"), _all("0"), _all("0"), "(-({0}.x != {0}.x || {0}.y != {0}.y))"),
    "is_inf": Op(1, CHEAP, _is_inf, _all("0"), _all("0"), "(-(isinf({0}.x) || isinf({0}.y)))"),
    "not": Op(1, CHEAP, None, _wrapped("~{0}"), "(~{0})"),
    "population_count": Op(1, CHEAP, None, lambda t: _converted(t, t.dtype, "popcount({0})", t.out)),
    "convert": _of_all(1, CHEAP, _convert),
    "bitcast": _of_all(1, CHEAP, _bitcast),
    "conj": Op(1, CHEAP, None, "{0}", None, lambda t: f"({t.ctype}2)({{0}}.x, -{{0}}.y)"),
    "real": Op(1, CHEAP, None, "{0}", None, "({0}.x)"),
    "imag": Op(1, CHEAP, None, None, None, "({0}.y)"),
    "sqrt": _of_floats("sqrt({0})", cost=MEDIUM),
    "rsqrt": _of_floats(_prelude("rsqrt({0})"), cost=MEDIUM),
    "exp": Op(1, TRANSCENDENTAL, _prelude("exp({0})"), complexes=_complex_prelude),
    "exp2": _of_floats("exp2({0})"),
    "expm1": _of_floats(_prelude("expm1({0})")),
    "log": _of_floats(_prelude("log({0})")),
    "log1p": _of_floats(_prelude("log1p({0})")),
    "log2": _of_floats("log2({0})"),
    "log10": _of_floats("log10({0})"),
    "cbrt": _of_floats("cbrt({0})"),
    "sin": _of_floats(_prelude("sin({0})")),
    "cos": _of_floats(_prelude("cos({0})")),
    "tan": _of_floats(_prelude("tan({0})")),
    "asin": _of_floats("asin({0})"),
    "acos": _of_floats("acos({0})"),
    "atan": _of_floats("atan({0})"),
    "sinh": _of_floats("sinh({0})"),
    "cosh": _of_floats("cosh({0})"),
    "tanh": _of_floats(_prelude("tanh({0})")),
    "asinh": _of_floats("asinh({0})"),
    "acosh": _of_floats("acosh({0})"),
    "atanh": _of_floats("atanh({0})"),
    "erf": _of_floats(_prelude("erf({0})")),
    "erfc": _of_floats("erfc({0})"),
    "erf_inv": _of_floats(_prelude()),
    "lgamma": _of_floats("lgamma({0})"),
    "digamma": _of_floats(_prelude()),
    "logistic": _of_floats(_prelude()),
    "i0": _of_floats(_prelude()),
    "i1": _of_floats(_prelude()),
    "add": Op(2, CHEAP, "({0} + {1})", _arithmetic("+"), "({0} | {1})", "({0} + {1})"),
    "sub": Op(2, CHEAP, "({0} - {1})", _arithmetic("-"), None, "({0} - {1})"),
    "mul": Op(2, CHEAP, "({0} * {1})", _arithmetic("*"), "({0} & {1})", _complex_prelude),
    "max": Op(2, CHEAP, _prelude(), "max({0}, {1})", "({0} | {1})"),
    "min": Op(2, CHEAP, _prelude(), "min({0}, {1})", "({0} & {1})"),
    "and": _bitwise("&"),
    "or": _bitwise("|"),
    "xor": _bitwise("^"),
    "shift_left": Op(2, CHEAP, None, _prelude()),
    "shift_right": Op(2, CHEAP, None, _prelude()),
    "copysign": _of_floats("copysign({0}, {1})", 2, CHEAP),
    "complex": Op(2, CHEAP, complexes=lambda t: f"({t.ctype}2)({{0}}, {{1}})"),
    "eq": _comparison("==", _mask("{0} == {1}"), "(-({0}.x == {1}.x && {0}.y == {1}.y))"),
    "ne": _comparison("!=", "({0} ^ {1})", "(-({0}.x != {1}.x || {0}.y != {1}.y))"),
    "lt": _comparison("<", _mask("{0} > {1}")),
    "le": _comparison("<=", _mask("{0} >= {1}")),
    "gt": _comparison(">", _mask("{0} < {1}")),
    "ge": _comparison(">=", _mask("{0} <= {1}")),
    "div": Op(2, MEDIUM, "({0} / {1})", _prelude(), None, _complex_prelude),
    "nextafter": _of_floats(_nextafter, 2, MEDIUM),
    "floor_div": Op(2, TRANSCENDENTAL, _prelude(), _prelude()),
    "mod": Op(2, TRANSCENDENTAL, _prelude(), _prelude()),
    "rem": Op(2, TRANSCENDENTAL, _prelude(), _prelude()),
    "pow": Op(2, TRANSCENDENTAL, _prelude("pow({0}, {1})"), _prelude()),
    "atan2": _of_floats(_prelude("atan2({0}, {1})"), 2),
    "hypot": _of_floats(_prelude("hypot({0}, {1})"), 2),
    "select": _of_all(3, CHEAP, _select),
    "threefry": _of_all(4, TRANSCENDENTAL, lambda t: t.call("random_bits")),
}
