"""What counts as right."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.verify.case import Case, _compared, judge
from keras_ocl.verify.cases.convolutions import _DIRECT, _of
from keras_ocl.verify.cases.numbers import normal, wide
from keras_ocl.verify.cases.pointwise import threefry

_X = np.array([1, 2, 3], np.float32)


@pytest.mark.parametrize(
    ("found", "wanted", "ulps", "clause"),
    [
        (_X, _X.astype(np.float64), 1, ""),
        (np.nextafter(_X, 9), _X.astype(np.float64), 2, ""),
        (_X + np.float32(1e-5), _X.astype(np.float64), 2, "element [0] is 1.00001 instead of 1.0, 3 of 3 are wrong, 84 units"),
        (_X[:2], _X, 0, "its shape is (2,), not (3,)"),
        (np.array([0.0], np.float32), np.array([-0.0]), 0, "element [0] is 0.0 instead of -0.0"),
        (np.array([np.nan, np.inf], np.float32), np.array([np.nan, np.inf]), 1, ""),
        (np.array([np.nan, 1], np.float32), np.array([1, np.nan]), 1, "element [0] is nan instead of 1.0, 2 of 2 are wrong"),
        (np.array([np.inf], np.float16), np.array([70000.0]), 1, ""),
        (np.array([0], np.float32), np.array([1e-40]), 1, ""),
        (np.array(4, np.int32), np.array(5), 0, "it is 4 instead of 5"),
    ],
)
def test_comparison(found, wanted, ulps, clause):
    said = _compared(found, wanted, np.abs(wanted) if ulps else None, ulps)
    assert said.startswith(clause) and bool(said) == bool(clause)


def test_what_is_not_written_is_seen():
    device = runtime.open_again(runtime.current_device(), runtime.current_device().traits)
    launch, grids = device.driver.launch, []

    def launched(queue, kernel, grid, group):
        grids.append(grid)
        return launch(queue, kernel, (grid[0] - 1, *grid[1:]) if len(grids) > 1 else grid, group)

    device.driver.launch = launched
    x = normal("x", 100_000)
    case = Case("doubled", lambda x: P.add(x, x), (x,), lambda: [wide(x) * 2], 1)
    assert judge(device, case).startswith("in another run element [") and len(grids) == 2


def test_known_answers_of_threefry():
    # Of the paper's reference implementation, Threefry-2x32 with 20 rounds.
    zero, ones = np.uint32(0), np.uint32(0xFFFFFFFF)
    assert threefry((zero, zero), np.array([0], np.uint32), zero) == 0x6B200159
    assert threefry((ones, ones), np.array([ones]), ones) == 0x1CB996FC


@pytest.mark.parametrize("g", _DIRECT, ids=lambda g: g.name)
def test_reference_of_convolutions(g):
    """The gradients are the transposes: <conv(x, w), dy> = <x, dx> = <w, dw>."""
    x, w, dy = (wide(normal(name, *shape)) for name, shape in (("x", g.size), ("w", g.filter), ("dy", g.result)))
    y, dx, dw = _of(g, x, w, dy)
    assert np.allclose([(x * dx).sum(), (w * dw).sum()], (y * dy).sum())
