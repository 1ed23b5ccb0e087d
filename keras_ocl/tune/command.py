"""What `python -m keras_ocl tune` prints: a table by problem, where the record lies, and the exit status."""

import datetime
import math
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from keras_ocl import runtime
from keras_ocl.tune import estimate, record, standard
from keras_ocl.tune.run import Row, tune

_FITTING = 0.05  # share of the time in which numbers of the estimates are fitted


def command(device: runtime.Device, model: str | None, minutes: float) -> int:
    """Tune a device for a model as lowering.load() names it, or for the standard set (None), and print what was found.

    Returns:
        The exit status: 0 where all problems were searched, with or without finding a faster tile; 1 where some could not be measured or a
        candidate was wrong; 2 for a mistake in the command, or where the record cannot be written.
    """
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    try:
        problems, fused = _problems(device, model)
        if not problems:
            console.print("there is nothing to tune: no kernel chooses a tile")
            return 0
        rows = _tuned(console, device, problems, minutes * (1 - _FITTING))
        fit = estimate.fit(device.traits, {row.problem: row.result.ratios for row in rows if row.result})
        if fit and fit.numbers:
            record.store_numbers(device, fit.numbers, datetime.date.today())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"the record cannot be written: {error}", file=sys.stderr)
        return 2
    console.print(_table(rows))
    for line in _summary(device, rows, fused, fit):
        console.print(line, markup=False)
    return 0 if all(row.result and not row.result.wrong for row in rows) else 1


def _problems(device, model):
    if model is None:
        return standard.problems(device.traits), 0
    from keras_ocl.tune import model as models  # imports Keras

    return models.problems(model, device.traits)


def _tuned(console, device, problems, minutes) -> list[Row]:
    """The Rows of all problems, with a status line in a terminal."""
    rows: list[Row] = []
    console.print(f"{device}, driver {device.driver_version}, schedule {device.traits.schedule}", markup=False)
    with console.status("") as status:

        def begin(problem):
            status.update(escape(f"{len(rows) + 1} of {len(problems)}: {problem.operation} {problem.key}"))

        for row in tune(device, problems, minutes, begin=begin):
            rows.append(row)
    return rows


def _table(rows) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("problem", overflow="fold")
    for title in ("default", "own", "gain", "tried"):
        table.add_column(title, justify="right")
    table.add_column("tile", overflow="fold")
    for row in rows:
        name, found = escape(f"{row.problem.operation} {row.problem.key}"), row.result
        if found is None:
            table.add_row(name, "", "", "", "", f"[red]{escape(row.why)}[/]")
            continue
        usual = found.seconds / found.share
        own, gain = (_time(usual / found.gain), f"{found.gain:.2f}") if found.best else ("", "")
        tile = str(found.best) if found.best else "the default" if found.finished else "no time was left"
        table.add_row(name, _time(usual), own, gain, str(found.tried), escape(tile))
    return table


def _time(seconds):
    """Text of a time, in the unit that suits it."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _summary(device, rows, fused, fit):
    """Yields the lines below the table."""
    found = [row.result for row in rows if row.result]
    better = [result for result in found if result.best]
    if found:
        mean = math.exp(sum(math.log(result.gain if result.best else 1) for result in found) / len(found))
        yield f"faster: {len(better)} of {len(found)} problems; the geometric mean of all gains is {mean:.3f}"
    if fit:
        yield f"the estimates of {fit.problems} products are off by {fit.error:.1%}, with fitted numbers by {fit.after:.1%}; {_use_of(fit)}"
    if fused:
        yield f"{fused} problems were not measured: their operands are computed in the kernel"
    for row in rows:
        for choice, why in row.result.wrong.items() if row.result else ():
            yield f"left out: {choice} of {row.problem.key}: {why}"
    if better or fit and fit.numbers:
        yield f"The record is {record.file_of(device)}; programs that start from now on use it, `tune --forget` undoes that."


def _use_of(fit):
    """A clause that says what became of fitted numbers."""
    if fit.numbers:
        return f"they are kept, as tiles chosen by them are {fit.gain:.2f} times as fast: {', '.join(fit.numbers)}"
    return f"those are not kept, as tiles chosen by them are {fit.gain:.2f} times as fast or some are slower"


def forget(device: runtime.Device) -> int:
    """Delete what was measured on a device, and say so; returns the exit status."""
    return _done(lambda: f"what was measured on {device} is deleted" if record.forget(device) else f"there is no record of {device}")


def export_to(device: runtime.Device, path: Path) -> int:
    """Copy a device's record to a file, and say so; returns the exit status."""

    def export():
        if not record.export_to(device, path):
            raise ValueError(f"there is no record of {device}: tune it first")
        return f"{record.file_of(device)} is copied to {path}"

    return _done(export)


def import_from(device: runtime.Device, path: Path) -> int:
    """Add a file that was exported to a device's record, and say so; returns the exit status."""

    def take():
        count, note = record.import_from(device, path)
        return f"{count} tiles are added to {record.file_of(device)}" + (f"; {note}" if note else "")

    return _done(take)


def _done(act) -> int:
    """0 where `act` gives a sentence, which is printed; 2 where it fails."""
    try:
        print(act())
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
