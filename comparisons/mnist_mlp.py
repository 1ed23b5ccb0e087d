"""Keras's classic MNIST multilayer perceptron: 784-512-512-10, ReLU, dropout 0.2, RMSprop."""

import argparse
import sys
import time

import keras
import numpy as np
from keras import layers

BATCH_SIZE = 128
EPOCHS = 8
CLASSES = 10


def digits_instead(reason):
    """Return scikit-learn's 1,797 8x8 digits as (x_train, y_train), (x_test, y_test), scaled to 0-255, with a printed notice."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit(f"mnist_mlp: MNIST cannot be downloaded ({reason}); give --data FILE.npz, or install scikit-learn to use its digits")
    print(f"notice: MNIST cannot be downloaded ({reason}); using scikit-learn's 8x8 digits, so accuracies are not MNIST's", flush=True)
    x, y = load_digits(return_X_y=True)
    x = x * (255 / 16)
    return (x[:1500], y[:1500]), (x[1500:], y[1500:])


def load_data(path=None):
    """Return ((x_train, y_train), (x_test, y_test)): images flattened to float32 rows in 0-1, labels one-hot.

    `path` is an .npz file with x_train, y_train, x_test and y_test; without it MNIST is downloaded, or, offline, replaced by digits.
    """
    if path is not None:
        with np.load(path) as file:
            train, test = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    else:
        try:
            train, test = keras.datasets.mnist.load_data()
        except Exception as error:  # Keras raises a bare Exception when a download fails
            train, test = digits_instead(str(error).splitlines()[0])
    return [(x.reshape(len(x), -1).astype("float32") / 255, keras.utils.to_categorical(y, CLASSES)) for x, y in (train, test)]


def build_model(shape=(784,)):
    """Return the compiled model for inputs of `shape`."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.RMSprop(), "categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", metavar="FILE.npz", help="x_train, y_train, x_test, y_test (default: download with keras.datasets)")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expect", type=float, default=0.0, help="fail when the test accuracy is lower")
    args = parser.parse_args()

    (x_train, y_train), (x_test, y_test) = load_data(args.data)
    keras.utils.set_random_seed(args.seed)
    model = build_model(x_train.shape[1:])
    sizes = f"{len(x_train)} training and {len(x_test)} test examples, {model.count_params()} parameters"
    print(f"mnist_mlp: backend {keras.config.backend()}, {sizes}", flush=True)

    began = time.perf_counter()
    model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=args.epochs, verbose=2)
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=BATCH_SIZE, verbose=0)
    print(f"mnist_mlp: test loss {loss:.4f}, test accuracy {accuracy:.4f}, {time.perf_counter() - began:.1f} s")
    if not np.isfinite(loss):
        sys.exit("mnist_mlp: the loss is not finite")
    if accuracy < args.expect:
        sys.exit(f"mnist_mlp: test accuracy {accuracy:.4f} is below the expected {args.expect}")


if __name__ == "__main__":
    main()
