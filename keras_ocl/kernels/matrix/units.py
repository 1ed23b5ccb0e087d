"""The matrix units that kernels can multiply with, by name."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from keras_ocl.kernels.matrix import amd, dpas, expansion, mma
from keras_ocl.kernels.matrix.emulation import emulated
from keras_ocl.kernels.matrix.expansion import EXPANSIONS, Expansion
from keras_ocl.kernels.matrix.unit import MatrixUnit
from keras_ocl.kernels.schedule import Traits

# For tests: any device with work-groups can run them.
EMULATED = emulated(mma.M16N8K16, "emulated")
EMULATED_TF32 = emulated(mma.M16N8K8_TF32, "emulated_tf32")
EMULATED_I8 = emulated(mma.M16N8K32_I8, "emulated_i8")

UNITS = {
    unit.name: unit
    for unit in (
        mma.M16N8K16,
        mma.M16N8K8,
        mma.M16N8K8_TF32,
        mma.M16N8K32_I8,
        mma.M8N8K16_I8,
        amd.WMMA_GFX11,
        amd.WMMA_GFX12,
        amd.WMMA_GFX11_I8,
        amd.WMMA_GFX12_I8,
        amd.MFMA_16X16X16,
        amd.MFMA_32X32X8,
        amd.MFMA_32X32X2,
        amd.MFMA_16X16X8_XF32,
        amd.MFMA_32X32X4_XF32,
        amd.MFMA_32X32X16_I8,
        amd.MFMA_16X16X32_I8,
        amd.MFMA_32X32X8_I8,
        amd.MFMA_16X16X16_I8,
        dpas.DPAS_8,
        dpas.DPAS_16,
        dpas.DPAS_8_I8,
        EMULATED,
        EMULATED_TF32,
        EMULATED_I8,
    )
}


def named(name: str) -> MatrixUnit:
    """The unit of that name; ValueError where there is none."""
    if name not in UNITS:
        raise ValueError(f"there is no matrix unit {name!r}; the units are {', '.join(UNITS)}")
    return UNITS[name]


def of_title(title: str) -> tuple[str, int] | None:
    """(name of the matrix unit, its instructions for each product of fragments) of a kernel with this title; None if work-items multiply.

    Several instructions multiply terms of float32 operands.
    """
    found = re.search(r"by the matrix unit (\w+)(?: as (\w+))?", title)
    return found and (found[1], len(expansion.named(found[2]).pairs) if found[2] else 1)


def fitting(names: Sequence[str], dtype: str, accumulator: str) -> tuple[MatrixUnit, ...]:
    """Those of a device's units, by their names, that multiply operands of `dtype` with such sums.

    Raises:
        ValueError: there is no unit of such a name.
    """
    return tuple(unit for unit in map(named, names) if dtype in unit.dtypes and accumulator == unit.accumulator)


class Method(NamedTuple):
    """How a product is computed: by a unit, of its operands as they are or of the terms of an Expansion."""

    unit: MatrixUnit
    expansion: Expansion | None = None

    def rate(self, traits: Traits) -> float:
        """Multiply-adds of the product in the time of one of a work-item."""
        return rate(traits, self.unit) / (len(self.expansion.pairs) if self.expansion else 1)


def methods(names: Sequence[str], dtype: str, accumulator: str, precision: str) -> tuple[Method, ...]:
    """The Methods, of a device's units, for operands of `dtype`, which may be taken as `precision` (core/precision.py) allows.

    Raises:
        ValueError: there is no unit of such a name.
    """
    found = [Method(unit) for unit in fitting(names, dtype, accumulator)]
    if (dtype, accumulator) == ("float32", "float32"):
        for expansion in EXPANSIONS[precision]:
            found += [Method(unit, expansion) for unit in fitting(names, expansion.dtype, accumulator)]
    return tuple(found)


def rate(traits: Traits, unit: MatrixUnit) -> float:
    """Multiply-adds of one of a device's units in the time of one of a work-item; 1 of a unit that it is not said to have."""
    return dict(zip(traits.matrix_units, traits.matrix_rates, strict=True)).get(unit.name, 1)
