"""All checks of a GPU in a few minutes: `python -m comparisons.gpu [--minutes 8] [--out FOLDER] [--device NAME] [--only STAGE,...]`.

Stages, the best first: "driver" (what the driver says, and which matrix units work), "products" and "operations" (attention and
convolutions) in each precision beside PyTorch and JAX, with their errors, "fit" of networks beside Keras on JAX and PyTorch, and "tests", a
part of the test suite on the device. Each stage has a share of the minutes that are left when it begins, and each backend of it a process
of its own; a case that fails, hangs or ends its process is a row with the reason, and the next goes on. FOLDER/figures.jsonl gets a line
for each figure as it comes, FOLDER/report.md the tables and whether the marks are met, after each stage. A later run into the same folder
adds to its figures. `--report FOLDER` makes the report again.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from comparisons import frameworks, gpu_cases, gpu_report
from comparisons.gpu_worker import MARK
from comparisons.workers import ROOT, failure, kill

WORKER = (sys.executable, "-m", "comparisons.gpu_worker")
LEAST_SECONDS = 3  # no process is started for less
DRIVER_SECONDS = 30  # at least, since the stages behind need the device's kind; packages are read from the disk for the first time
KILL_SECONDS = 5  # a process that was killed has so long to end
PATH = re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)+([\w.+@-]*)")


def without_paths(text):
    """The text with the last part of each path alone."""
    return PATH.sub(r"\1", text)


class Run:
    """The figures of a run as they come.

    Attributes:
        kind: "gpu" or "cpu", of the device.
    """

    def __init__(self, folder, minutes, short, device=""):
        self.folder, self.short, self.kind = Path(folder), short, "gpu"
        self._ends = time.monotonic() + 60 * minutes
        self._environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
        self._environment.setdefault("KERAS_OCL_QUARANTINE", "manual")  # nothing is tried beside what is timed
        if device:
            self._environment["KERAS_OCL_DEVICE"] = device
        self.folder.mkdir(parents=True, exist_ok=True)
        self._figures = (self.folder / "figures.jsonl").open("a")
        self._log = (self.folder / "log.txt").open("a")

    @property
    def left(self):
        """Seconds of the run that are left."""
        return self._ends - time.monotonic()

    def record(self, stage, backend, **row):
        """Write a figure; a line that was written survives whatever happens to this process."""
        row = {key: without_paths(value) if isinstance(value, str) and key != "case" else value for key, value in row.items()}
        self._figures.write(json.dumps({"stage": stage, "backend": backend, **row}) + "\n")
        self._figures.flush()
        if stage == "driver" and "kind" in row:
            self.kind = row["kind"]
        print(" ".join(filter(None, (stage, backend, gpu_report.line(row)))), file=sys.stderr)

    def stage(self, stage, seconds):
        """Measure a stage within so many seconds."""
        if stage == "driver":
            self._cases(stage, "ocl", [(name, "") for name in ("device", "units", "versions", "extensions")], seconds)
        elif stage == "tests":
            self._tests(seconds)
        else:
            ends, weights = time.monotonic() + seconds, dict(gpu_cases.BACKEND_WEIGHTS[stage])
            for backend in list(weights):
                if why := frameworks.missing(backend):
                    self.record(stage, backend, case="all", precision="", skipped=why)
                    del weights[backend]
            for backend in weights:
                share = gpu_cases.portion(ends - time.monotonic(), weights, backend)
                self._cases(stage, backend, gpu_cases.cases(stage, backend, self.short), share)

    def _cases(self, stage, backend, cases, seconds):
        """Measure cases of a backend, in a fresh process after each that ended one."""
        ends, begun = time.monotonic() + seconds, None

        def patience():
            """Seconds in which a case must be done: half of those left, so that one that hangs does not take them all."""
            return min(gpu_cases.CASE_SECONDS, (ends - time.monotonic()) / 2) if begun else math.inf

        def listen(told):
            nonlocal begun
            if "begin" in told:
                begun = tuple(told["begin"])
                cases.remove(begun)
            elif "reason" in told:
                self.record(stage, backend, case="all", precision="", skipped=told["reason"])
                cases.clear()
            else:
                self.record(stage, backend, **told["row"])
                begun = None if begun and told["row"]["case"] == begun[0] else begun  # a case may have rows before its last

        while cases and ends - time.monotonic() > LEAST_SECONDS:
            command = [*WORKER, stage, backend, self.kind, "short" if self.short else "full"]
            count, begun = len(cases), None
            why = self._converse(command, {"KERAS_BACKEND": backend}, ends, listen, json.dumps(cases), patience)
            if begun and why:
                self.record(stage, backend, case=begun[0], precision=begun[1], failed=why)
            elif len(cases) == count:  # it ended before its first case
                self.record(stage, backend, case="all", precision="", failed=why or "its process measured nothing")
                return
        if cases:
            self.record(stage, backend, case="all", precision="", left_out=cases)

    def _tests(self, seconds):
        """Run a part of the test suite."""
        if missing := [name for name in ("pytest", "xdist") if importlib.util.find_spec(name) is None]:
            self.record("tests", "ocl", case="tests", precision="", skipped=f"{', '.join(missing)} not installed")
            return
        files = gpu_cases.SHORT_TESTS if self.short else gpu_cases.TESTS
        processes = "0" if self.short else str(min(8, os.cpu_count()))
        options = ["-p", "comparisons.gpu_tests", "-p", "no:cacheprovider", "-q", "--tb=short", "-n", processes]
        command = [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors", *files]
        ends = time.monotonic() + seconds
        why = self._converse(command, {"KERAS_BACKEND": "ocl"}, ends, lambda told: self.record("tests", "ocl", **told["row"]))
        if why and not why.startswith("exit status 1:"):  # that of failures, which have rows of their own
            self.record("tests", "ocl", case="the end", precision="", failed=why)

    def _converse(self, command, variables, ends, listen, text="", patience=lambda: math.inf):
        """Run a process until it ends or for too long, and call `listen` for what it tells; return why it failed, "" where it did not.

        ends: the time by which it is killed. patience(): the most seconds until its next line.
        """
        if self.kind == "cpu":  # the frameworks beside a CPU, too
            variables = {**variables, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        lines, last = queue.Queue(), "no output"
        threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its output says why
                process.stdin.write(text)
                process.stdin.close()
            while True:
                waits, most = patience(), ends - time.monotonic()
                try:
                    line = lines.get(timeout=max(0, min(waits, most)))
                except queue.Empty:
                    return f"no result after {waits:.3g} s" if waits < most else "stopped, as the time was over"
                if line is None:
                    break
                if line.startswith(MARK):
                    listen(json.loads(line.removeprefix(MARK)))
                elif line.strip():
                    last = line
                    self._log.write(without_paths(line))
                    self._log.flush()
            status = process.wait()
            return failure(status, last) if status else ""
        finally:
            kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep it
                process.wait(KILL_SECONDS)


def _pass_on(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put(None)


def measure(run, stages, minutes):
    """Measure stages, one after the other, and write the report after each."""
    now = datetime.datetime.now(datetime.UTC)
    run.record("run", "", case="begun", precision="", date=f"{now:%Y-%m-%d}", minutes=minutes, short=run.short)
    weights = {stage: gpu_cases.WEIGHTS[stage] for stage in stages}
    for stage in stages:
        seconds = gpu_cases.portion(run.left, weights, stage)
        run.stage(stage, max(seconds, DRIVER_SECONDS) if stage == "driver" else seconds)
        gpu_report.write(run.folder)


def parser():
    """Return the command's argument parser."""
    p = argparse.ArgumentParser(prog="python -m comparisons.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=8, help="the whole time (default: %(default)s)")
    p.add_argument("--out", metavar="FOLDER", default="gpu-figures", help="where the figures go (default: %(default)s)")
    p.add_argument("--device", metavar="NAME", default="", help="the OpenCL device (default: KERAS_OCL_DEVICE, else the best)")
    p.add_argument("--only", metavar="STAGE,...", default="", help=f"of {', '.join(gpu_cases.STAGES)}; the driver is always asked")
    p.add_argument("--short", action="store_true", help="few and tiny cases, to see that the command works")
    p.add_argument("--report", metavar="FOLDER", help="measure nothing: write FOLDER/report.md from its figures.jsonl, and print it")
    return p


def main(argv=None):
    """Run the command with the arguments `argv`; return its exit status."""
    p = parser()
    options = p.parse_args(argv)
    if options.report:
        if not (Path(options.report) / "figures.jsonl").exists():
            p.error(f"there is no figures.jsonl in {options.report}")
        print(gpu_report.write(options.report))
        return 0
    only = options.only.split(",") if options.only else gpu_cases.STAGES
    if unknown := [name for name in only if name not in gpu_cases.STAGES]:
        p.error(f"there is no stage {unknown[0]!r}; there are {', '.join(gpu_cases.STAGES)}")
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    run = Run(options.out, options.minutes, options.short, options.device)
    try:
        measure(run, [name for name in gpu_cases.STAGES if name == "driver" or name in only], options.minutes)
    except KeyboardInterrupt:
        return 130
    finally:
        print(gpu_report.write(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
