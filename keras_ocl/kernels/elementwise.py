"""Elementwise primitives in OpenCL C: the expression of each op on registers, at any vector width.

Operands are names of registers (or other expressions) of the types of `prelude.register_type`: bool is int lanes of 0 and -1 at
every width, floats of 16 and 8 bits are float. Their arithmetic keeps float's precision and range within a fused kernel; `convert`
and `rounded` round to the narrower type.
"""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_ocl.core import dtypes
from keras_ocl.kernels.prelude import library
from keras_ocl.kernels.prelude.library import vector_type

CHEAP, MEDIUM, TRANSCENDENTAL = 1, 4, 20


@dataclass(frozen=True)
class Op:
    """An elementwise op: its number of operands, and its approximate cost per element in cheap operations (additions)."""

    arity: int
    cost: int = CHEAP


def _ops(arity: int, cost: int, names: str) -> dict[str, Op]:
    return {name: Op(arity, cost) for name in names.split()}


COMPARISONS = frozenset("eq ne lt le gt ge".split())

OPS = {
    **_ops(1, CHEAP, "neg abs sign relu floor ceil round trunc is_finite is_nan is_inf not population_count"),
    **_ops(1, CHEAP, "convert bitcast conj real imag"),
    **_ops(1, MEDIUM, "sqrt rsqrt"),
    **_ops(1, TRANSCENDENTAL, "exp exp2 expm1 log log1p log2 log10 cbrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"),
    **_ops(1, TRANSCENDENTAL, "erf erfc erf_inv lgamma digamma logistic i0 i1"),
    **_ops(2, CHEAP, "add sub mul max min and or xor shift_left shift_right copysign complex eq ne lt le gt ge"),
    **_ops(2, MEDIUM, "div nextafter"),
    **_ops(2, TRANSCENDENTAL, "floor_div mod rem pow atan2 hypot"),
    **_ops(3, CHEAP, "select"),
    **_ops(4, TRANSCENDENTAL, "threefry"),
}

# OpenCL C functions that agree with NumPy's.
_BUILTINS = {
    **{name: name for name in "floor ceil trunc exp exp2 expm1 log log1p log2 log10 sqrt rsqrt cbrt sin cos tan asin acos atan".split()},
    **{name: name for name in "sinh cosh tanh asinh acosh atanh erf erfc lgamma atan2 hypot copysign nextafter pow".split()},
    "abs": "fabs",
    "round": "rint",
}
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARISON_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# bool registers hold 0 and -1: their order is reversed, and maximum and minimum are bitwise.
_BOOL = {"add": "|", "mul": "&", "max": "|", "min": "&", "and": "&", "or": "|", "xor": "^", "ne": "^"}
_BOOL_COMPARISONS = {"eq": "==", "lt": ">", "le": ">=", "gt": "<", "ge": "<="}
# The least magnitude that rounds to infinity (or NaN) in the stored type: a register's range may exceed the type's.
_OVERFLOW = {
    "float16": "65520.0f",
    "bfloat16": "0x1.ffp127f",
    "float8_e4m3fn": "464.0f",
    "float8_e5m2": "61440.0f",
}
_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "float": 32, "double": 64}
_SIMPLE = re.compile(r"[A-Za-z_]\w*$|\([^()]*\)$|\d[\w.]*$")


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
        text = re.sub(r"\.?0*p", "p", number.hex()) + ("f" if ctype == "float" else "")
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


def rounded(expression: str, dtype: str, width: int) -> str:
    """`expression` rounded to the values of a stored `dtype`, still in a register (floats of 16 and 8 bits; else unchanged)."""
    if _is_small_float(dtype):
        return f"round_{dtype}_{width}({expression})"
    return expression


def emit(op: str, width: int, out_dtype: str, in_dtypes: Sequence[str], operands: Sequence[str]) -> str:
    """Expression of `op` on registers.

    `operands` are C expressions of `width` lanes, of the register types of `in_dtypes`; the result has that of `out_dtype`.
    Binary ops expect both operands in one dtype. TypeError if the op is not defined for its dtypes.
    """
    return _expression(op, width, out_dtype, tuple(in_dtypes), [o if _SIMPLE.match(o) else f"({o})" for o in operands])


