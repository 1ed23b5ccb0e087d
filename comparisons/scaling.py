"""How training scales over ranks: `python -m comparisons.scaling [--json FILE] [--chart FILE.png]`.

Four models train the same whole batches: in one process with all cores of a CPU, and on as many ranks as it has cores (at most four), one
core each. The table shows a step of both, the efficiency (what the cores would need at one process's rate, over what they need), and what
crosses the wire: bytes, collectives and their share of the step, waiting for one another included.

From a step on one core and the measured times of all-reduces follow the two terms of the model that the last table and the chart show: a
step of n ranks takes its time on a rank of its own plus, for each collective of m bytes, 2 log2(n) alpha + 2 (n - 1) / n m beta, which is
the cost of a reduce-scatter and an all-gather (Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH,
2005). Every rank keeps its rows, so the batch grows with n. Nothing is overlapped, and all ranks are equally fast.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from comparisons.study_charts import load_pyplot

RANKS = [2**k for k in range(11)]
NETWORKS = {  # name: (alpha in seconds, bytes a second)
    "10 Gbit/s, 25 us": (25e-6, 10e9 / 8),
    "100 Gbit/s, 2 us": (2e-6, 100e9 / 8),
}
SIZES = [4**k for k in range(1, 13)]  # bytes of the all-reduces that are timed


# ---- models


def mlp(layers, keras):
    x = inputs = keras.Input((784,))
    for _ in range(3):
        x = layers.Dense(1024, activation="relu")(x)
    return inputs, x, 512


def cnn(layers, keras):
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(x)))
        x = layers.MaxPooling2D()(x)
    return inputs, layers.Flatten()(x), 128


def lstm(layers, keras):
    inputs = keras.Input((64,), dtype="int32")
    return inputs, layers.LSTM(128)(layers.LSTM(128, return_sequences=True)(layers.Embedding(1000, 128)(inputs))), 128


def transformer(layers, keras):
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 128)(inputs)
    for _ in range(4):
        x = x + layers.MultiHeadAttention(4, 32)(layers.LayerNormalization()(x), x)
        x = x + layers.Dense(128)(layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x)))
    return inputs, layers.GlobalAveragePooling1D()(x), 64


MODELS = {"MLP": mlp, "CNN": cnn, "LSTM": lstm, "transformer": transformer}


# ---- measuring, in processes of their own


def measure(name, steps, share):
    """Times one model's steps on this process's `share` of a whole batch, or on all of it and its ranks' together.

    Returns:
        {"step": median seconds, and in a job "bytes", "calls" and "wire" (seconds), of one step's collectives}.
    """
    import keras
    from keras import layers

    keras.distribution.initialize()
    from keras_ocl.distribution import mpi

    if mpi.world().size > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    keras.utils.set_random_seed(0)
    inputs, features, batch = MODELS[name](layers, keras)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(features))
    model.compile("adam", "sparse_categorical_crossentropy")
    rng, shape = np.random.default_rng(0), (batch // share, *inputs.shape[1:])
    x = rng.integers(0, 1000, shape).astype("int32") if inputs.dtype == "int32" else rng.normal(size=shape).astype("float32")
    y = rng.integers(0, 10, len(x))
    for _ in range(3):
        model.train_on_batch(x, y)
    calls = _counted(mpi.world())
    taken = [_seconds(lambda: model.train_on_batch(x, y)) for _ in range(steps)]
    found = {"step": float(np.median(taken))}
    if mpi.world().size > 1:
        nbytes, waited = np.array(calls).reshape(steps, -1, 2).transpose(2, 0, 1)
        found.update(bytes=float(nbytes[0].sum()), calls=nbytes.shape[1], wire=float(np.median(waited.sum(1))))
    return found


def _seconds(run):
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _counted(world):
    """A list to which each all-reduce of `world` adds its (bytes, seconds)."""
    calls, reduce = [], world.all_reduce

    def all_reduce(arrays, *rest):
        begun = time.perf_counter()
        result = reduce(arrays, *rest)
        calls.append((sum(np.asarray(a).nbytes for a in arrays), time.perf_counter() - begun))
        return result

    world.all_reduce = all_reduce
    return calls


def measure_wire(repetitions):
    """[(bytes, median seconds)] of all-reduces of this job."""
    import keras

    keras.distribution.initialize()
    from keras_ocl.distribution import mpi

    world, found = mpi.world(), []
    for nbytes in SIZES:
        array = np.ones(nbytes // 4, np.float32)
        taken = [_seconds(lambda array=array: world.all_reduce([array], "sum")) for _ in range(repetitions + 1)]
        found.append((nbytes, float(np.median(taken[1:]))))
    return found


def run(arguments, ranks, device):
    """What this module prints for `arguments`, as one process or as ranks that divide the cores."""
    from keras_ocl.distribution import launcher

    command = [sys.executable, "-m", "comparisons.scaling", *arguments]
    if ranks > 1:
        command = [launcher.mpiexec(), "-n", str(ranks), *command]
    environment = {**os.environ, "KERAS_BACKEND": "ocl", "KERAS_OCL_DEVICE": device}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return next(json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "[")))


# ---- the model


def fit(times):
    """(alpha, beta) of [(bytes, seconds)] between two ranks, by least squares of relative errors: seconds = 2 alpha + bytes beta."""
    nbytes, seconds = np.array(times, float).T
    terms = np.stack([np.full_like(nbytes, 2), nbytes], 1) / seconds[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(terms, np.ones(len(seconds)), rcond=None)
    return float(alpha), float(beta)


def collective_seconds(ranks, nbytes, calls, alpha, beta):
    """Seconds of a step's collectives."""
    return 2 * np.log2(ranks) * alpha * calls + 2 * (ranks - 1) / ranks * nbytes * beta


def efficiency(ranks, found, alpha, beta):
    """A rank's step alone over its step among so many."""
    alone = found["alone"]["step"]
    return alone / (alone + collective_seconds(ranks, found["job"]["bytes"], found["job"]["calls"], alpha, beta))


# ---- the command


def chart(results, path):
    """Draw the predicted efficiencies."""
    from comparisons.study_charts import DPI, FONT, GRID, MARKERS, OTHERS

    pyplot = load_pyplot()
    with pyplot.rc_context(FONT):
        figure, axes = pyplot.subplots(1, len(NETWORKS), figsize=(8, 3.2), sharey=True)
        for ax, (network, (alpha, rate)) in zip(axes, NETWORKS.items(), strict=True):
            for k, (name, found) in enumerate(results["models"].items()):
                values = [100 * efficiency(n, found, alpha, 1 / rate) for n in RANKS]
                ax.plot(RANKS, values, marker=MARKERS[k], markersize=4, color=OTHERS[k], label=name)
            ax.set_xscale("log", base=2)
            ax.set(title=network, xlabel="ranks", ylim=(0, 105))
            ax.grid(**GRID)
        axes[0].set_ylabel("efficiency in %, predicted")
        axes[0].legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path, dpi=DPI)
        pyplot.close(figure)


