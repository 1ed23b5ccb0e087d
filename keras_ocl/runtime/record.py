"""Devices that are known only from a record of their traits: programs are lowered for them, but nothing runs.

Records are TOML files with one entry per field of Traits and, for GPUs, of Hardware; those in the folder `records` have their names. The
entry `overrides` is a table like a schedule's part of a device's file (overrides.py).
"""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from keras_ocl.runtime.device import Device
from keras_ocl.runtime.driver import Allocation, Failure, Kernel
from keras_ocl.runtime.hardware import Hardware
from keras_ocl.runtime.overrides import parsed
from keras_ocl.runtime.quirks import QUIRKS
from keras_ocl.runtime.traits import Traits

_FOLDER = Path(__file__).parent / "records"
_UNLIMITED = 1 << 62  # bytes: models are lowered that the device would have no memory for


def record_names() -> list[str]:
    """The names of the records in the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def read_record(name: str) -> Traits:
    """The Traits of a record: the name of one in the package, or a file's path.

    Raises:
        ValueError: there is no such record, or its entries are not the fields of Traits and Hardware.
    """
    return _read(name)[0]


def read_hardware(name: str) -> Hardware | None:
    """The Hardware of a record, named as for `read_record`, which raises the same; None where the record has none."""
    return _read(name)[1]


def _read(name: str) -> tuple[Traits, Hardware | None]:
    path = _FOLDER / f"{name}.toml" if name in record_names() else Path(name)
    if not path.is_file():
        raise ValueError(f"there is no traits record {name!r}: it is a file, or one of {', '.join(record_names())}")
    known = [field.name for field in dataclasses.fields(Hardware)]
    try:
        entries = tomllib.loads(path.read_text())
        hardware = {key: entries.pop(key) for key in known if key in entries}
        entries |= {key: tuple(entries[key]) for key in ("max_groups", "matrix_units", "matrix_rates") if key in entries}
        if len(entries.get("matrix_units", ())) != len(entries.get("matrix_rates", ())):
            raise ValueError("matrix_rates has not one number for each of matrix_units")
        if "quirks" in entries:
            entries["quirks"] = _quirks(entries["quirks"])
        if "quarantine" in entries:
            entries["quarantine"] = frozenset(entries["quarantine"])
        if "overrides" in entries and "schedule" in entries:
            entries["overrides"] = parsed(path, entries["schedule"], {entries["schedule"]: entries["overrides"]})
        return Traits(**entries), Hardware(**hardware) if hardware else None
    except (TypeError, ValueError) as error:  # a TOMLDecodeError is a ValueError
        fields = ", ".join([field.name for field in dataclasses.fields(Traits)] + known)
        raise ValueError(f"the traits record {path}: {error}; its entries are {fields}") from None


def _quirks(names: list[str]) -> frozenset[str]:
    unknown = {*names} - {quirk.name for quirk in QUIRKS if quirk.applied != "always"}
    if unknown:
        raise ValueError(f"nothing asks for the quirks {', '.join(sorted(unknown))}")
    return frozenset(names)


class _Done:
    """The Event of a command that does nothing."""

    command_execution_status = 0

    def wait(self) -> None:
        pass

    def get_profiling_info(self, what: int, /) -> int:
        return 0


class _Queue:
    """A Queue whose commands are done at once."""

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        pass


class _Buffer:
    """A Buffer without memory; `size`: its bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_sub_region(self, offset: int, nbytes: int, /) -> "_Buffer":
        return _Buffer(nbytes)


class _Kernel:
    """A Kernel that ignores its arguments."""

    ours: object = None

    def __init__(self, name: str) -> None:
        self.function_name = name

    def set_arg(self, index: int, value: Any, /) -> None:
        pass

    def _set_arg_buf(self, index: int, value: bytes, /) -> None:
        pass


def _do_nothing(*args: object, **kwargs: object) -> _Done:
    return _Done()


class RecordDriver:
    """The Driver of a device that is not there: it accepts everything, compiles nothing, and its commands are done at once."""

    runs, sharing, platform, model, version = False, "none", "", "", ""
    errors: tuple[type[Exception], ...] = ()
    identity, caches_programs = "record", True  # so that no program is stored on disk

    launch = copy = copy_rows = barrier = write = staticmethod(_do_nothing)

    def __init__(self, traits: Traits) -> None:
        self.traits = traits

    def failure(self, error: BaseException) -> Failure:
        return Failure.OTHER

    def queue(self, profiling: bool = False) -> _Queue:
        return _Queue()

    def allocate(self, nbytes: int) -> Allocation:
        return Allocation(_Buffer(nbytes), None, _do_nothing)

    def _no_values(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError("nothing runs on a record of traits, so there are no values")

    allocate_pinned = map = read = _no_values

    def compile(self, source: str, options: str) -> None:
        return None

    def load(self, binary: bytes) -> None:
        return None

    def binary(self, program: object) -> None:
        return None

    def kernel(self, program: object, name: str) -> _Kernel:
        return _Kernel(name)

    def group_limit(self, kernel: Kernel) -> int:
        return self.traits.max_group


class RecordDevice(Device):
    """A Device with these Traits that is not there: programs are lowered for it, but nothing runs. Reading a value is a RuntimeError."""

    def __init__(self, name: str, traits: Traits) -> None:
        super().__init__(RecordDriver(traits), name)
        self.memory.budget = self.memory.largest = _UNLIMITED

    def __str__(self) -> str:
        return f"{self.name} (a record of its traits)"
