"""Prologues of gradients of weights: what CPU kernels compute where they pack it, such as an activation, is neither stored nor loaded."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl.kernels.conv.geometry import Geometry
from tests.compiler.fuse.test_rows import CPU, GPU, regions
from tests.devices import another
from tests.kernels.pointwise.test_cpu import EXTENTS, run

COMPUTED = ["mul", "add", "max"]


@pytest.fixture(scope="module")
def device():
    """A device with the schedule of CPUs, and so few units that small gradients have work for them."""
    device = another()
    device.traits = dataclasses.replace(device.traits, schedule="cpu", compute_units=1, vector_width=8)
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
