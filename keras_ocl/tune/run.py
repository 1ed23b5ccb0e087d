"""Tuning of a device: a process that measures, one problem after the other, and the device's file with what is faster."""

import dataclasses
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
from dataclasses import dataclass

from keras_ocl import runtime
from keras_ocl.tune import record
from keras_ocl.tune.problem import Problem, choices
from keras_ocl.tune.search import Result, search

CRASHED, HUNG = "crashed", "hung"
LIMIT = 60.0  # seconds of one candidate, most of which compilers take, and of a process to start
PROCESS = (sys.executable, "-m", "keras_ocl.tune.process")
# Families of kernels that are kept out stay out, and none is tried beside what is timed. Optimised kernels are what users get.
_SETTINGS = {"KERAS_BACKEND": "ocl", "KERAS_OCL_COMPILERS": "0"}


class Failed(Exception):
    """A problem cannot be measured; the message is a clause."""


class _Ended(Exception):
    """The process ended, or was ended: the verdict and the reason as a clause."""


class Bench:
    """Measures one problem at a time, in a process that is started again where a candidate ends it.

    Args:
        device: the Device. process: the process's command; the device's name is added. limit: seconds of a candidate after which the
            process counts as hanging.
    """

    def __init__(self, device: runtime.Device, process: Sequence[str] = (), limit: float = LIMIT):
        self._command, self._limit = [*(process or PROCESS), device.name], limit
        self._child: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._problem: dict | None = None
        self._log = tempfile.TemporaryFile()
        self.own: list[tuple] = []  # the choices, as in Overrides, that hold for other problems

    def start(self, problem, seconds):
        """(seconds of a run of the default, share) of a Problem, for a search of so many seconds. Raises Failed."""
        self._problem = {"operation": problem.operation, "key": problem.key, "seconds": seconds}
        try:
            return self._begin()
        except _Ended as error:
            raise Failed(", ".join(error.args)) from None

    def attempt(self, choice, bound):
        """(verdict, reason, time as a multiple of the default's or None) of a Choice; bound: as in trial.Trial."""
        try:
            return self._call("attempt", kind=choice.kind, fields=dict(choice.fields), bound=bound)
        except _Ended as error:
            return (*error.args, None)
        except Failed as error:
            return CRASHED, str(error), None

    def race(self, choices, rounds, seconds):
        """Times of the default and of Choices in each round; none where the process ended."""
        try:
            named = [(choice.kind, dict(choice.fields)) for choice in choices]
            return self._call("race", choices=named, rounds=rounds, seconds=seconds)
        except (_Ended, Failed):
            return []

    def close(self):
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child.stdin.close()
            self._child = None

    def _begin(self):
        return self._ask("start", **self._problem, own=[(kind, key, dict(fields)) for kind, key, fields in self.own])

    def _call(self, name, **values):
        if self._child is None:
            self._begin()
        return self._ask(name, **values)

    def _ask(self, name, **values):
        """The process's answer to a call. Raises Failed, and _Ended where there is none."""
        child = self._child or self._started()
        limit = self._limit if name == "attempt" else LIMIT + values.get("seconds", 0)
        try:
            child.stdin.write(json.dumps({"call": name, **values}).encode() + b"\n")
            child.stdin.flush()
        except OSError:  # it has ended
            pass
        while True:
            try:
                line = self._lines.get(timeout=limit)
            except queue.Empty:
                self.close()
                raise _Ended(HUNG, f"it took more than {limit:g} s") from None
            if line is None:
                code = child.wait()
                self._child = None
                how = f"a signal, {-code}, ended the process" if code < 0 else f"the process ended with {code}{self._last()}"
                raise _Ended(CRASHED, how)
            try:
                said = json.loads(line)
                if "answer" in said:
                    return said["answer"]
                raise Failed(said["error"])
            except (ValueError, TypeError, KeyError):
                continue  # drivers print, too

    def _started(self):
        self._log.seek(0)
        self._log.truncate()
        environment = {"KERAS_OCL_QUARANTINE": "manual", **os.environ, **_SETTINGS}
        child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment)
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=lambda: [*map(lines.put, child.stdout), lines.put(None)], daemon=True).start()
        self._child, self._lines = child, lines
        return child

    def _last(self):
        """The last line of what the process wrote to the standard error, after a colon."""
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        return "".join(f": {line}" for line in said)


@dataclass
class Row:
    """What was found for a Problem: a search's Result, or why there is none, as a clause."""

    problem: Problem
    result: Result | None = None
    why: str = ""


def tune(
    device: runtime.Device,
    problems: Sequence[Problem],
    minutes: float,
    bench: Bench | None = None,
    begin: Callable[[Problem], None] = lambda problem: None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """Search the tiles of problems, the largest first, and write the device's file after each. Yields a Row of each.

    Args:
        device: the Device. problems: the problems. minutes: the time for all of them, which is divided evenly.
        bench: measures; a Bench of the device unless given. begin: called with each problem before its search.

    Raises:
        OSError: the device's file cannot be written. ValueError: it cannot be read.
    """
    end, bench = clock() + 60 * minutes, bench or Bench(device)
    try:
        for k, problem in enumerate(problems):
            if clock() >= end:
                yield Row(problem, why="no time was left")
                continue
            begin(problem)
            own = record.read(device).choices
            bench.own = own
            known = next((c for p, c in record.known(own) if p == problem), None)
            until = clock() + max(0.0, end - clock()) / (len(problems) - k)
            try:
                result = search(problem, _candidates(problem, device.traits), bench, until, known, clock)
            except (Failed, ValueError) as error:
                yield Row(problem, why=str(error))
                continue
            if result.finished:
                record.store(device, problem, result, datetime.date.today())
            yield Row(problem, result)
    finally:
        bench.close()


def _candidates(problem, traits):
    """Choices for a Problem, by the schedule's numbers; behind them those by the numbers that the device's file has in their place."""
    usual = dataclasses.replace(traits, overrides=dataclasses.replace(traits.overrides, tuning=()))
    return list(dict.fromkeys([*choices(problem, usual), *choices(problem, traits)]))
