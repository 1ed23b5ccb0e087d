"""What tests know of each elementwise operation: one row each, over which the tests of values, gradients, ONNX export and the fuzzer go."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from keras_ocl.core import dtypes
from keras_ocl.kernels import elementwise

# Operations whose operands differ in dtype, or whose result's dtype is a parameter; they have tests of their own.
OWN_SIGNATURE = {"select", "convert", "bitcast", "complex", "threefry"}

# What brings any numbers (arrays or Tensors) into the range where an operation is defined and of moderate size.


def everywhere(x):
    return x


def positive(x):
    return abs(x) + 0.25


def above_one(x):
    return abs(x) + 1.1


def below_one(x):
    return 0.95 * x / (abs(x) + 1)


def small(x):
    return x / 10


def nonzero(x):
    return np.where(x == 0, x.dtype.type(0.5), x)


@dataclass(frozen=True)
class Row:
    """An operation in NumPy.

    floats: the function of real numbers; None where there is none. So for `integers`, `bools` and `complexes`, of arrays of those dtypes.
    ulps, atol: how far kernels may be off, in units in the last place of the result's dtype, and absolutely in its epsilons.
    opencl: ulps by which OpenCL 1.2 lets its function of the same name be off (full profile, section 7.4), if kernels call that.
    computed_in: the least dtype in which NumPy's result is the right one; "own": that of the operands alone.
    predicate: whether the result is a bool.
    smooth: for each operand a range in which the function is smooth; None where there is no gradient.
    domain: for each operand what brings it into the domain.
    keras: the name in keras.ops by which the fuzzer calls it.
    """

    floats: Callable | None = None
    ulps: float = 0
    atol: float = 0
    integers: Callable | None = None
    bools: Callable | None = None
    complexes: Callable | None = None
    opencl: float | None = None
    computed_in: str = "float64"
    predicate: bool = False
    smooth: tuple | None = None
    domain: tuple = (everywhere, everywhere)
    keras: str | None = None

    def wide(self, dtype):
        """The NumPy dtype in which operands of `dtype` are given to `floats`."""
        own = self.computed_in == "own" or self.computed_in == "float32" and dtype == "float64"
        return dtypes.numpy_dtype(dtype if own else self.computed_in)


def _same(x):
    return x


def _digamma(x):
    """SciPy's, but NaN at the poles and by reflection below 0, where SciPy loses digits (175 ulps at -5.665)."""
    y = np.where(x < 0, special.digamma(1 - x) - np.pi / np.tan(np.pi * (x - np.rint(x))), special.digamma(x))
    return np.where((x < 0) & (x == np.floor(x)), np.nan, y)


def _lgamma(x):
    """SciPy's, but not infinite yet at the least numbers."""
    return np.where(np.abs(x) < 1e-300, -np.log(np.abs(x)), special.gammaln(x))


def _truncating_division(a, b):
    a, b = a.astype(object), b.astype(object)
    return np.abs(a) // np.maximum(np.abs(b), 1) * np.sign(a) * np.sign(b)


def _integer_power(a, b):
    """Of Python's integers; a negative exponent truncates the true power towards zero."""
    bits = 8 * a.dtype.itemsize
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return np.array([pow(x, e, 1 << bits) if e >= 0 else x ** (-e % 2 + 2) if x in (1, -1) else 0 for x, e in pairs], object)


def _population_count(x):
    return np.array([(int(v) & (2 ** (8 * x.itemsize) - 1)).bit_count() for v in x], x.dtype)


_ALL, _PLUS, _UNIT = ((-2, 2),), ((0.3, 3),), ((-0.8, 0.8),)
_BOTH, _QUADRANT, _REMAINDER = ((-2, 2), (-2, 2)), ((0.5, 2), (0.5, 2)), ((2.1, 2.9), (1.1, 1.4))
_POSITIVE, _BELOW_ONE, _NONZERO = (positive,), (below_one,), (everywhere, nonzero)


def _rounding(reference, **fields):
    return Row(reference, integers=_same, bools=_same, **fields)


def _function(reference, ulps, **fields):
    """A transcendental function of real numbers."""
    return Row(reference, ulps, **({"smooth": _ALL} | fields))


def _remainder(reference, smooth=None):
    return Row(reference, integers=reference, computed_in="float32", smooth=smooth, domain=_NONZERO)


def _predicate(reference, complexes=None):
    return Row(reference, integers=reference, bools=reference, complexes=complexes, predicate=True)


