"""What `python -m keras_ocl report` does: makes a report, or reads one, and prints it as JSON or Markdown."""

import contextlib
import json
import sys
from pathlib import Path

from rich.console import Console

from keras_ocl import runtime
from keras_ocl.report.make import FORMAT, make
from keras_ocl.report.text import markdown


def command(device: runtime.Device, short: bool, as_markdown: bool) -> int:
    """Make the report of a runtime.Device, found with KERAS_OCL_QUARANTINE=0, and print it; returns the exit status, 0.

    What is done is told on standard error: standard output is the report alone.
    """
    console = Console(stderr=True, highlight=False)
    console.print(f"{device}: this takes up to {'three' if short else 'six'} minutes", markup=False)
    # Drivers' and Keras's prints are no part of the report.
    with console.status("") as status, contextlib.redirect_stdout(sys.stderr):
        report = make(device, short, begin=lambda what: status.update(what))
    _print(report, as_markdown)
    return 0


def show(path: str, as_markdown: bool) -> int:
    """Print the report in a file; returns the exit status: 2 where it is none, with the reason on standard error."""
    try:
        report = read(path)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    _print(report, as_markdown)
    return 0


def read(path: str | Path) -> dict:
    """The report in a file. ValueError where it is none, or one of another format; OSError where it cannot be read."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # neither UTF-8 nor JSON
        raise ValueError(f"{path} is no report: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise ValueError(f"{path} is no report of the format {FORMAT}: make it again with `python -m keras_ocl report`")
    return report


def _print(report, as_markdown):
    print(markdown(report) if as_markdown else json.dumps(report, indent=1))
