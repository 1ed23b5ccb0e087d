"""Elementwise code: arithmetic, transcendental functions, conversions, gathers, random numbers, movements."""

import math

import ml_dtypes
import numpy as np

from keras_ocl import primitives as P
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import floats, integers, normal, wide

_SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0)
_ERF = np.vectorize(math.erf, otypes=[float])
_LGAMMA = np.vectorize(math.lgamma, otypes=[float])

# Function -> (NumPy's of float64, units in the last place that it may be off, least and greatest operand).
FUNCTIONS = {
    "exp": (np.exp, 3, -80, 80),
    "exp2": (np.exp2, 3, -120, 120),
    "expm1": (np.expm1, 4, -10, 10),
    "log": (np.log, 3, 1e-3, 1e6),
    "log1p": (np.log1p, 3, -0.9, 100),
    "log2": (np.log2, 3, 1e-3, 1e6),
    "log10": (np.log10, 3, 1e-3, 1e6),
    "sqrt": (np.sqrt, 1, 0, 1e6),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, 1e-3, 1e6),
    "cbrt": (np.cbrt, 3, -1e3, 1e3),
    "sin": (np.sin, 4, -100, 100),
    "cos": (np.cos, 4, -100, 100),
    "tan": (np.tan, 5, -1.5, 1.5),
    "asin": (np.arcsin, 4, -1, 1),
    "acos": (np.arccos, 4, -1, 1),
    "atan": (np.arctan, 5, -100, 100),
    "sinh": (np.sinh, 4, -20, 20),
    "cosh": (np.cosh, 4, -20, 20),
    "tanh": (np.tanh, 5, -10, 10),
    "asinh": (np.arcsinh, 4, -100, 100),
    "acosh": (np.arccosh, 4, 1, 100),
    "atanh": (np.arctanh, 5, -0.99, 0.99),
    "erf": (_ERF, 4, -4, 4),
    "lgamma": (_LGAMMA, 8, 3, 50),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), 4, -20, 20),
}
_USUAL = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "logistic")


def cases(traits, short):
    """The cases of generated elementwise code."""
    found = [*_functions(traits, short), *_arithmetic(traits, short), *_exact(short), *_movements(short), *_draws(short)]
    kinds = ["int32"] if short else ["int8", "uint8", "int16", "int32", "uint32", "int64"]
    return found + [case for dtype in kinds for case in _integers(dtype)]


def _functions(traits, short):
    for dtype in floats(traits, short):
        names = _USUAL if short or dtype == "float16" else tuple(FUNCTIONS)
        spans = [FUNCTIONS[name][2:] for name in names]
        most = 8 if dtype == "float16" else math.inf
        arrays = [np.linspace(max(low, -most), min(high, most), 1003).astype(dtype) for low, high in spans]

        def function(*xs, names=names):
            return [getattr(P, name)(x) for name, x in zip(names, xs, strict=True)]

        def wanted(arrays=arrays, names=names):
            return [FUNCTIONS[name][0](wide(x)) for name, x in zip(names, arrays, strict=True)]

        yield Case(f"functions of {dtype}", function, arrays, wanted, max(FUNCTIONS[name][1] for name in names), names=names)


def _arithmetic(traits, short):
    for dtype in floats(traits, short):
        for shape in [(3, 5, 17)] if short else [(1,), (7,), (3, 5, 17), (64, 129)]:
            a, b, c = (normal(f"arithmetic {k}", *shape, dtype=dtype) for k in "abc")
            row = normal("row", shape[-1], dtype=dtype)

            def function(a, b, c, row, shape=shape):
                rows = P.broadcast(row, shape, (len(shape) - 1,))
                return [P.add(P.mul(a, b), c), P.div(P.sub(a, rows), P.add(P.abs(c), P.full(shape, 1, a.dtype)))]

            def wanted(arrays=(a, b, c, row)):
                a, b, c, row = map(wide, arrays)
                return [a * b + c, (a - row) / (abs(c) + 1)]

            def scales(arrays=(a, b, c, row)):
                a, b, c, row = map(wide, arrays)
                return [abs(a * b) + abs(c), (abs(a) + abs(row)) / (abs(c) + 1)]

            yield Case(f"arithmetic of {dtype} {list(shape)}", function, (a, b, c, row), wanted, 5, scales)
    numbers = np.array([*_SPECIAL, 2.5, -3.5], np.float32)
    a, b = (x.ravel() for x in np.meshgrid(numbers, numbers))

    def special(a, b):
        return [P.max(a, b), P.min(a, b), P.convert(P.lt(a, b), "int32"), P.convert(P.eq(a, b), "int32"), P.select(P.is_nan(a), b, a)]

    def of_special():
        return [np.maximum(a, b) + 0.0, np.minimum(a, b) + 0.0, a < b, a == b, np.where(np.isnan(a), b, a)]

    def with_one_zero(a, b):  # which zero is the greater is not said
        found = special(a, b)
        zero = P.full(a.shape, 0, "float32")
        return [*(P.select(P.eq(x, zero), zero, x) for x in found[:2]), *found[2:]]

    yield Case("infinities, NaN and zeros", with_one_zero, (a, b), of_special)


