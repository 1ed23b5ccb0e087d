"""Which launcher started this process, by its environment variables, and advice where none did."""

import os
import shutil
import sys
from pathlib import Path

INSTALL = "pip install 'keras-ocl[distributed]'"
# launcher -> the variables with a process's rank and the number of processes. mpiexec means MPICH's (also Intel's, and Slurm's by PMI-2).
_LAUNCHERS = {
    "Open MPI's mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH's mpirun": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
    "PMIx": ("PMIX_RANK", "PMIX_SIZE"),
    "an MPI launcher": ("MPI_LOCALRANKID", "MPI_NRANKS"),
}


def started_by(environment):
    """(launcher, number of processes or None if unknown); None where no MPI launcher started this process.

    Raises:
        RuntimeError: Slurm started several processes that cannot find one another.
    """
    for launcher, (rank, size) in _LAUNCHERS.items():
        if rank in environment:
            several = size if size in environment else "SLURM_STEP_NUM_TASKS"
            return launcher, int(environment[several]) if several in environment else None
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        raise RuntimeError(
            f"srun has started {environment['SLURM_STEP_NUM_TASKS']} processes that cannot find one another, since it offers no PMI: start "
            "them by `srun --mpi=pmi2` or `--mpi=pmix` (`srun --mpi=list` shows what there is)."
        )
    return None


def mpiexec():
    """The path of an mpiexec: one installed beside this Python, else the first on PATH; None if there is neither."""
    beside = Path(sys.executable).parent / "mpiexec"  # not resolved: a virtual environment's python is a link
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def advice(processes):
    """How to start a script in `processes` processes, as text."""
    return f"{INSTALL}, then `mpiexec -n {processes} python SCRIPT.py` (or srun, mpirun)"
