"""`python -m tests.soak --minutes N` or `--steps N`: trains, saves, evaluates, fails and is interrupted in turn.

Exits with 1 if the process grows after its warm-up. `--plot FILE` draws what it held (needs matplotlib).
"""

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "ocl")

import keras
import numpy as np

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler.jit import Compiled

LENGTHS = range(40, 280, 24)
SLACK = {"rss": 16 << 20, "handles": 0, "reserved": 1 << 20}  # the allocator's own ups and downs


class Sample(NamedTuple):
    """What the process holds: bytes in memory, open files, and bytes from the driver."""

    rss: int
    handles: int
    reserved: int


def sample():
    gc.collect()
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Sample(rss, len(os.listdir("/proc/self/fd")), keras_ocl.memory_info()["reserved"])


def grown(samples):
    """The names of what grew: the first third is the warm-up; in the last it may be no more than it was in the second, but for SLACK."""
    first, second = len(samples) // 3, 2 * len(samples) // 3
    before, after = (Sample(*map(max, zip(*part, strict=True))) for part in (samples[first:second], samples[second:]))
    return [name for name in Sample._fields if getattr(after, name) > getattr(before, name) + SLACK[name]]


class Interruption(Exception):
    """What a callback raises."""


class Interrupting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise Interruption


def dense(rng, folder):
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y = np.random.normal(size=(200, 20)).astype("float32"), np.random.randint(0, 3, 200)
    watching = [
        keras.callbacks.EarlyStopping(patience=1),
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.ReduceLROnPlateau(patience=1),
    ]
    model.fit(x, y, batch_size=rng.choice([16, 32]), epochs=2, validation_split=0.2, callbacks=watching, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.save(folder / "model.keras")
    again = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)
    try:
        model.fit(x, y, callbacks=[Interrupting()], verbose=0)
    except Interruption:
        model.evaluate(x, y, verbose=0)


def sequences(rng, folder):
    """Another length in each step."""
    if rng.random() < 0.5:
        layers = [keras.layers.Conv1D(24, 5, padding="same", activation="relu") for _ in range(2)]
    else:
        layers = [keras.layers.LSTM(16, return_sequences=True)]
    model = keras.Sequential([keras.Input((None, 8)), *layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for length in rng.sample(LENGTHS, 3):
        model.train_on_batch(np.zeros((8, length, 8), "float32"), np.zeros((8, 1), "float32"))
        model.predict_on_batch(np.zeros((8, length, 8), "float32"))
    model.save_weights(folder / "model.weights.h5")
    model.load_weights(folder / "model.weights.h5")


def images(rng, folder):
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.compile(rng.choice(["adam", "rmsprop"]), "mse", run_eagerly=rng.random() < 0.3)
    model.fit(np.zeros((24, 16, 16, 3), "float32"), np.zeros((24, 2), "float32"), batch_size=10, verbose=0)


def functions(rng, folder):
    """Compiled functions, gradients and kernels of one's own, which are all dropped."""
    number = rng.randrange(4)
    op = keras_ocl.custom_op(f"out[i] = x[i] * {number}.0f;", inputs="x", gradient=lambda cotangent, out, x: cotangent * number)
    step = keras_ocl.jit(keras_ocl.value_and_grad(lambda x: keras.ops.sum(op(x))))
    value, gradient = step(np.ones(50, "float32"))
    assert float(value) == 50 * number and float(gradient[0]) == number
    keras.ops.linalg.qr(op(np.eye(8, dtype="float32")))


def errors(rng, folder):
    """What fails leaves nothing behind."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    model.compile("adam", "mse")
    x = np.zeros((3, 6), "float32")
    for wrong in (lambda: model.train_on_batch(x, np.zeros((3, 5))), lambda: keras.ops.matmul(x, x)):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("no error")
    memory = runtime.current_device().memory
    budget, memory.budget = memory.budget, memory.reserved + (8 << 20)
    try:
        keras.ops.ones((64 << 20,))
    except keras_ocl.OutOfMemory:
        pass
    finally:
        memory.budget = budget
    model.train_on_batch(x, np.zeros((3, 4)))


def signals(rng, folder):
    """Ctrl-C while it trains; then it goes on."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    x, y = np.zeros((64, 6), "float32"), np.zeros((64, 1), "float32")
    model.fit(x, y, batch_size=8, verbose=0)
    for _ in range(3):
        caught = threading.Event()
        sender = threading.Thread(target=interrupt, args=(rng.uniform(0.01, 0.1), caught))
        try:
            sender.start()
            model.fit(x, y, batch_size=8, epochs=10**6, verbose=0)
        except KeyboardInterrupt:
            caught.set()
        sender.join()
        assert np.isfinite(model.evaluate(x, y, verbose=0)).all()


def interrupt(after, caught):
    """Send this process a SIGINT; end it where nobody catches that."""
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGINT)
    if not caught.wait(60):
        print("an interruption vanished", flush=True)
        os._exit(1)


WORK = [dense, sequences, images, functions, errors, signals]


class Steps:
    """Counts the steps of training, evaluation and prediction."""

    def __init__(self):
        self.done, run = 0, Compiled.run

        def counted(compiled, *args):
            self.done += 1
            return run(compiled, *args)

        Compiled.run = counted


def plot(samples, path):
    """Draws each part of the samples over the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    units = {"rss": (1e6, "resident memory, MB"), "handles": (1, "open files"), "reserved": (1e6, "reserved on the device, MB")}
    figure, axes = pyplot.subplots(len(units), sharex=True, figsize=(8, 8))
    for axis, (name, (unit, label)) in zip(axes, units.items(), strict=True):
        axis.plot([getattr(sample, name) / unit for sample in samples])
        axis.set_ylabel(label)
        axis.set_ylim(0)
        axis.axvline(len(samples) // 3, linestyle=":")  # the end of the warm-up
    axes[-1].set_xlabel("round")
    figure.savefig(path)
    pyplot.close(figure)


def main(minutes, seed, steps=None, picture=None):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    rng, samples, counted = random.Random(seed), [], Steps()
    keras.utils.set_random_seed(seed)
    end = time.monotonic() + 60 * minutes
    while (counted.done < steps if steps else time.monotonic() < end) or len(samples) < 6:
        with tempfile.TemporaryDirectory() as folder:
            for work in rng.sample(WORK, len(WORK)):
                work(rng, Path(folder))
        if rng.random() < 0.2:
            keras.utils.clear_session()
        samples.append(sample())
        rss, handles, reserved = samples[-1]
        held = f"{rss / 1e6:.0f} MB in memory, {handles} open files, {reserved / 1e6:.1f} MB reserved"
        print(f"round {len(samples)}: {counted.done} steps, {held}", flush=True)
    if picture:
        plot(samples, picture)
    found = grown(samples)
    print(f"grew: {', '.join(found)}" if found else "nothing grew")
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, help="compiled steps and functions to run, instead of a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw the memory and the open files of all rounds (needs matplotlib)")
    options = parser.parse_args()
    sys.exit(main(options.minutes, options.seed, options.steps, options.plot))
