"""Jobs run in processes of their own, forked from a worker that lives on; what fails, hangs or is killed spoils none of the others."""

import os
import time

import pytest

from comparisons import runner, worker
from comparisons.workers import Workers

XOR = runner.Job("xor", "ocl", epochs=1, starts=1, step_starts=1, train=False, steps=2)
forking = pytest.mark.skipif(not worker.FORKS, reason="jobs are forked on Linux only")


@pytest.fixture
def workers():
    with Workers() as made:
        yield made


def worker_of(workers, backend="ocl"):
    """Return the process of a backend's worker."""
    return workers._workers[backend][1]


def test_a_backend_that_does_not_exist_gives_its_last_line(workers):
    result, output = workers.run(runner.Job("xor", "no_such_backend", epochs=1, starts=1, step_starts=1))
    assert result["error"].startswith("exit status 1: ")
    assert "no_such_backend" in output


@forking
def test_jobs_share_a_worker_and_nothing_else(workers):
    first, _ = workers.run(XOR)
    process = worker_of(workers)
    failed, output = workers.run(runner.Job("no_such_script", "ocl", epochs=1, starts=1, step_starts=1))
    again, _ = workers.run(XOR)
    assert "no_such_script" in failed["error"] and "Traceback" in output
    assert first["step_losses"] == again["step_losses"] and len(first["step_losses"][0]) == 2
    assert worker_of(workers) is process and process.poll() is None
    workers.__exit__()
    assert process.poll() is not None


@forking
def test_a_job_with_other_variables_gets_another_worker(workers):
    workers.run(XOR)
    process = worker_of(workers)
    result, _ = workers.run(runner.RowJob("dense", "no such row", "ocl", {}, "out", environment={"KERAS_OCL_VERBOSE": "1"}))
    assert "no such row" in result["error"]
    assert process.poll() is not None and worker_of(workers) is not process


@pytest.mark.parametrize("seconds", [0.5, 4.0])  # while Keras is imported; in the job
def test_a_job_that_takes_too_long_is_killed_and_the_next_one_runs(workers, seconds):
    long = runner.Job("xor", "ocl", epochs=100_000, starts=1, step_starts=1, steps=0)
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
