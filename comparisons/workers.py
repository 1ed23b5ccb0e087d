"""Run jobs, each in a process of its own: forked from a worker that has imported Keras on the job's backend and touched no device.

The worker (comparisons.worker) reads one job per line and answers in lines, which are the job's output but for those that begin with
PROGRESS or ENDED. Where a process cannot be forked safely, the worker runs one job itself and ends, and the next job gets another.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROGRESS = "progress: "  # begins the lines that tell how far a job is
NOTICE = "notice: "  # those that a user should read
ENDED = "ended: "  # and the line that tells a job's exit status
EXACT = " float64"  # ends the name of a backend that computes in float64


class Parts(NamedTuple):
    """What a backend's name says: Keras's name, the device ("" for none), and whether it computes in float64."""

    kind: str
    device: str
    exact: bool


def parts(backend):
    """Return the Parts of a name such as "ocl", "ocl@gpu:0" or "tensorflow float64"."""
    kind, _, device = backend.removesuffix(EXACT).partition("@")
    return Parts(kind, device, backend.endswith(EXACT))


class Workers:
    """A context manager that runs jobs; it keeps a worker for each backend, and ends them when it is left."""

    def __init__(self):
        self._workers = {}  # by kind and device of backend: (the variables it was started with, its process)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for _, process in self._workers.values():
            end(process)
        self._workers = {}

    def run(self, job, timeout=None, listen=None):
        """Run a comparisons.study_runner.Job in a fresh process; return (result, the process's output).

        A process that fails, or takes more than `timeout` seconds, gives a result with "error". `listen` is called with the dict {"text",
        "done", "total"} of each line of progress. An interrupt ends the process too.
        """
        failed = job.identity()
        process = self._worker(job)
        expired = threading.Event()
        timer = threading.Timer(timeout or 0, lambda: (expired.set(), kill(process)))
        lines, status = [], None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "result.json")
            if timeout:
                timer.start()
            try:
                status = self._converse(process, {"job": dataclasses.asdict(job), "result": str(path)}, lines, listen)
            finally:
                timer.cancel()
                if status is None:  # interrupted
                    self._workers.pop(parts(job.backend)[:2])
                    end(process)
            output = "".join(lines)
            if expired.is_set():
                return failed | {"error": f"no result after {timeout:g} s"}, output
            if path.exists():  # a job that fails in Python leaves one too, with its error
                return json.loads(path.read_text()) | failed, output
        return failed | {"error": failure(status, output)}, output

    def _worker(self, job):
        """Return the process of a worker for `job`: the one that is there, where it has the same variables and still lives."""
        kind, device, _ = parts(job.backend)
        environment = dict(os.environ, KERAS_BACKEND=kind)
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        environment.setdefault("KERAS_OCL_QUARANTINE", "manual")  # nothing is tried beside what is timed
        if device:
            environment["KERAS_OCL_DEVICE"] = device
        environment |= job.environment  # a row may ask for a part of that device
        known, process = self._workers.get((kind, device), (None, None))
        if process is not None:
            if known == environment and process.poll() is None:
                return process
            end(process)
        process = subprocess.Popen(
            [sys.executable, "-m", "comparisons.worker"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that the job can be ended with its worker
        )
        self._workers[kind, device] = environment, process
        return process

    @staticmethod
    def _converse(process, request, lines, listen):
        """Send a request and add the job's output to `lines`; return the job's exit status."""
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:  # it has ended, and its output says why
            pass
        for line in process.stdout:
            if line.startswith(ENDED):
                return int(line.removeprefix(ENDED))
            if not line.startswith(PROGRESS):
                lines.append(line)
            elif listen is not None:
                listen(json.loads(line.removeprefix(PROGRESS)))
        return process.wait()


def kill(process):
    """Kill a worker and the job that it runs."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # both have ended
        pass


def end(process):
    """End a worker and what belongs to it."""
    kill(process)
    process.wait()
    process.stdin.close()
    process.stdout.close()


def failure(status, output):
    """Return in a sentence why a process with this exit status and output failed."""
    if status < 0:
        name = signal.Signals(-status).name
        return f"killed by {name}" + (" (the system ends processes that take too much memory so)" if name == "SIGKILL" else "")
    lines = output.strip().splitlines() or ["no output"]
    return f"exit status {status}: {lines[-1]}"
