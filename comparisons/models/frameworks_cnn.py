"""The eight convolutional networks of the frameworks study, near the state of the art of their time or plainer and swept.

Weight decay is Keras's l2 of the stated constant on all kernels, as a Keras 2 script writes it (inferred: the document has no code).
Activations that are not named are ReLU, initialisers Glorot uniform with zero biases.

Options of the swept networks: `replicas`, how often each convolution stands in a row; `filters`, a factor of the number of filters;
`kernel`, what is added to the sides of the kernels; `padding` of the convolutions.
"""

import keras
from keras import layers

from comparisons.models import command, schedules
from comparisons.models.layers import LRN, scaled_tanh

LEARNING_RATES = {  # by the epoch, from 0
    "DNN-W20": schedules.falling(0.001, 0.993, 3e-5),
    "All-CNN-C": schedules.falling_steps(0.05, 0.1, 200, 250, 300),
    "CNN+ReLU": schedules.falling_steps(0.01, 0.1, 99, 133, 141),
    "WRN-16-8": schedules.falling_steps(0.01, 0.1, 80, 120),
    "basic-SVHN": schedules.falling_steps(0.01, 0.1, 80, 120),
    "AP-ReLU": schedules.falling_steps(0.001, 0.1, 100, 200),
    "MP-ReLU": schedules.falling_steps(0.001, 0.1, 100, 200),
}


def learning_rates(network):
    """Return the callback that sets the learning rate of the network of that name by the epoch."""
    return schedules.learning_rates(LEARNING_RATES[network])


def compiled(shape, stack, optimizer):
    """Return the compiled Sequential classifier of the layers of `stack` for inputs of `shape`."""
    model = keras.Sequential([keras.Input(shape), *stack])
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    return model


def dnn_w20(shape=(28, 20, 1)):
    """Return DNN-W20 for MNIST, one column of Ciresan et al. 2012: scaled tanh, uniform +-0.05, SGD 0.001."""
    initial = keras.initializers.RandomUniform(-0.05, 0.05)
    options = {"activation": scaled_tanh, "kernel_initializer": initial}
    stack = [
        layers.Conv2D(20, 4, **options),
        layers.MaxPooling2D(2),
        layers.Conv2D(40, 5, **options),
        layers.MaxPooling2D(3),
        layers.Flatten(),
        layers.Dense(150, **options),
        layers.Dense(10, activation="softmax", kernel_initializer=initial),
    ]
    return compiled(shape, stack, keras.optimizers.SGD(0.001))


def cnn_softmax(shape=(28, 28, 1), replicas=1, filters=1, kernel=0, padding="valid"):
    """Return CNN-Softmax for MNIST: two convolutions, 500 units, SGD 0.01 with momentum 0.9, weight decay 5e-4."""
    decay = {"kernel_regularizer": keras.regularizers.L2(5e-4)}
    stack = []
    for count in (32, 64):
        stack += [layers.Conv2D(int(count * filters), 5 + kernel, padding=padding, activation="relu", **decay) for _ in range(replicas)]
        stack.append(layers.MaxPooling2D(2))
    stack += [layers.Flatten(), layers.Dense(500, activation="relu", **decay), layers.Dropout(0.5)]
    stack.append(layers.Dense(10, activation="softmax", **decay))
    return compiled(shape, stack, keras.optimizers.SGD(0.01, momentum=0.9))


def all_cnn_c(shape=(32, 32, 3)):
    """Return All-CNN-C for CIFAR-10 (Springenberg et al. 2015): convolutions only, SGD 0.05 with momentum 0.9, weight decay 1e-3.

    The document lists a last dense layer of 10, its parameter count has none, and so has this one none.
    """

    def convolution(filters, kernel, strides=1):
        decay = keras.regularizers.L2(1e-3)
        return layers.Conv2D(filters, kernel, strides, "same", activation="relu", kernel_regularizer=decay)

    stack = [
        layers.Dropout(0.2),
        *(convolution(96, 3), convolution(96, 3), convolution(96, 3, 2), layers.Dropout(0.5)),
        *(convolution(192, 3), convolution(192, 3), convolution(192, 3, 2), layers.Dropout(0.5)),
        *(convolution(192, 3), convolution(192, 1), convolution(10, 1)),
        *(layers.GlobalAveragePooling2D(), layers.Activation("softmax")),
    ]
    return compiled(shape, stack, keras.optimizers.SGD(0.05, momentum=0.9))


def cnn_relu(shape=(32, 32, 3), replicas=1, filters=1, kernel=0, padding="same"):
    """Return CNN+ReLU for CIFAR-10: three convolutions, dropout around the pools, 2 x 2048 units; weight decay 1e-3.

    SGD 0.01 with a momentum that schedules.MomentumSchedule raises from 0.5 to 0.9. Pools of 3 in steps of 2, which gives the first of the
    two parameter counts that the document prints (10,071,562).
    """
    decay = {"kernel_regularizer": keras.regularizers.L2(1e-3)}
    stack = []
    for count, pool, after in ((96, layers.MaxPooling2D, 0.25), (128, layers.AveragePooling2D, 0.25), (256, layers.AveragePooling2D, 0.5)):
        stack += [layers.Conv2D(int(count * filters), 5 + kernel, padding=padding, activation="relu", **decay) for _ in range(replicas)]
        stack += [layers.Dropout(0.25), pool(3, 2), layers.Dropout(after)]
    stack.append(layers.Flatten())
    for _ in range(2):
        stack += [layers.Dense(2048, activation="relu", **decay), layers.Dropout(0.5)]
    stack.append(layers.Dense(10, activation="softmax", **decay))
    return compiled(shape, stack, schedules.ScheduledMomentumSGD(0.01, momentum=0.5))


