"""Attention without a (time x source) matrix in memory, and its gradients."""

from keras_ocl.kernels.attention.dispatch import MASKED, Operand, Problem, forward, gradient, pays

__all__ = ["MASKED", "Operand", "Problem", "forward", "gradient", "pays"]
