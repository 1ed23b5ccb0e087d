"""1x1 convolutions without stride or padding, as matrix products (pixels x input channels) by (input x output channels)."""

from keras_ocl.core.dim import hint
from keras_ocl.kernels import gemm
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.schedule import schedule_of


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


def _pixels(geometry):
    """The Axis of all pixels, None if the convolution is no plain matrix product."""
    axes = conv_geometry.axes(geometry)
    return axes[0] if geometry.groups == 1 and len(axes) == 1 and axes[0].plain else None


def forward(traits, geometry, x, w, dtype, sink, all_arguments, transposed=False):
    """KernelSpecs of the convolution as a product, None if this template does not fit.

    With `transposed`, `geometry` is the transposed one and `w` the filter of the original convolution.
    """
    axis = _pixels(geometry)
    inputs, outputs = geometry.filter[-2:]
    if axis is None or min(hint(inputs), hint(outputs)) < schedule_of(traits).plain_channels:
        return None
    a = gemm.Operand(x, dtype, inputs, 1)
    b = gemm.Operand(w, dtype, 1, inputs) if transposed else gemm.Operand(w, dtype, outputs, 1)
    sink, m = _Pixels(sink, axis), axis.output
    return gemm.plan(traits, batch=None, m=m, n=outputs, k=inputs, a=a, b=b, dtype=dtype, sink=sink, all_arguments=all_arguments)


def filter_grad(traits, geometry, x, dy, dtype, sink, all_arguments):
    """KernelSpecs of the filter's gradient as a product, None if this template does not fit."""
    axis = _pixels(geometry)
    inputs, outputs = geometry.filter[-2:]
    schedule = schedule_of(traits)
    if axis is None or hint(axis.output) > schedule.plain_pixels or min(hint(inputs), hint(outputs)) < schedule.plain_channels:
        return None
    a, b = gemm.Operand(x, dtype, 1, inputs), gemm.Operand(dy, dtype, outputs, 1)
    sink, k = _Filter(sink, geometry.rank), axis.output
    return gemm.plan(traits, batch=None, m=inputs, n=outputs, k=k, a=a, b=b, dtype=dtype, sink=sink, all_arguments=all_arguments)
