"""Hooks for Keras's own classes: its trainer, variable, optimizers, layers, recurrence, distribution and TensorBoard callback."""

from keras_ocl import runtime
from keras_ocl.verify import first_use

runtime.when_used("verify", first_use.begin)
