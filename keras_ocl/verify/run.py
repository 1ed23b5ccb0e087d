"""Verification of a device: each family in a process of its own, one after the other, and what is wrong kept out of what follows."""

import collections
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from keras_ocl import runtime
from keras_ocl.kernels.families import BY_NAME, NARROW, WIDE_VECTORS, Family
from keras_ocl.kernels.schedule import families_of
from keras_ocl.verify.request import CRASHED, HUNG, RIGHT, Request

LIMIT = 120.0  # seconds of a case, most of which compilers take
PROCESS = (sys.executable, "-m", "keras_ocl.verify.process")
# A process of a family reads its quarantine from the request, and waits for optimised kernels, which are what users get; references are
# for float32 as it is.
_SETTINGS = {"KERAS_BACKEND": "ocl", "KERAS_OCL_QUARANTINE": "0", "KERAS_OCL_COMPILERS": "0", "KERAS_OCL_PRECISION": "float32"}


@dataclass
class Outcome:
    """What a family's process found.

    Attributes:
        verdict: RIGHT, or that of the first case that is not.
        why: which case that is, and what is wrong, as a clause.
        cases: number of cases that ran. wrong: how many of them were not right.
        seconds: time of the process.
    """

    verdict: str = RIGHT
    why: str = ""
    cases: int = 0
    wrong: int = 0
    seconds: float = 0.0

    def text(self) -> str:
        """The outcome as a clause."""
        return f"{self.verdict}, {self.why}" if self.why else self.verdict


@dataclass
class Row:
    """A family's line of the report.

    Attributes:
        outcome: of its kernels. instead: of what takes their place, where they are not right; None where they are.
    """

    family: Family
    outcome: Outcome
    instead: Outcome | None = None

    @property
    def reason(self) -> str:
        """The sentence of the record, without its full stop."""
        return f"{self.outcome.text()}; {self.family.instead}"


