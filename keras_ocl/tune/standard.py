"""The standard set of problems, for `tune --all`: those of comparisons/throughput.py, and dense layers with their gradients."""

from keras_ocl.core.dim import Dim
from keras_ocl.kernels import conv, gemm
from keras_ocl.kernels.overrides import asked
from keras_ocl.kernels.spec import Buffer, Sink
from keras_ocl.tune.problem import measurable

# (m, k, n) of products of row-major matrices
_PRODUCTS = (*((n, n, n) for n in (1024, 2048, 4096, 8192)), (128, 784, 512), (32, 4096, 4096), (1, 4096, 4096))
# (batch, size, channels) of 3x3 convolutions with padding "same", with both gradients
_CONVOLUTIONS = ((128, 32, 32), (100, 32, 96), (64, 56, 64), (64, 28, 128), (64, 14, 256))
# (batch, size, input channels, output channels) of 1x1 convolutions
_POINTWISE = ((64, 56, 64, 256), (64, 14, 1024, 256))
# (rows, inputs, outputs) of dense layers in a training step, where the number of rows varies with the batch
_LAYERS = ((128, 784, 512), (128, 512, 512), (4096, 512, 2048), (4096, 2048, 512))


def problems(traits):
    """The Problems of the standard set that kernels for a device of these traits ask a tile for, the largest first."""
    with asked() as seen:
        for m, k, n in _PRODUCTS:
            _product(traits, m, n, k, (k, 1), (n, 1))
        _product(traits, 2048, 2048, 2048, (1, 2048), (2048, 1))
        _product(traits, 2048, 2048, 2048, (2048, 1), (1, 2048))
        _product(traits, 512, 512, 64, (64, 1), (512, 1), 96)
        for batch, size, channels in _CONVOLUTIONS:
            x = (batch, size, size, channels)
            problem = _convolution(traits, conv.Geometry.of(x, (3, 3, channels, channels), padding=1))
            conv.forward(problem)
            conv.input_grad(problem)
            conv.filter_grad(problem)
        for batch, size, inputs, outputs in _POINTWISE:
            conv.forward(_convolution(traits, conv.Geometry.of((batch, size, size, inputs), (1, 1, inputs, outputs))))
        for number, inputs, outputs in _LAYERS:
            rows = Dim(number)
            _product(traits, rows, outputs, inputs, (inputs, 1), (outputs, 1))
            _product(traits, rows, inputs, outputs, (outputs, 1), (1, outputs))  # the gradient of its inputs
            _product(traits, inputs, outputs, rows, (1, inputs), (outputs, 1))  # that of its weights
    return measurable(seen.problems)[0]


def _product(traits, m, n, k, left, right, batch=None):
    """Write the kernels of a product whose operands have these strides."""
    a, b = (
        gemm.Operand(Buffer(0, "float32"), "float32", *strides, 0 if batch is None else size)
        for strides, size in ((left, m * k), (right, k * n))
    )
    shape = (m, n) if batch is None else (batch, m, n)
    gemm.plan(traits, batch=batch, m=m, n=n, k=k, a=a, b=b, dtype="float32", sink=Sink(Buffer(0, "float32"), shape, "float32"))


def _convolution(traits, geometry):
    """A convolution's problem; the coordinates that sinks get have the rank of input, output and filter alike."""
    operands = {name: Buffer(0, "float32") for name in ("x", "w", "dy")}
    return conv.Problem(traits, geometry, "float32", Sink(Buffer(0, "float32"), geometry.output, "float32"), **operands)
