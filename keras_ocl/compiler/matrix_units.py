"""Tries a device's matrix units before anything is compiled for it: those that fail the probe are left out of its traits."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from keras_ocl.kernels.matrix.probe import Probe, probe
from keras_ocl.kernels.matrix.units import named
from keras_ocl.runtime import FAILURES, Device, KernelBuildError
from keras_ocl.runtime.matrix_units import Verdicts

logger = logging.getLogger("keras_ocl.matrix_units")


def examine(device: Device) -> None:
    """Leave the units that work in `device.traits.matrix_units`; the others get a line of the log, and are in `device.refused_units`."""
    verdicts, working, refused, traits = Verdicts(device.model, device.driver_version), {}, {}, device.traits
    try:
        units = [named(name) for name in traits.matrix_units]
    except ValueError as error:  # known devices have known units
        raise ValueError(f"KERAS_OCL_MATRIX={','.join(traits.matrix_units)!r}: {error}") from None
    for name, unit, rate in zip(traits.matrix_units, units, traits.matrix_rates, strict=True):
        reason = next(filter(None, (_verdict(device, verdicts, probe(unit, dtype)) for dtype in unit.dtypes)), "")
        if reason:
            refused[name] = reason
            logger.warning("keras_ocl does not use the matrix unit %s of %s: %s.", name, device, reason)
        else:
            working[name] = rate
    device.refused_units = refused
    device.traits = replace(traits, matrix_units=tuple(working), matrix_rates=tuple(working.values()))


def _verdict(device: Device, verdicts: Verdicts, given: Probe) -> str:
    return verdicts.of(given.name, given.source, lambda: outcome(device, given))


def outcome(device: Device, given: Probe) -> str:
    """Run a Probe: "" if the values are as wanted, else what went wrong, as a clause."""
    try:
        kernel: Any
        (kernel,) = device.build([(given.name, given.source)]).values()
        found = device.upload(given.sums)
        for position, storage in enumerate((device.upload(given.a), device.upload(given.b), found)):
            kernel.set_arg(position, storage.mem)
        device.enqueue(kernel, (given.items,), (given.items,), "probe of a matrix unit")
        values = device.download(found, given.wanted.dtype, given.wanted.shape)
    except KernelBuildError as error:
        return f"the driver does not compile it: {error.reason}"
    except (*FAILURES, *device.driver.errors, RuntimeError) as error:  # a driver may refuse to run what it compiled
        return f"its probe does not run: {error}"
    return "" if np.array_equal(values, given.wanted, equal_nan=True) else "its probe computes wrong values"
