"""The matrix units that kernels can multiply with, by name."""

from collections.abc import Sequence

from keras_ocl.kernels.matrix import amd, dpas, mma
from keras_ocl.kernels.matrix.emulation import emulated
from keras_ocl.kernels.matrix.unit import MatrixUnit

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


def fitting(names: Sequence[str], dtype: str, accumulator: str) -> MatrixUnit | None:
    """The first of a device's units, by their names, that multiplies operands of `dtype` with such sums; None if there is none.

    Raises:
        ValueError: there is no unit of such a name.
    """
    if unknown := [name for name in names if name not in UNITS]:
        raise ValueError(f"there is no matrix unit {unknown[0]!r}; the units are {', '.join(UNITS)}")
    units = (UNITS[name] for name in names)
    return next((unit for unit in units if dtype in unit.dtypes and accumulator == unit.accumulator), None)
