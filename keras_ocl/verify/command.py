"""What `python -m keras_ocl verify` prints: a table by family, what is kept out, and the exit status."""

import sys

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from keras_ocl import runtime
from keras_ocl.verify.request import RIGHT
from keras_ocl.verify.run import Report, known, verify


def command(device, only, short, forget, limit) -> int:
    """Verify a runtime.Device and print what was found, or `forget` its record.

    Returns:
        The exit status: 0 where all families are right; 1 where some are kept out, and what takes their place is right; 2 where that is not
        right either, or for a mistake in the command.
    """
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    target = runtime.target_of(device)
    try:
        if forget:
            there = runtime.remove_quarantine(target)
            console.print(f"the record of {device} is deleted" if there else f"there is no record of {device}", markup=False)
            return 0
        report = _verified(console, device, only, short, limit)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"the record cannot be written: {error}", file=sys.stderr)
        return 2
    console.print(_table(report))
    for name, why in report.kept_out.items():
        console.print(f"kept out: {name}: {why}", markup=False)
    if not report.usable:
        console.print("What takes their place is wrong, too: use another device (KERAS_OCL_DEVICE) or another driver.")
    elif report.kept_out:
        console.print("Programs that run on this device and driver go without them from now on; `verify --forget` undoes that.")
    return 0 if report.right else 1 if report.usable else 2


def _verified(console, device, only, short, limit) -> Report:
    """The final Report, with a status line in a terminal."""
    report, total = Report(), len(known(device.traits, only))
    console.print(f"{device}, driver {device.driver_version}, schedule {device.traits.schedule}", markup=False)
    with console.status("") as status:

        def begin(family):
            status.update(f"{family.name} ({len(report.rows) + 1} of {total}): {family.kernels}")

        for report in verify(device, only, short, limit, begin=begin):  # noqa: B007 - the last one counts
            pass
    return report


def _table(report) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("family", "kernels"):
        table.add_column(title)
    for title in ("cases", "seconds"):
        table.add_column(title, justify="right")
    table.add_column("verdict", overflow="fold")
    for row in report.rows:
        outcome, style = row.outcome, "green" if row.outcome.verdict == RIGHT else "red"
        verdict = f"[{style}]{outcome.verdict}[/]"
        if row.instead is not None:
            verdict += escape(f" ({outcome.wrong} of {outcome.cases}); in its place: {row.instead.text()}")
        table.add_row(row.family.name, escape(row.family.kernels), str(outcome.cases), f"{outcome.seconds:.1f}", verdict)
    return table
