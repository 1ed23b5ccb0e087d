"""Data parallelism over processes: the document's Algorithm 2 with an MPI rank in the place of each of its threads.

Each mini-batch is split over T ranks, gradients are added up, and there is one update, which is what Keras's DataParallel does on this
backend. Every rank has a core of its own; with T = 1 it is a process without MPI. `python -m comparisons.studies.ranks FILE` is one of the
processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from comparisons.measures import spread

MISSING = "no mpiexec or mpi4py: pip install 'keras-ocl[distributed]'"


def measure(context):
    """Train the row's network, from its first start, on settings["ranks"] ranks with a core each, as far as there are cores.

    settings: "ranks": numbers of ranks, of which the first is 1; "steps": of how many steps losses are compared.

    Adds ranks, a list of {"ranks", "losses": of each step, "epoch_s": spread of the epochs after the first}, and ranks_left_out, a dict
    from each number of ranks that was not run to the reason.

    Raises:
        RuntimeError: a process fails; the device is no CPU, of which ranks could have a core each.
    """
    from keras_ocl import runtime

    device, settings = runtime.current_device(), context.row.settings
    if device.kind != "cpu":
        raise RuntimeError(f"ranks with a core each need a CPU, not {device}: choose one by --device")
    found, left_out = [], {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.json")
        subject = context.subject
        np.savez(Path(folder, "data.npz"), x=subject.x, y=subject.y)
        job = {"model": context.row.model, "options": context.row.options, "batch": subject.batch, "seed": subject.seed}
        path.write_text(json.dumps(job | {"epochs": 1 + context.extent.epochs, "steps": settings["steps"]}))
        for done, ranks in enumerate(settings["ranks"]):
            reason = why_not(ranks)
            if reason:
                left_out[ranks] = reason
                continue
            context.progress(f"{ranks} ranks", done, len(settings["ranks"]))
            result = run(ranks, path, device.name.partition("/")[0])
            found.append({"ranks": ranks, "losses": result["losses"], "epoch_s": spread(result["epoch_seconds"][1:])})
    return {"ranks": found, "ranks_left_out": left_out}


def why_not(ranks):
    """Return why so many ranks cannot have a core each; "" where they can."""
    from keras_ocl.distribution import launcher

    if ranks > 1 and (launcher.mpiexec() is None or find_spec("mpi4py") is None):
        return MISSING
    return f"there are {len(cores())} cores" if ranks > len(cores()) else ""


def cores():
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count()))


def run(ranks, path, device):
    """Return what `train` returns in a job of so many ranks, which divide as many cores (keras_ocl.distribution.cores)."""
    from keras_ocl.distribution import launcher
    from keras_ocl.distribution.cores import POCL

    command = [sys.executable, "-m", "comparisons.studies.ranks", str(path)]
    if ranks > 1:
        command = [launcher.mpiexec(), "-n", str(ranks), *command]
    one = dict.fromkeys(POCL, "1")
    environment = {**os.environ, **one, "KERAS_BACKEND": "ocl", "KERAS_OCL_DEVICE": device}
    everything = cores()
    bind(everything[:ranks])  # children inherit it
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    finally:
        bind(everything)
    if done.returncode:
        raise RuntimeError(f"{ranks} ranks: {(done.stderr or done.stdout).strip()[-400:]}")
    return next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def bind(numbers):
    """Bind this thread to these cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)


def train(job, x, y):
    """Train what a job says, as this process's part of it; return {"losses": of its first steps, "epoch_seconds"}."""
    import keras

    from comparisons import studies
    from comparisons.subject import Subject
    from keras_ocl.distribution import mpi

    keras.distribution.initialize()
    if mpi.world().size > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = studies.function("models", job["model"])
    subject = Subject(x, y, x, y, lambda shape: model(shape, **job["options"]), job["batch"], job["seed"])
    losses = subject.step_losses(0, job["steps"])
    subject.restart(0)
    return {"losses": losses, "epoch_seconds": [subject.fit(epoch)[1] for epoch in range(job["epochs"])]}


def main(path):
    """Print what `train` returns, on the first rank."""
    sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))  # Keras loads what it finds, which takes longer than all the rest
    from keras_ocl.distribution import mpi

    with np.load(Path(path).with_name("data.npz")) as data:
        result = train(json.loads(Path(path).read_text()), data["x"], data["y"])
    if mpi.world().rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
