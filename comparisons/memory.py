"""Memory of training: `python -m comparisons.memory [network ...] [--backends ocl,tensorflow,jax,torch] [--keep all,least]`.

Each backend trains each network (comparisons/memory_networks.py) on a CPU in a process of its own. "peak" is the peak of the process's
resident memory from the first step on, "warm" that after some steps; both less what was resident right before the first step, when the
model with its optimizer is built and the batch is there. What a backend compiled, and its compiler as far as that stays in memory, counts
in both. For ocl the table also has its arena (the memory plan of a step's intermediates), what of it is kept from the forward part for the
gradient, and the peak that its own `keras_ocl.memory_info` tells. A step's time is the median of some.

`--keep` runs ocl once more for each way of keeping, as KERAS_OCL_KEEP names them.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time

from rich.console import Console
from rich.table import Table

BACKENDS = {"ocl": "keras_ocl", "tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}  # and the package of each
WARM = 2  # steps before those of the second peak
PERIOD = 0.002  # seconds between samples where the system keeps no peak


# ---- measuring, in a process of its own


def resident():
    """Bytes of the process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def high_water():
    """The most bytes that were resident, by the system's account since it was last reset."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


class Peak:
    """A context: after it, `nbytes` is the most bytes of the process that were resident in it.

    The system's own account where it can be reset, else the greatest of samples.
    """

    def __enter__(self):
        self.nbytes, self._ended, self._sampler = resident(), threading.Event(), None
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets VmHWM, see proc(5)
        except OSError:
            self._sampler = threading.Thread(target=self._sample)
            self._sampler.start()
        return self

    def _sample(self):
        while not self._ended.wait(PERIOD):
            self.nbytes = max(self.nbytes, resident())

    def __exit__(self, *_):
        if self._sampler is None:
            self.nbytes = high_water()
            return
        self._ended.set()
        self._sampler.join()


def measure(name, steps):
    """Trains a network on this process's backend; returns a dict of bytes, and of "step" in seconds."""
    import keras

    from comparisons.memory_networks import NETWORKS

    keras.utils.set_random_seed(0)
    model, x, y, _ = NETWORKS[name]()
    model.optimizer.build(model.trainable_variables)
    seconds = []

    def step():
        began = time.perf_counter()
        logs = model.train_on_batch(x, y)
        float(logs[0] if isinstance(logs, list) else logs)  # waits for the step
        seconds.append(time.perf_counter() - began)

    before = resident()
    with Peak() as first:
        for _ in range(WARM):
            step()
    with Peak() as warm:
        for _ in range(steps):
            step()
    found = {
        "peak": max(first.nbytes, warm.nbytes) - before,
        "warm": warm.nbytes - before,
        "step": statistics.median(seconds[WARM:]),
        "variables": sum(keras.ops.convert_to_numpy(v).nbytes for v in [*model.variables, *model.optimizer.variables]),
    }
    return found | (_planned(step) if keras.backend.backend() == "ocl" else {})


def _planned(step):
    """What ocl's device and memory plan say."""
    import keras_ocl

    device = keras_ocl.memory_info()["peak"]
    with keras_ocl.profile() as profile:
        step()
    memory = profile.memory()
    return {"device": device, "arena": memory.arena_bytes, "kept": memory.kept_bytes}


# ---- running those processes


def ways(backends, keep):
    """(label, backend, variables of the environment) of each way to train: ocl as it is, and once for each way of keeping."""
    for backend in backends:
        yield backend, backend, {}
        for way in keep if backend == "ocl" else ():
            yield f"ocl, keep {way}", backend, {"KERAS_OCL_KEEP": way}


def measured_apart(name, backend, variables, steps):
    """`measure` in a process of its own; where it fails, {"error": a sentence}."""
    if importlib.util.find_spec(BACKENDS[backend]) is None:
        return {"error": f"skipped: {BACKENDS[backend]} is not installed"}
    cpu = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment = {**os.environ, **cpu, "KERAS_BACKEND": backend, **variables}
    command = [sys.executable, "-m", "comparisons.memory", name, "--measure", "--steps", str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def ratios(results, reference):
    """{label: (geometric mean of its warm peaks over those of `reference`, number of networks)} of the networks that both have trained."""
    logs = {}
    for found in results.values():
        ours = found.get(reference, {}).get("warm", 0)
        for label, figures in found.items():
            if label != reference and ours > 0 and figures.get("warm", 0) > 0:
                logs.setdefault(label, []).append(math.log(figures["warm"] / ours))
    return {label: (math.exp(statistics.mean(some)), len(some)) for label, some in logs.items()}


def table(results):
    """The rich Table of {network: {label: figures}}."""
    shown = Table("network", "backend", "peak MiB", "warm MiB", "step ms", "variables MiB", "arena MiB", "kept MiB", "device MiB")
    for column in shown.columns[2:]:
        column.justify = "right"
    for name, found in results.items():
        for label, figures in found.items():
            if "error" in figures:
                shown.add_row(name, label, figures["error"])
                continue
            sizes = [figures.get(key) for key in ("peak", "warm", "variables", "arena", "kept", "device")]
            cells = ["" if nbytes is None else f"{nbytes / 2**20:.1f}" for nbytes in sizes]
            shown.add_row(name, label, *cells[:2], f"{figures['step'] * 1e3:.1f}", *cells[2:])
        shown.add_section()
    return shown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="names of networks (default: all)")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="with commas between (default: %(default)s)")
    parser.add_argument("--keep", default="", help='ways of keeping, with commas between: "all", "cut", "least"')
    parser.add_argument("--steps", type=int, default=7, help="warm steps (default: %(default)s)")
    parser.add_argument("--json", help="also write bytes and seconds here")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # in the process for one network and backend
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.networks[0], options.steps)))
        return
    os.environ.setdefault("KERAS_BACKEND", "ocl")
    from comparisons.memory_networks import NETWORKS

    backends = options.backends.split(",")
    for what, given, known in (("network", options.networks, NETWORKS), ("backend", backends, BACKENDS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    results, tried = {}, list(ways(backends, list(filter(None, options.keep.split(",")))))
    for name in options.networks or NETWORKS:
        found = results[name] = {}
        for label, backend, variables in tried:
            print(f"{name} on {label}", file=sys.stderr)
            found[label] = measured_apart(name, backend, variables, options.steps)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(results))
    for label, (ratio, number) in ratios(results, tried[0][0]).items():
        console.print(f"{label}: {ratio:.2f} times {tried[0][0]}'s warm peak, the geometric mean of {number} networks")


if __name__ == "__main__":
    main()
