"""Products and convolutions in TFLOP/s: `python -m comparisons.throughput [--backends ocl,jax,torch] [--cases product,3x3]`.

Each backend computes the same arrays in a process of its own, in true float32 (no TF32); JAX and PyTorch are asked directly, so that
what Keras adds to them does not count, and PyTorch's convolutions are timed in both of its memory layouts, of which the better counts.
A figure is the best of five runs of several calls each, whose results nobody reads.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

LEAST = 0.03  # seconds of a run


def products():
    """{case: (kind, shapes of both operands, operations)} of products."""
    shapes = [(n, n, n) for n in (1024, 2048, 4096, 8192)] + [(128, 784, 512), (32, 4096, 4096), (1, 4096, 4096)]
    cases = {f"product {m} x {k} x {n}": ("product", ((m, k), (k, n)), 2 * m * k * n) for m, k, n in shapes}
    n = 2048
    cases[f"product {n} transposed x {n}"] = ("product of transposed", ((n, n), (n, n)), 2 * n**3)
    cases[f"product {n} x {n} transposed"] = ("product with transposed", ((n, n), (n, n)), 2 * n**3)
    cases["product, 96 of 512 x 64 x 512"] = ("product", ((96, 512, 64), (96, 64, 512)), 2 * 96 * 512 * 64 * 512)
    return cases


def convolutions():
    """The same of convolutions with padding "same", and of their gradients."""
    cases = {}
    for batch, size, channels in ((128, 32, 32), (100, 32, 96), (64, 56, 64), (64, 28, 128), (64, 14, 256)):
        for kind in ("convolution", "input gradient", "filter gradient"):
            cases |= _convolution(kind, 3, batch, size, channels, channels)
    for size, filters, into in ((56, 64, 256), (14, 1024, 256)):
        cases |= _convolution("convolution", 1, 64, size, filters, into)
    return cases


def _convolution(kind, width, batch, size, filters, into):
    x, w, y = (batch, size, size, filters), (width, width, filters, into), (batch, size, size, into)
    shapes = {"convolution": (x, w), "input gradient": (y, w), "filter gradient": (x, y)}[kind]
    name = f"{kind} {width}x{width}, {batch} of {size} x {size} x {filters} to {into}"
    return {name: (kind, shapes, 2 * batch * size**2 * width**2 * filters * into)}


CASES = products() | convolutions()


def seconds(call, wait):
    """The best time of a call; `wait(result)` returns when it is there."""
    for _ in range(2):  # compiles, and chooses an algorithm
        wait(call())
    begin = time.perf_counter()
    wait(call())
    times = max(1, int(LEAST / (time.perf_counter() - begin)))
    runs = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            result = call()
        wait(result)
        runs.append((time.perf_counter() - begin) / times)
    return min(runs)


def ocl(kind, a, b):
    """Seconds of a case on this package's device."""
    os.environ["KERAS_BACKEND"] = "ocl"
    from keras import ops

    import keras_ocl
    from keras_ocl import runtime

    functions = {
        "product": ops.matmul,
        "product of transposed": lambda a, b: ops.matmul(ops.swapaxes(a, -1, -2), b),
        "product with transposed": lambda a, b: ops.matmul(a, ops.swapaxes(b, -1, -2)),
        "convolution": lambda x, w: ops.conv(x, w, padding="same"),
        "input gradient": lambda y, w: keras_ocl.grad(lambda x: ops.sum(ops.conv(x, w, padding="same") * y))(_zeros(ops, kind, y, w)),
        "filter gradient": lambda x, y: keras_ocl.grad(lambda w: ops.sum(ops.conv(x, w, padding="same") * y))(_zeros(ops, kind, x, y)),
    }
    call = keras_ocl.jit(functions[kind])
    a, b = ops.convert_to_tensor(a), ops.convert_to_tensor(b)
    return seconds(lambda: call(a, b), lambda result: runtime.current_device().finish())


def _zeros(ops, kind, a, b):
    """What a gradient is taken at: no value of it counts."""
    width = 3
    shape = (*a.shape[:-1], b.shape[2]) if kind == "input gradient" else (width, width, a.shape[-1], b.shape[-1])
    return ops.zeros(shape)


