"""Prologues: what gradients of weights compute where CPUs pack it, and products where GPUs load it, is neither stored nor loaded.

Such as an activation, or a cast.
"""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.conv.geometry import Geometry
from tests.compiler.fuse.test_rows import CPU, GPU, launches, regions
from tests.devices import another
from tests.kernels.matrix.emulated import traits_with
from tests.kernels.pointwise.test_cpu import EXTENTS, run

COMPUTED = ["mul", "add", "max"]


@pytest.fixture(scope="module", params=[8, 16])
def device(request):
    """A device with the schedule of CPUs, vectors of 8 or 16 lanes, and so few units that small gradients have work for them."""
    device = another()
    device.traits = dataclasses.replace(device.traits, schedule="cpu", compute_units=1, vector_width=request.param)
    return device


def activated(x, scale):
    """What a convolution reads after a normalisation and relu; 0.5 where x is 0, so that it differs from padding."""
    zero = P.broadcast(P.constant(0.0, x.dtype), x.shape, ())
    shifted = P.add(P.mul(x, P.broadcast(scale, x.shape, (x.ndim - 1,))), P.broadcast(P.constant(0.5, x.dtype), x.shape, ()))
    return P.max(shifted, zero)


def filter_gradient(input, filter, options):
    g = Geometry.of(input, filter, **options)
    params = dict(strides=g.strides, padding=g.padding, dilation=g.dilation, input_dilation=g.input_dilation, groups=g.groups)
    return g.output, lambda x, dy: P.conv_filter_grad(x, dy, filter, **params)


def weight_gradient(x, dy):
    """Of a dense layer with x of (examples, positions, features)."""
    steps = tuple(range(x.ndim - 1))
    return P.dot_general(x, dy, (steps, steps))


GEOMETRIES = [
    ((3, 9, 13, 16), (3, 3, 16, 24), dict(padding=1)),
    ((5, 12, 11, 13), (3, 2, 13, 20), dict(strides=2, padding=1)),
    ((4, 9, 9, 3), (3, 3, 3, 16), dict(padding=1)),
    ((2, 300, 21), (5, 21, 33), dict(dilation=3)),
    ((3, 8, 8, 20), (3, 3, 1, 20), dict(padding=1, groups=20)),
    ((4, 8, 8, 96), (7, 7, 1, 96), dict(padding=3, groups=96)),
    ((2, 9, 9, 24), (3, 3, 12, 32), dict(padding=1, groups=2)),
    ((2, 4, 5, 6, 9), (2, 3, 3, 9, 17), dict(padding=1)),
    ((3, 40, 40, 7), (1, 1, 7, 19), dict(strides=2)),
]
PRODUCTS = [((300, 72), 24), ((7, 50, 65), 17), ((9, 130), 511), ((1000, 64), 9), ((1, 64), 16)]


def launches_of(region):
    return [n.name for n in region.outputs], sorted(n.name for n in region.fetched if n.name in COMPUTED)


@pytest.mark.parametrize("input, filter, options", [GEOMETRIES[0], GEOMETRIES[4]])
def test_a_filters_gradient_computes_its_input(input, filter, options):
    output, gradient = filter_gradient((64, *input[1:]), filter, options)

    def function(x, scale, dy):
        return gradient(activated(x, scale), dy)

    shapes = (64, *input[1:]), (input[-1],), output
    (region,) = regions(CPU, function, *shapes)
    assert launches_of(region) == (["conv_filter_grad"], ["add", "max", "mul"])
    first, _ = regions(GPU, function, *shapes)
    assert launches_of(first) == (["max"], [])


def test_a_weights_gradient_computes_its_input():
    def function(x, scale, dy):
        return weight_gradient(activated(x, scale), dy)

    shapes = (4096, 512), (512,), (4096, 128)
    (region,) = regions(CPU, function, *shapes)
    assert launches_of(region) == (["dot_general"], ["add", "max", "mul"])
    first, _ = regions(GPU, function, *shapes)
    assert launches_of(first) == (["max"], [])


def test_what_another_kernel_has_to_read_from_memory_is_stored():
    """By a product that does not pack it, or by whoever asked for it as a result."""
    shapes = (4096, 512), (512,), (4096, 128), (128, 512)

    def forward_too(x, scale, dy, w):
        h = activated(x, scale)
        return weight_gradient(h, dy), P.dot_general(h, w, ((1,), (1,)))

    def result(x, scale, dy, w):
        h = activated(x, scale)
        return weight_gradient(h, dy), h

    for function in (forward_too, result):
        assert not any(r.fetched for r in regions(CPU, function, *shapes))


def test_what_a_product_can_store_in_its_epilogue_is_stored():
    def function(x, w, scale, dy):
        return weight_gradient(activated(P.dot_general(x, w, ((1,), (0,))), scale), dy)

    assert not any(r.fetched for r in regions(CPU, function, (4096, 64), (64, 512), (512,), (4096, 128)))


def test_several_gradients_compute_the_same_input():
    """As in a residual block, where two convolutions read one activation."""
    first = filter_gradient((64, 9, 13, 16), (3, 3, 16, 24), dict(padding=1))
    second = filter_gradient((64, 9, 13, 16), (1, 1, 16, 32), {})

    def function(x, scale, dy, dz):
        h = activated(x, scale)
        return first[1](h, dy), second[1](h, dz)

    found = regions(CPU, function, (64, 9, 13, 16), (16,), first[0], second[0])
    assert [bool(r.fetched) for r in found] == [True, True]


