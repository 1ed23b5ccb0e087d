"""Convolution and its two gradients over channels-last data."""

from keras_ocl.kernels.conv.dispatch import Geometry, filter_grad, forward, input_grad

__all__ = ["Geometry", "filter_grad", "forward", "input_grad"]
