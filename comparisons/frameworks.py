"""Products, convolutions and attention in each framework, timed: this package, JAX and PyTorch, asked directly and not through Keras.

A precision is "float32" (true float32), "tf32", "default" (what the framework does with float32 unless told otherwise), "float16",
"bfloat16", or of this package's products "bf16x6": float32 by six products of bfloat16 terms wherever a unit can do them.
"""

import contextlib
import dataclasses
import importlib.util
import os
import time

import numpy as np

LEAST = 0.03  # seconds of a run
MOST = 3  # seconds of all runs of a case, after the first
RUNS = 5
PACKAGES = {"ocl": "keras_ocl", "jax": "jax", "torch": "torch"}  # backend -> its package
FAVOURED = 4  # times their stated rate that units for bfloat16 get with "bf16x6", so that the estimate of kernels' times prefers them


def seconds(call, wait):
    """The best time of a call; `wait(result)` returns when it is there."""
    for _ in range(2):  # compiles, and chooses an algorithm
        wait(call())
    began = time.perf_counter()
    wait(call())
    once = time.perf_counter() - began
    times, runs, left = max(1, int(LEAST / once)), [], MOST
    for _ in range(RUNS):
        began = time.perf_counter()
        for _ in range(times):
            result = call()
        wait(result)
        took = time.perf_counter() - began
        runs.append(took / times)
        left -= took
        if left < took:
            break
    return min(runs)


def dtype_of(precision):
    """The dtype of the operands."""
    return precision if precision in ("float16", "bfloat16") else "float32"


def missing(backend):
    """That a framework is not installed, as a clause; "" where it is."""
    return "" if importlib.util.find_spec(PACKAGES[backend]) else f"{PACKAGES[backend]} is not installed"


def unavailable(backend, kind):
    """Why a framework cannot be measured beside a device of this kind ("gpu" or "cpu"), "" where it can; imports it."""
    if why := missing(backend):
        return why
    package = importlib.import_module(PACKAGES[backend])
    if backend == "ocl" or kind == "cpu":
        return ""
    sees = package.cuda.is_available() if backend == "torch" else package.default_backend() != "cpu"
    return "" if sees else f"{PACKAGES[backend]} {package.__version__} sees no GPU"


@contextlib.contextmanager
def precise(backend, precision):
    """Context in which a framework computes products and convolutions of float32 so; what is no float32 precision leaves its default."""
    if backend == "jax":
        import jax

        names = {"float32": "highest", "tf32": "tensorfloat32"}
        jax.config.update("jax_default_matmul_precision", names.get(precision))
        yield
    elif backend == "torch":
        import torch

        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision != "float32"  # both as PyTorch has them unless told otherwise
        yield
    else:
        import keras_ocl
        from keras_ocl import runtime

        device = runtime.current_device()
        traits = device.traits
        if precision == "bf16x6":
            device.traits = _favoured(traits)
        try:
            with keras_ocl.precision("tf32" if precision == "tf32" else "float32"):
                yield
        finally:
            device.traits = traits


def _favoured(traits):
    """The traits of a device whose units for bfloat16 are faster than they are."""
    from keras_ocl.kernels.matrix.units import named

    units = zip(traits.matrix_units, traits.matrix_rates, strict=True)
    rates = tuple(FAVOURED * rate if "bfloat16" in named(unit).dtypes else rate for unit, rate in units)
    return dataclasses.replace(traits, matrix_rates=rates)


def measure(backend, kind, arrays, precision):
    """Times one operation.

    Args:
        kind: see throughput.CASES; also "attention" of (query, key, value), each (batch, length, heads, size), and "attention gradient" of
            these and the gradient of the result.
        arrays: the operands, float32 NumPy arrays of values that the precision's dtype has.

    Returns:
        (seconds, results as float32 NumPy arrays in this package's layout, a dict of what else is known): of this package "units", the
        share of the kernels' time in which matrix units multiply.
    """
    if backend == "ocl":
        os.environ["KERAS_BACKEND"] = "ocl"
    with precise(backend, precision):
        return {"ocl": _ocl, "jax": _jax, "torch": _torch}[backend](kind, arrays, dtype_of(precision))


def _zeros(zeros, kind, a, b):
    """What a gradient is taken at: no value of it counts."""
    width = 3
    shape = (*a.shape[:-1], b.shape[2]) if kind == "input gradient" else (width, width, a.shape[-1], b.shape[-1])
    return zeros(shape, dtype=a.dtype)


# ---- this package