@dataclass
class Report:
    """What a verification found: the Rows so far, and the reasons of all families that are kept out now, by name."""

    rows: list[Row] = field(default_factory=list)
    kept_out: dict[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether all families are right."""
        return all(row.outcome.verdict == RIGHT for row in self.rows)

    @property
    def usable(self) -> bool:
        """Whether what takes the place of wrong families is right: at the end, that of whole training steps counts."""
        return all(row.instead is None or row.instead.verdict == RIGHT for row in self.rows)


def known(traits: runtime.Traits, only: Sequence[str] = ()) -> list[Family]:
    """The Families of a device to verify. ValueError for a name in `only` that is no family, or none of the device's."""
    found = families_of(traits)
    for name in only:
        if name not in BY_NAME:
            raise ValueError(f"there is no family {name!r}; there are {', '.join(BY_NAME)}")
        if name not in [family.name for family in found]:
            raise ValueError(f"the device has no kernels of the family {name}; it has {', '.join(family.name for family in found)}")
    return [family for family in found if not only or family.name in only]


def verify(
    device: runtime.Device,
    only: Sequence[str] = (),
    short: bool = False,
    limit: float = LIMIT,
    process: Sequence[str] = PROCESS,
    begin: Callable[[Family], None] = lambda family: None,
    background: bool = False,
) -> Iterator[Report]:
    """Verify a device, and write its record after each family. Yields the same Report each time.

    Args:
        device: the Device, found with KERAS_OCL_QUARANTINE=0, so that it has matrix units that the record keeps out.
        only: names of families; () for all that it has. short: whether few cases of each are enough.
        limit: seconds of a case after which its process counts as hanging. process: its command; a Request is added.
        begin: called with each family before it is verified. background: whether other work comes first, on the device too: processes have
            a low priority, what is not right is tried twice, and where what takes its place is not right either, nothing is written and
            this ends: another process may not be able to use the device, which the first one may have for itself, or whose memory is full.

    Raises:
        ValueError: `only` names what is no family of the device.
        OSError: the record cannot be written.
    """
    families, target, own = known(device.traits, only), runtime.target_of(device), version()
    before = runtime.read_quarantine(target) or runtime.QuarantineRecord(own, (), {})
    verified = before.verified if before.version == own else ()

    def outcome(family, without):
        return _outcome(Request(device.name, family.name, tuple(sorted(without)), short, background), limit, process)

    # Until a family has its turn, the record keeps what it says of it; what follows does without those that are not tried again at all.
    again = {family.name for family in families} | (set() if only else {WIDE_VECTORS})
    pending = {name: why for name, why in before.kept_out.items() if name in again}
    report = Report(kept_out={name: why for name, why in before.kept_out.items() if name not in pending})
    waiting = collections.deque(families)
    while waiting:
        family = waiting.popleft()
        begin(family)
        without = {*report.kept_out, *family.beside}
        row = Row(family, outcome(family, without))
        if background and row.outcome.verdict != RIGHT:
            row.outcome = outcome(family, without)
        wide = device.traits.vector_width > NARROW and WIDE_VECTORS not in report.kept_out
        if wide and row.outcome.verdict not in (RIGHT, HUNG):  # waiting for another hang takes minutes
            narrow = outcome(family, {*without, WIDE_VECTORS})
            if narrow.verdict == RIGHT:
                row.instead = narrow
                report.kept_out[WIDE_VECTORS] = f"{family.name} are {row.outcome.text()}; vectors of all kernels have {NARROW} lanes"
                waiting.extendleft(earlier.family for earlier in reversed(report.rows))  # their narrow kernels are others
                report.rows.clear()
        next_out, reason = family, row.reason
        while next_out is not None and (row.instead or row.outcome).verdict != RIGHT:
            report.kept_out.setdefault(next_out.name, reason)
            row.instead = outcome(family, report.kept_out)
            next_out = BY_NAME.get(next_out.then)
            reason = f"what takes the place of {family.name} is {row.instead.text()}; {next_out.instead}" if next_out else ""
        report.rows.append(row)
        if background and not report.usable:
            yield report
            return
        pending.pop(family.name, None)
        if not waiting:
            pending.pop(WIDE_VECTORS, None)
        verified = tuple(dict.fromkeys([*verified, family.name]))
        runtime.write_quarantine(target, runtime.QuarantineRecord(own, verified, {**pending, **report.kept_out}))
        yield report


def version() -> str:
    """The version of keras_ocl that records name."""
    from importlib import metadata

    try:
        return metadata.version("keras-ocl")
    except metadata.PackageNotFoundError:
        return "unknown"


def _outcome(request, limit, process) -> Outcome:
    """Run what a Request asks for in a process of its own, which ends when this one does."""
    begin, environment, lines, late = time.monotonic(), {**os.environ, **_SETTINGS}, queue.SimpleQueue(), False
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            [*process, request.text()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as child:
            threading.Thread(target=lambda: [*map(lines.put, child.stdout), lines.put(None)], daemon=True).start()
            said = []
            try:
                while (line := lines.get(timeout=limit)) is not None:
                    said.append(line.decode(errors="replace"))
            except queue.Empty:
                late = True
                child.kill()
        log.seek(0)
        errors = log.read().decode(errors="replace")
    found = _read("".join(said))
    found.seconds = time.monotonic() - begin
    if late:
        return _ended(found, HUNG, f"it took more than {limit:g} s")
    if child.returncode:
        last = errors.strip().splitlines()[-1:] if child.returncode > 0 else []
        how = f"a signal, {-child.returncode}, ended its process" if child.returncode < 0 else f"its process ended with {child.returncode}"
        return _ended(found, CRASHED, ": ".join([how, *last]))
    return found


def _ended(found, verdict, how) -> Outcome:
    """The Outcome of a process that was ended in the case in which it was; an earlier case that was wrong comes first."""
    if found.verdict == RIGHT:
        found.verdict, found.why = verdict, ": ".join(filter(None, [found.why, how]))
    found.wrong += 1
    return found


def _read(output) -> Outcome:
    """The Outcome that a process's lines tell; of one that is unfinished, `why` is the name of the case that it was in."""
    found, running = Outcome(), ""
    for line in output.splitlines():
        try:
            said = json.loads(line)
            name, verdict, why = said["case"], said.get("verdict"), said.get("why", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # drivers print, too
        if verdict is None:
            running, found.cases = name, found.cases + 1
            continue
        running = ""
        if verdict != RIGHT:
            found.wrong += 1
            if found.verdict == RIGHT:
                found.verdict, found.why = verdict, f"{name}: {why}"
    if running and found.verdict == RIGHT:
        found.why = running
    return found