def tables(results):
    """The measured and the predicted table."""
    n = results["ranks"]
    measured = Table("model", "alone ms", f"{n} ranks", "efficiency %", "MB sent", "sums", "wire %", "predicted")
    alpha, beta = results["alpha"], results["beta"]
    for name, found in results["models"].items():
        whole, job = found["whole"]["step"], found["job"]
        predicted = found["alone"]["step"] + collective_seconds(n, job["bytes"], job["calls"], alpha, beta)
        row = 1e3 * whole, 1e3 * job["step"], 100 * whole / job["step"], job["bytes"] / 1e6, job["calls"], 100 * job["wire"] / job["step"]
        measured.add_row(name, *(f"{value:.4g}" for value in row), f"{1e3 * predicted:.4g}")
    predicted = Table("model", "network", *(f"{n} ranks" for n in RANKS[1::3]), title="predicted efficiency in %")
    for name, found in results["models"].items():
        for network, (alpha, rate) in NETWORKS.items():
            predicted.add_row(name, network, *(f"{100 * efficiency(n, found, alpha, 1 / rate):.3g}" for n in RANKS[1::3]))
    return measured, predicted


def main():
    parser = argparse.ArgumentParser(
        prog="python -m comparisons.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="how many are timed (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=min(os.cpu_count(), 4), help="default: %(default)s")
    parser.add_argument("--device", default=os.environ.get("KERAS_OCL_DEVICE", "cpu:0"), help="a CPU (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--chart", type=Path, help="draw the predictions here")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # of a process: a model, or "wire"
    parser.add_argument("--share", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        if args.share > 1:
            from keras_ocl.distribution import cores

            cores.take(0, args.share)
        found = measure_wire(args.steps) if args.measure == "wire" else measure(args.measure, args.steps, args.share)
        if os.environ.get("PMI_RANK", "0") == "0":
            print(json.dumps(found))
        return
    steps, console = ["--steps", str(args.steps)], Console()
    results = {"ranks": args.ranks, "models": {}}
    results["wire"] = run(["--measure", "wire", *steps], args.ranks, args.device)
    results["alpha"], results["beta"] = fit(results["wire"])
    for name in args.models.split(","):
        one = ["--measure", name, *steps]
        results["models"][name] = {
            "whole": run(one, 1, args.device),
            "job": run(one, args.ranks, args.device),
            "alone": run([*one, "--share", str(args.ranks)], 1, args.device),
        }
    console.print(*tables(results), sep="\n")
    console.print(f"all-reduce here: alpha {1e6 * results['alpha']:.3g} us, 1 / beta {1e-9 / results['beta']:.3g} GB/s")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.chart:
        chart(results, args.chart)


if __name__ == "__main__":
    main()
