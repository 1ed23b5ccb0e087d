"""Training on text of 60 lengths and images of 40 sizes: `python -m comparisons.varying_shapes [--backends ocl,tensorflow,jax]`.

Each backend trains the same models on the same batches, one length or size each, in a process of its own: the first pass over them meets
each for the first time, with an empty cache of compiled programs, the second finds what the first has compiled. The table shows the
seconds of both, and how many kernels were compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from rich.console import Console
from rich.table import Table

BATCH, WORDS, WIDTH = 32, 1000, 64


def lstm(layers, keras):
    inputs = keras.Input((None,), dtype="int32")
    return inputs, layers.LSTM(WIDTH)(layers.Embedding(WORDS, WIDTH)(inputs))


def conv1d(layers, keras):
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(2):
        x = layers.Conv1D(WIDTH, 3, padding="same", activation="relu")(x)
    return inputs, layers.GlobalMaxPooling1D()(x)


def transformer(layers, keras):
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, WIDTH // 4)(x, x, use_causal_mask=True))
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="gelu")(x)))
    return inputs, layers.GlobalAveragePooling1D()(x)


def convolutional(layers, keras):
    inputs = keras.Input((None, None, 3))
    x = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(inputs))
    x = layers.BatchNormalization()(layers.Conv2D(32, 3, activation="relu")(x))
    return inputs, layers.GlobalAveragePooling2D()(x)


MODELS = {"LSTM": lstm, "Conv1D": conv1d, "transformer": transformer, "CNN": convolutional}


def batches(name):
    """The (x, y) of every length or size, in random order."""
    rng = np.random.default_rng(0)
    if name == "CNN":
        sizes = [(24 + k, 24 + int(rng.integers(0, 40))) for k in range(40)]
        xs = [rng.normal(size=(BATCH, *size, 3)).astype("float32") for size in sizes]
    else:
        xs = [rng.integers(0, WORDS, (BATCH, 20 + k)).astype("int32") for k in range(60)]
    return [(xs[k], rng.normal(size=(BATCH, 1)).astype("float32")) for k in rng.permutation(len(xs))]


def measure(name):
    """{"first": seconds, "second": seconds, "built": kernels, or None where the backend does not say} of this backend."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    inputs, features = MODELS[name](layers, keras)
    model = keras.Model(inputs, layers.Dense(1)(features))
    model.compile("sgd", "mse")
    data, statistics = batches(name), None
    if keras.backend.backend() == "ocl":
        from keras_ocl import runtime

        statistics = runtime.current_device().statistics
        statistics.reset()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        for x, y in data:
            model.train_on_batch(x, y)
        seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "second": seconds[1], "built": statistics and statistics.kernels}


def main():
    parser = argparse.ArgumentParser(prog="python -m comparisons.varying_shapes", description=__doc__.splitlines()[0])
    parser.add_argument("--backends", default="ocl,tensorflow,jax", help="Keras backends, separated by commas (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)  # of the process for one backend and model
    args = parser.parse_args()
    if args.model:
        print(json.dumps(measure(args.model)))
        return
    table = Table("model", "backend", "first pass s", "second pass s", "kernels compiled")
    for model in MODELS:
        for backend in args.backends.split(","):
            command = [sys.executable, "-m", "comparisons.varying_shapes", "--model", model]
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "KERAS_BACKEND": backend, "KERAS_OCL_CACHE_DIR": cache}
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{model} on {backend}:\n{done.stderr}")
            found = json.loads(done.stdout.splitlines()[-1])
            built = "" if found["built"] is None else str(found["built"])
            table.add_row(model, backend, f"{found['first']:.2f}", f"{found['second']:.2f}", built)
    Console().print(table)


if __name__ == "__main__":
    main()
