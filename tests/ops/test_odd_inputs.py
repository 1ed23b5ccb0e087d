"""Searching, counting and ordering on odd inputs: empty ones, NaN, infinities, duplicates. Against NumPy."""

import numpy as np
import pytest
from keras import ops

from tests.ops.samples import same

NAN, INF = float("nan"), float("inf")
ODD = np.array([3.0, NAN, -INF, 3.0, 0.0, -0.0, INF, NAN, -2.5, 3.0], "float32")
ORDERED = np.array([-INF, -2.5, 0.0, 0.0, 3.0, 3.0, INF, NAN, NAN], "float32")
EMPTY = np.zeros((0,), "float32")
FINITE = np.array([3.0, 3.0, -1.0, 0.5, 0.5, 0.5, 7.25], "float32")

CASES = {
    "isin": lambda k: k.isin(ODD, np.array([3.0, NAN, INF], "float32")),
    "isin inverted": lambda k: k.isin(ODD, np.array([3.0, 3.0], "float32"), invert=True),
    "isin nothing": lambda k: k.isin(ODD, EMPTY),
    "isin bool": lambda k: k.isin(ODD > 0, np.array([True])),
    "nothing isin": lambda k: k.isin(EMPTY, ODD),
    "sort": lambda k: k.sort(ODD),
    "argsort": lambda k: k.argsort(ODD[[0, 2, 4, 6, 1]]),
    "argmax": lambda k: k.argmax(ODD),
    "argmin": lambda k: k.argmin(ODD),
    "max": lambda k: k.max(ODD),
    "searchsorted left": lambda k: k.searchsorted(ORDERED, ODD),
    "searchsorted right": lambda k: k.searchsorted(ORDERED, ODD, side="right"),
    "searchsorted nothing": lambda k: k.searchsorted(EMPTY, ODD),
    "digitize": lambda k: k.digitize(ODD, np.array([-1.0, 0.0, 3.0], "float32")),
    "unique": lambda k: k.unique(FINITE, return_inverse=True, return_counts=True, return_index=True),
    "unique of nothing": lambda k: k.unique(EMPTY),
    "bincount": lambda k: k.bincount(np.array([0, 5, 5, 1], "int32"), minlength=8),
    "bincount of nothing": lambda k: k.bincount(np.zeros((0,), "int32"), minlength=3),
    "bincount weighted": lambda k: k.bincount(np.array([0, 2, 2], "int32"), weights=np.array([0.5, 1.0, 2.0], "float32")),
    "histogram": lambda k: k.histogram(FINITE, 5),
    "histogram within": lambda k: k.histogram(FINITE, 4, (0.0, 3.0)),
    "histogram of one value": lambda k: k.histogram(FINITE[:2], 3),
    "histogram of nothing": lambda k: k.histogram(EMPTY, 3),
    "quantile": lambda k: k.quantile(FINITE, [0.0, 0.37, 1.0]),
    "quantile of NaN": lambda k: k.quantile(ODD, 0.5),
    "nanquantile": lambda k: k.nanquantile(np.array([[1.0, NAN, 3.0], [NAN, NAN, NAN]], "float32"), 0.25, axis=1),
    "median of infinities": lambda k: k.median(np.array([INF, INF, 1.0], "float32")),
    "nansum": lambda k: k.nansum(np.array([[NAN, NAN], [1.0, NAN]], "float32"), axis=1),
    "nanmean": lambda k: k.nanmean(np.array([[NAN, NAN], [1.0, NAN]], "float32"), axis=1),
    "nanmax": lambda k: k.nanmax(np.array([[NAN, -INF], [1.0, NAN]], "float32"), axis=1),
    "nanvar": lambda k: k.nanvar(np.array([[NAN, 2.0, 5.0], [1.0, NAN, NAN]], "float32"), axis=1),
    "sum of nothing": lambda k: k.sum(EMPTY),
    "prod of nothing": lambda k: k.prod(EMPTY),
    "cumsum of nothing": lambda k: k.cumsum(EMPTY),
    "any of nothing": lambda k: k.any(EMPTY > 0),
    "all of nothing": lambda k: k.all(EMPTY > 0),
    "sort nothing": lambda k: k.sort(EMPTY),
    "count_nonzero": lambda k: k.count_nonzero(ODD),
    "nonzero of nothing": lambda k: k.nonzero(EMPTY),
    "diff of nothing": lambda k: k.diff(EMPTY),
    "nan_to_num": lambda k: k.nan_to_num(ODD),
    "fmax": lambda k: k.fmax(ODD, np.zeros_like(ODD)),
    "maximum": lambda k: k.maximum(ODD, np.zeros_like(ODD)),
    "sign": lambda k: k.sign(ODD),
    "pad nothing": lambda k: k.pad(EMPTY, 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_as_numpy(name):
    same(CASES[name](ops), CASES[name](np))


@pytest.mark.parametrize("x", [FINITE - 3, np.array([0, 2, 255], "uint8")])
def test_running_sums_of_truth_values(x):
    same(ops.cumsum(x, dtype="bool"), np.cumsum(x != 0))
    same(ops.cumprod(x, dtype="bool"), np.cumprod(x != 0))


def test_extremes_of_nothing():
    for name in ("max", "min"):
        with pytest.raises(ValueError, match=f"^{name}: .*\\(0,\\) has no elements.*keras.ops.{name} with `initial`"):
            getattr(ops, f"a{name}")(EMPTY)
        assert float(getattr(ops, name)(EMPTY, initial=2.0)) == 2


def test_histogram_of_nan_is_tensorflows():
    """Without a range nothing lies within NaN edges; within a range NaN is not counted."""
    counts, edges = ops.histogram(ODD[[0, 1, 4]], 4)
    np.testing.assert_array_equal(ops.convert_to_numpy(counts), [0] * 4)
    assert np.isnan(ops.convert_to_numpy(edges)).all()
    counts, edges = ops.histogram(ODD, 4, (-4.0, 4.0))
    np.testing.assert_array_equal(ops.convert_to_numpy(counts), [1, 0, 2, 3])
    same(edges, np.linspace(-4, 4, 5))


def test_padding_needs_elements():
    for mode in ("edge", "wrap", "maximum", "linear_ramp"):
        with pytest.raises(ValueError, match=f"pad: mode '{mode}'.*has none"):
            ops.pad(ops.convert_to_tensor(EMPTY), 1, mode=mode)
    with pytest.raises(ValueError, match="pad: mode 'mirror' is not supported"):
        ops.pad(ops.convert_to_tensor(FINITE), 1, mode="mirror")