def wrn_16_8(shape=(32, 32, 3)):
    """Return WRN-16-8 for SVHN, a wide residual network (Zagoruyko & Komodakis 2016): He normal, Nesterov 0.9, weight decay 5e-4.

    Convolutions without biases, batch normalisation before both of each block and at the end, as the document's parameter count has it.
    """
    decay = keras.regularizers.L2(5e-4)

    def convolution(x, filters, kernel=3, strides=1):
        initial = "he_normal"
        convolve = layers.Conv2D(
            filters, kernel, strides, "same", use_bias=False, kernel_initializer=initial, kernel_regularizer=decay
        )
        return convolve(x)

    def activated(x):
        return layers.Activation("relu")(layers.BatchNormalization()(x))

    inputs = keras.Input(shape)
    x = convolution(inputs, 16)
    for filters, first_strides in ((128, 1), (256, 2), (512, 2)):
        for strides in (first_strides, 1):
            y = activated(x)
            shortcut = x if x.shape[-1] == filters else convolution(y, filters, 1, strides)
            x = layers.Add()([convolution(activated(convolution(y, filters, 3, strides)), filters), shortcut])
    x = layers.Flatten()(layers.AveragePooling2D(8)(activated(x)))
    outputs = layers.Dense(10, activation="softmax", kernel_regularizer=decay)(x)
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    return model


def basic_svhn(shape=(32, 32, 3), replicas=1, filters=1, kernel=0, padding="same"):
    """Return the plainer network for SVHN: two convolutions, 2 x 1024 units, batch normalisation after each; Adam 0.01."""
    decay = {"kernel_regularizer": keras.regularizers.L2(5e-4)}
    stack = []
    for count, side, dropout in ((16, 5, 0.25), (512, 7, 0.5)):
        for _ in range(replicas):
            stack += [layers.Conv2D(int(count * filters), side + kernel, padding=padding, **decay), layers.BatchNormalization()]
            stack.append(layers.Activation("relu"))
        stack += [layers.MaxPooling2D(2), layers.Dropout(dropout)]
    stack.append(layers.Flatten())
    for _ in range(2):
        stack += [layers.Dense(1024, **decay), layers.BatchNormalization(), layers.Activation("relu"), layers.Dropout(0.5)]
    stack.append(layers.Dense(10, activation="softmax", **decay))
    return compiled(shape, stack, keras.optimizers.Adam(0.01))


def _norb(shape, pool, replicas=1, filters=1, kernel=0, padding="same"):
    decay = {"kernel_regularizer": keras.regularizers.L2(0.01)}
    stack = []
    for number in range(3):
        stack += [layers.Conv2D(int(64 * filters), 5 + kernel, padding=padding, activation="relu", **decay) for _ in range(replicas)]
        stack.append(pool(3))
        if number < 2:
            stack.append(LRN(radius=2, bias=2.0, alpha=1e-4, beta=0.75))
    stack += [layers.Flatten(), layers.Dense(500, activation="relu", **decay), layers.Dropout(0.5)]
    stack.append(layers.Dense(6, activation="softmax", **decay))
    return compiled(shape, stack, keras.optimizers.SGD(0.001, momentum=0.9))


def ap_relu(shape=(48, 48, 2)):
    """Return AP-ReLU for NORB: three convolutions of 64, average pools and local response normalisation; SGD 0.001, momentum 0.9.

    Weight decay 0.01. The normalisation's constants are those of Krizhevsky et al. 2012, as the document gives none.
    """
    return _norb(shape, layers.AveragePooling2D)


def mp_relu(shape=(48, 48, 2), replicas=1, filters=1, kernel=0, padding="same"):
    """Return MP-ReLU for NORB: as AP-ReLU with max pools, and swept."""
    return _norb(shape, layers.MaxPooling2D, replicas, filters, kernel, padding)


def networks():
    """Return {name: command.Network}."""

    def network(name, build, shape, batch, epochs, classes=10, **options):
        rates = [lambda: learning_rates(name)] if name in LEARNING_RATES else []
        momentum = [schedules.MomentumSchedule] if name == "CNN+ReLU" else []
        return command.Network(build, shape, batch, epochs, classes, callbacks=lambda: [make() for make in rates + momentum])

    return {
        "DNN-W20": network("DNN-W20", dnn_w20, (28, 20, 1), 128, 500),
        "CNN-Softmax": network("CNN-Softmax", cnn_softmax, (28, 28, 1), 128, 110),
        "All-CNN-C": network("All-CNN-C", all_cnn_c, (32, 32, 3), 100, 350),
        "CNN+ReLU": network("CNN+ReLU", cnn_relu, (32, 32, 3), 100, 150),
        "WRN-16-8": network("WRN-16-8", wrn_16_8, (32, 32, 3), 128, 160),
        "basic-SVHN": network("basic-SVHN", basic_svhn, (32, 32, 3), 256, 160),
        "AP-ReLU": network("AP-ReLU", ap_relu, (48, 48, 2), 128, 250, classes=6),
        "MP-ReLU": network("MP-ReLU", mp_relu, (48, 48, 2), 128, 250, classes=6),
    }


if __name__ == "__main__":
    command.main(networks(), __doc__)
