"""Every function of keras.ops.numpy, math and linalg has its gradient checked here, or is listed as having none.

Gradients are compared with central differences in float64, many functions in one compiled function.
"""

import inspect

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.ops import linalg, math
from keras_ocl.ops import numpy as k
from tests.primitives.checking import need_float64

RNG = np.random.default_rng(8)
X, Y = RNG.normal(size=(2, 3, 4))
UNIT, POSITIVE = 0.9 * np.tanh(X), np.abs(X) + 0.5
V, W = RNG.normal(size=(2, 6))
CUBE = RNG.normal(size=(2, 3, 4))
SQUARE = RNG.normal(size=(2, 3, 3)) + 2 * np.eye(3)
TALL, RIGHT = RNG.normal(size=(2, 4, 3)), RNG.normal(size=(2, 3, 2))
HOLES = np.where(np.abs(X) < 0.4, np.nan, X)
ZEROS = np.where(np.abs(X) < 0.4, 0, X)
PLACES = np.array([[2, 0, 1, 0]])
SEGMENTS = np.array([0, 2, 0])


def spd(x):
    return k.add(k.matmul(x, k.swapaxes(x, -1, -2)), k.eye(3, dtype="float64"))


def projector(basis):
    return k.matmul(basis, k.swapaxes(basis, -1, -2))


def eig(x):
    values, vectors = linalg.eig(x)
    return [k.real(values), k.imag(values), k.absolute(vectors)]  # the vectors' phases are arbitrary


def eigh(x):
    values, vectors = linalg.eigh(spd(x))
    return [values, k.square(vectors)]


def svd(x):
    u, s, vh = linalg.svd(x)
    return [projector(u[..., 3:]), s, k.square(vh)]


def qr(x):
    q, r = linalg.qr(x, mode="complete")
    return [projector(q[..., 3:]), q[..., :3], r, *linalg.qr(k.swapaxes(x, -1, -2))]


def norms(x):
    orders = [None, "fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")]
    return [linalg.norm(x, ord=o, axis=(1, 2)) for o in orders] + [linalg.norm(x, ord=o, axis=1) for o in (None, 1, 2, 3, float("-inf"))]


def both_parts(x, y):
    z = math.P.complex(x, y)
    return [k.real(k.multiply(k.exp(z), k.conj(k.log(z)))), k.imag(k.sqrt(z)), k.angle(z), k.absolute(k.tan(z))]


