"""Matrix units that any device emulates, with the layouts of real ones, and a device's traits with one of them."""

import dataclasses

from keras_ocl.kernels.matrix_unit import EMULATED, Layout, emulated

_LINES = ((1, 0), (2, 0), (4, 0), (8, 0))
_STEPS = ((0, 1), (0, 2), (0, 4), (0, 8))

# AMD's v_mfma_f32_16x16x16_f16: four elements of a lane lie along k, and four sums below one another.
WIDE_WAVE = emulated(
    "wide wave",
    rows=16,
    columns=16,
    steps=16,
    lanes=64,
    a=Layout((*_LINES, (0, 4), (0, 8)), _STEPS[:2]),
    b=Layout((*_LINES, (0, 4), (0, 8)), _STEPS[:2]),
    c=Layout((*_STEPS, (4, 0), (8, 0)), _LINES[:2]),
)
# AMD's v_wmma_f32_16x16x16_f16 of gfx11: both halves of a wave hold the operands.
REPLICATED = emulated(
    "replicated",
    rows=16,
    columns=16,
    steps=16,
    lanes=32,
    a=Layout((*_LINES, (0, 0)), _STEPS),
    b=Layout((*_LINES, (0, 0)), _STEPS),
    c=Layout((*_STEPS, (1, 0)), ((2, 0), (4, 0), (8, 0))),
)
# Intel's dpas of 16 lanes: a register of `a` holds an element of each of two rows.
NARROW_WAVE = emulated(
    "narrow wave",
    rows=8,
    columns=16,
    steps=16,
    lanes=16,
    a=Layout(_STEPS, _LINES[:3]),
    b=Layout(_LINES, _STEPS),
    c=Layout(_STEPS, _LINES[:3]),
)
UNITS = (EMULATED, WIDE_WAVE, REPLICATED, NARROW_WAVE)


def traits_with(device, *units, **changes):
    """The device's traits with these matrix units, by name, and with so few registers that tiles are small, as their texts are then."""
    return dataclasses.replace(device.traits, schedule="gpu", **({"matrix_units": units, "item_registers": 48, "max_group": 64} | changes))


def bound(a, b):
    """The most that a float32 sum of exact products of `a` and `b` may differ from the sum in float64."""
    a, b = abs(a.astype("f8")), abs(b.astype("f8"))
    return a @ b * a.shape[-1] * 2.0**-24 + 1e-38
