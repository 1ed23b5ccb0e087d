"""Run a study's rows on several backends, a fresh process each, and keep every result at once.

The report, which is written to report.json after each result, is
    {"schema": 1, "study": name, "settings": {...}, "mode": "quick" | "full", "date": "2026-01-31", "machine": "...", "python": "3.12.1",
     "versions": {package: version}, "reference": backend, "backends": [...], "devices": {backend: text}, "command": "python -m ...",
     "seconds": of all runs, "results": [result, ...], "criteria": [{"row", "backend", "name", "passed", "text"}, ...]}
and a result, which one worker process yields, is
    row, backend, epochs, keras         what ran
    device                              where, in the backend's own words
    device_peak_mib                     peak memory in tensors and intermediates on backend ocl, MiB (part of the process's memory on CPUs)
    examples                            [training, test]
    parameters, batch_size, steps_per_epoch
    import_s, peak_mib                  seconds that `import keras` took; peak resident memory of the process in MiB, or null
    real, notice                        whether the data are the document's, and a sentence if not
    and what its measures give, most often
    starts                              one {"train_loss": [one per epoch], "test_loss", "test_accuracy", "train", "test"} per start; the
                                        last two are its last metrics by name
    first_step_s                        from `fit` to the end of its first step, tracing and compiling included
    epoch_seconds                       seconds of each warm epoch
    epoch_s, fit_ms, total_s            spreads (see comparisons.measures) of the seconds per epoch, milliseconds per step, and seconds of a
                                        whole training, compilation not counted
    predict_ms                          spread of the milliseconds per step of predict
    step_losses                         one list per start: the loss of each of the first training batches, without dropout
or, where the process failed,
    row, backend, error
"""

import datetime
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path

from comparisons.workers import Workers, parts

SCHEMA = 1
PACKAGES = ("keras", "keras-ocl", "numpy", "pyopencl", "tensorflow-cpu", "tensorflow", "jax", "torch")


@dataclass(frozen=True)
class Settings:
    """What a run of a study was asked for; two runs with equal settings may be joined (--resume)."""

    mode: str
    backends: tuple
    reference: str
    device: str | None = None
    repeats: int | None = None
    epochs: int | None = None
    limit: int | None = None
    data: str | None = None
    seed: int = 0
    steps: int | None = None

    def extent(self, row):
        """Return the Extent that `row` is run at."""
        extent = row.quick if self.mode == "quick" else row.full
        asked = {name: getattr(self, name) for name in ("repeats", "epochs", "steps") if getattr(self, name) is not None}
        if self.limit is not None:
            for name in ("examples", "test_examples"):
                asked[name] = min(self.limit, getattr(extent, name) or self.limit)
        return replace(extent, **asked)


@dataclass(frozen=True)
class Job:
    """One process's work: the row `row` of the study `study` on `backend`.

    backend: a Keras backend, see comparisons.workers.parts. extent: the dict of a comparisons.study.Extent. out: a folder for the study's
    files. data: what --data names, or None. environment: variables for the process.
    """

    study: str
    row: str
    backend: str
    extent: dict
    out: str
    data: str | None = None
    seed: int = 0
    environment: dict = field(default_factory=dict)

    def identity(self):
        """Return the keys that say which job a result is of."""
        return {"row": self.row, "backend": self.backend}


def jobs(study, settings, folder, names=None):
    """Return the Jobs of a study, each row's backends one after the other; `names` are the rows wanted (None: all).

    Raises ValueError for a row that the study does not have.
    """
    chosen = study.rows if names is None else [study.row(name) for name in names]
    planned = []
    for row in chosen:
        for backend in settings.backends:
            kind, device, _ = parts(backend)
            if row.only is not None and kind not in row.only:
                continue
            environment = dict(row.environment.get(kind, {}))
            if kind == "ocl":
                environment |= device_variable(environment, device or settings.device)
            planned.append(
                Job(
                    study=study.name,
                    row=row.name,
                    backend=backend,
                    out=str(Path(folder, "files").resolve()),
                    extent=asdict(settings.extent(row)),
                    data=settings.data and str(Path(settings.data).resolve()),
                    seed=settings.seed,
                    environment=environment,
                )
            )
    return planned


