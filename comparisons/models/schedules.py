"""Schedules by the epoch: learning rates by a callback, momentum by a callback and an optimizer that allows it."""

import math

import keras
from keras import ops


class ScheduledMomentumSGD(keras.optimizers.SGD):
    """SGD whose momentum is a weight of the optimizer, `momentum_rate`, so that it can change between epochs without a new trace."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentum_rate = self.add_variable((), keras.initializers.Constant(self.momentum), name="momentum_rate")

    def update_step(self, gradient, variable, learning_rate):
        rate, learning_rate = (ops.cast(value, variable.dtype) for value in (self.momentum_rate, learning_rate))
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, momentum * rate - ops.cast(gradient, variable.dtype) * learning_rate)
        self.assign_add(variable, momentum)


class MomentumSchedule(keras.callbacks.Callback):
    """Sets the momentum of a ScheduledMomentumSGD to most - (most - first) exp(-0.06 epoch) at the start of each epoch."""

    def __init__(self, first=0.5, most=0.9):
        super().__init__()
        self.first, self.most = first, most

    def rate(self, epoch):
        """Return the momentum of an epoch, counted from 0."""
        return self.most - (self.most - self.first) * math.exp(-0.06 * epoch)

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.momentum_rate.assign(self.rate(epoch))


def falling_steps(first, factor, *epochs):
    """Return a function of the epoch: `first`, times `factor` from each of `epochs` on."""
    return lambda epoch: first * factor ** sum(epoch >= start for start in epochs)


def falling(first, factor, least):
    """Return a function of the epoch: `first` times `factor` an epoch, no less than `least`."""
    return lambda epoch: max(first * factor**epoch, least)


def learning_rates(rate):
    """Return the callback that sets the learning rate to `rate(epoch)` at the start of each epoch, counted from 0."""
    return keras.callbacks.LearningRateScheduler(lambda epoch, _: rate(epoch))
