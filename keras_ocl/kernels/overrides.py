"""What a device has of its own instead of its schedule's estimates: numbers of the tuning table, and tiles of single problems.

They are in the device's traits (runtime/overrides.py says where they come from). A wrong name of a number is an error, since it can only be
a mistake. A tile may become unfit as kernels and devices change: it is refused with a warning, and the estimate is used.
"""

import contextlib
import dataclasses
import difflib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from keras_ocl.core.dim import Dim, hint
from keras_ocl.kernels.schedule import Overrides, Traits, get, schedule_names, schedule_of

logger = logging.getLogger("keras_ocl")


def tuning_of(traits: Traits) -> Any:
    """The tuning table of a device's schedule, with the device's own numbers in place; None for a schedule that has none.

    Raises:
        ValueError: the device's file has a name that the table has not, or a value of another type.
    """
    return _with_own(traits.schedule, traits.overrides) if traits.overrides.file else schedule_of(traits).tuning


@functools.lru_cache(64)
def _with_own(schedule: str, own: Overrides) -> Any:
    table = get(schedule).tuning
    for name in own.schedules:
        if name not in schedule_names():
            raise ValueError(f"{own.file}: there is no schedule {name!r}{_nearest(name, schedule_names())}")
    known = dict(_numbers(table)) if table is not None else {}
    for name, value in own.tuning if known else ():
        if name not in known:
            raise ValueError(f"{own.file}: the schedule {schedule} has no number {name!r}{_nearest(name, known)}")
        if not _alike(value, known[name]):
            raise ValueError(f"{own.file}: {name} = {value!r} is of another type than the schedule's, {known[name]!r}")
        table = _replaced(table, name.split("."), value)
    return table


def number_of(traits: Traits, name: str) -> Any:
    """A number of the tuning table of a device's schedule, by its name in a device's file, such as "product.block"."""
    return functools.reduce(getattr, name.split("."), tuning_of(traits))


def _nearest(name: str, known: Any) -> str:
    return "; the nearest names are " + ", ".join(difflib.get_close_matches(name, known, 3, cutoff=0))


def _numbers(table: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of all numbers of a table; those of a table inside it are called "product.block"."""
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _alike(value: Any, default: Any) -> bool:
    """Whether a value may take the place of a number, or tuple of numbers, of the table."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and bool(value) and all(_alike(v, default[0]) for v in value)
    return type(value) is type(default) or (isinstance(default, float) and type(value) is int)


def _replaced(table: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    return dataclasses.replace(table, **{first: _replaced(getattr(table, first), rest, value) if rest else value})


def chosen(traits: Traits, kind: str, key: Callable[[], str], make: Callable[..., Any], unfit: Callable[[Any], str]) -> Any:
    """The device's own tile for a problem, None where it has none or it does not fit.

    key: returns the text that describes the problem, the key of its entry. make: the tile of an entry's fields, as keywords.
    unfit: why a tile does not fit the problem, as a clause; "" where it fits.
    """
    own = traits.overrides
    if (seen := _asked.get()) is not None:
        seen.problems[kind, key()] += 1
    if not own.choices:
        return None
    problem = key()
    fields = _by_key(own).get((kind, problem))
    if fields is None:
        return None
    try:
        tile = make(**dict(fields))
        why = unfit(tile)
    except TypeError as error:
        why = str(error)
    if why and seen is not None:
        seen.refused.append(why)
        return None
    if why:
        _warn(f"{own.file}: the tile of {kind} {problem} is not used: {why}.")
        return None
    return tile


@dataclass
class Asked:
    """For which problems a device's own tile was asked: how often, by (kind, key), and why tiles were refused, as clauses."""

    problems: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    refused: list[str] = dataclasses.field(default_factory=list)


_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)


@contextlib.contextmanager
def asked() -> Iterator[Asked]:
    """Context manager that notes what this thread asks of chosen(); tiles are refused without a warning."""
    seen = Asked()
    before = _asked.set(seen)
    try:
        yield seen
    finally:
        _asked.reset(before)


@functools.lru_cache(64)
def _by_key(own: Overrides) -> dict[tuple[str, str], Any]:
    return {(kind, key): fields for kind, key, fields in own.choices}


@functools.cache  # once for each sentence
def _warn(sentence: str) -> None:
    logger.warning(sentence)


def shown(extent: Any) -> str:
    """Text of an extent or stride in the key of a problem: its hint, with a star where it may vary."""
    return f"{hint(extent)}*" if isinstance(extent, Dim) else str(extent)


@functools.cache  # equal extents are taken for the same unknown
def extent_of(text: str) -> Any:
    """The extent or stride that shown() gives this text, with its hint as its value."""
    return Dim(int(text[:-1])) if text.endswith("*") else int(text)


def not_counts(**numbers: Any) -> str:
    """A clause that names the first of `numbers` that is not a positive int, "" where all are."""
    return next((f"{name} = {n!r} is not a positive number" for name, n in numbers.items() if type(n) is not int or n < 1), "")
