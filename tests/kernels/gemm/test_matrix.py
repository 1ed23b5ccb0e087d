"""Matrix products by an emulated matrix unit against NumPy in float64, on the current device, and when a device's unit is chosen."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import eager, from_numpy, to_numpy
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import gemm, prelude, summation
from keras_ocl.kernels.contraction import Tile
from keras_ocl.kernels.gemm import gpu_choice
from keras_ocl.kernels.gemm.parts import Problem
from keras_ocl.kernels.matrix.contraction import MatrixContraction, MatrixTile
from keras_ocl.kernels.matrix.expansion import BF16X6
from keras_ocl.kernels.matrix.units import EMULATED
from keras_ocl.kernels.spec import Sink
from keras_ocl.runtime.overrides import Overrides
from tests.kernels.gemm.test_gemm import TRANSPOSED, multiply_all, planned, random
from tests.kernels.launching import launch, named
from tests.kernels.matrix.emulated import bound, traits_with
from tests.pairwise import pairwise

SMALL = MatrixTile.of(EMULATED, 1, 1, 1, 2, 32)
IN_ONE = Overrides("own.toml", tuning=(("product_split", 1 << 20),))  # of a device that sums no product in parts
BROAD = MatrixTile.of(EMULATED, 2, 2, 1, 1, 16)


def by_unit(specs):
    return "by the matrix unit emulated" in specs[0].title


def check_all(device, traits, problems):
    """Products of (a, b, dtype, options), all of which the unit computes."""
    for a, b, dtype, options in problems:
        specs, *_ = planned(device, traits, a, b, dtype, **options)
        assert by_unit(specs), (a.shape, b.shape, options)
    for (a, b, _, options), found in zip(problems, multiply_all(device, traits, problems), strict=True):
        wanted, allowed = a.astype("f8") @ b.astype("f8"), bound(a, b)
        if out := options.get("out"):
            allowed = allowed + abs(wanted) * float(ml_dtypes.finfo(out).eps)
        assert (abs(found.astype("f8") - wanted) <= allowed).all(), (a.shape, b.shape, options)


@pytest.mark.parametrize(
    "size,transposed,dtype,tile",
    pairwise([(1, 1, 1), (17, 33, 31), (64, 64, 64), (70, 45, 24), (36, 100, 52)], TRANSPOSED, ["float16", "bfloat16"], [SMALL, BROAD]),
)
def test_sizes_and_transposes(device, size, transposed, dtype, tile):
    """Batches, offsets, and strides that eight, four, two or no elements divide."""
    (m, k, n), rng, options = size, np.random.default_rng(sum(size)), dict(transposed=transposed, tile=tile)
    a, b = random(rng, (3, m, k), dtype), random(rng, (3, k, n), dtype)
    problems = [
        (a, b, dtype, options | dict(batched=True, offset=size[0] % 8)),
        (a[:1], b, dtype, options | dict(batched=True, all_arguments=True)),
        (a[:1], b[:1], dtype, options | dict(out=dtype)),
        (a[:1], b[:1], dtype, options | dict(wrap=lambda n: Dim(n, hint=64), out="float16")),
    ]
    check_all(device, traits_with(device), problems)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    device = runtime.current_device()
    m, k, n = (data.draw(st.integers(1, 70), label) for label in "mkn")
    batch, offset, dtype = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 9)), data.draw(st.sampled_from(["float16", "bfloat16"]))
    options = dict(
        transposed=data.draw(st.sampled_from(TRANSPOSED)),
        tile=data.draw(st.sampled_from([SMALL, BROAD])),
        all_arguments=data.draw(st.booleans()),
    )
    rng = np.random.default_rng(m + k + n)
    a, b = random(rng, (batch, m, k), dtype), random(rng, (batch, k, n), dtype)
    check_all(device, traits_with(device), [(a, b, dtype, options | dict(batched=True, offset=offset))])


@pytest.mark.parametrize("m,k,n", [(45, 200, 70), (8, 96, 64), (33, 67, 1)])
@pytest.mark.parametrize(
    "shape,slices,terms", [((1, 1, 1, 2, 16), 4, None), ((2, 1, 1, 1, 32), 2, None), ((1, 2, 2, 1, 16), 8, BF16X6)], ids=str
)
def test_groups_with_slices_of_k(device, shape, slices, terms, m, k, n):
    """The last slice has fewer steps, as many, or none; some results lie outside."""
    rng, dtype = np.random.default_rng(15), "float32" if terms else "bfloat16"
    a, b = random(rng, (1, m, k), dtype), random(rng, (1, k, n), dtype)
    tile = dataclasses.replace(MatrixTile.of(EMULATED, *shape, terms), slices=slices)
    check_all(device, traits_with(device), [(a, b, dtype, dict(tile=tile, transposed=turned)) for turned in TRANSPOSED])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bits_are_those_of_other_tiles(device, dtype):
    """The emulated unit adds exact products in the order of k, as work-items do."""
    rng = np.random.default_rng(8)
    a, b = random(rng, (2, 35, 300), dtype), random(rng, (2, 300, 41), dtype)
    tiles = SMALL, BROAD, Tile(8, 8, 2, 2, 8)
    problems = [(a, b, dtype, dict(batched=True, tile=tile)) for tile in tiles]
    first, *others = multiply_all(device, traits_with(device, overrides=IN_ONE), problems)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_all_extents_unknown(device):
    """One text for all sizes that have the same layout."""
    traits, rng, sources = traits_with(device), np.random.default_rng(3), set()
    for m, k, n in ((40, 40, 40), (9, 77, 30), (33, 16, 1)):
        extents = dict(zip("mkn", (Dim(e, hint=40, probe=p) for e, p in ((m, 1000003), (k, 1299709), (n, 1299721))), strict=True))
        a, b = random(rng, (m, k), "bfloat16"), random(rng, (k, n), "bfloat16")
        operands = dict(a=gemm.Operand(named("a"), "bfloat16", extents["k"], 1), b=gemm.Operand(named("b"), "bfloat16", extents["n"], 1))
        sink = Sink(named("c"), (extents["m"], extents["n"]), "float32")
        specs = gemm.plan(traits, batch=None, dtype="bfloat16", sink=sink, tile=SMALL, **extents, **operands)
        sources.add(tuple(s.source(f"f{i}") for i, s in enumerate(specs)))
        buffers = {"a": device.upload(a), "b": device.upload(b), "c": device.allocate(4 * m * n)}
        launch(device, specs, buffers)
        found = device.download(buffers["c"], np.dtype("float32"), (m, n))
        assert (abs(found - a.astype("f8") @ b.astype("f8")) <= bound(a, b)).all()
    assert len(sources) == 1


def test_empty_products(device):
    traits = traits_with(device)
    assert planned(device, traits, np.zeros((1, 0, 4), "f2"), np.zeros((1, 4, 3), "f2"), "float16", tile=SMALL)[0] == []
    a, b = np.zeros((1, 5, 0), "f2"), np.zeros((1, 0, 3), "f2")
    (found,) = multiply_all(device, traits, [(a, b, "float16", dict(tile=SMALL))])
    np.testing.assert_array_equal(found, np.zeros((1, 5, 3)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_not_a_number_stays_in_its_row_and_column(device, dtype):
    """What is loaded beyond the end of a matrix takes no part in a result."""
    rng = np.random.default_rng(4)
    a, b = random(rng, (1, 19, 21), dtype), random(rng, (1, 21, 11), dtype)
    a[0, 18, 20], b[0, 20, 10], a[0, 3, 4] = np.nan, np.nan, np.inf
    (found,) = multiply_all(device, traits_with(device), [(a, b, dtype, dict(tile=SMALL))])
    with np.errstate(invalid="ignore"):
        wanted = a.astype("f8") @ b.astype("f8")
    assert (np.isnan(found) == np.isnan(wanted)).all() and (np.isinf(found) == np.isinf(wanted)).all()
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found[finite], wanted[finite], atol=1e-4)


@pytest.mark.parametrize("k", [2 * summation.UNIT + 1, 2500, 2560])
def test_long_sums_leave_the_unit(device, k):
    """Into float32 sums in memory, in blocks; a shorter sum needs no memory."""
    rng, traits = np.random.default_rng(5), traits_with(device, overrides=IN_ONE)
    a, b = random(rng, (2, 20, k), "bfloat16"), random(rng, (2, k, 9), "bfloat16")
    for tile in (SMALL, BROAD):
        (spec,), *_ = planned(device, traits, a, b, "bfloat16", batched=True, tile=tile)
        assert f"++turn == {summation.UNIT // tile.depth}" in spec.body
        (spec,), *_ = planned(device, traits, a[:, :, :1024], b[:, :1024], "bfloat16", batched=True, tile=tile)
        assert "turn" not in spec.body
    alike = np.full_like(a, 0.1), np.full_like(b, 0.1)
    check_all(device, traits, [(*ab, "bfloat16", dict(batched=True, tile=SMALL)) for ab in ((a, b), alike)])


def test_sums_in_parts(device):
    traits = traits_with(device, "emulated", compute_units=64)
    rng = np.random.default_rng(6)
    a, b = random(rng, (1, 30, 3000), "float16"), random(rng, (1, 3000, 40), "float16")
    specs, *_ = planned(device, traits, a, b, "float16")
    assert len(specs) == 2
    check_all(device, traits, [(a, b, "float16", dict(transposed=transposed)) for transposed in ((False, False), (True, True))])


# ---- which products a unit computes


def tile_of(traits, m, n, k, dtype="float16", accumulator="float32", other=None, **options):
    a, b = gemm.Operand(named("a"), dtype, k, 1), gemm.Operand(named("b"), other or dtype, n, 1)
    problem = Problem(traits, None, m, n, k, a, b, accumulator, None, **options)
    return gpu_choice.choose(problem)[0]


GPU = dataclasses.replace(runtime.read_record("sm_86"), matrix_units=("emulated",), matrix_rates=(8.0,))


def test_the_chooser_takes_a_unit_that_fits(device):
    for size in ((512, 512, 512), (4096, 4096, 4096), (64, 64, 64), (100, 3000, 70)):
        for eager_kernel in (False, True):
            tile = tile_of(GPU, *size, all_arguments=eager_kernel)
            assert isinstance(tile, MatrixTile) and tile.unit is EMULATED
            assert tile.items <= GPU.max_group and tile.items % tile.unit.lanes == 0 and 32 % tile.depth == 0
            assert tile.local_bytes(4) <= GPU.local_memory and gpu_choice.registers(tile) <= GPU.item_registers
    assert isinstance(tile_of(GPU, 512, 512, 512, "bfloat16"), MatrixTile)


def test_bytes_of_few_rows_are_loaded_by_enough_work_items():
    """A group of 256 alone would wait for memory: units multiply bytes faster than so few items load them."""
    for record in ("sm_86", "sm_90", "gfx1100", "dg2", "gfx90a"):
        traits = runtime.read_record(record)
        for m in (16, 32, 64):
            a, b = gemm.Operand(named("a"), "int8", 4096, 1), gemm.Operand(named("b"), "int8", 4096, 1)
            tile, steps = gpu_choice.choose(Problem(traits, None, m, 4096, 4096, a, b, "int32", None))
            groups = -(-m // tile.height) * -(-4096 // tile.width) * (-(-4096 // steps) if steps else 1)
            assert isinstance(tile, MatrixTile) and tile.unit.dtypes == ("int8",)
            assert groups * tile.items >= 256 * gpu_choice.units(traits), (record, m)


def test_a_short_product_of_bytes_is_not_summed_in_parts():
    """What the parts save is less than another launch."""
    for record in ("sm_86", "sm_90", "gfx1100", "dg2", "gfx90a"):
        a, b = gemm.Operand(named("a"), "int8", 512, 1), gemm.Operand(named("b"), "int8", 512, 1)
        for m in (32, 64, 128):
            tile, steps = gpu_choice.choose(Problem(runtime.read_record(record), None, m, 512, 512, a, b, "int32", None))
            assert steps == 0, (record, m)
            # Work-items of gfx1100, which issue two multiply-adds at once, are as fast for so few rows.
            assert isinstance(tile, MatrixTile) or (record, m) == ("gfx1100", 32), (record, m)


def test_the_chooser_takes_no_unit_that_does_not_fit():
    plain = dataclasses.replace(GPU, matrix_units=(), matrix_rates=())
    assert isinstance(tile_of(plain, 512, 512, 512), Tile) and not isinstance(tile_of(plain, 512, 512, 512), MatrixTile)
    for dtype, accumulator, other in (
        ("float32", "float32", None),
        ("float64", "float64", None),
        ("int8", "int32", None),
        ("float16", "float32", "float32"),
    ):
        assert tile_of(GPU, 512, 512, 512, dtype, accumulator, other) == tile_of(plain, 512, 512, 512, dtype, accumulator, other)
    small = dataclasses.replace(GPU, max_group=16)
    assert not isinstance(tile_of(small, 512, 512, 512), MatrixTile), "a group is less than a wave"


class Tripled:
    """A source: three times the matrix in memory, of `kept` there, in registers of the type of `dtype`, an operand's."""

    def __init__(self, handle, dtype, kept, lanes=True):
        self.handle, self.dtype, self.kept, self.lanes, self.helpers = handle, dtype, kept, lanes, set()
        self.read = dtypes.itemsize(kept)

    def in_lanes(self, extents):
        return self.lanes

    def load(self, args, row, column, extents, width, wide):
        pointer = args.pointer(self.handle, self.kept)
        self.helpers |= prelude.helpers_for(self.kept, width)
        read = prelude.load(self.kept, width, pointer, f"({row}) * {args.int(extents[1])} + ({column})")
        value = f"3 * {read}"
        if self.dtype == "bfloat16":  # rounded, as a register of it is
            self.helpers.add(f"to_bfloat16_{width}")
            floats, uints = (prelude.vector_type(kind, width) for kind in ("float", "uint"))
            value = f"as_{floats}(convert_{uints}(to_bfloat16_{width}({value})) << 16)"
        return f"const {prelude.register_type(self.dtype, width)} thrice = {value};\n", "thrice"


