"""Convolution and its two gradients over channels-last data."""

from keras_ocl.kernels.conv.dispatch import Geometry, Problem, filter_grad, forward, input_grad

__all__ = ["Geometry", "Problem", "filter_grad", "forward", "input_grad"]
