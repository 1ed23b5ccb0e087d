"""A model with its data that can be put at a starting point and trained from there, alike on every backend.

Every backend starts from the same NumPy weights and sees the same examples in the same order; a clock stops only after weights were read
back.
"""

import random
import time

import keras
import numpy as np

from comparisons import start_points


def epoch_order(size, start, epoch):
    """Return the order of the `size` training examples in an epoch, the same on every backend."""
    return np.random.default_rng([start, epoch]).permutation(size)


def drain(model):
    """Wait for all queued work by reading the first and the last weight."""
    for weight in (model.weights[0], model.weights[-1]):
        keras.ops.convert_to_numpy(weight.value)


class FirstStep(keras.callbacks.Callback):
    """Measures the seconds from the start of the first `fit` to the first batch whose loss could be read."""

    seconds = None

    def on_train_begin(self, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self.seconds is None:
            float(logs["loss"])
            drain(self.model)
            self.seconds = time.perf_counter() - self.began


class RawWeights(keras.callbacks.Callback):
    """Keeps the weights as trained: `fit` ends by overwriting them where the optimizer keeps a moving average of them (`use_ema`)."""

    weights = None

    def on_epoch_end(self, epoch, logs=None):
        self.weights = [np.array(weight) for weight in self.model.get_weights()]


class Subject:
    """A model and its data, put at any of its starting points.

    Args:
        x, y, x_test, y_test: NumPy arrays.
        build: the function shape of one example -> compiled model.
        batch: examples in a step.
        seed: number of the first start.
        callbacks: a function that returns the callbacks that the model's training needs (such as schedules), new ones for each start.
        dropout: False takes the layers' dropout away.
    """

    def __init__(self, x, y, x_test, y_test, build, batch, seed=0, callbacks=list, dropout=True):
        # Keras draws the layers' seeds from here. Its own set_random_seed would also load TensorFlow, whatever the backend.
        random.seed(seed)
        self.x, self.y, self.x_test, self.y_test = x, y, x_test, y_test
        self.build, self.batch, self.seed, self.schedules = build, batch, seed, callbacks
        self.steps = -(-len(self.x) // self.batch)
        self.model = build(self.x.shape[1:])
        if not dropout:
            for layer in self.model._flatten_layers():
                if isinstance(layer, keras.layers.Dropout):
                    layer.rate = 0.0
        self.model.optimizer.build(self.model.trainable_variables)
        # Of what is drawn anew, or zero, no more than the shape.
        self._weights = [_value(weight) if len(weight.shape) < 2 else _zeros(weight) for weight in self.model.weights]
        slots = self.model.optimizer.variables
        self._slots = [value if np.any(value) else _zeros(slot) for slot, value in zip(slots, map(_value, slots), strict=True)]
        self._raw = RawWeights() if getattr(self.model.optimizer, "use_ema", False) else None

    def without_dropout(self):
        """Return a subject with the same data and a new model without dropout, whose training is the same on every backend."""
        return Subject(self.x, self.y, self.x_test, self.y_test, self.build, self.batch, self.seed, self.schedules, dropout=False)

    def first_step(self):
        """Return a callback that measures the first step of the next `fit`, in `seconds`."""
        return FirstStep()

    def restart(self, start):
        """Put the model at start number `start`, with its optimizer as new."""
        self.start = self.seed + start
        self.model.set_weights(start_points.weights(self.model, self._weights, self.start))
        for variable, value in zip(self.model.optimizer.variables, self._slots, strict=True):
            variable.assign(value)
        self.callbacks = self.schedules()
        if self._raw is not None:
            self._raw.weights = None

    def fit(self, epoch, callbacks=()):
        """Train epoch number `epoch`; return (Keras's logs of it as a dict of floats, seconds)."""
        order = epoch_order(len(self.x), self.start, epoch)
        x, y = self.x[order], self.y[order]
        callbacks = [*self.callbacks, *callbacks]
        if self._raw is not None:
            if self._raw.weights is not None:
                self.model.set_weights(self._raw.weights)
            callbacks.append(self._raw)
        drain(self.model)
        began = time.perf_counter()
        history = self.model.fit(
            x, y, batch_size=self.batch, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=0, callbacks=callbacks
        )
        drain(self.model)
        seconds = time.perf_counter() - began
        return {name: float(values[-1]) for name, values in history.history.items()}, seconds

    def evaluate(self, x=None, y=None):
        """Return the loss and the metrics on the test data (or the given) as a dict of floats."""
        x, y = (self.x_test, self.y_test) if x is None else (x, y)
        logs = self.model.evaluate(x, y, batch_size=self.batch, verbose=0, return_dict=True)
        return {name: float(value) for name, value in logs.items()}

    def predict_seconds(self, x=None, batch=None):
        """Return the seconds of one `predict` over the training inputs (or `x`); its NumPy result is the read that stops the clock."""
        x = self.x if x is None else x
        began = time.perf_counter()
        self.model.predict(x, batch_size=batch or self.batch, verbose=0)
        return time.perf_counter() - began

    def step_losses(self, start, steps):
        """Return the loss of each of the first `steps` training batches from start number `start`."""
        self.restart(start)
        losses = []
        for step in range(steps):
            epoch, position = divmod(step, self.steps)
            rows = epoch_order(len(self.x), self.start, epoch)[position * self.batch : (position + 1) * self.batch]
            self.model.reset_metrics()
            losses.append(float(self.model.train_on_batch(self.x[rows], self.y[rows], return_dict=True)["loss"]))
        return losses


def _value(variable):
    """Return a variable's value as an array of its own: what a backend returns may be a view."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def _zeros(variable):
    """Return zeros of a variable's shape and dtype that take no memory."""
    return np.broadcast_to(np.zeros((), variable.dtype), variable.shape)
