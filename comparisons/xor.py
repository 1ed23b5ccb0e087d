"""XOR with a 2-2-1 tanh network: mean squared error, stochastic gradient descent."""

import argparse
import sys
import time

import keras
import numpy as np
from keras import layers

BATCH_SIZE = 4
EPOCHS = 5
REPEATS = 200  # the four rows are one batch, and so many of them are an epoch


def load_data(path=None):
    """Return ((x_train, y_train), (x_test, y_test)); XOR's four rows need no file, so `path` must be None."""
    if path is not None:
        raise ValueError("xor needs no data file")
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
    y = np.array([[0], [1], [1], [0]], "float32")
    return (np.tile(x, (REPEATS, 1)), np.tile(y, (REPEATS, 1))), (x, y)


def accuracy(target, output):
    """The share of outputs that are right by a margin: a network stuck at 0.5 has not solved the problem."""
    return keras.ops.cast(keras.ops.abs(keras.ops.subtract(target, output)) < 0.4, "float32")


def build_model(shape=(2,)):
    """Return the compiled model for inputs of `shape`."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            layers.Dense(2, activation="tanh"),
            layers.Dense(1, activation="tanh"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.3), "mse", metrics=[accuracy])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--starts", type=int, default=20, help="how many networks to train, each from its own random weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expect", type=float, default=0.0, help="fail when the mean accuracy is lower")
    args = parser.parse_args()

    (x_train, y_train), (x_test, y_test) = load_data()
    print(f"xor: backend {keras.config.backend()}, {args.starts} starts of {args.epochs * REPEATS} steps", flush=True)
    began = time.perf_counter()
    results = []
    for start in range(args.starts):
        keras.utils.set_random_seed(args.seed + start)
        model = build_model()
        model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=args.epochs, shuffle=False, verbose=0)
        results.append(model.evaluate(x_test, y_test, verbose=0))
        loss, score = results[-1]
        print(f"xor: start {start}: test loss {loss:.4f}, test accuracy {score:.2f}")

    losses, scores = np.array(results).T
    seconds = time.perf_counter() - began
    print(f"xor: solved {np.sum(scores == 1)} of {args.starts} starts, test accuracy {scores.mean():.4f}, {seconds:.1f} s")
    if not np.isfinite(losses).all():
        sys.exit("xor: a loss is not finite")
    if scores.mean() < args.expect:
        sys.exit(f"xor: test accuracy {scores.mean():.4f} is below the expected {args.expect}")


if __name__ == "__main__":
    main()
