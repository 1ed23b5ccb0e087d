"""Families of kernels that are not to be used on a device, as `python -m keras_ocl verify` found out (keras_ocl/verify).

A record belongs to a platform, a device's model, its driver's version and a schedule; another version of the driver has none until it is
verified. Records lie in the cache's folder, and are signed as programs are: they decide which kernels run.
"""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from keras_ocl.runtime.disk_cache import DiskCache, cache_folder

logger = logging.getLogger("keras_ocl")


class Target(NamedTuple):
    """What a record is about."""

    platform: str
    model: str
    driver: str
    schedule: str

    @property
    def file(self) -> str:
        """The name of its record's file."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(part.strip() for part in self)).strip("-.") + ".json"


class Record(NamedTuple):
    """What was found: by which version of keras_ocl, which families it tried, and for each one that is kept out a sentence, without its
    full stop, that says why and what is done instead."""

    version: str
    verified: tuple[str, ...]
    kept_out: dict[str, str]


def target_of(device: Any) -> Target:
    """The Target of a runtime.Device."""
    return Target(device.platform, device.model, device.driver_version, device.traits.schedule)


def quarantine_file(target: Target) -> Path | None:
    """The path of a Target's record, whether it is there or not; None for a user without a home."""
    folder = cache_folder()
    return folder / "quarantine" / target.file if folder else None


def read_quarantine(target: Target) -> Record | None:
    """The Record of a Target; None where there is none, or none that a process of this user wrote, which gives a warning."""
    try:
        payload = DiskCache(warns=False).get_record(target.file)
        if payload is None:
            return None
        content = json.loads(payload)
        kept_out = {str(name): str(why) for name, why in content["kept_out"].items()}
        return Record(str(content["version"]), tuple(map(str, content["verified"])), kept_out)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("keras_ocl ignores what was found wrong on %s: %s; verify it again.", target.model, error)
        return None


def write_quarantine(target: Target, record: Record) -> None:
    """Store the Record of a Target in place of the one that is there. OSError, which says why, where it cannot be written."""
    DiskCache(warns=False).put_record(target.file, json.dumps(record._asdict(), indent=1).encode())


def remove_quarantine(target: Target) -> bool:
    """Delete the Record of a Target; whether there was one. OSError where it cannot be deleted."""
    return DiskCache(warns=False).remove_record(target.file)


def quarantine_setting() -> str:
    """KERAS_OCL_QUARANTINE: "" (not set), "manual" (records are used, but nothing is verified unasked) or "0" (neither).

    Raises:
        ValueError: it is none of these.
    """
    setting = os.environ.get("KERAS_OCL_QUARANTINE", "")
    if setting not in ("", "manual", "0"):
        raise ValueError(f'KERAS_OCL_QUARANTINE={setting!r}: it is "manual", "0", or not set')
    return setting


def quarantined(target: Target) -> frozenset[str]:
    """Names of the families that a Target's Record keeps out: none where KERAS_OCL_QUARANTINE is 0, ValueError where that is invalid."""
    record = None if quarantine_setting() == "0" else read_quarantine(target)
    return frozenset(record.kept_out if record else ())
