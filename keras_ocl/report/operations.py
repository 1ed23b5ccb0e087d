"""Products and convolutions in float32, measured as compiled functions; on GPUs products in 16-bit floats as well, for matrix units."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_ocl.compiler.jit import jit
from keras_ocl.gradient import grad
from keras_ocl.report.timing import rates, timed


@dataclass(frozen=True)
class Operation:
    """One case: a function of two arrays.

    Attributes:
        function: of two Tensors.
        shapes: of the arrays, whose values are random.
        flops: floating-point operations; a multiply-add counts as two.
    """

    function: Callable
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    flops: int
    dtype: str = "float32"


def operations(kind: str, small: bool) -> dict[str, Operation]:
    """The Operations for a device of this kind ("cpu" or "gpu") by name; `small`: of a few elements, for tests."""
    if small:
        return product(4, 5, 6) | convolution("filter gradient", 3, 2, 5, 4, 3) | convolution("input gradient", 3, 2, 5, 4, 3)
    found = product(1024, 1024, 1024) | product(2048, 2048, 2048)
    if kind == "gpu":
        found |= product(4096, 4096, 4096) | product(4096, 4096, 4096, "float16") | product(4096, 4096, 4096, "bfloat16")
    found |= product(128, 784, 512) | product(32, 4096, 4096) | product(1, 4096, 4096)
    for kind_of in ("convolution", "input gradient", "filter gradient"):
        found |= convolution(kind_of, 3, 64, 28, 128, 128)
    return found | convolution("convolution", 3, 128, 32, 32, 32) | convolution("convolution", 1, 64, 56, 64, 256)


def product(m, k, n, dtype="float32"):
    """The product of matrices of m x k and k x n."""
    name = f"product {m} x {k} x {n}" + ("" if dtype == "float32" else f", {dtype}")
    return {name: Operation(ops.matmul, ((m, k), (k, n)), 2 * m * k * n, dtype)}


def convolution(kind, width, batch, size, filters, into):
    """A convolution with padding "same", or one of its gradients: `batch` images of size x size with `filters` channels, `into` so many."""
    x, w, y = (batch, size, size, filters), (width, width, filters, into), (batch, size, size, into)
    function, shapes = {
        "convolution": (lambda x, w: ops.conv(x, w, padding="same"), (x, w)),
        "input gradient": (lambda y, w: _gradient(ops.zeros(x), lambda x: ops.conv(x, w, padding="same"), y), (y, w)),
        "filter gradient": (lambda x, y: _gradient(ops.zeros(w), lambda w: ops.conv(x, w, padding="same"), y), (x, y)),
    }[kind]
    name = f"{kind} {width}x{width}, {batch} of {size} x {size} x {filters} to {into}"
    return {name: Operation(function, shapes, 2 * batch * size**2 * width**2 * filters * into)}


def _gradient(at, function, y):
    return grad(lambda x: ops.sum(function(x) * y))(at)


def measure(device, operation):
    """Times of an Operation, and its operations per second: {"best_ms", "median_ms", "n", "flops_per_s": {"best", "median"}}."""
    rng = np.random.default_rng(0)
    arrays = [ops.cast(ops.convert_to_tensor(rng.standard_normal(shape, "float32")), operation.dtype) for shape in operation.shapes]
    call = jit(operation.function)
    times = timed(lambda: call(*arrays), device.finish)
    return {**times, "flops_per_s": rates(times, operation.flops)}
