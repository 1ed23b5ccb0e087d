"""What `python -m comparisons.gpu` measures: its stages, their cases in the order of their worth, and how its minutes are divided."""

import itertools
from typing import NamedTuple

from comparisons import throughput

BACKENDS = ("ocl", "torch", "jax")
STAGES = ("driver", "products", "operations", "fit", "tests")  # in the order of their worth
WEIGHTS = {"driver": 1, "products": 4, "operations": 4, "fit": 9, "tests": 4}  # shares of the time that is left
BACKEND_WEIGHTS = {
    "products": {"ocl": 3, "torch": 2, "jax": 2},
    "operations": {"ocl": 4, "torch": 3, "jax": 3},
    "fit": {"ocl": 5, "jax": 5, "torch": 2},  # in this order: the marks are of the first two
}
CASE_SECONDS = 60  # a case that takes longer has hung

# precisions in the order of their worth
PRECISIONS = {
    "products": {
        "ocl": ("bfloat16", "float16", "tf32", "float32", "bf16x6"),
        "torch": ("bfloat16", "float16", "tf32", "float32", "default"),
        "jax": ("bfloat16", "float16", "default", "float32"),
    },
    "attention": dict.fromkeys(BACKENDS, ("bfloat16", "float16")),
    "convolutions": {
        "ocl": ("bfloat16", "float16", "tf32", "float32"),
        "torch": ("bfloat16", "float16", "tf32", "float32"),
        "jax": ("bfloat16", "float16", "default", "float32"),
    },
    "fit": {
        "ocl": ("mixed_bfloat16", "float32", "tf32"),
        "jax": ("mixed_bfloat16", "default", "float32"),
        "torch": ("mixed_bfloat16", "default", "float32"),
    },
}
# Largest errors (comparisons.references) of results that are right: those of rounding the operands or results, and some room.
ERRORS = {"float32": 1e-5, "bf16x6": 1e-5, "tf32": 2e-3, "default": 2e-3, "float16": 5e-3, "bfloat16": 2e-2}
LOSS = 0.05  # relative difference of a training's loss from that in float32 by which it counts as the same

TESTS = tuple(f"tests/{part}" for part in ("kernels/matrix", "kernels/gemm", "kernels/attention", "kernels/conv", "ops/nn"))
SHORT_TESTS = ("tests/kernels/matrix/test_probe.py", "tests/kernels/test_indent.py")


class Operation(NamedTuple):
    """A kind of frameworks.measure with the shapes of its operands, its floating-point operations, and its row of PRECISIONS."""

    kind: str
    shapes: tuple
    flops: int
    group: str


def operations(stage, short=False):
    """{name: Operation} of the stage "products" or "operations"."""
    if stage == "products":
        sizes = (96,) if short else (4096, 8192, 2048, 1024)
        return {f"product {n:,} cubed": Operation("product", ((n, n), (n, n)), 2 * n**3, "products") for n in sizes}
    return _attention(*((1, 2, 64, 16) if short else (8, 16, 2048, 64))) | _convolutions(short)


def _attention(batch, heads, length, size):
    shape, forward = (batch, length, heads, size), 4 * batch * heads * length**2 * size
    name = f"{batch} x {heads} heads, {length:,} x {size}"
    return {
        f"attention, {name}": Operation("attention", (shape,) * 3, forward, "attention"),
        f"attention with gradient, {name}": Operation("attention gradient", (shape,) * 4, 7 * forward // 2, "attention"),
    }


def _convolutions(short):
    shapes = [(2, 6, 4)] if short else [(128, 56, 64), (128, 14, 256)]
    found = {}
    for (batch, size, channels), kind in itertools.product(shapes, ("convolution", "input gradient", "filter gradient")):
        cases = throughput.convolution(kind, 3, batch, size, channels, channels)
        found |= {name: Operation(*case, "convolutions") for name, case in cases.items()}
    return found


def cases(stage, backend, short=False):
    """[(name, precision)] of a stage, the best first: those of the marks (comparisons.gpu_report) before others."""
    if stage == "fit":
        from comparisons.gpu_networks import names

        first, *others = PRECISIONS["fit"][backend]
        if backend == "ocl":  # the marks compare two of its precisions
            return [(name, p) for name in names(short) for p in (first, others[0])] + [(name, others[1]) for name in names(short)]
        return [(name, p) for p in (first, *others) for name in names(short)]
    found = operations(stage, short).items()
    return [(name, precision) for name, o in found for precision in PRECISIONS[o.group][backend]]


def portion(left, weights, name):
    """The part of `left` seconds that `name` may take: its weight among itself and those behind it in `weights`."""
    behind = list(weights)[list(weights).index(name) :]
    return left * weights[name] / sum(weights[other] for other in behind)
