"""Hooks for Keras's own classes: its trainer, variable, optimizers, layers, recurrence, distribution and TensorBoard callback."""