CASES = {name: [(function, (x,))] for name, function, x in [
    ("amax", k.amax, X), ("amin", lambda x: k.amin(x, 0), X), ("angle", lambda x: k.multiply(x, k.angle(x)), X),
    ("array", k.array, X), ("array_split", lambda x: k.array_split(x, 3, 1), X), ("average", lambda x: k.average(x, 1), X),
    ("broadcast_to", lambda x: k.broadcast_to(x, (2, 3, 4)), X), ("clip", lambda x: k.clip(x, -0.5, 0.7), X),
    ("cbrt", k.cbrt, POSITIVE), ("cumprod", lambda x: k.cumprod(x, 1), ZEROS), ("cumsum", lambda x: k.cumsum(x, 0), X),
    ("arccosh", k.arccosh, POSITIVE + 1), ("diag", lambda x: k.diag(x, 1), V), ("diagflat", k.diagflat, V),
    ("diagonal", lambda x: k.diagonal(x, 1, 1, 2), CUBE),
    ("diff", lambda x: k.diff(x, 2, 1), X), ("dsplit", lambda x: k.dsplit(x, 2), CUBE),
    ("expand_dims", lambda x: k.expand_dims(x, 1), X), ("flip", lambda x: k.flip(x, 1), X),
    ("full", lambda x: k.full((2, 3), x[0, 0], "float64"), X),
    ("full_like", lambda x: k.full_like(x, x[0, 0]), X), ("hsplit", lambda x: k.hsplit(x, 2), X), ("vsplit", lambda x: k.vsplit(x, 3), X),
    ("hstack", lambda x: k.hstack([x, k.sin(x)]), X), ("vstack", lambda x: k.vstack([x, k.sin(x)]), X),
    ("dstack", lambda x: k.dstack([x, k.sin(x)]), X), ("stack", lambda x: k.stack([x, k.sin(x)], 1), X),
    ("linspace", lambda x: k.linspace(x[0], x[1], 5), X), ("logspace", lambda x: k.logspace(x[0], x[1], 5), X),
    ("geomspace", lambda x: k.geomspace(x[0], x[1], 5), POSITIVE), ("mean", lambda x: k.mean(x, 1), X),
    ("max", lambda x: k.max(x, 0, initial=0.1), X), ("min", lambda x: k.min(x, 1), X), ("median", lambda x: k.median(x, 1), X),
    ("meshgrid", lambda x: k.meshgrid(x[:3], x[3:]), V), ("moveaxis", lambda x: k.moveaxis(x, 0, 2), CUBE),
    ("nancumprod", lambda x: k.nancumprod(x, 1), HOLES), ("nancumsum", lambda x: k.nancumsum(x, 1), HOLES),
    ("nanmedian", lambda x: k.nanmedian(x, 1), HOLES), ("nanpercentile", lambda x: k.nanpercentile(x, 30.0, 1), HOLES),
    ("nanquantile", lambda x: k.nanquantile(x, 0.3, 1), HOLES), ("nanstd", lambda x: k.nanstd(x, 1), HOLES),
    ("nan_to_num", k.nan_to_num, HOLES), ("pad", lambda x: [k.pad(x, ((1, 2), (3, 1)), mode=m) for m in PAD_MODES], X),
    ("percentile", lambda x: k.percentile(x, 30.0, 0), X), ("power", lambda x: k.power(x, 3), X), ("prod", lambda x: k.prod(x, 1), ZEROS),
    ("ptp", lambda x: k.ptp(x, 1), X), ("quantile", lambda x: k.quantile(x, [0.2, 0.7], 1), X), ("ravel", k.ravel, X),
    ("repeat", lambda x: k.repeat(x, 2, 1), X), ("reshape", lambda x: k.reshape(x, (2, 6)), X), ("roll", lambda x: k.roll(x, 1, 1), X),
    ("rot90", k.rot90, X), ("select", lambda x: k.select([k.greater(x, 0)], [k.square(x)], k.sin(x)), X),
    ("sort", lambda x: k.sort(x, 0), X), ("split", lambda x: k.split(x, [1, 3], 1), X), ("squeeze", k.squeeze, X[None]),
    ("std", lambda x: k.std(x, 1), X), ("sum", lambda x: k.sum(x, 1), X), ("swapaxes", lambda x: k.swapaxes(x, 0, 2), CUBE),
    ("take", lambda x: k.take(x, [2, 0, 2], 1), X), ("take_along_axis", lambda x: k.take_along_axis(x, PLACES, 0), X),
    ("tile", lambda x: k.tile(x, (2, 1)), X), ("trace", lambda x: k.trace(x, 1), X), ("transpose", k.transpose, CUBE),
    ("tril", k.tril, X), ("triu", k.triu, X), ("trapezoid", k.trapezoid, X), ("unique", lambda x: k.unique(x, size=12), X),
    ("vander", lambda x: k.vander(x, 4), V), ("var", lambda x: k.var(x, 0), X), ("corrcoef", k.corrcoef, X),
    ("vectorize", lambda x: k.vectorize(k.sin)(x), X), ("view", lambda x: k.multiply(x, k.cos(x)), X),
    ("sinc", k.sinc, ZEROS), ("where", lambda x: k.where(k.greater(x, 0), k.square(x), x), X),
    ("cholesky", lambda x: linalg.cholesky(spd(x)), SQUARE), ("cholesky_inverse", lambda x: linalg.cholesky_inverse(k.tril(x)), SQUARE),
    ("det", linalg.det, SQUARE), ("eig", eig, SQUARE), ("eigh", eigh, SQUARE), ("inv", linalg.inv, SQUARE),
    ("lu_factor", lambda x: linalg.lu_factor(x)[0], SQUARE), ("norm", norms, TALL), ("pinv", linalg.pinv, TALL), ("qr", qr, TALL),
    ("slogdet", lambda x: k.slogdet(x)[1], SQUARE), ("svd", svd, TALL), ("logdet", math.logdet, SQUARE),
    ("top_k", lambda x: math.top_k(x, 2)[0], X), ("logsumexp", lambda x: math.logsumexp(x, 1), X),
    ("extract_sequences", lambda x: math.extract_sequences(x, 3, 2), V),
    ("segment_sum", lambda x: math.segment_sum(x, SEGMENTS, 3), X), ("segment_prod", lambda x: math.segment_prod(x, SEGMENTS, 3), ZEROS),
    ("segment_max", lambda x: math.segment_max(x, [0, 0, 1], 2), X), ("segment_min", lambda x: math.segment_min(x, [0, 0, 1], 2), X),
    ("fft2", lambda x: math.fft2((x, k.sin(x))), X), ("ifft2", lambda x: math.ifft2((x, k.sin(x))), X),
    ("fft", lambda x: math.fft((x, k.sin(x))), X),
    ("rfft", lambda x: math.rfft(x, 5), X), ("irfft", lambda x: math.irfft((x, k.sin(x))), X),
    ("stft", lambda x: math.stft(x, 4, 2, 5), V), ("istft", lambda x: math.istft((x, k.sin(x)), 4, 2, 4), CUBE[:, :, :3]),
]}  # fmt: skip
for _name in """abs absolute arcsinh arctan conj conjugate copy cos cosh deg2rad exp exp2 expm1 fabs fliplr flipud i0 negative rad2deg real
    sin sinh square tan tanh""".split():
    CASES[_name] = [(getattr(k, _name), (X,))]
