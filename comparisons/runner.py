"""What runs and what it yields: the jobs of scripts and of studies' rows, and the report that gathers their results.

A report of scripts, which `--json` writes, is
    {"schema": 1, "date": "2026-01-31", "machine": "...", "python": "3.12.1", "reference": "tensorflow", "results": [result, ...],
     "criteria": [{"script", "backend", "name", "passed", "text"}, ...]}
and a result, which one worker process yields, is
    script, backend, floatx, keras      what ran ("float64" is the reference's run that parity is judged by)
    device                              where, in the backend's own words
    device_peak_mib                     peak memory in tensors and intermediates on backend ocl, MiB (part of the process's memory on CPUs)
    examples                            [training, test]
    parameters, batch_size, steps_per_epoch, epochs
    import_s, peak_mib                  seconds that `import keras` took; peak resident memory of the process in MiB, or null
    step_losses                         one list per start: the loss of each of the first training batches, without dropout
    and, where it trained,
    starts                              one {"train_loss": [one per epoch], "test_loss", "test_accuracy"} per start
    first_step_s                        from `fit` to the end of its first step, tracing and compiling included
    fit_ms, predict_ms                  best milliseconds per step over the warm epochs
or, where the process failed,
    script, backend, floatx, error

A study's report is described in comparisons.study_runner. A result of a row has the keys above, but
    row, backend                        instead of script, backend and floatx
    real, notice                        whether the data are the document's, and a sentence if not
    starts                              as above, with "train" and "test", each start's last metrics by name
    epoch_seconds                       seconds of each warm epoch
    epoch_s, fit_ms, total_s            spreads (see comparisons.measures) of the seconds per epoch, milliseconds per step, and seconds of a
                                        whole training, compilation not counted
    predict_ms                          spread of the milliseconds per step of predict
and whatever else its measures give.
"""

import dataclasses
import datetime
import os
import platform
from pathlib import Path

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Script:
    """The main job of one script: epochs, starts to train from, starts to compare per-step losses from, pattern of its data file."""

    epochs: int
    starts: int
    step_starts: int
    data: str | None = None


SCRIPTS = {
    "xor": Script(epochs=5, starts=20, step_starts=20),
    "mnist_mlp": Script(epochs=8, starts=1, step_starts=20, data="mnist*.npz"),
    "cifar_cnn": Script(epochs=15, starts=3, step_starts=5, data="cifar10*.npz"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One process's work: `script` on `backend`.

    train: train and time, `epochs` from each of `starts` starting points. steps: how many per-step losses to record without dropout,
    from each of `step_starts` starting points.
    data: an .npz file, or None for what the script does by itself. limit: use only so many training and test examples.
    """

    script: str
    backend: str
    epochs: int
    starts: int
    step_starts: int
    train: bool = True
    steps: int = 100
    data: str | None = None
    limit: int | None = None
    seed: int = 0
    floatx: str = "float32"
    environment: dict = dataclasses.field(default_factory=dict)

    def identity(self):
        """Return the keys that say which job a result is of."""
        return {"script": self.script, "backend": self.backend, "floatx": self.floatx}


@dataclasses.dataclass(frozen=True)
class RowJob:
    """One process's work: the row `row` of the study `study` on `backend`.

    backend: a Keras backend, "ocl@NAME" for a device of that name. extent: the dict of a comparisons.study.Extent. out: a folder for the
    study's files. data: the folder of --data, or None. environment: variables for the process.
    """

    study: str
    row: str
    backend: str
    extent: dict
    out: str
    data: str | None = None
    seed: int = 0
    environment: dict = dataclasses.field(default_factory=dict)

    def identity(self):
        """Return the keys that say which job a result is of."""
        return {"row": self.row, "backend": self.backend}


def find_data(name, path):
    """Return the data file of script `name`: `path` itself, or the file in folder `path` that the script's pattern names; None for none.

    Raises FileNotFoundError when `path` does not exist or the folder holds no such file.
    """
    pattern = SCRIPTS[name].data
    if path is None or pattern is None:
        return None
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob(pattern))
        if not found:
            raise FileNotFoundError(f"{path} holds no {pattern} for {name}")
        path = found[0]
    elif not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give --data an .npz file, or a folder with {pattern}")
    return str(path.resolve())


def machine():
    """Return the machine in words: processor, cores that may be used, system."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, {platform.system()}"


def new_report(reference):
    """Return a report without results."""
    return {
        "schema": SCHEMA,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "reference": reference,
        "results": [],
        "criteria": [],
    }