def tripled(device, m, k, n, dtype, kept, sides, transposed, traits=None, lanes=True, **options):
    """Compares the product of operands, of which a source computes those on `sides` ("a", "b") from arrays of `kept`; its kernels."""
    rng, handles = np.random.default_rng(m), {x: named(x) for x in "abc"}
    arrays, values, operands = {"a": random(rng, (m, k), dtype), "b": random(rng, (k, n), dtype)}, {}, {}
    for (x, array), turned in zip(arrays.items(), transposed, strict=True):
        if x in sides:
            array = array.astype(dtypes.numpy_dtype(kept))
            array[-1, -1], array[0, 0] = np.inf, np.nan
        values[x] = (3 * array.astype("f4")).astype(dtypes.numpy_dtype(dtype)) if x in sides else array
        rows, columns = array.shape
        source = Tripled(handles[x], dtype, kept, lanes) if x in sides else None
        arrays[x] = np.ascontiguousarray(array.T if turned else array)
        operands[x] = gemm.Operand(handles[x], dtype, *((1, rows) if turned else (columns, 1)), source=source)
    sink = Sink(handles["c"], (m, n), "float32")
    traits = traits or traits_with(device)
    specs = gemm.plan(traits, batch=None, m=m, n=n, k=k, **operands, dtype="float32", sink=sink, **options)
    helpers = frozenset().union(*(o.source.helpers for o in operands.values() if o.source))
    buffers = {x: device.upload(array) for x, array in arrays.items()} | {"c": device.upload(np.full((m, n), 77, "float32"))}
    launch(device, [dataclasses.replace(spec, helpers=spec.helpers | helpers) for spec in specs], buffers)
    found, a, b = device.download(buffers["c"], np.dtype("float32"), (m, n)), values["a"], values["b"]
    with np.errstate(invalid="ignore"):
        wanted = a.astype("f8") @ b.astype("f8")
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite].astype("f4"))
        assert finite.sum() >= (m - 2) * (n - 2)
        assert (abs(found.astype("f8") - wanted) <= bound(a, b))[finite].all(), (m, k, n)
    return specs


