"""Inputs for the functions of keras.ops.numpy that take one or two arrays, and the comparison with NumPy's functions of the same names."""

import numpy as np
from keras import ops

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 4)).astype("float32")
B = RNG.normal(size=(3, 4)).astype("float32")
C = RNG.normal(size=(2, 3, 4)).astype("float32")
POSITIVE = np.abs(A) + 0.5
UNIT = np.tanh(A)
INTS = RNG.integers(-9, 10, size=(3, 4)).astype("int32")
COUNTS = RNG.integers(1, 12, size=(3, 4)).astype("int32")
MASK = A > 0
VECTOR = RNG.normal(size=7).astype("float32")
HOLES = np.where(np.abs(A) < 0.4, np.nan, A).astype("float32")

UNARY = {
    "absolute": A, "arccos": UNIT, "arccosh": POSITIVE + 1, "arcsin": UNIT, "arcsinh": A, "arctan": A, "arctanh": UNIT, "cbrt": A,
    "ceil": A, "cos": A, "cosh": A, "deg2rad": A, "exp": A, "exp2": A, "expm1": A, "fabs": A, "floor": A, "i0": POSITIVE, "isfinite": HOLES,
    "isinf": HOLES, "isnan": HOLES, "isneginf": HOLES, "isposinf": HOLES, "log": POSITIVE, "log10": POSITIVE, "log1p": POSITIVE,
    "log2": POSITIVE, "logical_not": MASK, "negative": A, "rad2deg": A, "ravel": C, "reciprocal": POSITIVE, "round": 3 * A, "sign": A,
    "signbit": A, "sin": A, "sinc": A, "sinh": A, "sqrt": POSITIVE, "square": A, "tan": A, "tanh": A, "trunc": 3 * A, "bitwise_not": INTS,
    "nan_to_num": HOLES, "angle": A, "real": A, "corrcoef": A, "diff": A, "transpose": C, "flip": A, "fliplr": A, "flipud": A, "rot90": A,
    "nonzero": MASK, "sort": A, "argsort": A, "argmax": A, "argmin": A, "all": MASK, "any": MASK, "amax": A, "amin": A, "max": A, "min": A,
    "mean": A, "median": A, "prod": A, "ptp": A, "std": A, "sum": A, "var": A, "cumsum": A, "cumprod": A, "count_nonzero": MASK, "diag": A,
    "diagonal": A, "trace": A, "tril": A, "triu": A, "nansum": HOLES, "nanmean": HOLES, "nanmax": HOLES, "nanmin": HOLES, "nanvar": HOLES,
    "nanstd": HOLES, "nanprod": HOLES, "nanmedian": HOLES, "nancumsum": HOLES, "nancumprod": HOLES, "nanargmax": HOLES, "nanargmin": HOLES,
    "trapezoid": A, "unique": INTS, "bincount": COUNTS[0], "squeeze": A[None], "vander": VECTOR, "hanning": 7, "hamming": 7, "bartlett": 7,
    "blackman": 7, "average": A,
}  # fmt: skip

BINARY = {
    "add": (A, B), "subtract": (A, B), "multiply": (A, B), "divide": (A, POSITIVE), "floor_divide": (3 * A, POSITIVE), "maximum": (A, B),
    "minimum": (A, B), "mod": (3 * A, POSITIVE), "fmod": (3 * A, POSITIVE), "power": (POSITIVE, B), "arctan2": (A, B), "hypot": (A, B),
    "fmax": (HOLES, B), "fmin": (HOLES, B), "logaddexp": (A, B), "logaddexp2": (A, B), "heaviside": (A, B), "nextafter": (A, B),
    "equal": (INTS, COUNTS), "not_equal": (INTS, COUNTS), "less": (A, B), "less_equal": (A, B), "greater": (A, B), "greater_equal": (A, B),
    "logical_and": (MASK, A > 1), "logical_or": (MASK, A > 1), "logical_xor": (MASK, A > 1), "bitwise_and": (INTS, COUNTS),
    "bitwise_or": (INTS, COUNTS), "bitwise_xor": (INTS, COUNTS), "left_shift": (COUNTS, COUNTS), "right_shift": (INTS, COUNTS),
    "gcd": (INTS, COUNTS), "lcm": (INTS, COUNTS), "ldexp": (A, INTS), "isclose": (A, A + 1e-6), "matmul": (A, B.T), "dot": (A, B.T),
    "inner": (A, B), "outer": (VECTOR, A), "vdot": (A, B), "kron": (A, C[0, :2]), "cross": (A[:, :3], B[:, :3]), "isin": (INTS, COUNTS[0]),
    "searchsorted": (np.sort(VECTOR), A), "digitize": (A, np.sort(VECTOR)), "append": (A, VECTOR), "correlate": (VECTOR, VECTOR[:3]),
}  # fmt: skip


def same(ours, reference, rtol=2e-5, atol=2e-6):
    if isinstance(reference, (tuple, list)):
        assert len(ours) == len(reference)
        for a, b in zip(ours, reference, strict=True):
            same(a, b, rtol, atol)
        return
    ours = np.asarray(ops.convert_to_numpy(ours))
    assert ours.shape == np.shape(reference)
    np.testing.assert_allclose(ours.astype("float64"), np.asarray(reference).astype("float64"), rtol=rtol, atol=atol)