@functools.cache
def has_form(op: str, out_dtype: str, in_dtypes: tuple[str, ...]) -> bool:
    """Whether emit() has an expression of `op` for operands of `in_dtypes`, a tuple."""
    try:
        _expression(op, 1, out_dtype, in_dtypes, ["x"] * len(in_dtypes))
    except TypeError:
        return False
    return True


def helpers(op: str, width: int, out_dtype: str, in_dtypes: Sequence[str]) -> set[str]:
    """Names of the prelude functions that `emit` calls for the same arguments."""
    text = _expression(op, width, out_dtype, tuple(in_dtypes), ["x"] * OPS[op].arity)
    return library.called(text)


def _is_small_float(dtype: str) -> bool:
    return dtypes.is_float(dtype) and dtypes.itemsize(dtype) < 4


def _lanes(mask: str, ctype: str, width: int) -> str:
    """Expression that converts `mask`, a comparison of `ctype` registers, to a bool register."""
    if width == 1:
        return f"(-({mask}))"
    return f"({mask})" if _BITS[ctype.removeprefix("u")] == 32 else f"convert_int{width}({mask})"


def _expression(op: str, width: int, out_dtype: str, in_dtypes: tuple[str, ...], x: Sequence[str]) -> str:
    try:
        arity = OPS[op].arity
    except KeyError:
        raise ValueError(f"there is no elementwise op {op!r}; known: {', '.join(sorted(OPS))}") from None
    if len(x) != arity or len(in_dtypes) != arity:
        raise TypeError(f"elementwise op {op!r} takes {arity} operands, got {len(x)} ({', '.join(in_dtypes)})")
    text: str | None
    if op == "convert":
        text = _convert(width, out_dtype, in_dtypes[0], x[0])
    elif op == "bitcast":
        text = _bitcast(width, out_dtype, in_dtypes[0], x[0])
    elif op == "select":
        text = _select(width, out_dtype, x)
    elif op == "threefry":
        text = f"random_bits_{width}({', '.join(x)})"
    elif dtypes.is_complex(out_dtype) or dtypes.is_complex(in_dtypes[0]):
        text = _complex(op, width, dtypes.part(in_dtypes[0]), x)
    elif in_dtypes[0] == "bool":
        text = _bool(op, width, x)
    elif dtypes.is_float(in_dtypes[0]):
        text = _float(op, width, in_dtypes[0], x)
    else:
        text = _integer(op, width, in_dtypes[0], x)
        if text and op == "population_count" and out_dtype != in_dtypes[0]:
            text = _convert(width, out_dtype, in_dtypes[0], text)
    if text is None:
        wide = " at vector width" if width > 1 and any(map(dtypes.is_complex, (out_dtype, in_dtypes[0]))) else ""
        raise TypeError(f"elementwise op {op!r} has no form for {', '.join(in_dtypes)}{wide}; convert the operands first")
    return text


def _call(op: str, ctype: str, width: int, x: Sequence[str]) -> str | None:
    """A call of the op's prelude function for this type, None if there is none."""
    stem = f"{op}_{ctype}"
    return f"{stem}_{width}({', '.join(x)})" if library.exists(stem) else None


def _float(op: str, width: int, dtype: str, x: Sequence[str]) -> str | None:
    ctype = dtypes.register_ctype(dtype)
    if op in ("add", "sub", "mul"):
        return f"({x[0]} {_SYMBOLS[op]} {x[1]})"
    if op == "div":
        return f"({x[0]} / {x[1]})"
    if op == "neg":
        return f"(-{x[0]})"
    if op in COMPARISONS:
        return _lanes(f"{x[0]} {_COMPARISON_SYMBOLS[op]} {x[1]}", ctype, width)
    if op == "relu":  # a NaN is not below 0, so it stays
        zero = splat(literal(0, dtype), dtype, width)
        return f"({x[0]} < {zero} ? {zero} : {x[0]})"
    if op == "is_nan":
        return _lanes(f"{x[0]} != {x[0]}", ctype, width)
    if op == "is_finite":
        return _lanes(f"fabs({x[0]}) < {_OVERFLOW.get(dtype, literal(float('inf'), dtype))}", ctype, width)
    if op == "is_inf":
        if dtype == "float8_e4m3fn":  # has no infinity
            return splat("0", "bool", width)
        return _lanes(f"fabs({x[0]}) >= {_OVERFLOW.get(dtype, literal(float('inf'), dtype))}", ctype, width)
    if op == "nextafter" and dtype in ("float16", "bfloat16"):
        return f"nextafter_{dtype}_{width}({', '.join(x)})"
    own = _call(op, ctype, width, x)
    if own:
        return own
    return f"{_BUILTINS[op]}({', '.join(x)})" if op in _BUILTINS else None


