"""What Keras's own classes hook into: its trainer, variable, optimizers, layers, recurrence, distribution and TensorBoard callback."""
