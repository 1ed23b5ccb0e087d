"""Convolution and its two gradients over channels-last data: which kernels a geometry, device and dtype get.

forward, input_grad and filter_grad return KernelSpecs to run in order, [] where the result has no elements.
Operands (`x`, `w`, `dy`) go to Args.pointer; other Buffers among the kernels' arguments are scratch memory that the
caller provides. `sink` receives (n, *spatial, channel) coordinates in the result's
shape (for the filter's gradient: (*taps, input channel of the group, output channel)).
"""

from keras_ocl.core.dim import hint, product
from keras_ocl.kernels.conv import (
    elements,
    few_cpu,
    filter_grad_cpu,
    filter_layout,
    forward_cpu,
    gpu,
    pointwise,
    winograd_cpu,
    winograd_filter_cpu,
)
from keras_ocl.kernels.conv.geometry import Geometry
from keras_ocl.kernels.spec import Buffer

__all__ = ["Geometry", "filter_grad", "forward", "input_grad"]

DTYPES = ("float32", "float64", "float16", "bfloat16")
_EAGER_FLOPS = 4e6  # eager work below this shares kernels whose every extent is an argument
_FEW_CHANNELS = 8  # output channels of a group below which a matrix product's tile would stay empty


def forward(traits, geometry, x, w, dtype, sink, all_arguments=False, name="convolution"):
    """Kernels of the convolution of x (geometry.input) with w (geometry.filter), in geometry.output's shape."""
    _check(dtype)
    if geometry.empty:
        return []
    if _by_element(traits, geometry, all_arguments):
        return [elements.forward(geometry, x, w, dtype, sink, name, all_arguments=all_arguments)]
    geometry = _literal(geometry) if all_arguments else geometry
    plain = pointwise.forward(traits, geometry, x, w, dtype, sink, all_arguments)
    if plain:
        return plain
    if traits.schedule == "gpu":
        return [gpu.forward(traits, geometry, x, w, dtype, sink, name)]
    if few_cpu.suits(traits, geometry, dtype):
        flipped = Buffer(product(geometry.filter), dtype)
        arranged = filter_layout.arrange(geometry, w, flipped, dtype, flipped=True)
        return [arranged, few_cpu.forward(traits, geometry, x, flipped, dtype, sink, name)]
    return _on_cpu(traits, geometry, x, w, dtype, sink, name)


def input_grad(traits, geometry, dy, w, dtype, sink, all_arguments=False, name="convolution input gradient"):
    """Kernels of the gradient in x's shape (geometry.input): dy (geometry.output) convolved with the flipped filter."""
    _check(dtype)
    back = geometry.transposed()
    if back.empty:
        return []
    if _by_element(traits, back, all_arguments):
        return [elements.forward(back, dy, w, dtype, sink, name, transposed=True, all_arguments=all_arguments)]
    if all_arguments:
        geometry, back = _literal(geometry), _literal(back)
    plain = pointwise.forward(traits, back, dy, w, dtype, sink, all_arguments, transposed=True)
    if plain:
        return plain
    if traits.schedule == "gpu":
        return [gpu.forward(traits, back, dy, w, dtype, sink, name, transposed=True)]
    if few_cpu.suits(traits, back, dtype):
        return [few_cpu.forward(traits, back, dy, w, dtype, sink, name)]
    return _on_cpu(traits, back, dy, w, dtype, sink, name, source=geometry)


def filter_grad(traits, geometry, x, dy, dtype, sink, all_arguments=False, name="convolution filter gradient"):
    """Kernels of the gradient in the filter's shape (geometry.filter) from x and dy (geometry.output)."""
    _check(dtype)
    if any(int(e) == 0 for e in geometry.filter):
        return []
    spread = any(d != 1 for d in geometry.input_dilation)
    if _by_element(traits, geometry, all_arguments) or spread and traits.schedule != "gpu":
        return elements.filter_grad(geometry, x, dy, dtype, sink, name, traits.compute_units, all_arguments)
    geometry = _literal(geometry) if all_arguments else geometry
    plain = pointwise.filter_grad(traits, geometry, x, dy, dtype, sink, all_arguments)
    if plain:
        return plain
    if traits.schedule == "gpu":
        return gpu.filter_grad(traits, geometry, x, dy, dtype, sink, name)
    fast = winograd_filter_cpu.filter_grad(traits, geometry, x, dy, dtype, sink, name)
    return fast or filter_grad_cpu.filter_grad(traits, geometry, x, dy, dtype, sink, name)


def _on_cpu(traits, geometry, x, w, dtype, sink, name, source=None):
    """Kernels of a convolution; where it is an input gradient, `source` is the convolution that `w` is the filter of."""
    fast = winograd_cpu.choose_tile(traits, geometry, dtype) is not None
    blocks = None if fast else forward_cpu.filter_blocks(traits, geometry, dtype)
    first = []
    if source is not None or blocks is not None:
        arranged = Buffer(product(geometry.filter), dtype)
        first = [filter_layout.arrange(source or geometry, w, arranged, dtype, source is not None, blocks)]
        w = arranged
    if fast:
        return [*first, *winograd_cpu.forward(traits, geometry, x, w, dtype, sink, name)]
    return [*first, forward_cpu.forward(traits, geometry, x, w, dtype, sink, name, packed=blocks is not None)]


def _check(dtype):
    if dtype not in DTYPES:
        raise TypeError(f"convolution: dtype {dtype} has no kernel; cast to one of {', '.join(DTYPES)}.")


def _by_element(traits, geometry, all_arguments):
    """Whether one item an element serves best: small eager work, and groups of few channels on a GPU."""
    if all_arguments and geometry.flops < _EAGER_FLOPS:
        return True
    return traits.schedule == "gpu" and geometry.groups > 1 and hint(geometry.group_outputs) < _FEW_CHANNELS


def _literal(geometry):
    """The geometry with plain extents: large eager work gets kernels of its own, whose tiles fit it."""
    shapes = (tuple(int(n) for n in shape) for shape in (geometry.input, geometry.filter, geometry.output))
    return Geometry(*shapes, geometry.strides, geometry.padding, geometry.dilation, geometry.input_dilation, geometry.groups)
