"""Convolutions and their gradients by an emulated matrix unit against NumPy in float64, on the current device."""

import dataclasses

import numpy as np
import pytest

from keras_ocl.core.dim import Dim
from keras_ocl.kernels.conv import Geometry
from tests.kernels.conv.test_conv import FEW, FUNCTIONS, GEOMETRIES, PRECISION, check, compute, example, specs_of
from tests.kernels.matrix.emulated import traits_with

PLAIN = (6, 13, 14, 20)  # of GEOMETRIES: groups of one channel, or so small that a plain tile costs less


def by_unit(traits, g, dtype):
    """Which of the functions use the unit."""
    return [what for what in FUNCTIONS if any("by the matrix unit emulated" in s.title for s in specs_of(what, traits, g, dtype)[0])]


@pytest.mark.parametrize("case", sorted({*range(len(GEOMETRIES))} - {*PLAIN}))
def test_geometries(device, case):
    """Those that all other kernels are tested with, with sums in parts and without."""
    input, filter, options = GEOMETRIES[case]
    g, traits = Geometry.of(input, filter, **options), traits_with(device, "emulated", compute_units=32)
    dtype = ("float16", "bfloat16")[case % 2]
    assert by_unit(traits, g, dtype) and not by_unit(dataclasses.replace(traits, matrix_units=(), matrix_rates=()), g, dtype)
    check(device, traits, g, dtype)


def test_float32_keeps_its_kernels(device):
    traits = traits_with(device, "emulated")
    assert not any(by_unit(traits, Geometry.of(input, filter, **options), "float32") for input, filter, options in FEW)


@pytest.mark.parametrize("what", FUNCTIONS)
def test_unknown_extents(device, what):
    """One text for a batch and images of any size; channels that eight, or only four, divide."""
    traits = traits_with(device, "emulated")
    for channels in (16, 12):
        sources = set()
        for batch, height, width in ((2, 20, 30), (3, 9, 5), (1, 3, 41)):
            sizes = Dim(batch, hint=2, probe=1299721), Dim(height, hint=20, probe=1000003), Dim(width, hint=30, probe=1299709)
            g = Geometry.of((*sizes, channels), (3, 3, channels, 24), padding=1, strides=(1, 2))
            arrays, wanted = example(g, "bfloat16")
            got = compute(device, traits, what, g, arrays, "bfloat16")
            np.testing.assert_allclose(got, wanted[what], rtol=0, atol=PRECISION["bfloat16"] * np.abs(wanted[what]).max())
            sources.add(tuple(s.source("f") for s in specs_of(what, traits, g, "bfloat16")[0]))
        assert len(sources) == 1 and "by the matrix unit" in next(iter(sources))[0]