@pytest.mark.parametrize(
    "sides,transposed,dtype,size",
    pairwise(["a", "b", "ab"], TRANSPOSED, ["float16", "bfloat16", "float32"], [(17, 33, 31), (40, 64, 72), (33, 1100, 52), (30, 20, 44)]),
)
def test_operands_that_are_computed_as_they_are_loaded(device, sides, transposed, dtype, size):
    """They are rounded to their dtype, as if they had been in memory; in vectors of eight, four and two, and one by one."""
    tile = MatrixTile.of(EMULATED, 1, 2, 2, 1, 16, BF16X6 if dtype == "float32" else None)
    for kept, lanes in (("float32", True), (dtype, True), ("float32", False)):
        specs = tripled(device, *size, dtype, kept, sides, transposed, lanes=lanes, tile=tile)
        assert by_unit(specs)


@pytest.mark.parametrize(
    "sides,transposed,dtype,size",
    pairwise(
        ["a", "b", "ab"],
        TRANSPOSED,
        ["bfloat16", "float32"],
        [(1, 300, 64), (3, 77, 31), (8, 2100, 52), (45, 90, 2), (64, 130, 5), (19, 260, 40)],
    ),
)
def test_computed_operands_of_few_rows_or_columns(device, sides, transposed, dtype, size):
    """By work-items, without and with tiles, with sums in parts and without."""
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=132, max_group=1024, local_memory=49152)
    first, *_ = tripled(device, *size, dtype, "float32", sides, transposed, traits)
    assert ("lanes along the sum" in first.title) == (min(size[0], size[2]) <= 8)