def _integer(op: str, width: int, dtype: str, x: Sequence[str]) -> str | None:
    ctype = dtypes.register_ctype(dtype)
    signed, bits = dtypes.is_signed(dtype), 8 * dtypes.itemsize(dtype)
    register = vector_type(ctype, width)
    narrow = width == 1 and bits < 32  # C computes these in int

    def wrapped(text: str) -> str:
        return f"({ctype})({text})" if narrow else f"({text})"

    if op in ("add", "sub", "mul"):
        if width == 1 and (bits >= 32 and signed or bits == 16 and op == "mul"):
            # Overflow of signed scalars is undefined in C (a product of two shorts overflows int as well).
            unsigned = "ulong" if bits == 64 else "uint"
            return f"({ctype})(({unsigned}){x[0]} {_SYMBOLS[op]} ({unsigned}){x[1]})"
        return wrapped(f"{x[0]} {_SYMBOLS[op]} {x[1]}")
    if op in ("and", "or", "xor"):
        return wrapped(f"{x[0]} {_SYMBOLS[op]} {x[1]}")
    if op == "neg":
        return f"({ctype})(0{'ul' if bits == 64 else 'u'} - {x[0]})" if width == 1 else f"(-{x[0]})"
    if op == "not":
        return wrapped(f"~{x[0]}")
    if op == "abs":
        return f"as_{register}(abs({x[0]}))" if signed else x[0]
    if op == "sign":
        if width == 1:
            return wrapped(f"({x[0]} > 0) - ({x[0]} < 0)")
        # A vector comparison gives -1 where true.
        return f"(({x[0]} < ({register})0) - ({x[0]} > ({register})0))" if signed else f"min({x[0]}, ({register})1)"
    if op == "relu":
        return f"max({x[0]}, ({register})0)" if signed else x[0]
    if op in ("max", "min"):
        return f"{op}({x[0]}, {x[1]})"
    if op in ("floor", "ceil", "round", "trunc", "conj", "real"):
        return x[0]
    if op == "population_count":
        return f"popcount({x[0]})"
    if op in COMPARISONS:
        return _lanes(f"{x[0]} {_COMPARISON_SYMBOLS[op]} {x[1]}", ctype, width)
    if op in ("is_finite", "is_nan", "is_inf"):
        return splat("-1" if op == "is_finite" else "0", "bool", width)
    return _call(op, ctype, width, x)


def _bool(op: str, width: int, x: Sequence[str]) -> str | None:
    if op in _BOOL:
        return f"({x[0]} {_BOOL[op]} {x[1]})"
    if op in _BOOL_COMPARISONS:
        return _lanes(f"{x[0]} {_BOOL_COMPARISONS[op]} {x[1]}", "int", width)
    if op == "not":
        return f"(~{x[0]})"
    if op in ("abs", "sign", "relu", "floor", "ceil", "round", "trunc"):
        return x[0]
    if op in ("is_finite", "is_nan", "is_inf"):
        return splat("-1" if op == "is_finite" else "0", "bool", width)
    return None


def _select(width: int, dtype: str, x: Sequence[str]) -> str:
    if width == 1:
        return f"({x[0]} ? {x[1]} : {x[2]})"
    ctype = dtypes.register_ctype(dtype)
    bits = 32 if dtype == "bool" else _BITS[ctype.removeprefix("u")]
    mask = {8: f"convert_char{width}({x[0]})", 16: f"convert_short{width}({x[0]})", 32: x[0], 64: f"convert_long{width}({x[0]})"}[bits]
    return f"select({x[2]}, {x[1]}, {mask})"


