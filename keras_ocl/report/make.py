"""Makes a report: facts, verification, and measures in processes of their own."""

import datetime
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from keras_ocl import runtime
from keras_ocl.report import process as measuring
from keras_ocl.report.facts import device_facts, settings, system, versions
from keras_ocl.report.private import hidden
from keras_ocl.verify import run as verification

FORMAT = 1  # raise when keys of a report change
LIMIT = 60.0  # seconds of a case, after which its process is ended
MEASURES = 120.0  # seconds of all cases
PROCESS = (sys.executable, "-m", "keras_ocl.report.process")


def make(
    device: runtime.Device,
    short: bool = True,
    only: Sequence[str] = (),
    small: bool = False,
    limit: float = LIMIT,
    seconds: float = MEASURES,
    process: Sequence[str] = PROCESS,
    verify_process: Sequence[str] = verification.PROCESS,
    begin: Callable[[str], None] = lambda what: None,
) -> dict[str, object]:
    """The report of a device, as JSON can hold it.

    Args:
        device: the Device, found with KERAS_OCL_QUARANTINE=0, so that kernels that are kept out are tried again.
        short: whether few cases of each family are verified. only: names of families to verify; () for all.
        small: whether the measured cases are small, as tests want them.
        limit: seconds of a case, after which its process is ended. seconds: of all cases, after which the others are left out.
        process, verify_process: commands of the processes that measure and verify; a Request is added.
        begin: called with what is done next, in words.

    Returns:
        A dict with "format", "date" (UTC), "versions", "system", "settings" and "device" (see facts.py), "verify" (see `verified`), and for
        each of "limits", "operations" and "networks" a list of {"case": name, ...}: what limits.py, operations.py and networks.py give, or
        "error". "byte" is Traits.byte as measured: multiply-adds of the fastest product in float32 in the time of one byte of memory;
        None where one of them is missing.
    """
    report: dict[str, object] = {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions(),
        "system": system(),
        "settings": settings(),
        "device": device_facts(device),
        "verify": verified(device, short, only, verify_process, begin),
    }
    rows: dict[str, list] = {section: [] for section in measuring.SECTIONS}
    for section, row in measured(device, small, limit, seconds, process, begin):
        rows[section].append(row)
    return {**report, **rows, "byte": _byte(rows)}


def verified(device, short, only, process, begin) -> dict[str, object]:
    """Verify a Device.

    What is wrong is kept out from now on, as by the command `verify`. A short verification lets nothing in again that was kept out before.

    Returns:
        {"short", "families": [{"family", "verdict", "why", "cases", "wrong", "seconds", "instead"}], "kept_out": {family: why}, "error"}.
        "instead" is the verdict of what takes the place of a family that is not right, else ""; "error" why the verification ended, "".
    """
    report, error, target = verification.Report(), "", runtime.target_of(device)
    before = runtime.read_quarantine(target)
    try:
        try:
            for report in verification.verify(  # noqa: B007 - the last one counts
                device, only, short, process=process, begin=lambda family: begin(f"verify {family.name}: {family.kernels}")
            ):
                pass
        finally:
            if short and before is not None:
                _keep(target, before.kept_out)
    except OSError as problem:
        error = f"the record cannot be written: {problem}"
    record = runtime.read_quarantine(target)
    families = [
        {
            "family": row.family.name,
            "verdict": row.outcome.verdict,
            "why": hidden(row.outcome.why),
            "cases": row.outcome.cases,
            "wrong": row.outcome.wrong,
            "seconds": round(row.outcome.seconds, 1),
            "instead": row.instead.verdict if row.instead else "",
        }
        for row in report.rows
    ]
    kept_out = record.kept_out if record else report.kept_out
    return {"short": short, "families": families, "kept_out": {name: hidden(why) for name, why in kept_out.items()}, "error": hidden(error)}


def _keep(target, kept_out):
    record = runtime.read_quarantine(target)
    if record is not None and not kept_out.keys() <= record.kept_out.keys():
        runtime.write_quarantine(target, record._replace(kept_out={**kept_out, **record.kept_out}))


def measured(device, small, limit, seconds, process, begin) -> Iterator[tuple[str, dict]]:
    """Yields (section, row) of each case; where a process ends or hangs, another one goes on behind the case that it was in."""
    left, ends = measuring.cases(device.kind, small), time.monotonic() + seconds
    while left:
        done = 0
        for case, found in _run(device.name, left, small, limit, ends, process, begin):
            yield case[0], {"case": case[1], **found}
            done += 1
        left = left[done:]
        if time.monotonic() > ends:
            for section, name in left:
                yield section, {"case": name, "error": f"the {seconds:g} s of all measurements were over"}
            return


def _run(name, cases, small, limit, ends, process, begin):
    """Yields (case, its result or {"error": ...}) of one process: at least one, and that in which it ended is the last."""
    environment = {**os.environ, "KERAS_BACKEND": "ocl", "KERAS_OCL_DEVICE": name, "KERAS_OCL_COMPILERS": "0"}  # optimised kernels only
    environment.setdefault("KERAS_OCL_QUARANTINE", "manual")  # nothing is tried beside what is timed
    lines, waiting, why = queue.SimpleQueue(), list(cases), ""
    request = measuring.Request(name, tuple(cases), small)
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            [*process, request.text()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as child:
            threading.Thread(target=lambda: [*map(lines.put, child.stdout), lines.put(None)], daemon=True).start()
            try:
                while (line := lines.get(timeout=max(0.0, min(limit, ends - time.monotonic())))) is not None:
                    said = _read(line)
                    if said is None or not waiting or said["case"] != list(waiting[0]):
                        continue  # drivers print, too
                    if "result" in said or "error" in said:
                        yield waiting.pop(0), said["result"] if "result" in said else {"error": hidden(said["error"])}
                    else:
                        begin(f"measure {waiting[0][1]}")
            except queue.Empty:
                why = f"it took more than {limit:g} s" if time.monotonic() < ends else "the time of all measurements was over"
                child.kill()
            except BaseException:  # nobody waits for the rest
                child.kill()
                raise
        log.seek(0)
        last = log.read().decode(errors="replace").strip().splitlines()[-1:] if child.returncode > 0 else []
    if waiting:
        how = f"a signal, {-child.returncode}, ended its process" if child.returncode < 0 else f"its process ended with {child.returncode}"
        yield waiting[0], {"error": why or hidden(": ".join([how, *last]))}


def _read(line):
    """What a line of the process says; None for a line that is none of its own."""
    try:
        said = json.loads(line)
        return said if isinstance(said, dict) and "case" in said else None
    except ValueError:
        return None


def _byte(rows):
    times = {row["case"]: row for section in rows.values() for row in section if "error" not in row}
    rates = [row["flops_per_s"]["best"] for name, row in times.items() if name.startswith("product") and "float16" not in name]
    if not rates or "memory" not in times:
        return None
    return float(f"{max(rates) / 2 / times['memory']['bytes_per_s']['best']:.4g}")
