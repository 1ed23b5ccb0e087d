"""The short form of a verification runs by itself where a process uses a device on which the tests of this package do not run.

A thread runs the families' processes, one after the other, at low priority, while the program goes on. Each family's result is on disk at
once, so that a program which ends earlier leaves the others to the next one.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence

from keras_ocl import runtime
from keras_ocl.verify.run import PROCESS, known, verify, version

logger = logging.getLogger("keras_ocl")

# Platforms with the kinds of device on which the tests run with each change; and Oclgrind, which is a debugger.
TESTED = ((runtime.INTEL_CPU, "cpu"), (runtime.POCL, "cpu"), ("Oclgrind", "cpu"))

_begun: set[runtime.Target] = set()
_beginning = threading.Lock()


def begin(device: runtime.Device, process: Sequence[str] = PROCESS) -> threading.Thread | None:
    """Verify a Device in the background, if that is to be done; the thread that does so, else None.

    It is not done where the device's platform is one of TESTED, KERAS_OCL_QUARANTINE is set, the record of this driver and version of
    keras_ocl has all families, no record can be written, or another process is at it.
    """
    if (device.platform, device.traits.kind) in TESTED or runtime.quarantine_setting():
        return None
    target = runtime.target_of(device)
    missing = _missing(device, target)
    disk = runtime.DiskCache(warns=False)
    key = hashlib.sha256(repr(target).encode()).hexdigest()
    with _beginning:
        if not missing or target in _begun or not disk.can_store() or not disk.claims.take([key]):
            return None
        _begun.add(target)
    runtime.announce(
        "keras_ocl tries its kernels on %s in the background, once for this driver (KERAS_OCL_QUARANTINE=manual: only `python -m keras_ocl "
        "verify` does)", device,
    )  # fmt: skip
    thread = threading.Thread(
        target=_verify, args=(device, missing, process, lambda: disk.claims.give_back([key])), name="keras_ocl verify", daemon=True
    )
    thread.start()
    return thread


def _missing(device: runtime.Device, target: runtime.Target) -> list[str]:
    """Names of the device's families that this version of keras_ocl has not verified on it."""
    record = runtime.read_quarantine(target)
    verified = record.verified if record and record.version == version() else ()
    return [family.name for family in known(device.traits) if family.name not in verified]


def _verify(device: runtime.Device, only: list[str], process: Sequence[str], end: Callable[[], None]) -> None:
    try:
        for report in verify(device, only, short=True, process=process, background=True):
            row = report.rows[-1]
            if not report.usable:
                logger.warning(
                    "keras_ocl's kernels on %s could not be tried in another process (%s): run `python -m keras_ocl verify` by itself.",
                    device, row.instead.text(),
                )  # fmt: skip
            elif row.instead is not None and row.family.name not in device.traits.quarantine:
                logger.warning(
                    "keras_ocl's kernels of the family %s do not work on %s: %s. This process uses them, so its results may be wrong: "
                    "start it again. From then on %s.", row.family.name, device, row.outcome.text(), row.family.instead,
                )  # fmt: skip
    except OSError as error:
        logger.warning("keras_ocl cannot try its kernels on %s: %s.", device, error)
    finally:
        end()
