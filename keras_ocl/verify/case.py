"""Cases: a function of arrays, compiled and run on a device, and what the host says that it gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import jit
from keras_ocl.core import tree
from keras_ocl.runtime import device_scope


@dataclass(frozen=True)
class Case:
    """One case of a family.

    Attributes:
        name: what a report calls it.
        function: from Tensors to a Tensor or a list of them.
        arrays: NumPy arrays for the function's arguments.
        wanted: a function without arguments that returns the results as a list of NumPy arrays: in float64 (or complex128) where they are
            rounded, else as they must be, bit for bit.
        ulps: how far a result may be off, in units in the last place of its dtype; 0 for integers and where bits are compared.
        scales: the same as `wanted` for the magnitudes whose last places these are, such as the sums of absolute values for sums; None: the
            results' own.
        names: of the results, for reports.
    """

    name: str
    function: Callable
    arrays: Sequence[np.ndarray]
    wanted: Callable[[], Sequence[np.ndarray]]
    ulps: float = 0
    scales: Callable[[], Sequence[np.ndarray]] | None = None
    names: Sequence[str] = ()


def judge(device, case):
    """Run a Case twice on a device: "" if both runs are right, else what is wrong, as a clause. Raises what the runtime raises."""
    with device_scope(device):
        compiled = jit(case.function, dynamic=False, name=case.name)
        tensors = [from_numpy(array) for array in case.arrays]
        results = tree.flatten(compiled(*tensors))[0]
        first = [to_numpy(t) for t in results]
        _spoil(device, [t.storage for t in results])
        del results
        second = [to_numpy(t) for t in tree.flatten(compiled(*tensors))[0]]
    wanted = case.wanted()
    scales = case.scales() if case.scales else [np.abs(w) if case.ulps else None for w in wanted]
    for k, (found, again, w, scale) in enumerate(zip(first, second, wanted, scales, strict=True)):
        name = f"{case.names[k]}: " if case.names else ""
        wrong = _compared(found, np.asarray(w), scale, case.ulps)
        if wrong:
            return name + wrong
        if not _same_bits(again, found).all():
            return f"{name}in another run {_first(_same_bits(again, found), again, found)}"
    return ""


def _spoil(device, results):
    """Overwrite the memory that the next run gets for all results: what is not written then is not right by chance."""
    for storage in (*results, *device.arena.storages):
        if storage.nbytes:
            device.write(storage, np.full(storage.nbytes, 0xFF, np.uint8))  # NaN in all floating dtypes


def _compared(found, wanted, scale, ulps):
    """What is wrong with an array, as a clause; "" if nothing."""
    if found.shape != wanted.shape:
        return f"its shape is {found.shape}, not {wanted.shape}"
    if not ulps:
        return _first(_same_bits(found, wanted.astype(found.dtype)), found, wanted)
    limits = ml_dtypes.finfo(found.dtype)
    wide = np.complex128 if np.iscomplexobj(found) else np.float64
    with np.errstate(invalid="ignore"):  # wrong bits may be a signalling NaN's
        values, wanted = found.astype(wide), wanted.astype(wide)
    wanted = np.where(np.abs(wanted) > float(limits.max), np.copysign(np.inf, wanted.real), wanted)  # as rounding has it
    finite = np.isfinite(wanted)
    exact = wanted
    same = finite & np.isfinite(values) | (values == wanted) | np.isnan(values) & np.isnan(wanted)
    if not same.all():
        return _first(same, found, wanted)
    values, wanted, scale = (np.where(finite, x, 0) for x in (values, wanted, scale))
    least = float(limits.smallest_normal)
    flushed = (np.abs(wanted) < least) & (np.abs(values) <= least)  # as devices may do with denormal numbers
    off = np.where(flushed, 0, np.abs(values - wanted) / (float(limits.eps) * np.maximum(scale, least)))
    return f"{_first(off <= ulps, found, exact)}, {off.max():.3g} units in the last place off" if (off > ulps).any() else ""


def _same_bits(a, b):
    """Where elements are equal, or both NaN; -0.0 is not 0.0."""
    equal = (a == b) & ((np.signbit(a) == np.signbit(b)) if a.dtype.kind not in "iubc" else True)
    return equal if a.dtype.kind in "iub" else equal | (a != a) & (b != b)


def _first(right, found, wanted):
    """A clause that says which is the first wrong element and how many there are; "" where all are right."""
    if right.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    element = f"element {list(at)}" if at else "it"
    count = f", {(~right).sum()} of {right.size} are wrong" if right.size > 1 else ""
    return f"{element} is {found[at]!s} instead of {wanted[at]!s}{count}"
