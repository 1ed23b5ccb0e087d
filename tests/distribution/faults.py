"""Training that a fault ends on one rank, and that goes on from its backup with another number of ranks.

`python -m tests.distribution.faults --repetitions 10` repeats each fault at other moments; the tests have each once.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keras_ocl.distribution import launcher

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("faulty_training.py")
FAULTS = "step", "all-reduce", "stopped", "sleeps", "saving", "saving on another", "full disk"
ANY = r"\d+"
RANK = r"rank {} \(process \d+ on \S+\)"
SLOW = "stopped", "sleeps", "full disk"  # found by limits, which are short here
MESSAGES = {
    **{fault: f"keras_ocl: .*{RANK.format(1)} was killed " for fault in ("step", "all-reduce", "saving on another")},
    "saving": f"keras_ocl: {RANK.format(0)} .*was killed ",
    "stopped": f"keras_ocl: {RANK.format(1)} has been silent for ",
    "sleeps": f"keras_ocl: {RANK.format(1)} has not arrived for .* while {RANK.format(ANY)} waits in ",
    "full disk": f"keras_ocl: {RANK.format(0)} ended by .*No space left on device",
}


def train(folder, ranks, fault="none", moment=0):
    """(status, output, seconds from the fault to the end) of a job that trains with its checkpoints in `folder`."""
    command = [sys.executable, str(PROGRAM), str(folder), fault, str(moment)]
    if ranks > 1:
        command = [launcher.mpiexec(), "-n", str(ranks), *command]
    limits = {"KERAS_OCL_HEARTBEAT": "6", "KERAS_OCL_STALL": "6"} if fault in SLOW else {}
    python = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **limits, **python, "KERAS_BACKEND": "ocl"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, env=environment, text=True, timeout=120, **streams)
    happened = Path(folder, "happened")
    since = time.time() - happened.stat().st_mtime if happened.exists() else None
    happened.unlink(missing_ok=True)
    return done.returncode, done.stdout, since


@contextlib.contextmanager
def small_disk(folder):
    """A file system of 8 MiB at `folder`; yields whether this user may have one."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def check(fault, folder, reference, moment=0, ranks=2, later=3):
    """Train with a fault, see how the job ends, and train to the end; returns what happened in a line.

    Args:
        fault: one of FAULTS.
        folder: empty, for the checkpoints.
        reference: a file of the weights after each epoch of one process without faults (`train(..., "reference")`).
        moment: which of the moments where this fault can happen.
        ranks, later: of the job that fails, and of the one after it.

    Raises:
        AssertionError: the job did not end as it should, the checkpoints are damaged, or the result is another.
    """
    os.symlink(reference, folder / "reference.npz")
    status, output, seconds = train(folder, ranks, fault, moment)
    assert status != 0 and seconds is not None and seconds < 30, output
    assert re.search(MESSAGES[fault], output), output
    (folder / "filler").unlink(missing_ok=True)
    left = sorted(path.name for path in (folder / "backup").iterdir())
    status, output, _ = train(folder, later)
    assert status == 0, output
    found = json.loads(re.search(r"^result (.*)$", output, re.MULTILINE)[1])
    assert found["began with epoch"] >= 1 and found["error"] < 1e-3, found
    assert found["checkpoint of epoch"] is not None, found
    return f"ended after {seconds:.1f} s, left {left}, {found}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--faults", choices=FAULTS, nargs="+", default=FAULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        status, output, _ = train(base, 1, "reference")
        assert status == 0, output
        failed = 0
        for fault in arguments.faults:
            for k in range(arguments.repetitions):
                folder = base / f"{fault} {k}"
                try:
                    with small_disk(folder):
                        print(fault, k, check(fault, folder, base / "reference.npz", k, 2 + k % 2, (3, 1, 2)[k % 3]), flush=True)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(fault, k, "FAILED:", str(error)[-4000:], flush=True)
    print(failed, "failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