@pytest.mark.parametrize("name", ["sm_90", "gfx1100", "gfx90a"])
def test_enough_work_items_read_at_once(name):
    """A unit makes multiply-adds cheap, so that bytes in flight decide: where too few items read, tiles are smaller, or shared by more."""
    traits = runtime.read_record(name)
    own = (("product_split", 1 << 20), ("product_latency", 0), ("product_apart", 0))  # the latter asks for groups of more items, too
    without = dataclasses.replace(traits, overrides=Overrides("own.toml", tuning=own))

    def items(traits, m, n, k):
        tile = tile_of(traits, m, n, k, "bfloat16")
        return -(-m // tile.height) * -(-n // tile.width) * tile.items

    for size in ((2048, 256, 48), (2048, 48, 256)):
        assert items(dataclasses.replace(traits, overrides=IN_ONE), *size) >= 2 * items(without, *size)


def test_an_unknown_unit_is_an_error():
    with pytest.raises(ValueError, match="there is no matrix unit 'tensor'"):
        tile_of(dataclasses.replace(GPU, matrix_units=("tensor",), matrix_rates=(8.0,)), 512, 512, 512)


def test_a_layer_by_a_unit(device, monkeypatch):
    """A product with its epilogue, compiled and as eager code."""
    monkeypatch.setattr(device, "traits", traits_with(device, "emulated"))
    monkeypatch.setattr(eager, "_cache", Cache())
    rng = np.random.default_rng(7)
    x, w, bias = random(rng, (33, 50), "float16"), random(rng, (50, 45), "float16"), random(rng, (45,), "float16")

    def layer(x, w, bias):
        return P.max(P.add(P.dot_general(x, w, ((1,), (0,))), P.broadcast(bias, (33, 45), (1,))), P.full((33, 45), 0, "float16"))

    wanted = np.maximum(x.astype("f8") @ w.astype("f8") + bias, 0)
    arrays, written = [from_numpy(array) for array in (x, w, bias)], []
    multiply = MatrixContraction.multiply
    monkeypatch.setattr(
        MatrixContraction, "multiply", lambda self, *args, **kwargs: written.append(self) or multiply(self, *args, **kwargs)
    )
    for call in (Jitted(layer), layer):
        written.clear()
        result = call(*arrays)
        assert len(written) == 1
        np.testing.assert_allclose(to_numpy(result).astype("f8"), wanted, rtol=2e-3, atol=2e-2)
