"""Runs programs as jobs of several ranks."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from keras_ocl.distribution import launcher

ROOT = Path(__file__).parents[2]
MPIEXEC = launcher.mpiexec()
needs_mpi = pytest.mark.skipif(MPIEXEC is None or find_spec("mpi4py") is None, reason="no MPI: pip install 'keras-ocl[distributed]'")


def compile_hastily():
    """From now on this process compiles kernels without optimisation, in a fifth of the time, where that gives the same results (as drafts
    do): where what is tested is what devices exchange, most of the time goes to the compiler."""
    from keras_ocl.runtime.programs import HASTY, Programs

    optimised = Programs.build

    def build(self, specs, options="", drafts=None):
        return optimised(self, specs, f"{options} {HASTY}" if self.drafts_are_exact else options)

    Programs.build = build


def run_job(code, ranks, timeout=300, optimised=False, **environment):
    """What all ranks of a job print; AssertionError with what they say where it fails.

    Each rank runs `code` behind `import keras, numpy as np` and `keras.distribution.initialize()`; `rank` is its number.

    Args:
        optimised: whether kernels are compiled as they are for users; else by `compile_hastily`.
    """
    hasty = "" if optimised else "from tests.distribution.job import compile_hastily; compile_hastily()"
    head = f"""
        import sys
        sys.modules.update(dict.fromkeys(("matplotlib", "sklearn", "tensorflow")))  # Keras loads what it finds
        import keras
        import numpy as np
        keras.distribution.initialize()
        from keras_ocl.hooks.distribution import process_id
        rank = process_id()
        {hasty}
    """
    ours = {"KERAS_BACKEND": "ocl", "PYTHONPATH": str(ROOT)}
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", **os.environ, **ours, **environment}
    program = textwrap.dedent(head) + textwrap.dedent(code)
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-c", program]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout
