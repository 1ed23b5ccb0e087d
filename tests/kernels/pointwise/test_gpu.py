"""Elementwise kernels of the gpu schedule: tiles where an operand is transposed, one element per item elsewhere."""

import numpy as np
import pytest

from keras_ocl import primitives as P
from tests.kernels.pointwise.test_team import EXTENTS, array, device, run  # noqa: F401


def tiled(executable):
    """How many kernels compute square tiles."""
    return sum("column" in launch.body for launch in executable.launches)


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize(
    "shape,order,tiles",
    [((16, 16), (1, 0), 1), ((33, 70), (1, 0), 1), ((0, 40), (1, 0), 0), ((3, 40, 50), (0, 2, 1), 1), ((20, 3, 40), (2, 0, 1), 1),
     ((2, 3, 17, 19), (0, 3, 1, 2), 1), ((5, 40), (1, 0), 0), ((3, 40, 50), (2, 1, 0), 0), ((2, 17, 3, 19), (3, 1, 2, 0), 0)],
)  # fmt: skip
def test_transposes(device, shape, order, tiles, extents):  # noqa: F811
    """Those whose last axis is shorter than a tile, before or after, are not tiled."""
    x = array(*shape)
    got, executable = run(device, lambda x: P.neg(P.transpose(x, order)), x, extents=extents)
    np.testing.assert_array_equal(got, -np.transpose(x, order))
    if extents == "known":
        assert tiled(executable) == tiles


def test_with_an_operand_that_is_not_transposed(device):  # noqa: F811
    x, y, z = array(130, 70), array(70, 130), array(130)
    got, executable = run(device, lambda x, y, z: P.mul(P.sub(P.transpose(x, (1, 0)), y), P.broadcast(z, y.shape, (1,))), x, y, z)
    np.testing.assert_allclose(got, (x.T - y) * z, rtol=1e-5)
    assert tiled(executable) == 1


def test_what_is_contiguous_is_not_tiled(device):  # noqa: F811
    x = array(40, 3, 50)
    got, executable = run(device, lambda x: P.exp(P.transpose(x, (1, 0, 2))), x)
    np.testing.assert_allclose(got, np.exp(x.astype("f8")).transpose(1, 0, 2), rtol=1e-6)
    assert tiled(executable) == 0
