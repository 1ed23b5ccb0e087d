"""Dense networks: exclusive or with 2-2-1 tanh, and 25 sigmoid nets for MNIST, all with mean squared error and gradient descent.

`python -m comparisons.models.dense 784-16-10 --data mnist.npz --epochs 5` trains one; the names are "xor" and those of NETS.

The source document does not state learning rates, epochs or batch sizes; those here are ours, chosen so that the nets reach the
document's accuracies: sigmoid nets learn slowly from a mean squared error, those of three layers not at all at a tenth of this rate.
"""

import argparse
import sys

import keras
import numpy as np
from keras import layers

PIXELS, CLASSES = 784, 10
BATCH = 32
EPOCHS = 10
XOR_LEARNING_RATE = 0.3
LEARNING_RATE = 5.0  # large, as the mean over ten outputs makes the gradient of the error small

WIDTHS = (16, 32, 64, 128, 256)
HIDDEN = (
    *((width,) for width in WIDTHS),
    *((first, second) for first in WIDTHS for second in WIDTHS if first <= second),
    *((width,) * 3 for width in WIDTHS),
)


def name(hidden):
    """Return the name of the net with these hidden widths, such as "784-16-32-10"."""
    return "-".join(map(str, (PIXELS, *hidden, CLASSES)))


NETS = {name(hidden): hidden for hidden in HIDDEN}


def right(target, output):
    """The share of outputs that are right by a margin: a network stuck at 0.5 has not solved exclusive or."""
    return keras.ops.cast(keras.ops.abs(keras.ops.subtract(target, output)) < 0.4, "float32")


def xor(shape=(2,), learning_rate=XOR_LEARNING_RATE):
    """Return the compiled 2-2-1 tanh net."""
    model = keras.Sequential([keras.Input(shape), layers.Dense(2, activation="tanh"), layers.Dense(1, activation="tanh")])
    model.compile(keras.optimizers.SGD(learning_rate), "mse", metrics=[keras.metrics.MeanMetricWrapper(right, name="accuracy")])
    return model


def mlp(shape=(PIXELS,), hidden=(16,), learning_rate=LEARNING_RATE):
    """Return the compiled sigmoid net with these hidden widths and ten sigmoid outputs; labels are one-hot."""
    model = keras.Sequential([keras.Input(shape), *(layers.Dense(width, activation="sigmoid") for width in (*hidden, CLASSES))])
    # A loss object: Keras cannot load a model from HDF5 whose loss was given as "mse".
    model.compile(keras.optimizers.SGD(learning_rate), keras.losses.MeanSquaredError(), metrics=["accuracy"])
    return model


def mnist(path=None):
    """Return ((x, y), (x_test, y_test)): float32 rows in 0-1 and one-hot labels, from an .npz file or by download."""
    if path is None:
        parts = keras.datasets.mnist.load_data()
    else:
        with np.load(path) as file:
            parts = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    return [(x.reshape(len(x), -1).astype("float32") / 255, keras.utils.to_categorical(y, CLASSES)) for x, y in parts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["xor", *NETS], metavar="NAME", help=f"xor, {', '.join(NETS)}")
    parser.add_argument("--data", metavar="FILE.npz", help="x_train, y_train, x_test, y_test of MNIST (default: download)")
    parser.add_argument("--epochs", type=int, help=f"default: 1000 for xor, else {EPOCHS}")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    if args.name == "xor":
        x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32")
        y = np.array([[0], [1], [1], [0]], "float32")
        train, test, model = (x, y), (x, y), xor()
        model.fit(x, y, batch_size=4, epochs=args.epochs or 1000, verbose=0)
    else:
        train, test = mnist(args.data)
        model = mlp(hidden=NETS[args.name])
        model.fit(*train, batch_size=BATCH, epochs=args.epochs or EPOCHS, verbose=2)
    loss, accuracy = model.evaluate(*test, verbose=0)
    print(f"{args.name}: backend {keras.config.backend()}, test loss {loss:.4f}, test accuracy {accuracy:.4f}")
    if not np.isfinite(loss):
        sys.exit(f"{args.name}: the loss is not finite")


if __name__ == "__main__":
    main()