ROWS = {
    "neg": Row(np.negative, integers=np.negative, complexes=np.negative, smooth=_ALL, keras="negative"),
    "abs": Row(np.abs, integers=np.abs, bools=_same, complexes=np.abs, smooth=_PLUS, keras="abs"),
    "sign": Row(np.sign, integers=np.sign, bools=_same, keras="sign"),
    "relu": Row(lambda x: np.maximum(x, 0), integers=lambda x: np.maximum(x, 0), bools=_same, smooth=_PLUS, keras="relu"),
    "floor": _rounding(np.floor, keras="floor"),
    "ceil": _rounding(np.ceil),
    "round": _rounding(np.rint),
    "trunc": _rounding(np.trunc),
    "is_finite": _predicate(np.isfinite, np.isfinite),
    "is_nan": _predicate(np.isnan, np.isnan),
    "is_inf": _predicate(np.isinf, np.isinf),
    "not": Row(integers=np.invert, bools=np.logical_not),
    "population_count": Row(integers=_population_count),
    "conj": Row(integers=_same, complexes=np.conj),
    "real": Row(integers=_same, complexes=np.real),
    "imag": Row(complexes=np.imag),
    "exp": _function(np.exp, 3, opencl=3, complexes=np.exp, domain=_BELOW_ONE),
    "exp2": _function(np.exp2, 3, opencl=3, domain=_BELOW_ONE),
    "expm1": _function(np.expm1, 4, opencl=3, domain=_BELOW_ONE),
    "log": _function(np.log, 3, opencl=3, smooth=_PLUS, domain=_POSITIVE, keras="log"),
    "log1p": _function(np.log1p, 3, opencl=2, smooth=_PLUS, domain=_BELOW_ONE),
    "log2": _function(np.log2, 3, opencl=3, smooth=_PLUS, domain=_POSITIVE),
    "log10": _function(np.log10, 3, opencl=3, smooth=_PLUS, domain=_POSITIVE),
    "sqrt": _function(np.sqrt, 1, opencl=3, smooth=_PLUS, domain=_POSITIVE, keras="sqrt"),
    "rsqrt": _function(lambda x: 1 / np.sqrt(x), 2, opencl=2, smooth=_PLUS, domain=_POSITIVE, keras="rsqrt"),
    "cbrt": _function(np.cbrt, 3, opencl=2, smooth=_PLUS),
    "sin": _function(np.sin, 4, opencl=4, keras="sin"),
    "cos": _function(np.cos, 4, opencl=4, keras="cos"),
    "tan": _function(np.tan, 5, opencl=5, smooth=((-1, 1),), domain=_BELOW_ONE),
    "asin": _function(np.arcsin, 4, opencl=4, smooth=_UNIT, domain=_BELOW_ONE),
    "acos": _function(np.arccos, 4, opencl=4, smooth=_UNIT, domain=_BELOW_ONE),
    "atan": _function(np.arctan, 5, opencl=5, keras="arctan"),
    "sinh": _function(np.sinh, 4, opencl=4, domain=_BELOW_ONE),
    "cosh": _function(np.cosh, 4, opencl=4, domain=_BELOW_ONE),
    "tanh": _function(np.tanh, 5, opencl=5, keras="tanh"),
    "asinh": _function(np.arcsinh, 4, opencl=4),
    "acosh": _function(np.arccosh, 4, opencl=4, smooth=((1.3, 3),), domain=(above_one,)),
    "atanh": _function(np.arctanh, 5, opencl=5, smooth=_UNIT, domain=_BELOW_ONE),
    "erf": _function(special.erf, 4, opencl=16, keras="erf"),
    "erfc": _function(special.erfc, 16, opencl=16),
    "erf_inv": _function(special.erfinv, 8, smooth=_UNIT),
    "lgamma": _function(_lgamma, 8, atol=8, smooth=_PLUS),
    "digamma": _function(_digamma, 8, atol=16, smooth=_PLUS),
    "logistic": _function(lambda x: 1 / (1 + np.exp(-x)), 4, keras="sigmoid"),
    "i0": _function(lambda x: np.where(np.isinf(x), np.inf, special.i0(x)), 8),
    "i1": _function(lambda x: np.where(np.isinf(x), x, special.i1(x)), 8),
    "add": Row(np.add, integers=np.add, bools=np.logical_or, complexes=np.add, smooth=_BOTH, keras="add"),
    "sub": Row(np.subtract, integers=np.subtract, complexes=np.subtract, smooth=_BOTH, keras="subtract"),
    "mul": Row(np.multiply, integers=np.multiply, bools=np.logical_and, complexes=np.multiply, smooth=_BOTH, keras="multiply"),
    "div": Row(np.divide, integers=_truncating_division, complexes=np.divide, smooth=((-2, 2), (0.5, 2)), domain=_NONZERO),
    "floor_div": _remainder(np.floor_divide),
    "mod": _remainder(np.mod, _REMAINDER),
    "rem": _remainder(np.fmod, _REMAINDER),
    "pow": Row(np.power, 16, integers=_integer_power, opencl=16, smooth=((0.5, 2), (-2, 2)), domain=(positive, small)),
    "max": Row(np.maximum, integers=np.maximum, bools=np.logical_or, smooth=_BOTH, keras="maximum"),
    "min": Row(np.minimum, integers=np.minimum, bools=np.logical_and, smooth=_BOTH, keras="minimum"),
    "atan2": Row(np.arctan2, 6, opencl=6, smooth=_QUADRANT),
    "hypot": Row(np.hypot, 4, opencl=4, smooth=_QUADRANT),
    "copysign": Row(np.copysign, smooth=((0.5, 2), (-2, -1))),
    "nextafter": Row(np.nextafter, computed_in="own", smooth=((0.5, 1), (2, 3))),
    "and": Row(integers=np.bitwise_and, bools=np.logical_and),
    "or": Row(integers=np.bitwise_or, bools=np.logical_or),
    "xor": Row(integers=np.bitwise_xor, bools=np.logical_xor),
    "shift_left": Row(integers=np.left_shift),
    "shift_right": Row(integers=np.right_shift),
    "eq": _predicate(np.equal, np.equal),
    "ne": _predicate(np.not_equal, np.not_equal),
    "lt": _predicate(np.less),
    "le": _predicate(np.less_equal),
    "gt": _predicate(np.greater),
    "ge": _predicate(np.greater_equal),
}

# The functions of real numbers with their results in NumPy, by the number of operands.
UNARY, BINARY = (
    {name: row for name, row in ROWS.items() if row.floats and not row.predicate and elementwise.OPS[name].arity == arity}
    for arity in (1, 2)
)
