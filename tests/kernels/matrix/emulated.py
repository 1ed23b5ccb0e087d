"""All matrix units, emulated on the current device, and a device's traits with one of them."""

import dataclasses

from keras_ocl.core import dtypes
from keras_ocl.kernels.matrix.emulation import emulated
from keras_ocl.kernels.matrix.units import UNITS

# Each with the layouts of its row, and an instruction that goes through local memory.
EMULATED_UNITS = {name: unit if unit.exchange else emulated(unit, name) for name, unit in UNITS.items()}


def traits_with(device, *units, **changes):
    """The device's traits with these matrix units, by name, and with so few registers that tiles are small, as their texts are then."""
    usual = {"matrix_units": units, "matrix_rates": (8.0,) * len(units), "item_registers": 48, "max_group": 64}
    return dataclasses.replace(device.traits, schedule="gpu", **(usual | changes))


def bound(a, b, expansion=None):
    """The most that a float32 sum of exact products of `a` and `b`, of 16 bits, may differ from the sum in float64; of float32 operands,
    that of rounded products, or of those of the terms of an Expansion."""
    rounded = 2 if dtypes.canonical(a.dtype) == "float32" else 1
    # Of each operand one term fewer is exact; the first may be cut off by a unit of its last bit, the last is off by half a unit.
    lost = (expansion.terms + 1) * 2.0 ** (-expansion.bits * expansion.terms + 2 * (expansion.terms > 1)) if expansion else 0
    a, b = abs(a.astype("f8")), abs(b.astype("f8"))
    return a @ b * (a.shape[-1] * rounded * 2.0**-24 + lost) + 1e-38
