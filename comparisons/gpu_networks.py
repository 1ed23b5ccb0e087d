"""The networks that `python -m comparisons.gpu` trains, and the training of one in a precision on this process's backend."""

import gc
import math
import time
from typing import NamedTuple

import numpy as np

from comparisons import frameworks

EPOCH_BYTES, STEPS = 64 << 20, (4, 40)  # an epoch's examples take about so much, in at least and at most so many steps
WARM = (2, 10)  # timed epochs, at least and at most
SECONDS = 2  # no further epoch begins after so long


class Network(NamedTuple):
    """A function of a module that returns (compiled model, x, y, batch size), with its arguments, and what is made of it.

    Attributes:
        batch: examples of a step.
        large: whether matrix units should pay, so that the marks are of it.
    """

    module: str
    function: str
    options: dict
    batch: int
    large: bool = False


_OWN, _GOLDEN = "comparisons.memory_networks", "tests.golden.models"
_DECODER = {"length": 512, "width": 768, "words": 8192, "heads": 12, "depth": 6}
_VIT = {"size": 224, "patch": 16, "width": 768, "heads": 12, "depth": 6}
NETWORKS = {  # in the order of their worth
    "causal decoder, 6 x 768": Network(_OWN, "decoder", _DECODER, 16, True),
    "ViT, 6 x 768": Network(_OWN, "vision_transformer", _VIT, 64, True),
    "ResNet50, 224 x 224": Network(_OWN, "application", {"make": "ResNet50", "batch": 64, "size": 224}, 64, True),
    "WRN-16-2": Network(_GOLDEN, "wide_residual", {}, 128),
    "all-convolutional": Network(_GOLDEN, "all_convolutional", {}, 100),
    "CIFAR CNN": Network(_GOLDEN, "cifar_cnn", {}, 128),
    "MNIST MLP": Network(_GOLDEN, "mnist_dropout", {}, 128),
    "LSTM": Network(_GOLDEN, "reviews_lstm", {}, 64),
    "transformer encoder": Network(_GOLDEN, "transformer", {}, 32),
}
SHORT = {"small decoder": Network(_OWN, "decoder", {"length": 8, "width": 16, "words": 50, "heads": 2, "depth": 1}, 4, True)}


def names(short=False):
    """Names of the networks, the best first."""
    return list(SHORT if short else NETWORKS)


def fit(backend, name, precision):
    """Trains a network from weights that are the same on every backend.

    Args:
        precision: of float32, see frameworks.precise, or a dtype policy such as "mixed_bfloat16".

    Returns:
        A dict: "ms" of a step of the best warm epoch, "first_step_s", "loss" (the mean of the first epoch), "steps" of an epoch.
    """
    import keras

    network = (NETWORKS | SHORT)[name]
    keras.utils.clear_session()
    gc.collect()
    keras.config.set_dtype_policy(precision if precision.startswith("mixed") else "float32")
    keras.utils.set_random_seed(1)
    try:
        with frameworks.precise(backend, precision):
            return _trained(*_made(network), network.batch)
    finally:
        keras.config.set_dtype_policy("float32")


def _made(network):
    """(model with NumPy's weights, x, y)."""
    import importlib

    import keras

    options = dict(network.options)
    if "make" in options:
        options["make"] = getattr(keras.applications, options["make"])
    model, x, y, _ = getattr(importlib.import_module(network.module), network.function)(**options)
    rng = np.random.default_rng(7)

    def weights(array):
        limit = math.sqrt(6 / (math.prod(array.shape[:-1]) + array.shape[-1])) if array.ndim > 1 else 0
        return rng.uniform(-limit, limit, array.shape).astype(array.dtype) if limit else array

    model.set_weights([weights(array) for array in model.get_weights()])
    steps = int(np.clip(EPOCH_BYTES // (x[0].nbytes * network.batch), *STEPS))
    return model, *_data(rng, model, x, y, steps * network.batch)


def _data(rng, model, x, y, number):
    """So many random examples of the shapes and dtypes of x and y."""
    import keras

    words = min((layer.input_dim for layer in model.layers if isinstance(layer, keras.layers.Embedding)), default=0)
    shape, classes = (number, *x.shape[1:]), model.output_shape[-1]
    inputs = rng.integers(0, words, shape, "int32") if words else rng.random(shape, "float32")
    if y.dtype == "int32" or classes > 1:
        labels = rng.integers(0, classes, (number, *model.output_shape[1:-1]), "int32")
        return inputs, labels if y.dtype == "int32" else np.eye(classes, dtype="float32")[labels]
    return inputs, rng.integers(0, 2, (number, *y.shape[1:])).astype("float32")


def _trained(model, x, y, batch):
    import keras

    class First(keras.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            if not hasattr(self, "seconds"):
                float(logs["loss"])  # waits for the step
                self.seconds = time.perf_counter() - began

    def epoch(*callbacks):
        loss = model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False, callbacks=list(callbacks)).history["loss"][0]
        keras.ops.convert_to_numpy(model.trainable_variables[-1].value)  # waits for the last step
        return float(loss)

    first, best, began = First(), math.inf, time.perf_counter()
    loss, steps = epoch(first), len(x) // batch
    least, most = WARM
    warm_began = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - warm_began > SECONDS:
            break
        epoch_began = time.perf_counter()
        epoch()
        best = min(best, (time.perf_counter() - epoch_began) / steps)
    return {"ms": best * 1e3, "first_step_s": first.seconds, "loss": loss, "steps": steps}
