"""Measure rows of studies on one backend, each in a process of its own.

`KERAS_BACKEND=<name> python -m comparisons.worker` reads one line of JSON per job, {"job": the dict of comparisons.study_runner.Job,
"result": the file that the result is written to}, and tells by lines that comparisons.workers names how far it is and when it has ended.
"""

import inspect
import json
import os
import sys
import time
import traceback
from pathlib import Path

import_began = time.perf_counter()
import keras  # noqa: E402  (its import is what the clock above measures)

import_seconds = time.perf_counter() - import_began

from comparisons import measures, studies, workers  # noqa: E402
from comparisons.study import Extent  # noqa: E402
from comparisons.subject import Subject  # noqa: E402

LONGEST_ERROR = 600  # characters
FORKS = sys.platform == "linux"  # elsewhere libraries that Keras imports may not survive a fork


def peak_mib():
    """Return the peak resident memory of this process in MiB, or None where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) // 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (1024 * 1024 if sys.platform == "darwin" else 1024)


def device():
    """Return the device that the backend computes on, in words, and its peak memory in MiB (None on other backends, which do not say)."""
    if keras.config.backend() == "torch":  # for which Keras does not list devices
        return {"device": str(keras.ops.zeros(()).device), "device_peak_mib": None}
    if keras.config.backend() != "ocl":
        return {"device": ", ".join(keras.distribution.list_devices()), "device_peak_mib": None}
    import keras_ocl
    from keras_ocl import runtime

    used = runtime.current_device()
    return {"device": f"{used}, driver {used.driver_version}", "device_peak_mib": keras_ocl.memory_info()["peak"] // 2**20}


def progress(text, done=None, total=None):
    """Tell the process that waits for this one how far it is."""
    print(workers.PROGRESS + json.dumps({"text": text, "done": done, "total": total}), flush=True)


def described(subject):
    """Return a result's keys for what ran where."""
    return device() | {
        "keras": keras.__version__,
        "examples": [len(subject.x), len(subject.x_test)],
        "parameters": subject.model.count_params(),
        "batch_size": subject.batch,
        "steps_per_epoch": subject.steps,
        "import_s": import_seconds,
        "peak_mib": peak_mib(),
    }


def row_result(job):
    """Return the result of a study_runner.Job as the dict that comparisons.study_runner documents."""
    if workers.parts(job["backend"]).exact:
        keras.config.set_floatx("float64")
    row = studies.find(job["study"]).row(job["row"])
    extent = Extent(**job["extent"])
    result = {"row": row.name, "backend": keras.config.backend(), "epochs": extent.epochs}
    progress("loading data")
    loader = studies.function("data", row.data)
    limits = {name: getattr(extent, name) for name in ("examples", "test_examples") if name in inspect.signature(loader).parameters}
    data = loader(job["data"], **limits, **row.data_options)
    if data.notice:
        print(f"{workers.NOTICE}{data.notice}", flush=True)
    arrays = data.x[: extent.examples], data.y[: extent.examples], data.x_test[: extent.test_examples], data.y_test[: extent.test_examples]
    progress("building the model")
    model = studies.function("models", row.model)
    subject = Subject(
        *arrays,
        lambda shape: model(shape, **row.options),
        row.batch,
        job["seed"],
        lambda: [studies.function("models", name)(**options) for name, options in row.callbacks],
    )
    context = measures.Context(row, extent, subject, progress, job["out"])
    for name in row.measures:
        result |= studies.function("", name)(context)
    return result | described(subject) | {"real": data.real, "notice": data.notice}


def main(job, path):
    """Write the result of `job` to the file `path`, or its error; return the exit status."""
    try:
        result = row_result(job)
    except Exception as error:
        traceback.print_exc()
        result = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_ERROR]}
    Path(path).write_text(json.dumps(result))
    return int("error" in result)


def serve():
    """Run the jobs that standard input names; return the exit status."""
    if not FORKS:
        request = json.loads(sys.stdin.readline() or "null")
        return main(request["job"], request["result"]) if request else 0
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            status = main(request["job"], request["result"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # the end of an interpreter takes as long as a small row: 0.6 s, and 1.1 s with TensorFlow
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"{workers.ENDED}{status}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve())