def device_variable(environment, device):
    """Return KERAS_OCL_DEVICE as a dict: the row's own, a part such as "/units=1" being one of `device` (None: the user's, or the CPU)."""
    own = environment.get("KERAS_OCL_DEVICE", "")
    if own.startswith("/"):
        return {"KERAS_OCL_DEVICE": (device or os.environ.get("KERAS_OCL_DEVICE") or "cpu:0") + own}
    return {"KERAS_OCL_DEVICE": device} if device and not own else {}


def versions():
    """Return {package: version} of those installed that a result may depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return found


def machine():
    """Return the machine in words: processor, cores that may be used, system."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, {platform.system()}"


def new_report(study, settings, command):
    """Return a report without results."""
    return {
        "schema": SCHEMA,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "reference": settings.reference,
        "results": [],
        "criteria": [],
        "study": study.name,
        "settings": asdict(settings) | {"backends": list(settings.backends)},
        "mode": settings.mode,
        "versions": versions(),
        "backends": list(settings.backends),
        "devices": {},
        "command": command,
        "seconds": 0.0,
    }


def load(path, settings):
    """Return the report that a run with equal settings left at `path`, without its failed results; None where there is none.

    Raises ValueError, naming what differs, where the settings are others.
    """
    if not path.exists():
        return None
    report = json.loads(path.read_text())
    asked = asdict(settings) | {"backends": list(settings.backends)}
    differing = [name for name, value in asked.items() if report["settings"].get(name) != value]
    if differing:
        was = ", ".join(f"{name} {report['settings'].get(name)!r}, not {asked[name]!r}" for name in differing)
        raise ValueError(f"--resume: the run in {path.parent} had {was}; give the same options, or another --out")
    report["results"] = [result for result in report["results"] if "error" not in result]
    return report


def save(report, path):
    """Write the report to `path`; what was there is replaced only when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(new, path)


def judge(study, report):
    """Put the verdicts of the study's criteria into the report."""
    report["criteria"] = [v for criterion in study.criteria for v in criterion(report["results"], report["reference"])]


def run(study, settings, folder, command, watch, names=None, resume=False, timeout=None):
    """Run a study and return its report; an interrupt leaves what is finished in report.json and goes on upwards.

    Args:
        folder: where report.json and the study's own files go.
        watch: gets `begin(jobs)`, then for each job `start(job)`, `progress(job, dict)` and `end(job, result, output, seconds)`.
        names: the rows wanted, None for all. resume: keep what an earlier run has finished. timeout: seconds for a process.
    """
    path = Path(folder, "report.json")
    planned = jobs(study, settings, folder, names)
    report = (load(path, settings) if resume else None) or new_report(study, settings, command)
    done = {(result["row"], result["backend"]) for result in report["results"]}
    planned = [job for job in planned if (job.row, job.backend) not in done]
    Path(folder, "files").mkdir(parents=True, exist_ok=True)
    places = {row.name: k for k, row in enumerate(study.rows)}
    watch.begin(planned)
    with Workers() as workers:
        for job in planned:
            began = time.perf_counter()
            watch.start(job)
            result, output = workers.run(job, timeout, lambda said, job=job: watch.progress(job, said))
            seconds = time.perf_counter() - began
            report["results"].append(result)
            report["results"].sort(key=lambda r: (places[r["row"]], settings.backends.index(r["backend"])))
            report["seconds"] += seconds
            if "device" in result:
                report["devices"].setdefault(job.backend, result["device"])
            judge(study, report)
            save(report, path)
            watch.end(job, result, output, seconds)
    judge(study, report)
    save(report, path)
    return report