def _complex(op: str, width: int, part: str, x: Sequence[str]) -> str | None:
    """Expression on complex numbers, None if there is none; one lane only, as their register is a vector of two `part`s already."""
    if width != 1:
        return None
    ctype = dtypes.register_ctype(part)
    forms = {
        "neg": "(-{0})",
        "add": "({0} + {1})",
        "sub": "({0} - {1})",
        "abs": f"hypot_{ctype}_1({{0}}.x, {{0}}.y)",
        "conj": f"({ctype}2)({{0}}.x, -{{0}}.y)",
        "real": "({0}.x)",
        "imag": "({0}.y)",
        "complex": f"({ctype}2)({{0}}, {{1}})",
        "eq": "(-({0}.x == {1}.x && {0}.y == {1}.y))",
        "ne": "(-({0}.x != {1}.x || {0}.y != {1}.y))",
        "is_nan": "(-({0}.x != {0}.x || {0}.y != {0}.y))",
        "is_finite": "(-(isfinite({0}.x) && isfinite({0}.y)))",
        "is_inf": "(-(isinf({0}.x) || isinf({0}.y)))",
        "mul": f"complex_mul_{ctype}_1({{0}}, {{1}})",
        "div": f"complex_div_{ctype}_1({{0}}, {{1}})",
        "exp": f"complex_exp_{ctype}_1({{0}})",
    }
    return forms[op].format(*x) if op in forms else None


def _convert(width: int, out: str, source: str, x: str) -> str | None:
    if out == source:
        return x
    if dtypes.is_complex(source):
        if width != 1:
            return None
        if out == "bool":
            return f"(-({x}.x != 0 || {x}.y != 0))"
        if dtypes.is_complex(out):
            return f"convert_{dtypes.register_ctype(out)}({x})"
        return _convert(width, out, dtypes.part(source), f"{x}.x")
    if dtypes.is_complex(out):
        return f"({dtypes.register_ctype(out)})({_convert(width, dtypes.part(out), source, x)}, 0)" if width == 1 else None
    here, there = dtypes.register_ctype(source), dtypes.register_ctype(out)
    register = vector_type(there, width)
    if out == "bool":
        return _lanes(f"{x} != {literal(0, source)}", here, width)
    if source == "bool":
        if there == "float":
            return f"as_{register}({x} & 0x3f800000)"
        return f"(-{x})" if there == "int" else f"convert_{register}(-{x})"
    if dtypes.is_integer(source):
        text = f"convert_{register}({x})"
        return rounded(text, out, width) if dtypes.is_float(out) else text
    if dtypes.is_integer(out):
        return f"convert_{register}_sat(nan_to_zero_{here}_{width}({x}))"
    if source == "float64":
        return f"double_to_float16_{width}({x})" if out == "float16" else rounded(f"convert_{register}({x})", out, width)
    if out == "float64":
        return f"convert_{register}({x})"
    # Both are in float registers; rounding is needed only if `out` lacks some numbers of `source`.
    return x if out == "float32" or (source.startswith("float8") and not out.startswith("float8")) else rounded(x, out, width)


def _bitcast(width: int, out: str, source: str, x: str) -> str | None:
    if dtypes.itemsize(out) != dtypes.itemsize(source):
        return None
    if out == source:
        return x
    if source == "bool":
        x, raw = f"convert_{vector_type('uchar', width)}(-{x})", "uchar"
    elif _is_small_float(source):
        raw = "uchar" if dtypes.itemsize(source) == 1 else "ushort"
        x = f"to_{source}_{width}({x})"
    else:
        raw = dtypes.register_ctype(source)
    if out == "bool":
        return _lanes(f"as_{vector_type('uchar', width)}({x}) != 0", "uchar", width)
    if _is_small_float(out):
        bits = vector_type("uchar" if dtypes.itemsize(out) == 1 else "ushort", width)
        return f"from_{out}_{width}(as_{bits}({x}))"
    return x if raw == dtypes.register_ctype(out) else f"as_{vector_type(dtypes.register_ctype(out), width)}({x})"