def _integers(dtype):
    limits = np.iinfo(dtype)
    a = integers("integers a", limits.min, limits.max, 5, 67, dtype=dtype)
    b = integers("integers b", limits.min, limits.max, 5, 67, dtype=dtype)
    shifts = integers("shifts", 0, limits.bits, 5, 67, dtype=dtype)
    divisor = np.where(b == 0, 1, b).astype(dtype)

    def function(a, b, shifts, divisor):
        return [
            P.add(a, b),
            P.mul(a, b),
            P.xor(a, P.and_(a, b)),
            P.shift_left(a, shifts),
            P.shift_right(a, shifts),
            P.mod(a, divisor),
            P.max(a, b),
        ]

    def wanted():
        with np.errstate(all="ignore"):
            return [a + b, a * b, a ^ (a & b), a << shifts, a >> shifts, np.mod(a, divisor), np.maximum(a, b)]

    yield Case(f"integers of {dtype}", function, (a, b, shifts, divisor), wanted)


def _exact(short):
    """Conversions, bit for bit."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    yield Case("float16 to float32", lambda x: P.convert(x, "float32"), (halves,), lambda: [halves.astype(np.float32)])
    x = np.concatenate([normal("rounded", 2001), normal("small", 501, scale=2.0**-20), np.array(_SPECIAL, np.float32)])
    for dtype, to in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        yield Case(f"float32 to {dtype}", lambda x, dtype=dtype: P.convert(x, dtype), (x,), lambda to=to: [x.astype(to)])
    whole = normal("whole", 1003, scale=1e4)
    for dtype in ("int32",) if short else ("int32", "int64", "uint32"):
        given = np.abs(whole) if dtype == "uint32" else whole
        yield Case(f"float32 to {dtype}", lambda x, dtype=dtype: P.convert(x, dtype), (given,), lambda g=given, d=dtype: [g.astype(d)])
    many = integers("many", -(2**31), 2**31 - 1, 1003)
    yield Case("int32 to float32", lambda x: P.convert(x, "float32"), (many,), lambda: [many.astype(np.float32)])


def _movements(short):
    x, y = normal("moved", 9, 13, 21), normal("moved", 9, 4, 21)
    indices = integers("indices", 0, 13, 6, 5)

    def gathered(x, indices):
        return [P.gather(x, (indices,), (1,)), P.gather(x, (indices,), (2,))]

    yield Case("gathers", gathered, (x, indices), lambda: [np.moveaxis(x, 1, 0)[indices], np.moveaxis(x, 2, 0)[indices]])

    def moved(x, y):
        sliced = P.slice(x, (1, 3, 2), (8, 12, 21), (2, 1, 3))
        padded = P.pad(x, P.full((), 7, x.dtype), (1, 0, 2), (0, 3, 1), (0, 1, 0))
        return [sliced, padded, P.concat([x, y], 1), P.reverse(x, (0, 2)), P.transpose(x, (2, 0, 1)), P.reshape(x, (13, 189))]

    def wanted():
        spread = np.full((9, 25, 21), 7, np.float32)
        spread[:, ::2] = x
        padded = np.pad(spread, ((1, 0), (0, 3), (2, 1)), constant_values=7)
        return [x[1:8:2, 3:12, 2::3], padded, np.concatenate([x, y], 1), x[::-1, :, ::-1], x.transpose(2, 0, 1), x.reshape(13, 189)]

    yield Case("slices, paddings, concatenations", moved, (x, y), wanted)
    if not short:
        flags = integers("flags", 0, 2, 1003, dtype="bool")
        yield Case("bytes of bool", lambda f: [P.not_(f), P.convert(f, "int32")], (flags,), lambda: [~flags, flags.astype(np.int32)])


def threefry(key, counters, word):
    """The first word of Threefry-2x32 of the counters (counter, word), with 20 rounds (Salmon et al., 2011)."""
    with np.errstate(over="ignore"):
        keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
        x, y = counters + keys[0], np.full_like(counters, word) + keys[1]
        for block, rotations in enumerate(((13, 15, 26, 6), (17, 29, 16, 24)) * 3):
            if block == 5:
                return x
            for r in rotations:
                x = x + y
                y = (y << np.uint32(r) | y >> np.uint32(32 - r)) ^ x
            x, y = x + keys[(block + 1) % 3], y + keys[(block + 2) % 3] + np.uint32(block + 1)


def _draws(short):
    key = np.array([0x12345678, 0x9ABCDEF0], np.uint32)
    for shape in [(33, 31)] if short else [(1,), (33, 31), (70001,)]:
        counters = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
        yield Case(
            f"random bits {list(shape)}",
            lambda key, shape=shape: [P.random_bits(key, shape), P.random_bits(key, shape, 3)],
            (key,),
            lambda counters=counters: [threefry(key, counters, np.uint32(word)) for word in (0, 3)],
        )


def transposes(traits, short):
    """Cases in which an operand is contiguous along another axis than the result."""
    for dtype in ["float32"] if short else ["float32", "float16", "int8"]:
        for m, n in [(67, 133)] if short else [(67, 133), (256, 64), (1031, 37)]:
            a, b = normal("turned", m, n, dtype=dtype, scale=9), normal("straight", n, m, dtype=dtype, scale=9)

            def function(a, b):
                return [P.max(P.transpose(a, (1, 0)), b), P.transpose(a, (1, 0))]

            yield Case(f"transposed {dtype} {m} x {n}", function, (a, b), lambda a=a, b=b: [np.maximum(a.T, b), a.T])
    x = normal("turned", 5, 37, 3, 41)
    yield Case("transposed in a batch", lambda x: P.transpose(x, (0, 3, 2, 1)), (x,), lambda: [x.transpose(0, 3, 2, 1)])
