"""Keras's classic CIFAR-10 convolutional network: 32-32-pool-64-64-pool-512-10, ReLU, dropout, RMSprop."""

import argparse
import sys
import time

import keras
import numpy as np
from keras import layers

BATCH_SIZE = 32
EPOCHS = 15
CLASSES = 10


def load_data(path=None):
    """Return ((x_train, y_train), (x_test, y_test)): float32 images in 0-1, labels one-hot.

    `path` is an .npz file with x_train, y_train, x_test and y_test; without it CIFAR-10 is downloaded.
    """
    if path is not None:
        with np.load(path) as file:
            train, test = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    else:
        try:
            train, test = keras.datasets.cifar10.load_data()
        except Exception as error:  # Keras raises a bare Exception when a download fails
            sys.exit(f"cifar_cnn: CIFAR-10 cannot be downloaded ({str(error).splitlines()[0]}); give --data FILE.npz")
    return [(x.astype("float32") / 255, keras.utils.to_categorical(y, CLASSES)) for x, y in (train, test)]


def build_model(shape=(32, 32, 3)):
    """Return the compiled model for inputs of `shape`."""
    model = keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.RMSprop(1e-4), "categorical_crossentropy", metrics=["accuracy"])
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
    print(f"cifar_cnn: backend {keras.config.backend()}, {sizes}", flush=True)

    began = time.perf_counter()
    model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=args.epochs, verbose=2)
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=BATCH_SIZE, verbose=0)
    print(f"cifar_cnn: test loss {loss:.4f}, test accuracy {accuracy:.4f}, {time.perf_counter() - began:.1f} s")
    if not np.isfinite(loss):
        sys.exit("cifar_cnn: the loss is not finite")
    if accuracy < args.expect:
        sys.exit(f"cifar_cnn: test accuracy {accuracy:.4f} is below the expected {args.expect}")


if __name__ == "__main__":
    main()
