"""Attention by an emulated matrix unit against NumPy in float64, on the current device, and when a device's unit is chosen."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.compiler.run.program import Kernel
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import attention
from keras_ocl.kernels.attention import gpu_choice
from keras_ocl.kernels.attention.gpu_choice import Tile, UnitTile
from keras_ocl.kernels.attention.parts import FORWARD, KEY_VALUE_GRADIENT, QUERY_GRADIENT
from keras_ocl.kernels.matrix.unit import TF32
from keras_ocl.kernels.matrix.units import EMULATED
from tests.kernels.attention.test_attention import attend, check, operands, problem, reference
from tests.kernels.launching import named
from tests.kernels.matrix.emulated import EMULATED_UNITS, traits_with

SCHEMES = FORWARD, QUERY_GRADIENT, KEY_VALUE_GRADIENT


def by(monkeypatch, unit, waves=1, tall=1, beside=0, wide=1):
    """Let all attention be computed with this tile, whose logits are as few as the unit's steps, unless `beside` has a number."""

    def choose(p, scheme):
        padded = (gpu_choice.power_of_two(p.depth), gpu_choice.power_of_two(p.value_depth))
        depth = max(unit.steps, 16 // unit.size, *gpu_choice.lengths(scheme, *padded)[0])
        return UnitTile(unit, waves, tall, beside or max(1, unit.steps // unit.columns), wide, depth, len(scheme.kept))

    monkeypatch.setattr(gpu_choice, "choose", choose)


# Attention is of floats, and of float32 by no unit.
UNITS_AND_DTYPES = [(unit, dtype) for unit in EMULATED_UNITS.values() for dtype in unit.dtypes if dtype not in (TF32, "int8")]


@pytest.mark.parametrize(("unit", "dtype"), UNITS_AND_DTYPES, ids=[f"{unit.name} {dtype}" for unit, dtype in UNITS_AND_DTYPES])
def test_each_unit(device, monkeypatch, unit, dtype):
    by(monkeypatch, unit, waves=max(1, 32 // unit.lanes))
    check(device, traits_with(device), operands(1, 37, 35, 2, 1, 20, 24, dtype), causal=True)


TILES = {"one wave": (1, 1, 2, 2), "tall": (2, 2, 4, 1), "wide": (2, 1, 2, 8)}
SIZES = [  # tile, dtype, depths, extents, and what is near
    ("one wave", "float16", (16, 16), (1, 200), "mask"),
    ("tall", "bfloat16", (40, 24), (17, 17), "causal"),
    ("wide", "float16", (64, 128), (64, 40), ""),
    ("one wave", "bfloat16", (128, 17), (200, 1), "bias"),
    ("wide", "bfloat16", (7, 65), (33, 64), "mask"),
    ("tall", "float16", (40, 24), (200, 64), "bias"),
    ("one wave", "float16", (64, 7), (17, 200), "causal"),
    ("wide", "bfloat16", (16, 128), (64, 17), "causal"),
]


@pytest.mark.parametrize(("tile", "dtype", "depths", "extents", "near"), SIZES)
def test_sizes(device, monkeypatch, tile, dtype, depths, extents, near):
    by(monkeypatch, EMULATED, *TILES[tile])
    arrays, rng = operands(2, *extents, 2, 1, *depths, dtype, seed=sum(extents)), np.random.default_rng(3)
    time, source = extents
    options = {
        "": {},
        "causal": {"causal": True},
        "mask": {"mask": rng.uniform(size=(2, 1, time, source)) < 0.6},  # of which some leave nothing
        "bias": {"bias": rng.normal(size=(1, 2, 1, source)).astype(arrays[0].dtype)},
    }
    check(device, traits_with(device), arrays, scale=0.1, **options[near])


def test_extents_are_arguments(device, monkeypatch):
    by(monkeypatch, EMULATED, 2, 1, 4, 2)
    check(device, traits_with(device), operands(2, 34, 41, 4, 2, 18, 7, "float16"), causal=True, all_arguments=True)


def test_other_batches_and_lengths_have_the_same_source(device, monkeypatch):
    by(monkeypatch, EMULATED, 1, 1, 2, 1)
    traits, sources = traits_with(device), set()
    for batch, time, source in ((3, 40, 30), (1, 3, 70)):
        extents = (Dim(batch, 3, 1000003), Dim(time, 40, 1299709), Dim(source, 30, 15485863))
        arrays = operands(batch, time, source, 2, 1, 8, 6, "float16")
        found = attend(device, traits, *arrays, extents=extents, causal=True, sources=sources)
        for x, y in zip(found, reference(*arrays, 0.3, True), strict=True):
            np.testing.assert_allclose(np.asarray(x, "f8"), y, rtol=3e-3, atol=6e-3)
    assert len(sources) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_infinities_and_nan_stay_in_their_rows(device, monkeypatch, dtype):
    by(monkeypatch, EMULATED, 2, 1, 2, 1)
    query, key, value, do = operands(1, 19, 50, 1, 1, 12, 9, dtype)
    bias = np.zeros((1, 1, 19, 50), query.dtype)
    bias[..., 0, :] = -np.inf  # a row of nothing else is NaN
    bias[..., 1, :40] = -np.inf
    bias[..., 2, 7], bias[..., 3, 45] = np.nan, np.inf
    query[0, 18, 0, 11] = np.nan  # in the last row and step, behind which blocks go on
    out = attend(device, traits_with(device), query, key, value, do, bias=bias)[0].astype("f8")
    with np.errstate(invalid="ignore"):
        wanted = reference(query, key, value, do, 0.3, bias=bias)[0]
    lost = [0, 2, 3, 18]
    assert np.isnan(out[0, lost]).all()
    np.testing.assert_allclose(np.delete(out, lost, 1), np.delete(wanted, lost, 1), atol={"float16": 4e-3, "bfloat16": 3e-2}[dtype])


def test_empty_operands(device, monkeypatch):
    by(monkeypatch, EMULATED)
    traits = traits_with(device)
    _, _, dk, dv = attend(device, traits, *operands(1, 0, 4, 1, 1, 2, 2, "float16"))
    assert not dk.any() and not dv.any()
    _, dq, _, _ = attend(device, traits, *operands(1, 3, 0, 1, 1, 2, 2, "float16"))
    assert not dq.any()


# ---- which attention a unit computes

GPU = dataclasses.replace(runtime.read_record("sm_86"), matrix_units=("emulated",), matrix_rates=(8.0,))


def tile_of(traits, size, dtype="float16", scheme=FORWARD):
    arrays = dict(zip(("query", "key", "value"), operands(*size, dtype), strict=False))
    return gpu_choice.choose(problem(traits, arrays), scheme)


@pytest.mark.parametrize("record", ["sm_75", "sm_86", "sm_90", "gfx1100", "gfx90a"])
@pytest.mark.parametrize("size", [(4, 64, 64, 4, 4, 32, 32), (1, 300, 77, 2, 2, 64, 64), (1, 200, 200, 2, 1, 20, 128)])
def test_the_chooser_takes_a_unit_that_fits(record, size):
    traits = runtime.read_record(record)
    tiles = {scheme: tile_of(traits, size, scheme=scheme) for scheme in SCHEMES}
    for scheme, tile in tiles.items():
        assert isinstance(tile, UnitTile) and tile.unit.name in traits.matrix_units, scheme.name
        assert tile.items <= traits.max_group and tile.local_bytes(4) <= traits.local_memory
        assert gpu_choice.registers(tile, scheme) <= traits.item_registers * tile.unit.room
        assert tile.met % tile.unit.steps == 0 and tile.depth >= max(size[5], size[6] if scheme is not FORWARD else 1)
    assert tiles[QUERY_GRADIENT].group == tiles[KEY_VALUE_GRADIENT].group, "they can share a launch"


def test_the_chooser_takes_no_unit_that_does_not_fit():
    size = (2, 64, 64, 2, 2, 32, 32)
    assert isinstance(tile_of(GPU, size), UnitTile)
    plain = dataclasses.replace(GPU, matrix_units=(), matrix_rates=())
    assert isinstance(tile_of(plain, size), Tile)
    for dtype in ("float32", "float64"):
        assert tile_of(GPU, size, dtype) == tile_of(plain, size, dtype)
    for changes in ({"max_group": 16}, {"item_registers": 32}, {"local_memory": 4096}):
        assert isinstance(tile_of(dataclasses.replace(GPU, **changes), size), Tile), changes
    assert isinstance(tile_of(GPU, (1, 64, 64, 1, 1, 3000, 8)), Tile), "a block's rows do not fit local memory"


def test_where_it_is_one_kernel():
    def pays(traits=GPU, shape=(32, 128, 4, 32), dtype="float16", bias=False):
        rows = attention.Operand(named("x"), dtype, shape)
        return attention.pays(traits, rows, rows, bias)

    assert pays() and pays(shape=(32, 512, 8, 64)) and pays(shape=(1, 4096, 16, 128)) and pays(dtype="bfloat16")
    assert not pays(bias=True) and not pays(shape=(32, 8, 4, 32)) and not pays(dtype="float32", shape=(1, 4096, 16, 128))
    assert not pays(dataclasses.replace(GPU, matrix_units=(), matrix_rates=()), shape=(1, 4096, 16, 128))


def test_a_chosen_tile(device):
    """What the device's choice is, without help."""
    traits = traits_with(device, "emulated", item_registers=255)
    for scheme in SCHEMES:
        assert isinstance(tile_of(traits, (2, 70, 50, 2, 2, 24, 24), scheme=scheme), UnitTile)
    check(device, traits, operands(2, 70, 50, 2, 2, 24, 24, "float16"))


@pytest.mark.parametrize(
    ("titles", "unit"),
    [
        (["attention: query gradient: rows, by the matrix unit wmma_gfx11"], "wmma_gfx11"),
        (["attention: rows, by the matrix unit wmma_gfx11", "matrix product: rows, by the matrix unit wmma_gfx11"], "wmma_gfx11"),
        (["attention: rows", "matrix product: rows, by the matrix unit wmma_gfx11"], ""),
        (["attention: rows"], ""),
    ],
)
def test_a_kernel_tells_its_unit(titles, unit):
    """As profiles ask."""
    assert Kernel("".join(f"// {title}\n" for title in titles), ()).matrix_unit == unit
