"""Run a study's rows on several backends, a fresh process each, and keep every result at once.

The report, which is written to report.json after each result, is
    {"schema": 1, "study": name, "settings": {...}, "mode": "quick" | "full", "date": "2026-01-31", "machine": "...", "python": "3.12.1",
     "versions": {package: version}, "reference": backend, "backends": [...], "devices": {backend: text}, "command": "python -m ...",
     "seconds": of all runs, "results": [result, ...], "criteria": [{"row", "backend", "name", "passed", "text"}, ...]}
with results as comparisons.runner describes them.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

from comparisons import runner
from comparisons.workers import Workers

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

    def extent(self, row):
        """Return the Extent that `row` is run at."""
        extent = row.quick if self.mode == "quick" else row.full
        asked = {name: getattr(self, name) for name in ("repeats", "epochs") if getattr(self, name) is not None}
        if self.limit is not None:
            for name in ("examples", "test_examples"):
                asked[name] = min(self.limit, getattr(extent, name) or self.limit)
        return replace(extent, **asked)


def jobs(study, settings, folder, names=None):
    """Return the RowJobs of a study, each row's backends one after the other; `names` are the rows wanted (None: all).

    Raises ValueError for a row that the study does not have.
    """
    chosen = study.rows if names is None else [study.row(name) for name in names]
    planned = []
    for row in chosen:
        for backend in settings.backends:
            kind = backend.partition("@")[0]
            if row.only is not None and kind not in row.only:
                continue
            environment = dict(row.environment.get(kind, {}))
            if kind == "ocl":
                environment |= device_variable(environment, backend.partition("@")[2] or settings.device)
            planned.append(
                runner.RowJob(
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


def new_report(study, settings, command):
    """Return a report without results."""
    made = runner.new_report(settings.reference)
    return made | {
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
