"""The command line of a module of networks: train one of them by itself."""

import argparse
from typing import NamedTuple

import keras
import numpy as np

EXAMPLES, TEST_EXAMPLES = 512, 128  # of the random data that stand in where --data gives none


class Network(NamedTuple):
    """What training a network takes.

    build: shape of one example -> compiled model. shape: of one example. batch, epochs: the document's. classes: of one-hot labels, 1 for
    labels that are 0 or 1, None for numbers to predict. words: of tokens, None for inputs that are floats.
    """

    build: object
    shape: tuple
    batch: int
    epochs: int
    classes: int | None = 10
    words: int | None = None
    callbacks: object = list


def random_data(network, examples, seed):
    """Return seeded random (x, y) of a network's shapes."""
    generator = np.random.default_rng(seed)
    if network.words:
        x = generator.integers(0, network.words, (examples, *network.shape))
    else:
        x = generator.random((examples, *network.shape), "float32")
    if network.classes is None:
        return x, generator.random((examples, 1), "float32")
    y = generator.integers(0, max(network.classes, 2), examples)
    return x, y.astype("float32") if network.classes == 1 else np.eye(network.classes, dtype="float32")[y]


def main(networks, description):
    """Train the network that the command line names, from `networks` (a dict name -> Network), and print its test loss and metrics."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", choices=sorted(networks))
    parser.add_argument("--data", metavar="FILE.npz", help="x_train, y_train, x_test, y_test as the network takes them (default: random)")
    parser.add_argument("--epochs", type=int, help="default: the document's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    network = networks[args.name]
    if args.data:
        with np.load(args.data) as file:
            train, test = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    else:
        print("notice: random data, so what the network learns means nothing", flush=True)
        train, test = random_data(network, EXAMPLES, args.seed), random_data(network, TEST_EXAMPLES, args.seed + 1)
    keras.utils.set_random_seed(args.seed)
    model = network.build(train[0].shape[1:])
    print(f"{args.name}: backend {keras.config.backend()}, {model.count_params()} parameters", flush=True)
    model.fit(*train, batch_size=network.batch, epochs=args.epochs or network.epochs, callbacks=network.callbacks(), verbose=2)
    results = model.evaluate(*test, batch_size=network.batch, verbose=0, return_dict=True)
    print(f"{args.name}: test " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))
