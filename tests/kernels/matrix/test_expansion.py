"""Terms of float32 elements against NumPy, and products of terms by emulated units, on the current device."""

import numpy as np
import pytest

from keras_ocl.core import dtypes
from keras_ocl.kernels.matrix.contraction import MatrixTile
from keras_ocl.kernels.matrix.expansion import BF16, BF16X3, BF16X6, TF32, named
from keras_ocl.kernels.matrix.units import EMULATED, EMULATED_TF32
from tests.kernels.gemm.test_gemm import multiply_all, random
from tests.kernels.matrix.emulated import EMULATED_UNITS, bound, traits_with
from tests.kernels.matrix.test_units import check_products

EXPANSIONS = [BF16X6, BF16X3, BF16, TF32]
every_expansion = pytest.mark.parametrize("expansion", EXPANSIONS, ids=[e.name for e in EXPANSIONS])


def unit_of(expansion):
    return EMULATED_TF32 if expansion is TF32 else EMULATED


def expanded(device, expansion, x, lanes):
    """The terms of the floats `x`, whose number `lanes` divides: (terms, elements), as float32."""
    kind = "uint" if expansion is TF32 else "ushort"
    uints, kinds, names = (f"{c}{lanes}" if lanes > 1 else c for c in ("uint", kind, ""))
    names = [f"term{n}" for n in range(expansion.terms)]
    text = f"const {uints} x = ((__global const {uints}*)from)[get_global_id(0)];\n{expansion.text('x', lanes, names, kind)}"
    text += "".join(f"((__global {kinds}*)to)[{n} * get_global_size(0) + get_global_id(0)] = {name};\n" for n, name in enumerate(names))
    source = f"__kernel void expand(__global const uint* from, __global {kind}* to) {{\n{text}}}\n"
    (kernel,) = device.build([("expand", source)]).values()
    numbers = dtypes.numpy_dtype("float32" if expansion is TF32 else "bfloat16")
    there, found = device.upload(x), device.upload(np.zeros((expansion.terms, x.size), numbers))
    for position, storage in enumerate((there, found)):
        kernel.set_arg(position, storage.mem)
    device.enqueue(kernel, (x.size // lanes,), None, "expand")
    return device.download(found, numbers, (expansion.terms, x.size)).astype("f4")


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
@every_expansion
def test_terms(device, expansion, lanes):
    rng = np.random.default_rng(lanes)
    x = (rng.normal(size=4000) * 2.0 ** rng.integers(-100, 120, 4000)).astype("f4")
    x[:8] = 0.0, -0.0, np.finfo("f4").max, -np.finfo("f4").max, 1 + 2.0**-23, 1 - 2.0**-24, 3.0, -(2.0**-60)
    terms = expanded(device, expansion, x, lanes).astype("f8")
    if expansion is BF16X6:
        np.testing.assert_array_equal(terms.sum(0), x)
    last = 2.0 ** -(expansion.bits * expansion.terms - (expansion.terms > 1))
    large = np.isinf(terms[0])  # what a single term rounds to infinity
    assert large.sum() == (2 if expansion.terms == 1 else 0)
    assert (abs(terms.sum(0) - x)[~large] <= last * abs(x.astype("f8"))[~large]).all()
    mantissas, _ = np.frexp(terms[:, ~large])
    np.testing.assert_array_equal(mantissas * 2.0**expansion.bits % 1, 0)  # each fits its bits
    if expansion.terms == 1:
        np.testing.assert_array_equal(abs(terms[0] - x)[~large] <= 2.0**-expansion.bits * abs(x.astype("f8"))[~large], True)


@every_expansion
def test_terms_of_what_is_no_number(device, expansion):
    bits = [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFC00000, 0x7F808000]
    terms = expanded(device, expansion, np.array(bits, "u4").view("f4"), 4)
    np.testing.assert_array_equal(terms[0], [np.inf, -np.inf, *[np.nan] * 6])


CASES = [(EMULATED, e) for e in (BF16X3, BF16)]
CASES += [(EMULATED_UNITS[name], BF16X6) for name in ("mma_m16n8k16", "wmma_gfx11", "mfma_16x16x16")]


@pytest.mark.parametrize(("unit", "expansion"), CASES, ids=[f"{unit.name} {e.name}" for unit, e in CASES])
def test_products(device, unit, expansion):
    check_products(device, unit, "bfloat16", expansion)


def test_six_products_are_as_exact_as_float32(device):
    """Of normal, of positive and of widely spread numbers: errors of long sums are those of float32 multiply-adds at most."""
    rng, tile = np.random.default_rng(5), MatrixTile.of(EMULATED, 1, 2, 2, 1, 16, BF16X6)
    kinds = [rng.normal(size=(1, 50, 1500)), rng.random((1, 50, 1500)), np.exp(3 * rng.normal(size=(1, 50, 1500)))]
    problems = [(a.astype("f4"), np.roll(a, 7).astype("f4").transpose(0, 2, 1).copy(), "float32", dict(tile=tile)) for a in kinds]
    for (a, b, *_), found in zip(problems, multiply_all(device, traits_with(device), problems), strict=True):
        exact, chain = a.astype("f8") @ b.astype("f8"), np.zeros(found.shape, "f4")
        for k in range(a.shape[-1]):
            chain += a[..., k, None] * b[..., k, None, :]
        scale = abs(a.astype("f8")) @ abs(b.astype("f8"))
        error, usual = (np.sqrt((((x - exact) / scale) ** 2).mean()) for x in (found, chain))
        assert error <= 0.8 * usual, (error * 2**24, usual * 2**24)


@every_expansion
def test_infinities_and_nan(device, expansion):
    a = np.array([[np.inf, 1, 2], [-np.inf, 3, 4], [np.nan, 5, 6], [7, 8, 9], [np.inf, -np.inf, 1]], "f4")
    b = np.array([[1, 0, -2], [2, 1, 1], [1, np.inf, 0.5]], "f4")
    tile = MatrixTile.of(unit_of(expansion), 1, 1, 1, 1, 16, expansion)
    (found,) = multiply_all(device, traits_with(device), [(a[None], b[None], "float32", dict(tile=tile))])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found[0], a @ b)


def test_the_largest_and_the_smallest(device):
    """Six products: finite where they are in float32; of subnormal elements what float32's hardware keeps of them, or 0."""
    largest = np.finfo("f4").max
    a = np.array([[largest, 0], [2.0**-100, 2.0**-101], [2.0**-140, 1]], "f4")
    b = np.array([[2.0**-3, 0.5, 1], [3, -largest, 0]], "f4")
    tile = MatrixTile.of(EMULATED, 1, 1, 1, 1, 16, BF16X6)
    (found,) = multiply_all(device, traits_with(device), [(a[None], b[None], "float32", dict(tile=tile))])
    wanted = a.astype("f8") @ b.astype("f8")
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], wanted, rtol=2e-7, atol=2.0**-130)


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_unaligned_and_batched(device, transposed):
    rng = np.random.default_rng(9)
    problems = []
    for expansion in (BF16X6, TF32):
        tile = MatrixTile.of(unit_of(expansion), 1, 1, 1, 1, 16, expansion)
        for m, k, n in ((19, 33, 23), (5, 8, 4)):
            a, b = random(rng, (3, m, k), "float32"), random(rng, (3, k, n), "float32")
            problems.append((a, b, "float32", dict(tile=tile, transposed=transposed, batched=True, offset=1)))
    for (a, b, _, options), found in zip(problems, multiply_all(device, traits_with(device), problems), strict=True):
        expansion = options["tile"].expansion
        assert (abs(found - a.astype("f8") @ b.astype("f8")) <= bound(a, b, expansion)).all(), (expansion.name, a.shape)


def test_names():
    assert [named(e.name) for e in EXPANSIONS] == EXPANSIONS
