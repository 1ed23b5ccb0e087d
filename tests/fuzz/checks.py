"""What must hold of every program: the same results eager, compiled, compiled with other kernels, as NumPy's; gradients as differences."""

import contextlib
import dataclasses
import random

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.fuse import kept, placing
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.launch import lower
from keras_ocl.core.primitive import Kind
from keras_ocl.gradient import value_and_grad

EPSILON = {"float16": 1e-3, "float32": 1.2e-7, "float64": 2.3e-16, "bfloat16": 8e-3}
JOINING = ("concatenate", "stack", "tile", "pad")  # operations that become concatenations
KEEP = ("all", "least")  # what steps keep for their gradients, besides what a device's own traits say
_GREATEST = {"float16": 6e4}
_RUNS = 12  # of the reference with noise: one that stays on one side of a jump by chance does so once in thousands of elements


def tolerances(program, arrays):
    """(results in float64, how far each element may be off): what rounding errors of a few units per step make of the reference.

    As in J. Vignes, "A stochastic arithmetic for reliable scientific computation" (1993), with the noise made by hand. Elements
    that noise can make jump (a floor, a comparison) may be anything between. NaN and infinities must be where
    they are, unless noise moves them.
    """
    if program.dtype == "int32":
        want = program.reference(arrays)
        return want, [np.zeros_like(w) for w in want]
    want, epsilon = program.reference(arrays), EPSILON[program.dtype]
    spread = [np.zeros_like(w) for w in want]
    for k in range(_RUNS):
        noisy = program.reference([a * (1 + epsilon) for a in arrays], 8 * epsilon, np.random.default_rng(k))
        spread = [np.maximum(s, _apart(n, w)) for s, n, w in zip(spread, noisy, want, strict=True)]
    return want, [8 * s + 16 * epsilon * _greatest(w) for s, w in zip(spread, want, strict=True)]


def _apart(a, b):
    """How far elements are apart: those that are alike in not being finite 0, otherwise infinitely."""
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        return np.where(alike, 0.0, np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b), np.inf))


def _greatest(a):
    return max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0)))


def compare(what, got, want, tolerance, limit=np.inf):
    """AssertionError where an element of `got` is off by more than its tolerance; elements beyond `limit` may be infinite."""
    for k, (g, w, t) in enumerate(zip(got, want, tolerance, strict=True)):
        g = np.asarray(g).astype(float)
        assert g.shape == w.shape, f"{what}: result {k} has shape {g.shape}, not {w.shape}"
        off = ~(_apart(g, w) <= t) & ~((np.abs(w) >= limit) & np.isfinite(w))
        if off.any():
            at = tuple(int(i[0]) for i in np.nonzero(off)) if g.ndim else ()
            raise AssertionError(f"{what}: result {k} has {off.sum()} wrong elements; at {at} {g[at]}, not {w[at]} +- {t[at]:.2g}")


@contextlib.contextmanager
def fusion_cut(seed):
    """Compiles with random nodes in kernels of their own."""
    original, rng = lower.partition, random.Random(seed)

    def partition(graph, traits, together=None, **more):
        fit = [n for n in graph.live() if n.primitive is not None and n.results is None and n.kind in (Kind.ELEMENTWISE, Kind.REDUCTION)]
        return original(graph, traits, together, {n for n in fit if rng.random() < 0.5}, **more)

    lower.partition = partition
    try:
        yield
    finally:
        lower.partition = original


@contextlib.contextmanager
def keeping(way):
    """Compiles with Traits.keep = `way`; then small values, as those of random programs, may be computed again too."""
    device = runtime.current_device()
    before, device.traits = device.traits, dataclasses.replace(device.traits, keep=way)
    few, kept._FEW = kept._FEW, 1
    try:
        yield
    finally:
        device.traits, kept._FEW = before, few


@contextlib.contextmanager
def placing_all():
    """Compiles such that operands of concatenations are stored in place however small they are."""
    least, pays = placing.RUN, placing.pays
    placing.RUN, placing.pays = 0, lambda *_: True
    try:
        yield
    finally:
        placing.RUN, placing.pays = least, pays


