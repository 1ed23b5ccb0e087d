"""Values of one device: numbers and tiles measured on it, which take the place of those that a schedule estimates.

They come from a TOML file: the one that KERAS_OCL_TUNING names, for every device of the process, else the device's own in the cache's
folder. Each schedule has its part of the file:

    [cpu.tuning]
    "product.block" = 256

    [cpu.choices.product]
    "float32 m=64 n=512 k=512 a=float32(512,1) b=float32(512,1)" = { kind = "rows", rows = 8, vectors = 2, chunk = 64, block = 512 }

What names and keys there are, kernels know (kernels/overrides.py). `python -m keras_ocl tune` writes the file (keras_ocl/tune/record.py):
its tables `about`, and `measured` of each schedule, say what was measured, and no kernel asks for them.
"""

import datetime
import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from keras_ocl.runtime.disk_cache import cache_folder
from keras_ocl.runtime.private import read_private, write_private

_TILES = 3  # depth of a table of tiles: schedule, "choices", kind


@dataclass(frozen=True)
class Overrides:
    """The part of a file for one schedule, hashable; empty where there is no file.

    Attributes:
        file: the file's path, "" where there is none.
        schedules: names of all schedules that have a part of the file.
        tuning: (name, value) of numbers of the schedule's tuning table.
        choices: (kind, key, fields) of tiles: `fields` are (name, value) of the tile for the problems with that key.
    """

    file: str = ""
    schedules: tuple[str, ...] = ()
    tuning: tuple[tuple[str, Any], ...] = ()
    choices: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = ()

    def __hash__(self) -> int:
        return hash(self.file)  # traits are keys of many caches, and there may be thousands of choices


def device_file(model: str, driver: str, units: int) -> Path | None:
    """The file of a device, by its model, its driver's version and its compute units; None for a user without a home."""
    folder = cache_folder()
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{model.strip()} {driver} {units} units").strip("-.")
    return folder / "tuning" / f"{name}.toml" if folder else None


def read_overrides(schedule: str, model: str, driver: str, units: int) -> Overrides:
    """The Overrides of a device that has this schedule.

    Raises:
        ValueError: there is no file that KERAS_OCL_TUNING names, the file cannot be read or has another form, or another user may have
            written the device's file.
    """
    path, named = file_of(model, driver, units), os.environ.get("KERAS_OCL_TUNING")
    if path is None or not (named or os.path.lexists(path)):
        return Overrides()
    try:
        text = (path.read_bytes() if named else read_private(path)).decode()
    except OSError as error:
        _refuse(path, error.strerror or str(error))
    except ValueError as error:
        _refuse(path, str(error))
    return parsed(path, schedule, parse(text, path))


def file_of(model: str, driver: str, units: int) -> Path | None:
    """The file that a device reads and `tune` writes: the one that KERAS_OCL_TUNING names, else its device_file()."""
    named = os.environ.get("KERAS_OCL_TUNING")
    return Path(named).expanduser() if named else device_file(model, driver, units)


def parse(text: str, path: Path) -> dict[str, Any]:
    """The entries of a file's text; ValueError, which names `path`, where it is no TOML."""
    try:
        return tomllib.loads(text)
    except ValueError as error:
        _refuse(path, str(error))


def read_entries(path: Path) -> dict[str, Any]:
    """All entries of a device's file, to be changed and written again; none where it does not exist. ValueError as for read_overrides()."""
    if not os.path.lexists(path):
        return {}
    try:
        return parse(read_private(path).decode(), path)
    except OSError as error:
        _refuse(path, error.strerror or str(error))


def write_entries(path: Path, entries: dict[str, Any]) -> None:
    """Write a device's file at once, so that no process reads half of it. OSError where it cannot be written."""
    write_private(path, text_of(entries).encode())


def text_of(entries: dict[str, Any]) -> str:
    """The TOML of entries: each table of tables as a section, the innermost tables in one line each."""
    return "\n".join(_sections(entries, ())).lstrip("\n") + "\n"


def _sections(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {name: value for name, value in table.items() if isinstance(value, dict)}
    tiles = len(path) == _TILES
    rows = {name: value for name, value in table.items() if tiles or name not in inner}
    if rows:
        yield "\n[" + ".".join(map(_name, path)) + "]"
        yield from (f"{_name(name)} = {_value(value)}" for name, value in rows.items())
    for name, value in () if tiles else inner.items():
        yield from _sections(value, (*path, name))


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_name(name)} = {_value(v)}" for name, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return value.isoformat() if isinstance(value, datetime.date) else json.dumps(value)


def parsed(path: Path, schedule: str, entries: dict[str, Any]) -> Overrides:
    """The Overrides of `schedule` in a file's entries; ValueError where they have another form."""
    entries = {name: part for name, part in entries.items() if name != "about"}
    for name, part in entries.items():
        if not isinstance(part, dict) or not part.keys() <= {"tuning", "choices", "measured"}:
            _refuse(path, f"{name!r} is no schedule with the tables 'tuning' and 'choices'")
    own = entries.get(schedule, {})
    tuning, choices = own.get("tuning", {}), own.get("choices", {})
    kinds = choices.values() if isinstance(choices, dict) else [None]
    tables = [tuning, choices, *kinds, *(tile for kind in kinds if isinstance(kind, dict) for tile in kind.values())]
    if not all(isinstance(table, dict) for table in tables):
        _refuse(path, "'tuning' has a value for each name, 'choices' a table for each kind, with a table of a tile's fields for each key")
    tiles = tuple((kind, key, _items(tile)) for kind, found in choices.items() for key, tile in found.items())
    return Overrides(str(path), tuple(entries), _items(tuning), tiles)


def _items(table: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in table.items())


def _refuse(path: Path, why: str) -> NoReturn:
    raise ValueError(
        f"a device's own values cannot be read from {path}: {why}; correct it, or delete it and unset KERAS_OCL_TUNING"
    ) from None
