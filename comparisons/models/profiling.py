"""The CIFAR-10 network of TensorFlow's tutorial, with local response normalisation, and the variants that were profiled.

`python -m comparisons.models.profiling "stride 2" --data cifar10.npz --epochs 2` trains one; the names are those of VARIANTS. Inputs are
24x24 crops of the images, standardised (see comparisons.data.cifar10_crops); labels are class numbers; outputs are logits.
"""

import argparse

import keras
import numpy as np
from keras import initializers, layers, ops, regularizers

from comparisons.data import cifar10_crops
from comparisons.models.layers import LocalResponseNormalization

SHAPE, CLASSES = (24, 24, 3), 10
BATCH = 128
LEARNING_RATE, FACTOR = 0.1, 0.1
EXAMPLES, EPOCHS_PER_DECAY = 50_000, 350
DECAY_STEPS = EXAMPLES * EPOCHS_PER_DECAY // BATCH
DECAY = 0.004  # times half the sum of squares
EMA = 0.9999

VARIANTS = {
    "baseline": {},
    "stride 2": {"stride": 2},
    "stride 3": {"stride": 3},
    "stride 5": {"stride": 5},
    "32 filters": {"filters": 32},
    "larger pool1": {"window": 4, "padding": "valid"},
    "larger pool1, window 3": {"window": 3, "padding": "valid"},
    "stride 2, 32 filters": {"stride": 2, "filters": 32},
    "stride 3, 32 filters": {"stride": 3, "filters": 32},
    "stride 5, 32 filters": {"stride": 5, "filters": 32},
}


@keras.saving.register_keras_serializable("comparisons")
class AveragedSGD(keras.optimizers.SGD):
    """Gradient descent whose moving average of the weights follows them faster at first.

    The momentum of the average is min(ema_momentum, n / (9 + n)) in step n = 0, 1, ..., which is the ramp that
    tf.train.ExponentialMovingAverage has with `num_updates`; with a constant 0.9999 the average of the first thousand steps would be
    little else than the first weights.
    """

    def _update_model_variables_moving_average(self, trainable_variables):
        n = ops.cast(self.iterations, "float32")
        momentum = ops.minimum(self.ema_momentum, n / (n + 9.0))
        for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
            average.assign(average + (1.0 - momentum) * (variable - average))


def _normal(stddev):
    return initializers.TruncatedNormal(stddev=stddev)


def _lrn(name):
    return LocalResponseNormalization(4, 1.0, 0.001 / 9.0, 0.75, name=name)


def network(shape=SHAPE, stride=1, filters=64, window=3, padding="same", decay_steps=DECAY_STEPS):
    """Return the compiled network.

    Args:
        shape: (height, width, channels) of an image.
        stride, filters: of both convolutions.
        window, padding: of the first pooling.
        decay_steps: after so many the learning rate is a tenth, and again after each as many.
    """
    convolution = {"kernel_size": 5, "strides": stride, "padding": "same", "activation": "relu", "kernel_initializer": _normal(5e-2)}
    dense = {
        "activation": "relu",
        "kernel_initializer": _normal(0.04),
        "kernel_regularizer": regularizers.L2(DECAY / 2),
        "bias_initializer": initializers.Constant(0.1),
    }
    model = keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(filters, **convolution, name="conv1"),
            layers.MaxPooling2D(window, 2, padding=padding, name="pool1"),
            _lrn("norm1"),
            layers.Conv2D(filters, **convolution, bias_initializer=initializers.Constant(0.1), name="conv2"),
            _lrn("norm2"),
            layers.MaxPooling2D(3, 2, padding="same", name="pool2"),
            layers.Flatten(name="flatten"),
            layers.Dense(384, **dense, name="local3"),
            layers.Dense(192, **dense, name="local4"),
            layers.Dense(CLASSES, kernel_initializer=_normal(1 / 192), name="softmax_linear"),
        ]
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(LEARNING_RATE, decay_steps, FACTOR, staircase=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AveragedSGD(schedule, use_ema=True, ema_momentum=EMA), loss, metrics=["accuracy"])
    return model


class Distorted(keras.utils.PyDataset):
    """Batches of training images, each image distorted anew every time (see comparisons.data.cifar10_crops).

    One `fit` over it is a whole training; several would each begin from the moving average that the one before ended with.
    """

    def __init__(self, images, labels, seed=0):
        super().__init__()
        self.images, self.labels, self.generator = images, labels, np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self.images) // BATCH)

    def __getitem__(self, batch):
        rows = self.order[batch * BATCH : (batch + 1) * BATCH]
        return cifar10_crops.distort(self.images[rows], self.generator), self.labels[rows]

    def on_epoch_end(self):
        self.order = self.generator.permutation(len(self.images))


def read(path=None):
    """Return ((x, y), (x_test, y_test)), uint8 (examples, 32, 32, 3) and (examples,), from an .npz file or by download."""
    if path is None:
        parts = keras.datasets.cifar10.load_data()
    else:
        with np.load(path) as file:
            parts = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    return [(x, np.ravel(y)) for x, y in parts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=VARIANTS, metavar="NAME", help=", ".join(VARIANTS))
    parser.add_argument("--data", metavar="FILE.npz", help="x_train, y_train, x_test, y_test of CIFAR-10 (default: download)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    (images, labels), (test_images, test_labels) = read(args.data)
    model = network(**VARIANTS[args.name])
    model.fit(Distorted(images, labels, args.seed), epochs=args.epochs, verbose=2)
    loss, accuracy = model.evaluate(cifar10_crops.centre(test_images), test_labels, verbose=0)
    print(f"{args.name}: backend {keras.config.backend()}, test loss {loss:.4f}, test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
