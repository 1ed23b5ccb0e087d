"""Networks that forecast irradiance: 30 pyramidal MLPs, a CNN over irradiance maps, and the smaller CNN of the distributed runs.

`python -m comparisons.models.solar 800-400-208 --epochs 2` trains one; the names are those of NETS, "cnn" and "distributed". Inputs and
labels are in kW/m², the loss is the mean squared error, the optimizer Adam.

The document's CNN ends in a ReLU, which dies where its input is negative for every map: most of the document's runs are stuck so. Here the
bias of that output starts at OUTPUT_BIAS, about the mean irradiance, so that the output starts alive; 0 is the document's start.
"""

import argparse
import sys

import keras
import numpy as np
from keras import layers

FEATURES, MAP = 50, (50, 50, 1)
BATCH, CNN_BATCH = 1000, 512
LEARNING_RATE = 0.001
OUTPUT_BIAS = 0.5

BASES = (50,), (50, 25), (50, 25, 13)
HIDDEN = tuple(tuple(width << doublings for width in base) for base in BASES for doublings in range(10))


def name(hidden):
    """Return the name of the MLP with these hidden widths, such as "800-400-208"."""
    return "-".join(map(str, hidden))


NETS = {name(hidden): hidden for hidden in HIDDEN}


def parameters(hidden, features=FEATURES):
    """Return how many parameters the MLP with these hidden widths has: the sum of (c[i] + 1) c[i + 1]."""
    widths = (features, *hidden, 1)
    return sum((before + 1) * after for before, after in zip(widths, widths[1:], strict=False))


def _compiled(stack, learning_rate):
    model = keras.Sequential(stack)
    model.compile(keras.optimizers.Adam(learning_rate), "mean_squared_error", metrics=["mae"])
    return model


def mlp(shape=(FEATURES,), hidden=(50,), learning_rate=LEARNING_RATE):
    """Return the compiled MLP with these hidden widths, ReLU, and one linear output."""
    hidden = [layers.Dense(width, activation="relu") for width in hidden]
    return _compiled([keras.Input(shape), layers.Flatten(), *hidden, layers.Dense(1)], learning_rate)


def _output(bias):
    return layers.Dense(1, activation="relu", bias_initializer=keras.initializers.Constant(bias))


def cnn(shape=MAP, learning_rate=LEARNING_RATE, output_bias=OUTPUT_BIAS):
    """Return the compiled CNN of 4,352,641 parameters, whose output is a ReLU with `output_bias` to start from."""
    stack = [
        keras.Input(shape),
        layers.Conv2D(32, (3, 3), activation="relu"),
        layers.Conv2D(64, (3, 3), activation="relu"),
        layers.MaxPooling2D((2, 2)),
        layers.Dropout(0.25),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dropout(0.5),
        _output(output_bias),
    ]
    return _compiled(stack, learning_rate)


def distributed(shape=MAP, learning_rate=LEARNING_RATE, output_bias=OUTPUT_BIAS):
    """Return the compiled smaller CNN of the document's runs on several devices.

    The document's output is a softmax of width 1, which is 1 whatever it is given, so it cannot learn; here it is the CNN's ReLU.
    """
    stack = [
        keras.Input(shape),
        layers.Conv2D(32, (3, 3), activation="relu"),
        layers.MaxPooling2D((2, 2)),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        _output(output_bias),
    ]
    return _compiled(stack, learning_rate)


CNNS = {"cnn": cnn, "distributed": distributed}


def load(path, maps):
    """Return x, y, x_test, y_test of an .npz file, or those that comparisons.data.solar makes without one."""
    if path is not None:
        with np.load(path) as file:
            return [file[part] for part in ("x", "y", "x_test", "y_test")]
    from comparisons.data import solar

    data = (solar.maps if maps else solar.rows)()
    print(f"notice: {data.notice}", flush=True)
    return [part[: 20_000 if maps else None] for part in data[:4]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*NETS, *CNNS], metavar="NAME", help=f"{', '.join(CNNS)}, {', '.join(NETS)}")
    parser.add_argument("--data", metavar="FILE.npz", help="x, y, x_test, y_test in kW/m² (default: synthetic days)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    maps = args.name in CNNS
    x, y, x_test, y_test = load(args.data, maps)
    model = CNNS[args.name](x.shape[1:]) if maps else mlp(x.shape[1:], NETS[args.name])
    model.fit(x, y, batch_size=CNN_BATCH if maps else BATCH, epochs=args.epochs, verbose=2)
    loss, mae = model.evaluate(x_test, y_test, verbose=0)
    constant = float(np.mean((y_test - y.mean()) ** 2))
    print(f"{args.name}: backend {keras.config.backend()}, test loss {loss:.5f} (a constant: {constant:.5f}), mean error {mae:.4f} kW/m²")
    if not loss < constant:
        sys.exit(f"{args.name}: no better than a constant prediction")


if __name__ == "__main__":
    main()
