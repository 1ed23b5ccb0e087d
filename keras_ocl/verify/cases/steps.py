"""Whole training steps of three small networks, compared with those of the schedule `reference`."""

import contextlib
from dataclasses import replace

import numpy as np

from keras_ocl import runtime
from keras_ocl.core import tree
from keras_ocl.verify.cases.numbers import integers, normal

_STEPS, _BATCH, _TOLERANCE = 3, 12, 2e-4  # of the largest element of an array


class Training:
    """A case of its own kind: the losses and weights of a network after three steps, on the device and on it with the reference schedule.

    make: function of the module `keras` that returns (model, x, y).
    """

    def __init__(self, name, make):
        self.name, self._make = name, make

    def judge(self, device):
        """What is wrong, as a clause; "" if nothing. Raises what the runtime raises."""
        found = self._train(device)
        wanted = self._train(runtime.open_again(device, replace(device.traits, schedule="reference").without(())))
        for name, a, b in zip(("losses", *(f"weight {k}" for k in range(len(found)))), found, wanted, strict=False):
            off = np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-3)
            if not off <= _TOLERANCE:
                return f"{name} differ from those of the schedule `reference` by {off:.2g} of the largest"
        return ""

    def _train(self, device):
        import keras

        usual = keras.config.dtype_policy()
        with runtime.device_scope(device), contextlib.ExitStack() as stack:
            stack.callback(keras.config.set_dtype_policy, usual)
            keras.config.set_dtype_policy("float32")
            keras.utils.set_random_seed(1)
            model, x, y = self._make(keras)
            loss = "sparse_categorical_crossentropy"
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.get(loss))
            losses = [model.train_on_batch(x, y) for _ in range(_STEPS)]
            return [np.array(tree.flatten(losses)[0], np.float64), *(np.asarray(w, np.float64) for w in model.get_weights())]


def cases(traits, short):
    """The Trainings: a convolutional network, a recurrent one, a transformer's block."""
    found = [
        Training("convolutional network", _convolutional),
        Training("recurrent network", _recurrent),
        Training("transformer", _transformer),
    ]
    return found[:1] if short else found


def _convolutional(keras):
    x, y = normal("images", _BATCH, 14, 14, 3), integers("labels", 0, 5, _BATCH)
    layers = keras.layers
    return (
        keras.Sequential(
            [
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.BatchNormalization(),
                layers.MaxPooling2D(),
                layers.DepthwiseConv2D(3),
                layers.Conv2D(24, 1, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(5, activation="softmax"),
            ]
        ),
        x,
        y,
    )


def _recurrent(keras):
    x, y = integers("words", 0, 50, _BATCH, 9), integers("labels", 0, 5, _BATCH)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Embedding(50, 16), layers.LSTM(24, return_sequences=True), layers.GRU(16), layers.Dense(5, activation="softmax")]
    )
    return model, x, y


def _transformer(keras):
    x, y = normal("positions", _BATCH, 20, 32), integers("labels", 0, 5, _BATCH)
    layers = keras.layers
    inputs = layers.Input((20, 32))
    seen = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(4, 8)(inputs, inputs, use_causal_mask=True))
    mixed = layers.LayerNormalization()(seen + layers.Dense(32)(layers.Dense(64, activation="gelu")(seen)))
    outputs = layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling1D()(mixed))
    return keras.Model(inputs, outputs), x, y
