"""1x1 convolutions without stride or padding, as matrix products (pixels x input channels) by (input x output channels)."""

from keras_ocl.core.dim import hint
from keras_ocl.kernels import gemm
from keras_ocl.kernels.conv import geometry as conv_geometry


class _Pixels:
    """Adapts a sink of coordinates (n, *spatial, channel) to a product's (pixel, channel)."""

    def __init__(self, sink, axis):
        self._sink, self._axis, self.uniform = sink, axis, sink.uniform

    @property
    def helpers(self):
        return self._sink.helpers

    def store(self, args, coordinates, value, width):
        row, channel = coordinates
        return self._sink.store(args, [*conv_geometry.part_coordinates(self._axis, f"({row})", args), channel], value, width)


class _Filter:
    """Adapts a sink of coordinates (*taps, input channel, output channel) to a product's (input channel, output channel)."""

    def __init__(self, sink, rank):
        self._sink, self._rank, self.uniform = sink, rank, sink.uniform

    @property
    def helpers(self):
        return self._sink.helpers

    def store(self, args, coordinates, value, width):
        return self._sink.store(args, ["0"] * self._rank + list(coordinates), value, width)


def _pixels(problem):
    """The Axis of all pixels, None if the convolution is no plain matrix product, or has few channels."""
    axes, few = problem.merged_axes, min(map(hint, problem.geometry.filter[-2:])) < problem.schedule.plain_channels
    return axes[0] if problem.geometry.groups == 1 and len(axes) == 1 and axes[0].plain and not few else None


def suits(problem):
    """Whether this template computes the convolution."""
    return _pixels(problem) is not None


def forward(problem):
    """KernelSpecs of the convolution as a product, None if this template does not fit."""
    axis = _pixels(problem)
    if axis is None:
        return None
    inputs, outputs = problem.geometry.filter[-2:]
    a = gemm.Operand(problem.x, problem.dtype, inputs, 1, source=problem.sources.get("x"))
    b = gemm.Operand(problem.w, problem.dtype, *((1, inputs) if problem.transposed else (outputs, 1)), source=problem.sources.get("w"))
    return _product(problem, axis.output, outputs, inputs, a, b, _Pixels(problem.sink, axis))


def suits_gradient(problem):
    """Whether this template computes the filter's gradient."""
    axis = _pixels(problem)
    return axis is not None and hint(axis.output) <= problem.schedule.plain_pixels


def filter_grad(problem):
    """KernelSpecs of the filter's gradient as a product, None if this template does not fit."""
    if not suits_gradient(problem):
        return None
    axis = _pixels(problem)
    inputs, outputs = problem.geometry.filter[-2:]
    a = gemm.Operand(problem.x, problem.dtype, 1, inputs, source=problem.sources.get("x"))
    b = gemm.Operand(problem.dy, problem.dtype, outputs, 1, source=problem.sources.get("dy"))
    return _product(problem, inputs, outputs, axis.output, a, b, _Filter(problem.sink, problem.geometry.rank))


def _product(problem, m, n, k, a, b, sink):
    p = problem
    further = dict(all_arguments=p.all_arguments, precision=p.precision)
    return gemm.plan(p.traits, batch=None, m=m, n=n, k=k, a=a, b=b, dtype=p.dtype, sink=sink, **further)
