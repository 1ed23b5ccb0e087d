"""The device's file as a record of what was measured: which tiles are faster, when, and by how much.

It is the file that the device reads (runtime/overrides.py), with two tables that no kernel asks for: `about` says which device and driver
were measured, and `measured` of a schedule has for each tile the seconds of the default and its own, the gain, and the date.
"""

import dataclasses
from importlib import metadata

from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.runtime import overrides
from keras_ocl.tune.problem import OPERATIONS, Choice, Problem


def file_of(device):
    """The path of the file that the device reads; OSError for a user without a home."""
    path = overrides.file_of(*_named(device))
    if path is None:
        raise OSError("this user has no home folder; name a folder in KERAS_OCL_CACHE_DIR")
    return path


def _named(device):
    return device.model, device.driver_version, device.traits.compute_units


def read(device):
    """The Overrides that the device's file has now."""
    return overrides.read_overrides(device.traits.schedule, *_named(device))


def known(own):
    """Yields (Problem, Choice) of tiles as in Overrides."""
    for kind, key, fields in own:
        if kind in OPERATIONS:
            yield Problem(OPERATIONS[kind], key), Choice(kind, fields)


def store(device, problem, result, date):
    """Put what a search found for a Problem in the place of what the device's file has; nothing but its removal where nothing is faster."""
    entries = overrides.read_entries(file_of(device))
    part = entries.setdefault(device.traits.schedule, {})
    _remove(part, lambda kind, key: key == problem.key and OPERATIONS.get(kind) == problem.operation)
    if result.best is not None:
        kind, usual = result.best.kind, result.seconds / result.share
        part.setdefault("choices", {}).setdefault(kind, {})[problem.key] = dict(result.best.fields)
        part.setdefault("measured", {}).setdefault(kind, {})[problem.key] = {
            "default_seconds": float(f"{usual:.4g}"),
            "seconds": float(f"{usual / result.gain:.4g}"),
            "gain": round(result.gain, 3),
            "at_least": round(result.at_least, 3),
            "date": date,
        }
    _write(device, entries)


def store_numbers(device, numbers, date):
    """Put fitted numbers of the tuning table, by name, in the device's file."""
    entries = overrides.read_entries(file_of(device))
    part = entries.setdefault(device.traits.schedule, {})
    part.setdefault("tuning", {}).update(numbers)
    part.setdefault("measured", {}).setdefault("tuning", {}).update({name: {"date": date} for name in numbers})
    _write(device, entries)


def _remove(part, which):
    """Remove the tiles of a schedule's part for which `which(kind, key)`; whether there were any."""
    removed = False
    for name in ("choices", "measured"):
        for kind, tiles in part.get(name, {}).items():
            for key in [key for key in tiles if which(kind, key)]:
                del tiles[key]
                removed = True
    return removed


def _write(device, entries):
    """Write the device's file, without empty tables; no file where it would have none."""
    path = file_of(device)
    schedules = {name: _filled(part) for name, part in entries.items() if name != "about" and _filled(part)}
    if not schedules:
        path.unlink(missing_ok=True)
        return
    about = {"device": device.model.strip(), "platform": device.platform.strip(), "driver": device.driver_version}
    about |= {"compute_units": device.traits.compute_units, "keras_ocl": _version()}
    overrides.write_entries(path, {"about": about, **schedules})


def _filled(table):
    """A table without the tables in it that are empty."""
    inner = {name: _filled(value) if isinstance(value, dict) else value for name, value in table.items()}
    return {name: value for name, value in inner.items() if value != {}}


def _version():
    try:
        return metadata.version("keras-ocl")
    except metadata.PackageNotFoundError:
        return "unknown"


def forget(device):
    """Remove the tiles and numbers of the device's schedule that were measured, and keep what else its file has; whether there were any."""
    entries = overrides.read_entries(file_of(device))
    part = entries.get(device.traits.schedule, {})
    for name in part.get("measured", {}).get("tuning", {}):
        part.get("tuning", {}).pop(name, None)
    measured = {(kind, key) for kind, tiles in part.get("measured", {}).items() for key in tiles}
    removed = _remove(part, lambda kind, key: (kind, key) in measured)
    if removed:
        _write(device, entries)
    return removed


def export_to(device, path):
    """Copy the device's file to `path`; whether it has one."""
    entries = overrides.read_entries(file_of(device))
    if entries:
        path.write_text(overrides.text_of(entries))
    return bool(entries)


def import_from(device, path):
    """Put the values in a file, which another user may have exported, in the place of the device's own for the same names and keys.

    Returns:
        (the number of its tiles, a sentence where it was measured with another driver, else "").

    Raises:
        ValueError: it is no such file, is of another device, has nothing for the device's schedule, or a name that its table has not.
    """
    schedule = device.traits.schedule
    try:
        theirs = overrides.parse(path.read_text(), path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    about, found = theirs.pop("about", {}), overrides.parsed(path, schedule, theirs)
    if about.get("device", device.model.strip()) != device.model.strip():
        raise ValueError(f"{path} was measured on {about['device']}; this device is {device.model.strip()}: choose another with --device")
    if schedule not in theirs:
        raise ValueError(f"{path} has nothing for the schedule {schedule} of this device")
    tuning_of(dataclasses.replace(device.traits, overrides=found))
    entries = overrides.read_entries(file_of(device))
    part = entries.setdefault(schedule, {})
    for kind, key, _ in found.choices:  # of each problem one tile counts
        _remove(part, lambda other, k, kind=kind, key=key: k == key and OPERATIONS.get(other) == OPERATIONS.get(kind))
    for name, table in theirs[schedule].items():
        mine = part.setdefault(name, {})
        for kind, value in table.items():
            mine[kind] = {**mine.get(kind, {}), **value} if isinstance(value, dict) else value
    _write(device, entries)
    other = about.get("driver", device.driver_version)
    note = f"measured with driver {other}, not {device.driver_version}: tune again to be sure"
    return len(found.choices), "" if other == device.driver_version else note
