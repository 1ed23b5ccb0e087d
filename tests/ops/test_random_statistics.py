"""Distributions of keras.random: Kolmogorov–Smirnov and chi-squared tests, moments and tails, with fixed seeds.

200,000 draws show a distribution function that is off by 0.005. A test fails below a probability of 1e-4.
"""

import numpy as np
import pytest
from keras import ops
from keras import random as kr

from keras_ocl import runtime

stats = pytest.importorskip("scipy.stats", reason="the reference distributions are SciPy's")

N = 200_000
LEAST = 1e-4


def dtypes():
    return ["float32", "float64"] if runtime.current_device().traits.fp64 else ["float32"]


def numbers(tensor, n=N):
    x = np.asarray(ops.convert_to_numpy(tensor)).astype("float64").ravel()
    assert x.shape == (n,) and np.isfinite(x).all()
    return x


def check_continuous(x, distribution):
    """The distribution function, and mean and variance within five standard errors."""
    n = len(x)
    assert stats.kstest(x, distribution.cdf).pvalue > LEAST
    mean, variance, kurtosis = distribution.stats(moments="mvk")
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(x.var() - variance) < 5 * variance * np.sqrt((kurtosis + 2) / n)


def check_counts(observed, expected):
    """Counts of classes against expected ones; classes that expect fewer than 10 are one class."""
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(expected) > 1:
        chi = ((observed - expected) ** 2 / expected).sum()
        assert stats.chi2.sf(chi, len(expected) - 1) > LEAST


