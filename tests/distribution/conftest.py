import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from keras_ocl import runtime
from keras_ocl.distribution import launcher

ROOT = Path(__file__).parents[2]


class Job(NamedTuple):
    """How a job ended."""

    status: int
    output: str  # of all ranks, both streams


@pytest.fixture
def mpiexec(tmp_path):
    """A function that runs a script on several ranks: (number, script, *options of mpiexec, timeout, environment) -> Job."""
    path = launcher.mpiexec()
    if path is None:
        pytest.skip("no mpiexec beside this Python or on PATH: pip install '.[distributed]'")
    pytest.importorskip("mpi4py", reason="pip install '.[distributed]'")

    def run(number, script, *options, timeout=30, **environment):
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(script))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}
        command = [path, *options, "-n", str(number), sys.executable, str(file)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, env=environment, text=True, timeout=timeout, cwd=tmp_path, **streams)
        return Job(done.returncode, done.stdout)

    return run


@pytest.fixture
def halves():
    """Names of the two halves of the device."""
    device = runtime.current_device()
    if device.kind != "cpu" or device.traits.compute_units < 2:
        pytest.skip("a CPU with two compute units is needed")
    name = device.name.partition("/")[0]
    return [f"{name}/1of2", f"{name}/2of2"]
