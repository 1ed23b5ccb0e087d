"""Products and convolutions in TFLOP/s: `python -m comparisons.throughput [--backends ocl,jax,torch] [--cases product,3x3]`.

Each backend computes the same arrays in a process of its own, in true float32 (no TF32); JAX and PyTorch are asked directly, so that
what Keras adds to them does not count, and PyTorch's convolutions are timed in both of its memory layouts, of which the better counts.
A figure is the best of five runs of several calls each, whose results nobody reads.
"""

import argparse
import json
import subprocess
import sys

import numpy as np

from comparisons import frameworks


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
            cases |= convolution(kind, 3, batch, size, channels, channels)
    for size, filters, into in ((56, 64, 256), (14, 1024, 256)):
        cases |= convolution("convolution", 1, 64, size, filters, into)
    return cases


def convolution(kind, width, batch, size, filters, into):
    """The case of one convolution or gradient: so many images of size x size with `filters` channels, `into` so many."""
    x, w, y = (batch, size, size, filters), (width, width, filters, into), (batch, size, size, into)
    shapes = {"convolution": (x, w), "input gradient": (y, w), "filter gradient": (x, y)}[kind]
    name = f"{kind} {width}x{width}, {batch} of {size} x {size} x {filters} to {into}"
    return {name: (kind, shapes, 2 * batch * size**2 * width**2 * filters * into)}


CASES = products() | convolutions()


def measure(backend, names):
    """Prints a JSON line of each case: its name, and seconds or the error."""
    rng = np.random.default_rng(0)
    for name in names:
        kind, shapes, _ = CASES[name]
        a, b = (rng.standard_normal(shape, "float32") for shape in shapes)
        try:
            result, *_ = frameworks.measure(backend, kind, (a, b), "float32")
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
    from rich.console import Console
    from rich.table import Table

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
