"""The matrix units that kernels can multiply with, by name."""

from collections.abc import Sequence

from keras_ocl.kernels.matrix import amd, dpas, mma
from keras_ocl.kernels.matrix.emulation import emulated
from keras_ocl.kernels.matrix.unit import MatrixUnit
from keras_ocl.kernels.schedule import Traits

EMULATED = emulated(mma.M16N8K16, "emulated")  # for tests: any device with work-groups can run it

UNITS = {
    unit.name: unit
    for unit in (
        mma.M16N8K16,
        mma.M16N8K8,
        amd.WMMA_GFX11,
        amd.WMMA_GFX12,
        amd.MFMA_16X16X16,
        amd.MFMA_32X32X8,
        amd.MFMA_32X32X2,
        dpas.DPAS_8,
        dpas.DPAS_16,
        EMULATED,
    )
}


def named(name: str) -> MatrixUnit:
    """The unit of that name; ValueError where there is none."""
    if name not in UNITS:
        raise ValueError(f"there is no matrix unit {name!r}; the units are {', '.join(UNITS)}")
    return UNITS[name]


def fitting(names: Sequence[str], dtype: str, accumulator: str) -> tuple[MatrixUnit, ...]:
    """Those of a device's units, by their names, that multiply operands of `dtype` with such sums.

    Raises:
        ValueError: there is no unit of such a name.
    """
    return tuple(unit for unit in map(named, names) if dtype in unit.dtypes and accumulator == unit.accumulator)


def rate(traits: Traits, unit: MatrixUnit) -> float:
    """Multiply-adds of one of a device's units in the time of one of a work-item; 1 of a unit that it is not said to have."""
    return dict(zip(traits.matrix_units, traits.matrix_rates, strict=True)).get(unit.name, 1)
