"""Window reductions, their positions and gradients."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl.compiler import from_numpy
from keras_ocl.core.autodiff import GradientTape
from tests.primitives.checking import check_gradient, need_float64, same

RNG = np.random.default_rng(4)


def windows(x, window, strides, padding, dilation, missing):
    """(output shape..., positions of the window): the elements of each window, `missing` in the padding."""
    padded = np.pad(x, padding, constant_values=missing)
    out = [max(0, (n - ((w - 1) * d + 1)) // s + 1) for n, w, s, d in zip(padded.shape, window, strides, dilation, strict=True)]
    parts = [
        padded[tuple(slice(t * d, t * d + (o - 1) * s + 1 if o else 0, s) for t, d, o, s in zip(taps, dilation, out, strides, strict=True))]
        for taps in itertools.product(*map(range, window))
    ]
    return np.stack(parts, -1)


CASES = [
    ((2, 6, 6, 3), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1, 1, 1, 1)),
    ((2, 7, 5, 3), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0), (0, 1), (0, 1), (0, 0)), (1, 1, 1, 1)),
    ((1, 7, 8, 2), (1, 3, 3, 1), (1, 2, 1, 1), ((0, 0), (1, 1), (1, 0), (0, 0)), (1, 1, 1, 1)),
    ((9, 4), (2, 1), (3, 1), ((1, 0), (0, 0)), (1, 1)),
    ((11,), (3,), (2,), ((2, 1),), (2,)),
    ((12,), (2,), (4,), ((0, 0),), (3,)),
    ((3, 3), (3, 3), (3, 3), ((0, 0), (0, 0)), (1, 1)),
]


@pytest.mark.parametrize("shape,window,strides,padding,dilation", CASES)
def test_reduce_window(shape, window, strides, padding, dilation):
    x = RNG.normal(size=shape).astype("f4")
    geometry = (window, strides, padding, dilation)
    same(P.reduce_window(from_numpy(x), "sum", *geometry), windows(x, *geometry, 0).astype("f8").sum(-1), 1e-5)
    high, low = windows(x, *geometry, -np.inf), windows(x, *geometry, np.inf)
    same(P.reduce_window(from_numpy(x), "max", *geometry), high.max(-1))
    same(P.reduce_window(from_numpy(x), "min", *geometry), low.min(-1))
    same(P.window_argmax(from_numpy(x), *geometry), high.argmax(-1).astype("i4"))
    for kind in ("sum", "max", "min"):
        check_gradient(lambda a, kind=kind: P.reduce_window(P.mul(a, a), kind, *geometry), x, step=1e-6, tolerance=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_geometry(data):
    rank = data.draw(st.integers(1, 3))

    def several(low, high):
        return tuple(data.draw(st.integers(low, high)) for _ in range(rank))

    shape, window, strides, dilation = several(1, 8), several(1, 3), several(1, 3), several(1, 2)
    padding = tuple((data.draw(st.integers(0, (w - 1) * d)), data.draw(st.integers(0, 2))) for w, d in zip(window, dilation, strict=True))
    geometry = (window, strides, padding, dilation)
    x = RNG.integers(-5, 6, shape).astype("i4")
    expected = windows(x, *geometry, 0).sum(-1)
    same(P.reduce_window(from_numpy(x), "sum", *geometry), expected)
    dy = RNG.integers(-5, 6, expected.shape).astype("i4")
    spread = np.zeros(shape, "i4")
    number = np.arange(spread.size).reshape(shape)
    for place, value in zip(windows(number, *geometry, -1).reshape(-1, int(np.prod(window))), dy.ravel(), strict=True):
        np.add.at(spread.reshape(-1), place[place >= 0], value)
    same(P.window_gather_sum(from_numpy(dy), None, shape, *geometry), spread)


def test_ties_go_to_the_first():
    need_float64()
    x = from_numpy(np.array([1.0, 1.0, 0.0, 2.0]))
    with GradientTape() as tape:
        tape.watch(x)
        y = P.reduce_window(x, "max", (2,), (2,), ((0, 0),), (1,))
    same(tape.gradient(y, x), [1, 0, 0, 1])


def test_window_errors():
    x = from_numpy(np.zeros((4, 4), "f4"))
    with pytest.raises(ValueError, match="reduce_window.*kind"):
        P.reduce_window(x, "mean", (2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))
    with pytest.raises(ValueError, match="one entry for each axis"):
        P.reduce_window(x, "max", (2,), (1, 1), ((0, 0), (0, 0)), (1, 1))