def jax(kind, a, b):
    """Seconds of a case with JAX."""
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")

    def convolution(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    functions = {
        "product": jnp.matmul,
        "product of transposed": lambda a, b: jnp.matmul(a.swapaxes(-1, -2), b),
        "product with transposed": lambda a, b: jnp.matmul(a, b.swapaxes(-1, -2)),
        "convolution": convolution,
        "input gradient": lambda y, w: jax.vjp(lambda x: convolution(x, w), _zeros(jnp, kind, y, w))[1](y)[0],
        "filter gradient": lambda x, y: jax.vjp(lambda w: convolution(x, w), _zeros(jnp, kind, x, y))[1](y)[0],
    }
    call = jax.jit(functions[kind])
    a, b = jnp.asarray(a), jnp.asarray(b)
    return seconds(lambda: call(a, b), lambda result: result.block_until_ready())


def torch(kind, a, b):
    """Seconds of a case with PyTorch, of convolutions in the faster of its layouts."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"

    def wait(result):
        if cuda:
            torch.cuda.synchronize()

    def image(x, layout):
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).to(device).to(memory_format=layout)

    def filters(w, layout):
        return torch.from_numpy(np.ascontiguousarray(w.transpose(3, 2, 0, 1))).to(device).to(memory_format=layout)

    from torch.nn import grad
    from torch.nn.functional import conv2d

    def convolution(layout):
        if kind == "filter gradient":
            x, y = image(a, layout), image(b, layout)
            shape = (y.shape[1], x.shape[1], 3, 3)
            return lambda: grad.conv2d_weight(x, shape, y, padding=1)
        x, w = image(a, layout), filters(b, layout)
        if kind == "input gradient":
            shape = (x.shape[0], w.shape[1], *x.shape[2:])
            return lambda: grad.conv2d_input(shape, w, x, padding=1)
        return lambda: conv2d(x, w, padding="same")

    with torch.no_grad():
        if not kind.startswith("product"):
            return min(seconds(convolution(layout), wait) for layout in (torch.contiguous_format, torch.channels_last))
        a, b = torch.from_numpy(a).to(device), torch.from_numpy(b).to(device)
        a = a.mT if kind == "product of transposed" else a
        b = b.mT if kind == "product with transposed" else b
        return seconds(lambda: a @ b, wait)


BACKENDS = {"ocl": ocl, "jax": jax, "torch": torch}


def measure(backend, names):
    """Prints a JSON line of each case: its name, and seconds or the error."""
    rng = np.random.default_rng(0)
    for name in names:
        kind, shapes, _ = CASES[name]
        a, b = (rng.standard_normal(shape, "float32") for shape in shapes)
        try:
            result = BACKENDS[backend](kind, a, b)
        except Exception as error:  # the others are measured all the same
            result = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps([name, result]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="ocl,jax,torch")
    parser.add_argument("--cases", default="", help="parts of cases' names, with commas between")
    parser.add_argument("--json", help="also write the seconds here")
    parser.add_argument("--measure", metavar="BACKEND", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = options.cases.split(",")
    names = [name for name in CASES if any(part in name for part in wanted)]
    if options.measure:
        measure(options.measure, names)
        return
    backends = options.backends.split(",")
    results = {backend: _measured_apart(backend, options.cases) for backend in backends}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    table = Table("case", *(f"{b} TFLOP/s" for b in backends), *(f"of {b}'s" for b in backends[1:]))
    for name in names:
        found = [results[b].get(name, "ended") for b in backends]
        rates = [CASES[name][2] / s / 1e12 if isinstance(s, float) else s for s in found]
        cells = [f"{rate:.3g}" if isinstance(rate, float) else rate for rate in rates]
        shares = [f"{rates[0] / r:.0%}" if isinstance(r, float) and isinstance(rates[0], float) else "" for r in rates[1:]]
        table.add_row(name, *cells, *shares)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _measured_apart(backend, cases):
    """{case: seconds or an error} of a backend, in a process of its own."""
    command = [sys.executable, "-m", "comparisons.throughput", "--measure", backend, "--cases", cases]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
    return dict(json.loads(line) for line in lines if line.startswith("["))


if __name__ == "__main__":
    main()
