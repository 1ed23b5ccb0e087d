"""Convolution and its two gradients over channels-last data: the choice of kernels for a geometry, device and dtype.

forward, input_grad and filter_grad return KernelSpecs to launch in order, [] if the result has no elements.
Operands (`x`, `w`, `dy`) go to Args.pointer; other Buffers among the kernels' arguments are scratch memory that the
caller provides. `sink` receives (n, *spatial, channel) coordinates in the result's
shape (for the filter's gradient: (*taps, input channel of the group, output channel)).
"""

from keras_ocl.core.dim import present
from keras_ocl.kernels.conv import elements
from keras_ocl.kernels.conv.geometry import Geometry
from keras_ocl.kernels.schedule import schedule_of

__all__ = ["Geometry", "filter_grad", "forward", "input_grad"]

DTYPES = ("float32", "float64", "float16", "bfloat16")
_EAGER_FLOPS = 4e6  # flops below which eager work uses shared kernels, whose every extent is an argument


def forward(traits, geometry, x, w, dtype, sink, all_arguments=False, name="convolution"):
    """Kernels of the convolution of x (geometry.input) with w (geometry.filter), in geometry.output's shape."""
    return _convolution(traits, geometry, x, w, dtype, sink, all_arguments, name, transposed=False)


def input_grad(traits, geometry, dy, w, dtype, sink, all_arguments=False, name="convolution input gradient"):
    """Kernels of the gradient in x's shape (geometry.input): dy (geometry.output) convolved with the flipped filter."""
    return _convolution(traits, geometry.transposed(), dy, w, dtype, sink, all_arguments, name, transposed=True)


def filter_grad(traits, geometry, x, dy, dtype, sink, all_arguments=False, name="convolution filter gradient"):
    """Kernels of the gradient in the filter's shape (geometry.filter) from x and dy (geometry.output)."""
    _check(dtype)
    if 0 in geometry.filter:
        return []
    if all_arguments and geometry.flops < _EAGER_FLOPS:
        return elements.filter_grad(geometry, x, dy, dtype, sink, name, all_arguments=True)
    geometry = _literal(geometry) if all_arguments else geometry
    return schedule_of(traits).filter_gradient(traits, geometry, x, dy, dtype, sink, name, all_arguments)


def _convolution(traits, geometry, x, w, dtype, sink, all_arguments, name, transposed):
    _check(dtype)
    if geometry.empty:
        return []
    if all_arguments and geometry.flops < _EAGER_FLOPS:
        return [elements.forward(geometry, x, w, dtype, sink, name, transposed=transposed, all_arguments=True)]
    geometry = _literal(geometry) if all_arguments else geometry
    return schedule_of(traits).convolution(traits, geometry, x, w, dtype, sink, name, all_arguments, transposed)


def _check(dtype):
    if dtype not in DTYPES:
        raise TypeError(f"convolution: dtype {dtype} has no kernel; cast to one of {', '.join(DTYPES)}.")


def _literal(geometry):
    """The geometry with ints for Dims: large eager work gets kernels of its own, with tiles chosen for its extents."""
    shapes = (tuple(present(n) for n in shape) for shape in (geometry.input, geometry.filter, geometry.output))
    return Geometry(*shapes, geometry.strides, geometry.padding, geometry.dilation, geometry.input_dilation, geometry.groups)
