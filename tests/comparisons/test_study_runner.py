"""Studies run: each row on each backend, results kept at once, `--resume`, interrupts and rows that fail."""

import json

import numpy as np
import pytest

from comparisons import study_runner
from comparisons.measures import differ, is_spread, spread
from comparisons.study import Extent, Row, Study
from comparisons.workers import Workers


def row(name, **changes):
    """Return a row of a study that no process runs."""
    given = dict(table="t", model="m:f", data="d:f", batch=8, quick=Extent(1, 2, 64, 32), full=Extent(9, 5)) | changes
    return Row(name, **given)


STUDY = Study("made_up", "A study", "nothing", (row("a"), row("b", only=("ocl",), environment={"ocl": {"X": "1"}}), row("c")), ())
PARTS = Study("parts", "A study", "nothing", (row("a", environment={"ocl": {"KERAS_OCL_DEVICE": "/units=1"}}),), ())
SETTINGS = study_runner.Settings("quick", ("ocl", "tensorflow"), "tensorflow")


class Watch:
    """Notes what the runner reports."""

    def __init__(self):
        self.seen = []

    def begin(self, jobs):
        self.planned = [(job.row, job.backend) for job in jobs]

    def start(self, job):
        pass

    def progress(self, job, said):
        self.seen.append(said)

    def end(self, job, result, output, seconds):
        self.seen.append((job.row, job.backend, "error" in result))


@pytest.fixture
def processes(monkeypatch):
    """Replaces the worker processes; returns (the jobs asked for, a dict from (row, backend) to what happens instead of a result)."""
    asked, instead = [], {}

    def run(self, job, timeout=None, listen=None):
        asked.append(job)
        listen({"text": "training", "done": 1, "total": 2})
        outcome = instead.get((job.row, job.backend), {"fit_ms": spread([1.0, 2.0]), "device": f"a {job.backend}"})
        if isinstance(outcome, BaseException):
            raise outcome
        return job.identity() | outcome, "output"

    monkeypatch.setattr(Workers, "run", run)
    return asked, instead


def test_every_row_runs_on_its_backends(processes, tmp_path):
    watch = Watch()
    report = study_runner.run(STUDY, SETTINGS, tmp_path, "command", watch)
    wanted = [("a", "ocl"), ("a", "tensorflow"), ("b", "ocl"), ("c", "ocl"), ("c", "tensorflow")]
    assert watch.planned == wanted
    assert [(r["row"], r["backend"]) for r in report["results"]] == wanted
    assert [job.environment for job in processes[0]] == [{}, {}, {"X": "1"}, {}, {}]
    assert watch.seen.count({"text": "training", "done": 1, "total": 2}) == 5
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["devices"] == {"ocl": "a ocl", "tensorflow": "a tensorflow"} and report["command"] == "command"
    assert report["versions"]["keras"]


def test_a_failing_row_is_a_row_and_the_rest_goes_on(processes, tmp_path):
    processes[1]["a", "ocl"] = {"error": "OutOfMemory: too much"}
    watch = Watch()
    report = study_runner.run(STUDY, SETTINGS, tmp_path, "", watch)
    assert report["results"][0] == {"row": "a", "backend": "ocl", "error": "OutOfMemory: too much"}
    assert len(report["results"]) == 5 and ("a", "ocl", True) in watch.seen


def test_an_interrupt_keeps_what_is_finished_and_resume_goes_on(processes, tmp_path):
    asked, instead = processes
    instead["a", "tensorflow"] = {"error": "boom"}
    instead["c", "ocl"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        study_runner.run(STUDY, SETTINGS, tmp_path, "", Watch())
    kept = json.loads((tmp_path / "report.json").read_text())["results"]
    assert [(r["row"], r["backend"]) for r in kept] == [("a", "ocl"), ("a", "tensorflow"), ("b", "ocl")]
    asked.clear()
    instead.clear()
    report = study_runner.run(STUDY, SETTINGS, tmp_path, "", Watch(), resume=True)
    assert [(job.row, job.backend) for job in asked] == [("a", "tensorflow"), ("c", "ocl"), ("c", "tensorflow")]  # what failed runs again
    assert [(r["row"], r["backend"]) for r in report["results"]] == [(j.row, j.backend) for j in study_runner.jobs(STUDY, SETTINGS, ".")]


def test_resume_refuses_other_settings(processes, tmp_path):
    study_runner.run(STUDY, SETTINGS, tmp_path, "", Watch())
    other = study_runner.Settings("full", ("ocl", "tensorflow"), "tensorflow")
    with pytest.raises(ValueError, match="mode 'quick', not 'full'"):
        study_runner.run(STUDY, other, tmp_path, "", Watch(), resume=True)


def test_rows_that_are_not_there_are_named():
    with pytest.raises(ValueError, match="'nonsense'"):
        study_runner.jobs(STUDY, SETTINGS, ".", ["nonsense"])


def test_extents_and_devices_come_from_the_settings():
    asked = study_runner.Settings("full", ("ocl@pocl", "tensorflow"), "tensorflow", device="gpu:0", repeats=3, epochs=2, limit=40, steps=7)
    jobs = study_runner.jobs(STUDY, asked, "out", ["a"])
    extent = dict(epochs=2, repeats=3, examples=40, test_examples=40, evaluated=True, steps=7, step_repeats=None)
    assert [job.extent for job in jobs] == [extent] * 2
    assert [job.environment for job in jobs] == [{"KERAS_OCL_DEVICE": "pocl"}, {}]
    assert [job.environment for job in study_runner.jobs(PARTS, asked, "out")] == [{"KERAS_OCL_DEVICE": "pocl/units=1"}, {}]
    small = study_runner.Settings("quick", ("ocl",), "ocl", limit=40).extent(STUDY.rows[0])
    assert (small.examples, small.test_examples) == (40, 32)


def test_criteria_are_judged_on_all_results(processes, tmp_path):
    def criterion(results, reference):
        return [{"row": r["row"], "backend": r["backend"], "name": "n", "passed": reference == "tensorflow", "text": ""} for r in results]

    judged = Study("made_up", "A study", "nothing", (row("a"),), (), criteria=(criterion,))
    report = study_runner.run(judged, SETTINGS, tmp_path, "", Watch())
    assert [(v["backend"], v["passed"]) for v in report["criteria"]] == [("ocl", True), ("tensorflow", True)]


def test_spreads():
    assert spread([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0, "n": 1}
    values = list(np.random.default_rng(0).normal(size=21))
    made = spread(values)
    assert is_spread(made) and not is_spread({"median": 1.0}) and not is_spread(1.0)
    assert np.allclose([made["low"], made["median"], made["high"]], np.quantile(values, [0.25, 0.5, 0.75]))
    assert differ(spread([1.0, 1.1, 1.2]), spread([2.0, 2.1, 1.9]))
    assert not differ(spread([1.0, 2.0, 3.0]), spread([2.0, 3.0, 4.0]))
