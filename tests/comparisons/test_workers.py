"""Jobs run in processes of their own, forked from a worker that lives on; what fails, hangs or is killed spoils none of the others."""

import os
import time
from dataclasses import replace

import pytest

from comparisons import worker
from comparisons.study_runner import Job
from comparisons.workers import EXACT, Workers, parts

XOR = Job("parity", "xor", "ocl", dict(repeats=1, steps=2), "out")
forking = pytest.mark.skipif(not worker.FORKS, reason="jobs are forked on Linux only")


@pytest.fixture
def workers():
    with Workers() as made:
        yield made


def worker_of(workers, backend="ocl"):
    """Return the process of a backend's worker."""
    return workers._workers[backend, ""][1]


def test_names_of_backends_have_parts():
    assert [parts(name) for name in ("ocl", "ocl@gpu:0", "tensorflow" + EXACT)] == [
        ("ocl", "", False),
        ("ocl", "gpu:0", False),
        ("tensorflow", "", True),
    ]


def test_a_backend_that_does_not_exist_gives_its_last_line(workers):
    result, output = workers.run(replace(XOR, backend="no_such_backend"))
    assert result["error"].startswith("exit status 1: ")
    assert "no_such_backend" in output


@forking
def test_jobs_share_a_worker_and_nothing_else(workers):
    first, _ = workers.run(XOR)
    process = worker_of(workers)
    failed, output = workers.run(replace(XOR, row="no_such_script"))
    again, _ = workers.run(XOR)
    assert "no_such_script" in failed["error"] and "Traceback" in output
    assert first["step_losses"] == again["step_losses"] and len(first["step_losses"][0]) == 2
    assert worker_of(workers) is process and process.poll() is None
    workers.__exit__()
    assert process.poll() is not None


@forking
def test_a_job_in_float64_shares_the_worker_and_spoils_no_other(workers):
    first, _ = workers.run(XOR)
    process = worker_of(workers)
    exact, _ = workers.run(replace(XOR, backend="ocl" + EXACT))
    again, _ = workers.run(XOR)
    assert worker_of(workers) is process and exact["backend"] == "ocl float64"
    assert first["step_losses"] == again["step_losses"] != exact["step_losses"]


@forking
def test_a_job_with_other_variables_gets_another_worker(workers):
    workers.run(XOR)
    process = worker_of(workers)
    result, _ = workers.run(replace(XOR, row="no such row", environment={"KERAS_OCL_VERBOSE": "1"}))
    assert "no such row" in result["error"]
    assert process.poll() is not None and worker_of(workers) is not process


@pytest.mark.parametrize("seconds", [0.5, 4.0])  # while Keras is imported; in the job
def test_a_job_that_takes_too_long_is_killed_and_the_next_one_runs(workers, seconds):
    long = replace(XOR, study="scripts", extent=dict(epochs=100_000, repeats=1))
    began = time.perf_counter()
    result, _ = workers.run(long, timeout=seconds)
    assert result["error"] == f"no result after {seconds:g} s" and time.perf_counter() - began < 60
    assert "error" not in workers.run(XOR)[0]


@forking
def test_a_killed_worker_is_an_error_and_the_next_one_runs(workers):
    workers.run(XOR)
    os.kill(worker_of(workers).pid, 9)
    worker_of(workers).wait()
    assert "error" not in workers.run(XOR)[0]