for _name in "arccos arcsin arctanh".split():
    CASES[_name] = [(getattr(k, _name), (UNIT,))]
for _name in "log log10 log1p log2 reciprocal sqrt".split():
    CASES[_name] = [(getattr(k, _name), (POSITIVE,))]
for _name in "nanmax nanmean nanmin nanprod nansum nanvar".split():
    CASES[_name] = [(getattr(k, _name), (HOLES,))]
for _name in "erf erfc".split():
    CASES[_name] = [(getattr(math, _name), (X,))]
CASES["erfinv"], CASES["rsqrt"] = [(math.erfinv, (UNIT,))], [(math.rsqrt, (POSITIVE,))]
for _name in "add append arctan2 divide fmax fmin hypot logaddexp logaddexp2 maximum minimum multiply subtract true_divide".split():
    CASES[_name] = [(getattr(k, _name), (X, Y))]
CASES |= {
    "average": [*CASES["average"], (lambda x, w: k.average(x, 0, w), (X, POSITIVE))],
    "concatenate": [(lambda x, y: k.concatenate([x, y], 1), (X, Y))],
    "correlate": [(lambda x, y: k.correlate(x, y, "full"), (V, W[:3]))],
    "cross": [(k.cross, (X[:, :3], Y[:, :3]))],
    "divide_no_nan": [(k.divide_no_nan, (X, ZEROS + (ZEROS == 0)))],
    "dot": [(k.dot, (X, Y.T))],
    "einsum": [
        (lambda x, y: [k.einsum("bij,kj->bki", x, y), k.einsum("bij,ij->b", x, y)], (CUBE, X)),
        (lambda x: k.einsum("ii->i", x), (SQUARE[0],)),
    ],
    "imag": [(both_parts, (POSITIVE, Y))],
    "inner": [(k.inner, (X, Y))],
    "kron": [(k.kron, (X, Y[:2, :2]))],
    "ldexp": [(lambda x: k.ldexp(x, PLACES), (X,))],
    "matmul": [(k.matmul, (CUBE, X.T))],
    "fmod": [(k.fmod, (3 * X, POSITIVE))],
    "mod": [(k.mod, (3 * X, POSITIVE))],
    "outer": [(k.outer, (V, W))],
    "power": [*CASES["power"], (k.power, (POSITIVE, Y))],
    "tensordot": [(lambda x, y: k.tensordot(x, y, [[1, 2], [0, 1]]), (CUBE, X))],
    "trapezoid": [*CASES["trapezoid"], (lambda y, x: k.trapezoid(y, x), (X, Y))],
    "vdot": [(k.vdot, (X, Y))],
    "cdist": [(math.cdist, (X, Y))],
    "lstsq": [(linalg.lstsq, (TALL[0], TALL[1]))],
    "jvp": [(lambda x, t: linalg.jvp(lambda x: k.multiply(k.sin(x), x), [x], [t])[1], (X, Y))],
    "solve": [(linalg.solve, (SQUARE, RIGHT)), (linalg.solve, (SQUARE[0], RIGHT[0, :, 0]))],
    "solve_triangular": [(lambda a, b, low=low: linalg.solve_triangular(a, b, lower=low), (SQUARE, RIGHT)) for low in (True, False)],
}
PAD_MODES = ["constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "minimum", "mean", "median"]

NONE = {
    "constants": "arange bartlett blackman empty empty_like eye hamming hanning identity kaiser ones ones_like tri zeros zeros_like",
    "constant almost everywhere": "ceil floor floor_divide heaviside round sign trunc",
    "bool": """all allclose any equal greater greater_equal in_top_k isclose isfinite isin isinf isnan isneginf isposinf isreal less
        less_equal logical_and logical_not logical_or logical_xor not_equal signbit""",
    "integers": """bitwise_and bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor gcd lcm
        left_shift right_shift""",
    "counts and positions": """argmax argmin argpartition argsort bincount count_nonzero digitize histogram matrix_rank nanargmax nanargmin
        ndim nonzero searchsorted size unravel_index""",
}
STRAIGHT_THROUGH = {"nextafter"}  # as in TensorFlow: the step to the next number is not seen by differences


def public(module):
    functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_")}
    return {n for n, f in functions.items() if f.__module__.startswith("keras_ocl.ops") and hasattr(keras.ops, n)}


def test_every_function_is_listed():
    named = set(CASES) | STRAIGHT_THROUGH | {name for text in NONE.values() for name in text.split()}
    assert (public(k) | public(math) | public(linalg)) - {"convert_to_tensor"} - named == set()
    assert not set(CASES) & {name for text in NONE.values() for name in text.split()}


def test_nextafter():
    need_float64()
    gradient = keras_ocl.grad(lambda x: k.sum(k.multiply(k.nextafter(x, from_numpy(Y)), from_numpy(Y))))(from_numpy(X))
    np.testing.assert_array_equal(to_numpy(gradient), Y)


def floats(results):
    results = results if isinstance(results, (list, tuple)) else [results]
    return [r for r in results if r.dtype == "float64"]


def loss(function, tensors, seed):
    """A random combination of the results."""
    total = None
    for i, r in enumerate(floats(function(*tensors))):
        weights = np.random.default_rng((seed, i)).uniform(0.5, 1.5, tuple(r.shape))
        term = k.sum(k.multiply(r, from_numpy(weights)))
        total = term if total is None else k.add(total, term)
    return total


FLAT = [(name, i, function, arrays) for name in sorted(CASES) for i, (function, arrays) in enumerate(CASES[name])]
TOGETHER = 16


@pytest.mark.parametrize("start", range(0, len(FLAT), TOGETHER))
def test_gradients(start):
    need_float64()
    cases = FLAT[start : start + TOGETHER]
    counts = [len(arrays) for *_, arrays in cases]
    places = np.cumsum([0, *counts])
    arrays = [a for *_, own in cases for a in own]

    @keras_ocl.jit
    def losses(*tensors):
        return [loss(function, tensors[low:high], start) for (_, _, function, _), low, high in zip(cases, places, places[1:], strict=False)]

    gradients = keras_ocl.jit(keras_ocl.grad(lambda tensors: k.sum(k.stack(losses(*tensors)))))([from_numpy(a) for a in arrays])
    rng = np.random.default_rng(start)
    directions = [rng.uniform(-1, 1, a.shape) for a in arrays]
    step = 1e-5
    # All arguments of a case move at once, each along a direction of its own.
    ahead, behind = (losses(*[from_numpy(a + s * step * d) for a, d in zip(arrays, directions, strict=True)]) for s in (1, -1))
    wrong = []
    for i, (name, j, *_) in enumerate(cases):
        slope = (float(ahead[i]) - float(behind[i])) / (2 * step)
        found = 0.0
        for g, d in list(zip(gradients, directions, strict=True))[places[i] : places[i + 1]]:
            found += 0.0 if g is None else np.sum(np.where(np.isnan(to_numpy(g)), 0, to_numpy(g)) * d)
        if not abs(found - slope) <= 2e-5 * max(1, abs(slope)):
            wrong.append(f"{name}[{j}]: {found} instead of {slope}")
    assert not wrong