def check_discrete(x, distribution):
    low, high = int(distribution.ppf(1e-9)), int(distribution.ppf(1 - 1e-9))
    assert low <= x.min() and x.max() <= high and (x == np.floor(x)).all()
    values = np.arange(low, high + 1)
    check_counts(np.bincount((x - low).astype(int), minlength=len(values)), len(x) * distribution.pmf(values))


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.0, 5.0), (100.0, 100.5), (-1e30, 1e30)])
def test_uniform(bounds):
    for dtype in dtypes():
        x = numbers(kr.uniform((N,), *bounds, dtype=dtype, seed=11))
        assert (x >= bounds[0]).all() and (x < bounds[1]).all()
        check_continuous(x, stats.uniform(bounds[0], bounds[1] - bounds[0]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_round_what_float32_draws(dtype):
    """As many as round to the excluded upper bound go to its neighbour instead; the mean tells a bias of half a unit."""
    x = numbers(kr.uniform((N,), 0.0, 1.0, dtype=dtype, seed=12))
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.mean() - 0.5) < 5 * np.sqrt(1 / 12 / N)
    edges = np.linspace(0, 1, 17)
    check_counts(np.histogram(x, edges - 2.0**-10)[0][1:], np.full(15, N / 16))
    x = numbers(kr.normal((N,), dtype=dtype, seed=13))
    assert abs(x.mean()) < 5 / np.sqrt(N) and abs(x.var() - 1) < 5 * np.sqrt(2 / N)
    x = numbers(kr.truncated_normal((N,), dtype=dtype, seed=14))
    assert np.abs(x).max() <= 2
    x = numbers(kr.gamma((N,), 2.0, dtype=dtype, seed=15))
    assert x.min() > 0 and abs(x.mean() - 2) < 5 * np.sqrt(2 / N)


def test_normal_and_its_tails():
    for dtype in dtypes():
        check_continuous(numbers(kr.normal((N,), 1.5, 2.0, dtype=dtype, seed=21)), stats.norm(1.5, 2.0))
        x = np.abs(numbers(kr.normal((4_000_000,), dtype=dtype, seed=22), 4_000_000))
        for bound in (3.0, 4.0, 4.75):
            expected = len(x) * 2 * stats.norm.sf(bound)
            assert abs((x > bound).sum() - expected) < 5 * np.sqrt(expected)


def test_truncated_normal():
    for dtype in dtypes():
        x = numbers(kr.truncated_normal((N,), dtype=dtype, seed=23))
        assert np.abs(x).max() <= 2
        check_continuous(x, stats.truncnorm(-2, 2))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 7, "int32"), (-5, 3, "int8"), (0, 256, "uint8"), (-(2**31), 2**31, "int32"), (0, 3 * 2**30, "int64"), (0, 2**32, "uint32"),
     (-(2**62), 2**62, "int64"), (-(2**63), 2**63, "int64"), (0, 2**64, "uint64"), (2**63, 2**63 + 5, "uint64"), (10, 11, "int16")],
)  # fmt: skip
def test_randint(low, high, dtype):
    x = np.asarray(ops.convert_to_numpy(kr.randint((N,), low, high, dtype=dtype, seed=31)))
    assert x.dtype == dtype
    assert int(x.min()) >= low and int(x.max()) < high
    extent = high - low
    width = -(-extent // 64)  # values per class
    offset = x.astype("uint64") - np.array(low % 2**64, "uint64")
    sizes = np.array([min(width, extent - start) for start in range(0, extent, width)], "float64")
    check_counts(np.bincount((offset // np.uint64(width)).astype(int), minlength=len(sizes)), N * sizes / extent)


def test_randint_is_even_in_its_low_digits():
    """A range of three quarters of the 32 bits: with 32 random bits only, one residue of three would come up half the time."""
    x = np.asarray(ops.convert_to_numpy(kr.randint((N,), 0, 3 * 2**30, dtype="int64", seed=32)))
    check_counts(np.bincount(x % 3), np.full(3, N / 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_categorical(dtype):
    probabilities = np.array([[0.5, 0.25, 0.125, 0.125, 0.0], [0.01, 0.09, 0.2, 0.3, 0.4]])
    with np.errstate(divide="ignore"):
        logits = ops.cast(np.log(probabilities).astype("float32"), dtype)
    x = np.asarray(ops.convert_to_numpy(kr.categorical(logits, N, seed=41)))
    assert x.shape == (2, N) and x.dtype == "int32"
    given = np.exp(np.asarray(ops.convert_to_numpy(ops.cast(logits, "float32"))).astype("float64"))
    for row, p in zip(x, given / given.sum(1, keepdims=True), strict=True):
        check_counts(np.bincount(row, minlength=5), N * p)


def test_categorical_draws_rare_classes():
    """A class of probability 1e-5 among four million draws: 40 are expected."""
    logits = np.log(np.array([[1 - 2e-5, 1e-5, 1e-5]])).astype("float32")
    x = np.asarray(ops.convert_to_numpy(kr.categorical(logits, 4_000_000, seed=42)))
    rare = np.bincount(x[0], minlength=3)[1:]
    assert (np.abs(rare - 40) < 5 * np.sqrt(40)).all()


@pytest.mark.parametrize("alpha", [1e-2, 0.1, 0.5, 1.0, 2.5, 30.0, 1e3, 1e6])
def test_gamma(alpha):
    for dtype in dtypes():
        x = numbers(kr.gamma((N,), alpha, dtype=dtype, seed=51))
        least = np.finfo(dtype).tiny
        assert x.min() >= least  # as on TensorFlow
        distribution = stats.gamma(alpha)
        missing = distribution.cdf(least)
        if missing < 1e-3:
            check_continuous(x, distribution)
        else:  # what is too small for the dtype is its least normal number
            assert abs((x == least).mean() - missing) < 5 * np.sqrt(missing * (1 - missing) / N)
            assert stats.kstest(distribution.cdf(x[x > least]), stats.uniform(missing, 1 - missing).cdf).pvalue > LEAST


def test_gamma_of_many_parameters():
    alpha = np.array([[0.3], [3.0], [300.0]], "float32")
    x = np.asarray(ops.convert_to_numpy(kr.gamma((3, N), alpha, seed=52))).astype("float64")
    for row, a in zip(x, alpha[:, 0].astype("float64"), strict=True):
        check_continuous(row, stats.gamma(a))


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (1.0, 1.0), (2.0, 5.0), (40.0, 0.9), (1e3, 2e3), (1e5, 1e5)])
def test_beta(alpha, beta):
    for dtype in dtypes():
        x = numbers(kr.beta((N,), alpha, beta, dtype=dtype, seed=61))
        assert 0 <= x.min() and x.max() <= 1
        check_continuous(x, stats.beta(alpha, beta))


def test_beta_of_small_parameters():
    """Both gamma variates are often too small for float32; their ratio still has a distribution."""
    x = numbers(kr.beta((N,), 0.01, 0.02, seed=62))
    assert abs(x.mean() - 1 / 3) < 5 * np.sqrt(2 / 9 / N)
    inner = stats.beta(0.01, 0.02)
    share = inner.cdf(0.9) - inner.cdf(0.1)
    assert abs(((x > 0.1) & (x < 0.9)).mean() - share) < 5 * np.sqrt(share / N)


@pytest.mark.parametrize(
    ("count", "probability"),
    [(0, 0.5), (1, 0.3), (5, 0.5), (10, 0.999), (40, 0.2), (40, 0.3), (100, 0.5), (1000, 1e-3), (1000, 0.97), (10**6, 2e-5), (10**6, 0.37),
     (10**7, 1e-7), (7, 0.0), (7, 1.0)],
)  # fmt: skip
def test_binomial(count, probability):
    for dtype in dtypes():
        x = numbers(kr.binomial((N,), count, probability, dtype=dtype, seed=71))
        assert x.min() >= 0 and x.max() <= count
        if probability in (0.0, 1.0) or count == 0:
            assert (x == count * probability).all()
        else:
            check_discrete(x, stats.binom(count, float(np.dtype(dtype).type(probability))))


def test_binomial_of_many_parameters():
    counts, probabilities = np.array([[3.0], [50.0], [5000.0]], "float32"), np.array([[0.5], [0.9], [0.25]], "float32")
    x = np.asarray(ops.convert_to_numpy(kr.binomial((3, N), counts, probabilities, seed=72)))
    for row, n, q in zip(x, counts[:, 0], probabilities[:, 0], strict=True):
        check_discrete(row, stats.binom(int(n), float(q)))


def test_invalid_parameters_give_nan():
    nan = float("nan")
    assert np.isnan(kr.gamma((4,), np.array([0.0, -1.0, nan, -0.5], "float32"), seed=1)).all()
    assert np.isnan(kr.beta((2,), np.array([-1.0, 1.0], "float32"), np.array([1.0, 0.0], "float32"), seed=1)).all()
    counts, probabilities = np.array([-1.0, 5, 5, 5, nan, np.inf], "float32"), np.array([0.5, -0.1, 1.1, nan, 0.5, 0.5], "float32")
    assert np.isnan(kr.binomial((6,), counts, probabilities, seed=1)).all()
    assert np.isposinf(kr.gamma((1,), float("inf"), seed=1)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dropout(dtype):
    x = np.asarray(ops.convert_to_numpy(ops.cast(kr.dropout(ops.ones((N,), dtype), 0.3, seed=81), "float32")))
    assert set(np.unique(x)) == {0.0, float(np.asarray(ops.convert_to_numpy(ops.cast(ops.cast(1 / 0.7, dtype), "float32"))))}
    check_counts(np.array([(x == 0).sum(), (x != 0).sum()]), np.array([0.3 * N, 0.7 * N]))


def test_shuffle():
    """Of five slices, every order equally often: 120 classes."""
    seeds = kr.SeedGenerator(82)
    x = np.stack([np.asarray(ops.convert_to_numpy(kr.shuffle(ops.arange(5), seed=seeds))) for _ in range(3000)])
    assert (np.sort(x, 1) == np.arange(5)).all()
    orders = np.unique(x @ 5 ** np.arange(5), return_counts=True)[1]
    check_counts(np.append(orders, np.zeros(120 - len(orders))), np.full(120, 25.0))


def test_neighbours_are_independent():
    """Correlation of a draw with the next element, with the next row, and with the draw of the next seed."""
    x = numbers(kr.normal((N,), seed=91))
    y = numbers(kr.normal((N,), seed=92))
    for a, b in ((x[1:], x[:-1]), (x[512:], x[:-512]), (x, y)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(N)
