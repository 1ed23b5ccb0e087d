"""What convolutions of GPUs compute as they load it, such as casts, is neither stored nor loaded."""

import ml_dtypes
import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.compiler.fuse.partition import partition
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.conv.geometry import Geometry
from tests.compiler.fuse.test_rows import GPU, regions
from tests.compiler.graphs import graph_of
from tests.devices import another
from tests.kernels.matrix.emulated import traits_with
from tests.kernels.pointwise.test_cpu import EXTENTS

GEOMETRIES = [
    ((3, 9, 13, 16), (3, 3, 16, 24), dict(padding=1)),
    ((5, 12, 11, 13), (3, 2, 13, 20), dict(strides=2, padding=1)),
    ((4, 9, 9, 3), (3, 3, 3, 16), dict(padding=1)),
    ((2, 70, 24), (5, 24, 32), dict(dilation=3)),
    ((3, 8, 8, 20), (3, 3, 1, 20), dict(padding=1, groups=20)),
    ((2, 9, 9, 24), (3, 3, 12, 32), dict(padding=1, groups=2)),
    ((2, 4, 5, 6, 8), (2, 3, 3, 8, 16), dict(padding=1)),
    ((3, 16, 16, 64), (1, 1, 64, 80), dict()),
    ((2, 11, 10, 8), (3, 3, 8, 16), dict(strides=3, padding=((0, 2), (4, -1)))),
]


def cast(x):
    return P.convert(x, "bfloat16")


def step(input, filter, options, given=cast):
    """(shape of the result, function of x, w and dy: the result and both gradients, of `given` operands)."""
    g = Geometry.of(input, filter, **options)
    params = dict(strides=g.strides, padding=g.padding, dilation=g.dilation, input_dilation=g.input_dilation, groups=g.groups)

    def function(x, w, dy):
        x, w, dy = given(x), given(w), given(dy)
        found = P.conv(x, w, **params), P.conv_input_grad(dy, w, x.shape, **params), P.conv_filter_grad(x, dy, filter, **params)
        return tuple(P.convert(y, "float32") for y in found)

    return g.output, function


def test_no_cast_has_a_launch():
    shape, function = step((32, 16, 16, 16), (3, 3, 16, 32), dict(padding=1))
    found = regions(GPU, function, (32, 16, 16, 16), (3, 3, 16, 32), shape)
    assert [len(r.prologues) for r in found] == [2, 2, 2]
    assert all(n.kind is Kind.INPUT for r in found for n in r.loaded | r.operands - {r.anchor})


def test_what_many_tiles_read_is_cast_once():
    sizes = (32, 64, 64, 512), (3, 3, 512, 512)
    shape, function = step(*sizes, dict(padding=1))
    first, *_ = found = regions(GPU, function, *sizes, shape)
    assert len(found) == 6 and first.anchor is None and not any(r.prologues for r in found)


def test_what_a_transform_reads_is_stored():
    """Winograd's algorithm, of float32: its transforms load the operands themselves."""
    sizes = (16, 32, 32, 64), (3, 3, 64, 64)

    def function(x, w):
        return P.conv(P.mul(x, x), w, strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), input_dilation=(1, 1), groups=1)

    assert not any(r.prologues for r in regions(GPU, function, *sizes))


@pytest.mark.parametrize("unit", [(), ("emulated",)], ids=["items", "unit"])
@pytest.mark.parametrize("extents", ["known", "unknown"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_convolutions_that_compute_casts(geometry, extents, unit, monkeypatch):
    """Beside those of operands that were cast before, with infinities and NaN, on the device with the schedule of GPUs."""
    device = another()
    monkeypatch.setattr(device, "traits", traits_with(device, *unit, compute_units=64))
    input, filter, options = geometry
    shape, function = step(*geometry)
    rng = np.random.default_rng(input[1])
    x, w, dy = (rng.standard_normal(s).astype("float32") for s in (input, filter, shape))
    x.ravel()[5], x.ravel()[-1], w.ravel()[1], dy.ravel()[2] = np.inf, np.nan, -np.inf, np.nan
    found, regions = _run(device, function, x, w, dy, extents)
    stored, _ = _run(device, step(*geometry, given=lambda x: x)[1], *(a.astype(ml_dtypes.bfloat16) for a in (x, w, dy)), extents)
    assert extents == "unknown" or all(r.anchor for r in regions), "casts have kernels of their own"
    for one, other in zip(found, stored, strict=True):
        assert np.isfinite(other).any()
        np.testing.assert_allclose(one, other, rtol=2**-7, atol=1e-3)


def _run(device, function, x, w, dy, extents):
    """(results, Regions); extents: what the number of images is, of EXTENTS."""
    number = EXTENTS[extents](x.shape[0])
    shapes = [(number, *x.shape[1:]), w.shape, (number, *dy.shape[1:])]
    graph, inputs = graph_of(function, *((shape, a.dtype.name) for shape, a in zip(shapes, (x, w, dy), strict=True)))
    executable = Executable(device, graph, inputs)
    results = executable.run([device.upload(a) for a in (x, w, dy)])
    shapes = [tuple(map(int, node.shape)) for node in graph.outputs]
    found = [device.download(result, np.dtype("float32"), shape) for result, shape in zip(results, shapes, strict=True)]
    return found, partition(graph, device.traits).regions
