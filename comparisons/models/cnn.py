"""Small convolutional networks for images of ten classes: convolutions and pools in pairs, dense layers, softmax.

`python -m comparisons.models.cnn model_0 --data cifar10.npz --epochs 5` trains one of the source document's three models, a smaller or a
larger one.

The document gives the architectures of Models 0-2, the learning rates, the batch of 32, the initializers (He et al. 2015, without
truncation) and the loss. Two things in it are ambiguous and options here: whether a batch's gradients are averaged or added up (it says
"accumulated", so they are added up unless `reduction` says otherwise), and whether the last hidden layer has ReLU or, as in its worked
examples, sigmoid. The smaller and the larger model are ours: it measures two such without giving their layers.
"""

import argparse
import sys

import keras
import numpy as np
from keras import layers

CLASSES = 10
BATCH = 32
IMAGES = 2000  # of training, as the document's largest part, and as many for tests


def cnn(shape, filters, units, learning_rate=0.001, last_hidden="relu", reduction="sum", data_format="channels_last"):
    """Return a compiled model: for each of `filters` a 3x3 convolution with ReLU and a 2x2 max-pool, then dense layers and softmax.

    Args:
        shape: of one image, (rows, columns, channels) or, with data_format "channels_first", (channels, rows, columns).
        filters: of each convolution. units: of each hidden dense layer.
        learning_rate: of plain stochastic gradient descent.
        last_hidden: activation of the last hidden dense layer; the others have ReLU.
        reduction: "sum" or "sum_over_batch_size" (the mean) of a batch's cross-entropies.
        data_format: as Keras's layers take it.
    """

    def he():
        return keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")

    model = keras.Sequential([keras.Input(shape)])
    for number, count in enumerate(filters):
        convolution = {"padding": "same", "activation": "relu", "kernel_initializer": he(), "data_format": data_format}
        model.add(layers.Conv2D(count, 3, **convolution, name=f"conv_{number}"))
        model.add(layers.MaxPooling2D(2, data_format=data_format, name=f"pool_{number}"))
    model.add(layers.Flatten(data_format=data_format))
    for number, count in enumerate(units, 1):
        activation = last_hidden if number == len(units) else "relu"
        model.add(layers.Dense(count, activation=activation, kernel_initializer=he()))
    model.add(layers.Dense(CLASSES, activation="softmax", kernel_initializer=he()))
    loss = keras.losses.CategoricalCrossentropy(reduction=reduction)
    model.compile(keras.optimizers.SGD(learning_rate), loss, metrics=["accuracy"])
    return model


def smaller(shape=(32, 32, 3), **options):
    """Return the model smaller than the document's three: 8 filters, 32 units; 66,122 parameters."""
    return cnn(shape, (8,), (32,), **options)


def model_0(shape=(32, 32, 3), **options):
    """Return Model 0, for images of 32x32: 210,998 parameters."""
    return cnn(shape, (16, 32), (100,), **options)


def model_1(shape=(40, 40, 3), **options):
    """Return Model 1, Model 0 for images of 40x40: 326,198 parameters."""
    return cnn(shape, (16, 32), (100,), **options)


def model_2(shape=(40, 40, 3), learning_rate=0.00001, **options):
    """Return Model 2, for images of 40x40: 123,824 parameters."""
    return cnn(shape, (16, 32, 32), (128, 50), learning_rate, **options)


def larger(shape=(40, 40, 3), learning_rate=0.00001, **options):
    """Return the model larger than the document's three: Model 2 with 32, 64 and 128 filters and 256 and 128 units; 946,890 parameters."""
    return cnn(shape, (32, 64, 128), (256, 128), learning_rate, **options)


MODELS = {build.__name__: build for build in (smaller, model_0, model_1, model_2, larger)}


def images(path, size):
    """Return ((x, y), (x_test, y_test)): float32 images in 0-1, `size` pixels on a side, and one-hot labels; CIFAR-10 or an .npz file."""
    if path is None:
        parts = keras.datasets.cifar10.load_data()
    else:
        with np.load(path) as file:
            parts = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    ready = []
    for x, y in parts:
        x = x[:IMAGES].astype("float32") / 255
        if size != x.shape[1]:
            x = np.asarray(keras.ops.convert_to_numpy(keras.ops.image.resize(x, (size, size), data_format="channels_last")))
        ready.append((x, keras.utils.to_categorical(y[:IMAGES], CLASSES)))
    return ready


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS, help="which model")
    parser.add_argument("--data", metavar="FILE.npz", help="x_train, y_train, x_test, y_test of images (default: download CIFAR-10)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    model = MODELS[args.name]()
    train, test = images(args.data, model.input_shape[1])
    model.fit(*train, batch_size=BATCH, epochs=args.epochs, verbose=2)
    loss, accuracy = model.evaluate(*test, batch_size=BATCH, verbose=0)
    print(f"{args.name}: backend {keras.config.backend()}, test loss {loss:.4f}, test accuracy {accuracy:.4f}")
    if not np.isfinite(loss):
        sys.exit(f"{args.name}: the loss is not finite")


if __name__ == "__main__":
    main()
