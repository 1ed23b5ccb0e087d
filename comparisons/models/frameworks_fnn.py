"""The dense networks FNN-1 to FNN-6 of the frameworks study: each hidden layer half as wide as the one before, as many units as inputs."""

import keras
from keras import layers

from comparisons.models import command

CLASSES = 10
BATCH_SIZE = 32
EPOCHS = 50
INPUTS = {"CIFAR": 960, "SVHN": 154, "MNIST": 784}


def widths(units, count):
    """Return the widths of `count` hidden layers that have `units` units together.

    H_0 = units 2^(count - 1) / (2^count - 1), H_i = H_(i - 1) / 2 (equation 4.1), rounded down; the units that are left over go one each to
    the last layers. That gives the document's FNN-6 for all three inputs; for the others it is inferred.
    """
    exact = [units * 2 ** (count - 1 - i) / (2**count - 1) for i in range(count)]
    result = [int(width) for width in exact]
    for i in range(units - sum(result)):
        result[-1 - i] += 1
    return result


def fnn(shape, hidden_layers=6, width=1.0):
    """Return the compiled FNN: ReLU, softmax, Glorot uniform, SGD 0.01.

    shape: (features,). width: a factor of the number of hidden units, which are as many as features.
    """
    units = round(shape[0] * width)
    model = keras.Sequential(
        [
            keras.Input(shape),
            *(layers.Dense(each, activation="relu") for each in widths(units, hidden_layers)),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01), "categorical_crossentropy", metrics=["accuracy"])
    return model


def networks():
    """Return {name: command.Network} of FNN-1 to FNN-6 on each kind of input."""
    return {
        f"FNN-{count}-{kind}": command.Network(lambda shape, count=count: fnn(shape, count), (features,), BATCH_SIZE, EPOCHS)
        for count in range(1, 7)
        for kind, features in INPUTS.items()
    }


if __name__ == "__main__":
    command.main(networks(), __doc__)