def compare(device, gradient, shapes, extents="known"):
    """The gradient of an activation that is computed in the prologue, beside that of the stored activation."""
    rng = np.random.default_rng(0)
    x, scale, dy = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    x.ravel()[::97], x.ravel()[::89] = np.inf, -0.5 / scale[0]
    (fused,), kernels = run(device, lambda x, scale, dy: gradient(activated(x, scale), dy), x, scale, dy, extents=extents)
    (h,), _ = run(device, activated, x, scale)
    (stored,), alone = run(device, gradient, h, dy)
    assert len(kernels) <= len(alone), "the activation has a kernel"
    assert np.isfinite(stored).any()
    np.testing.assert_allclose(fused, stored, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("input, filter, options", GEOMETRIES, ids=str)
def test_filter_gradients(device, input, filter, options, extents):
    output, gradient = filter_gradient(input, filter, options)
    compare(device, gradient, (input, (input[-1],), output), extents)


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("shape, columns", PRODUCTS, ids=str)
def test_weight_gradients(device, shape, columns, extents):
    compare(device, weight_gradient, (shape, (shape[-1],), (*shape[:-1], columns)), extents)


# ---- on GPUs: what products compute as they load it


def cast(x):
    return P.convert(x, "bfloat16")


def dense_step(x, w, dy):
    """A dense layer in mixed precision with its gradients: (result, gradient of x, gradient of w)."""
    x, w, dy = cast(x), cast(w), cast(dy)
    return tuple(
        P.convert(y, "float32")
        for y in (P.dot_general(x, w, ((1,), (0,))), P.dot_general(dy, w, ((1,), (1,))), P.dot_general(x, dy, ((0,), (0,))))
    )


def test_gpu_products_compute_casts_as_they_load_them():
    """Both operands, in both layouts, each of two products: no cast has a launch."""
    found = regions(GPU, dense_step, (128, 784), (784, 512), (128, 512))
    assert [sorted(n.shape for n in r.prologues) for r in found] == [
        [(128, 784), (784, 512)],
        [(128, 512), (784, 512)],
        [(128, 512), (128, 784)],
    ]
    assert all(n.kind is Kind.INPUT for r in found for n in r.loaded | r.operands - {r.anchor})


def test_what_many_tiles_read_is_cast_once():
    first, *_ = found = regions(GPU, dense_step, (4096, 4096), (4096, 4096), (4096, 4096))
    assert len(found) == 6 and first.anchor is None and not any(r.prologues for r in found)


def test_a_cast_that_must_be_stored_is_loaded():
    """By a product, too: as one who asked for it does, or a template that cannot compute it."""

    def result(x, w):
        h = cast(x)
        return h, P.dot_general(h, w, ((1,), (0,)))

    def batched(x, w):
        h = cast(x)
        return P.dot_general(h, w, ((1,), (0,))), P.dot_general(h, h, ((1,), (1,)), ((0,), (0,)))

    for function in (result, batched):
        assert not any(r.prologues for r in regions(GPU, function, (64, 96), (96, 48)))


def test_an_epilogue_stores_a_cast():
    """What a product computes is cast there rather than in the next one's prologue."""

    def function(x, v, w):
        return P.dot_general(cast(P.dot_general(x, v, ((1,), (0,)))), cast(w), ((1,), (0,)))

    _, second = regions(GPU, function, (64, 96), (96, 80), (80, 48))
    assert [n.shape for n in second.prologues] == [(80, 48)]


def test_other_cheap_expressions_and_flat_views():
    """Of two arrays: a picture's pixels are masked, and flattened, as the product loads them."""

    def function(x, mask, w):
        h = cast(P.mul(x, mask))
        return P.dot_general(P.reshape(h, (64, 28 * 28)), cast(w), ((1,), (0,)))

    (region,) = regions(GPU, function, (64, 28, 28), (64, 28, 28), (784, 96))
    assert sorted(n.name for n in region.fetched) == ["convert", "convert", "mul", "reshape"]


def test_equal_layers_with_prologues_share_their_kernels():
    def function(x, *weights):
        for w in weights:
            x = P.dot_general(cast(x), cast(w), ((1,), (0,)))
        return x

    found = launches(GPU, function, (64, 96), *[(96, 96)] * 3)
    assert len(found) == 3 and len({launch.text() for launch in found[1:]}) == 1


@pytest.mark.parametrize("unit", [(), ("emulated",)], ids=["items", "unit"])
@pytest.mark.parametrize("sizes", [(33, 50, 45), (3, 77, 31), (70, 96, 5), (1, 64, 48)], ids=str)
def test_products_that_compute_casts(sizes, unit, monkeypatch):
    """Beside NumPy's, with infinities and NaN, on the device with the schedule of GPUs."""
    device = another()
    monkeypatch.setattr(device, "traits", traits_with(device, *unit))
    m, k, n = sizes
    rng = np.random.default_rng(m)
    x, w, dy = (rng.standard_normal(shape).astype("float32") for shape in ((m, k), (k, n), (m, n)))
    x[0, 1], x[-1, -1], w[0, 0], dy[0, 2] = np.inf, np.nan, -np.inf, np.nan
    found, kernels = run(device, dense_step, x, w, dy)
    assert len(kernels) <= 3, "no launch of casts beside the products"
    a, b, c = (array.astype(ml_dtypes.bfloat16).astype("f8") for array in (x, w, dy))
    for result, left, right in zip(found, (a, c, a.T), (b, b.T, c), strict=True):
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(result, left @ right, rtol=2**-8, atol=0.05)