def _ocl(kind, arrays, dtype):
    from keras import ops

    import keras_ocl
    from keras_ocl import runtime

    def attention_gradient(q, k, v, y):
        return keras_ocl.grad(lambda q, k, v: ops.sum(ops.dot_product_attention(q, k, v) * y), (0, 1, 2))(q, k, v)

    def input_gradient(y, w):
        return keras_ocl.grad(lambda x: ops.sum(ops.conv(x, w, padding="same") * y))(_zeros(ops.zeros, kind, y, w))

    def filter_gradient(x, y):
        return keras_ocl.grad(lambda w: ops.sum(ops.conv(x, w, padding="same") * y))(_zeros(ops.zeros, kind, x, y))

    functions = {
        "product": ops.matmul,
        "product of transposed": lambda a, b: ops.matmul(ops.swapaxes(a, -1, -2), b),
        "product with transposed": lambda a, b: ops.matmul(a, ops.swapaxes(b, -1, -2)),
        "convolution": lambda x, w: ops.conv(x, w, padding="same"),
        "input gradient": input_gradient,
        "filter gradient": filter_gradient,
        "attention": ops.dot_product_attention,
        "attention gradient": attention_gradient,
    }
    device, call = runtime.current_device(), keras_ocl.jit(functions[kind])
    tensors = [ops.cast(ops.convert_to_tensor(array), dtype) for array in arrays]
    best = seconds(lambda: call(*tensors), lambda result: device.finish())
    with keras_ocl.profile() as profile:
        results = call(*tensors)
        device.finish()
    units = profile.matrix_unit_ms / profile.milliseconds if profile.milliseconds else 0.0
    results = results if isinstance(results, (tuple, list)) else (results,)
    return best, [ops.convert_to_numpy(ops.cast(result, "float32")) for result in results], {"units": units}


# ---- JAX


def _jax(kind, arrays, dtype):
    import jax
    from jax import numpy as jnp

    def convolution(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def attention(by):
        return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, implementation=by)

    functions = {
        "product": [jnp.matmul],
        "product of transposed": [lambda a, b: jnp.matmul(a.swapaxes(-1, -2), b)],
        "product with transposed": [lambda a, b: jnp.matmul(a, b.swapaxes(-1, -2))],
        "convolution": [convolution],
        "input gradient": [lambda y, w: jax.vjp(lambda x: convolution(x, w), _zeros(jnp.zeros, kind, y, w))[1](y)[0]],
        "filter gradient": [lambda x, y: jax.vjp(lambda w: convolution(x, w), _zeros(jnp.zeros, kind, x, y))[1](y)[0]],
        "attention": [attention("xla"), attention("cudnn")],
        "attention gradient": [lambda q, k, v, y, by=by: jax.vjp(attention(by), q, k, v)[1](y) for by in ("xla", "cudnn")],
    }
    operands, found = [jnp.asarray(array).astype(dtype) for array in arrays], []
    for function in functions[kind]:
        call = jax.jit(function)
        try:
            found.append((seconds(lambda call=call: call(*operands), jax.block_until_ready), call))
        except Exception:  # cuDNN has no attention for every dtype and device
            if not found:
                raise
    best, call = min(found, key=lambda entry: entry[0])
    results = call(*operands)
    results = results if isinstance(results, (tuple, list)) else (results,)
    return best, [np.asarray(result.astype("float32")) for result in results], {}


# ---- PyTorch


def _torch(kind, arrays, dtype):
    import torch

    torch.backends.cudnn.benchmark = True
    cuda = torch.cuda.is_available()

    def wait(result):
        if cuda:
            torch.cuda.synchronize()

    def tensor(array):
        return torch.from_numpy(np.ascontiguousarray(array)).to("cuda" if cuda else "cpu").to(getattr(torch, dtype))

    with torch.no_grad():
        calls, back = _torch_calls(kind, arrays, tensor)
        timed = [(seconds(call, wait), call) for call in calls]
        best, call = min(timed, key=lambda entry: entry[0])
        results = call()
        results = results if isinstance(results, (tuple, list)) else (results,)
        return best, [np.ascontiguousarray(result.float().cpu().numpy().transpose(back)) for result in results], {}


def _torch_calls(kind, arrays, tensor):
    """(functions of no argument that compute the same, the axes by which their results become this package's layout)."""
    import torch
    from torch.nn import grad
    from torch.nn.functional import conv2d, scaled_dot_product_attention

    if kind.startswith("attention"):
        q, k, v, *y = (tensor(array.transpose(0, 2, 1, 3)) for array in arrays)

        def gradient():
            operands = [x.detach().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad():
                return torch.autograd.grad(scaled_dot_product_attention(*operands), operands, *y)

        return [gradient if y else lambda: scaled_dot_product_attention(q, k, v)], (0, 2, 1, 3)
    if kind.startswith("product"):
        a, b = map(tensor, arrays)
        a = a.mT if kind == "product of transposed" else a
        b = b.mT if kind == "product with transposed" else b
        return [lambda: a @ b], tuple(range(a.ndim))
    width = 3 if kind == "filter gradient" else arrays[1].shape[0]

    def convolution(layout):
        images, filters = (0, 3, 1, 2), (3, 2, 0, 1)
        orders = {"convolution": (images, filters), "input gradient": (images, filters), "filter gradient": (images, images)}[kind]
        a, b = (tensor(array.transpose(order)).to(memory_format=layout) for array, order in zip(arrays, orders, strict=True))
        if kind == "filter gradient":
            return lambda: grad.conv2d_weight(a, (b.shape[1], a.shape[1], width, width), b, padding=width // 2)
        if kind == "input gradient":
            return lambda: grad.conv2d_input((a.shape[0], b.shape[1], *a.shape[2:]), b, a, padding=width // 2)
        return lambda: conv2d(a, b, padding="same")

    back = (2, 3, 1, 0) if kind == "filter gradient" else (0, 2, 3, 1)
    return [convolution(layout) for layout in (torch.contiguous_format, torch.channels_last)], back