def check_results(program):
    """Eager, compiled, compiled for any batch, with operands placed, and with fusion cut at random."""
    limit = _GREATEST.get(program.dtype, np.inf)

    def check(what, function, batch=program.batches[0]):
        arrays = program.arrays(batch)
        want, tolerance = tolerances(program, arrays)
        got = [to_numpy(r) for r in function(*(from_numpy(a.astype(program.dtype)) for a in arrays))]
        compare(what, got, want, tolerance, limit)

    check("eager", program)
    compiled = Jitted(program.__call__)
    for batch in program.batches:
        check(f"compiled, with {batch}", compiled, batch)
    with fusion_cut(program.seed), placing_all():
        check("compiled with fusion cut", Jitted(program.__call__))
    any_batch = Jitted(program.__call__, dynamic=(0,))
    for batch in program.batches:
        check(f"compiled for any batch, with {batch}", any_batch, batch)
    if any(name in JOINING for name, *_ in program.steps):
        with placing_all():
            check("compiled with operands placed", Jitted(program.__call__))
            placed = Jitted(program.__call__, dynamic=(0,))
            for batch in program.batches:
                check(f"compiled with operands placed for any batch, with {batch}", placed, batch)


def check_gradient(program):
    """The derivative in a random direction of a random sum of the results, against differences in float64.

    By a tape and compiled, with each way of keeping what the gradient reads.
    """
    if program.dtype == "int32" or program.odd:
        return
    arrays, rng = program.arrays(), np.random.default_rng(program.seed + 1)
    directions = [rng.standard_normal(a.shape) for a in arrays]
    weights = [rng.standard_normal(r.shape) for r in program.reference(arrays)]

    def total(at):
        return sum(float((w * r).sum()) for w, r in zip(weights, program.reference(at), strict=True))

    def moved(step):
        return total([a + step * d for a, d in zip(arrays, directions, strict=True)])

    def slope(step):
        return (moved(step) - moved(-step)) / (2 * step)

    slopes, scale = [slope(step) for step in (1e-4, 1e-5, 1e-6)], _scale(program, arrays, weights)
    if not np.isfinite(slopes).all() or np.ptp(slopes) > 1e-4 * scale:
        return  # near a kink or a jump
    tensors = [from_numpy(a.astype(program.dtype)) for a in arrays]
    scalar = program.dtype
    factors = [from_numpy(w.astype(scalar)) for w in weights]

    def loss(*inputs):
        parts = [(w * r).sum() if hasattr(r, "sum") else w * r for w, r in zip(factors, program(*inputs), strict=True)]
        return sum(parts[1:], parts[0])

    gradient = value_and_grad(loss, tuple(range(len(tensors))))
    own = runtime.current_device().traits.keep
    ways = [("tape", gradient, own), ("compiled gradient", Jitted(gradient), own)]
    for what, function, way in [*ways, *((f"compiled gradient that keeps {way}", Jitted(gradient), way) for way in KEEP)]:
        with keeping(way), placing_all():
            parts = [to_numpy(g).astype(float) for g in function(*tensors)[1]]
        for k, (part, a) in enumerate(zip(parts, arrays, strict=True)):
            assert part.shape == a.shape, f"{what}: that of input {k} has shape {part.shape}, not {a.shape}"
        got = sum(float((part * d).sum()) for part, d in zip(parts, directions, strict=True))
        allowed = max(1e-4, 500 * EPSILON[scalar]) * scale
        assert abs(got - slopes[1]) <= allowed, f"{what}: the slope is {got}, not {slopes[1]} +- {allowed:.2g}"


def _scale(program, arrays, weights):
    """How large terms of a slope may be: the greatest that single inputs contribute, roughly."""
    rng, total = np.random.default_rng(0), 0.0
    for _ in range(3):
        signs = [rng.choice([-1.0, 1.0], a.shape) * rng.standard_normal(a.shape) for a in arrays]
        above = program.reference([a + 1e-5 * s for a, s in zip(arrays, signs, strict=True)])
        below = program.reference([a - 1e-5 * s for a, s in zip(arrays, signs, strict=True)])
        total += sum(float(np.abs(w * (u - d)).sum()) / 2e-5 for w, u, d in zip(weights, above, below, strict=True))
    return 1.0 + total


def supported(program):
    """Whether the device has the program's dtype."""
    return program.dtype != "float64" or runtime.current_device().traits.fp64
