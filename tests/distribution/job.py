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


def run_job(code, ranks, timeout=300, optimised=False, **environment):
    """What all ranks of a job print; AssertionError with what they say where it fails.

    Each rank runs `code` behind `import keras, numpy as np` and `keras.distribution.initialize()`; `rank` is its number.

    Args:
        optimised: as for `modes.prepare`.
    """
    head = f"""
        import sys
        sys.modules.update(dict.fromkeys(("matplotlib", "sklearn", "tensorflow")))  # Keras loads what it finds
        import keras
        import numpy as np
        from tests.distribution.modes import prepare
        prepare({optimised})
        keras.distribution.initialize()
        from keras_ocl.hooks.distribution import process_id
        rank = process_id()
    """
    ours = {"KERAS_BACKEND": "ocl", "PYTHONPATH": str(ROOT)}
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", **os.environ, **ours, **environment}
    program = textwrap.dedent(head) + textwrap.dedent(code)
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-c", program]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout
