"""Tiles that a device has of its own for single products: where they fit they are used and compute the same, else the estimate is used."""

import dataclasses
import logging
import math

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import contraction, gemm
from keras_ocl.kernels.gemm import cpu_choice, gpu_choice, rows_gpu
from keras_ocl.kernels.gemm.cpu import Tile
from keras_ocl.kernels.gemm.parts import Problem
from keras_ocl.kernels.matrix.contraction import MatrixTile
from keras_ocl.kernels.matrix.units import EMULATED
from keras_ocl.kernels.spec import Sink
from keras_ocl.runtime.overrides import Overrides
from tests.kernels.launching import launch, named
from tests.kernels.matrix.emulated import traits_with


def product(traits, m=64, n=192, k=96, dtype="float32", along_k=False, batch=None, **more):
    """A Problem of row-major matrices; the second is transposed with `along_k`."""
    a = gemm.Operand(named("a"), dtype, k, 1, batch_stride=0 if batch is None else m * k)
    b = gemm.Operand(named("b"), dtype, *((1, k) if along_k else (n, 1)))
    shape = (m, n) if batch is None else (batch, m, n)
    return Problem(traits, batch, m, n, k, a, b, dtypes.accumulator(dtype), Sink(named("c"), shape, dtype), **more)


def own(problem, table="product", /, **fields):
    """The problem on a device that has a tile with these fields for it."""
    choice = (table, problem.key, tuple(fields.items()))
    return dataclasses.replace(problem, traits=dataclasses.replace(problem.traits, overrides=Overrides("own.toml", (), (), (choice,))))


def test_keys_tell_what_a_choice_depends_on():
    traits = runtime.read_record("intel-cpu")
    assert product(traits).key == "float32 m=64 n=192 k=96 a=float32(96,1) b=float32(192,1)"
    assert product(traits, batch=3, dtype="int8").key == "int32 batch=3 m=64 n=192 k=96 a=int8(6144,96,1) b=int8(0,192,1)"
    varying = product(traits, m=Dim(40, hint=32), along_k=True, all_arguments=True, repeated=True, longest=2048)
    varying.sink.uniform = 2
    assert varying.key == "float32 m=32* n=192 k=96 a=float32(96,1) b=float32(1,96) uniform=2 longest=2048 eager repeated"
    assert product(traits, longest=math.inf).key == product(traits).key
    computed = product(traits)
    computed.b = dataclasses.replace(computed.b, source=object())
    assert computed.key.endswith("b=float32(computed)")
    computed.b = computed.b.transposed()
    assert computed.key.endswith("b=float32(computed, turned)")


CPU = [
    dict(rows=3, vectors=2, chunk=9),
    dict(rows=4, vectors=1, chunk=64, block=32),
    dict(rows=2, vectors=3, chunk=8, block=96),
    dict(rows=2, vectors=2, chunk=64, block=512, across=2),
    dict(kind="dots", rows=2, vectors=3, chunk=10, across=5),
]


@pytest.mark.parametrize("fields", CPU)
def test_a_cpus_own_tile_computes_the_same(fields, device):
    check(device, "cpu", Tile, {"kind": "rows", **fields}, cpu_choice.choose, along_k=fields.get("kind") == "dots")


@pytest.mark.parametrize(
    "fields", [dict(across=4, down=2, rows=2, columns=4, depth=4), dict(across=8, down=1, rows=1, columns=2, depth=16, steps=48)]
)
def test_a_gpus_own_tile_computes_the_same(fields, device):
    def make(steps=0, **sides):
        return contraction.Tile(**sides, fragment=4), steps

    check(device, "gpu", make, fields, gpu_choice.choose)


@pytest.mark.parametrize(
    "shape, along_k, fields",
    [
        ((3, 200, 300), False, dict(lanes=4, places=7, rows=2, vector=4)),
        ((3, 200, 300), True, dict(lanes=8, places=3, rows=4, vector=2, steps=50)),
        ((2, 70, 31), False, dict(lanes=1, places=40, rows=1, vector=1, steps=7)),
        ((150, 3, 64), True, dict(lanes=16, places=2, rows=4, vector=4)),  # few columns
    ],
)
def test_a_gpus_own_shape_for_few_rows_computes_the_same(shape, along_k, fields, device):
    turned = shape[0] > 100

    def make(steps=0, **sides):
        return rows_gpu.Shape(**sides, along_k=along_k or turned, turned=turned), steps

    check(device, "gpu", make, fields, gpu_choice.few, along_k, shape, "few_rows")


def check(device, schedule, make, fields, choose, along_k=False, shape=(64, 192, 96), kind="product"):
    (m, n, k), rng = shape, np.random.default_rng(3)
    traits = dataclasses.replace(device.traits, schedule=schedule)
    problem = own(product(traits, m, n, k, along_k=along_k), kind, **fields)
    assert choose(problem) == make(**fields) != choose(product(traits, m, n, k, along_k=along_k))
    a, b = (rng.standard_normal(shape).astype("float32") for shape in ((m, k), (k, n)))
    specs = gemm.plan(problem.traits, batch=None, m=m, n=n, k=k, a=problem.a, b=problem.b, dtype="float32", sink=problem.sink)
    c = device.allocate(4 * m * n)
    launch(device, specs, {"a": device.upload(a), "b": device.upload(np.ascontiguousarray(b.T if along_k else b)), "c": c})
    np.testing.assert_allclose(device.download(c, np.float32, (m, n)), a.astype("float64") @ b, rtol=1e-4, atol=1e-4)


def refused(problem, choose, fields, says, caplog, kind="product"):
    caplog.set_level(logging.WARNING, "keras_ocl")
    assert choose(own(problem, kind, **fields)) == choose(problem)
    assert caplog.messages and all(says in message for message in caplog.messages), caplog.messages


@pytest.mark.parametrize(
    "changes, fields, says",
    [
        ({}, dict(kind="columns", rows=1, vectors=1, chunk=1), "kind = 'columns' is neither"),
        ({}, dict(rows=1, vectors=1, chunk=1), "'kind'"),
        ({}, dict(kind="rows", rows=0, vectors=1, chunk=1), "rows = 0 is not a positive number"),
        ({}, dict(kind="rows", rows=1, vectors="1", chunk=1), "vectors = '1' is not a positive number"),
        ({}, dict(kind="rows", rows=1, vectors=1, chunk=1, block=-4), "block = -4 is not a positive number"),
        (dict(m=4), dict(kind="rows", rows=5, vectors=1, chunk=5), "5 rows are more than the product's"),
        ({}, dict(kind="rows", rows=3, vectors=1, chunk=64), "do not divide the chunk"),
        ({}, dict(kind="rows", rows=8, vectors=4, chunk=8), "it takes 37 of 32 registers"),
        ({}, dict(kind="dots", rows=1, vectors=1, chunk=1), "both operands must be contiguous"),
        ({}, dict(kind="rows", rows=1, vectors=4, chunk=64, block=4096), "bytes of private memory"),
        (dict(m=65536), dict(kind="rows", rows=8, vectors=1, chunk=65536, block=64), "of at most 2048 rows"),
        (dict(n=Dim(200, hint=192)), dict(kind="rows", rows=1, vectors=1, chunk=64, block=64, across=2), "a panel of several tiles"),
        (dict(n=16), dict(kind="rows", rows=1, vectors=2, chunk=64), "at least one tile long"),
        (dict(along_k=True), dict(kind="rows", rows=1, vectors=1, chunk=64), "must be contiguous"),
        ({}, dict(kind="rows", rows=4, vectors=8, chunk=4, steps=8), "passes over a panel"),
    ],
)
def test_a_cpus_tile_that_does_not_fit_is_refused(changes, fields, says, caplog):
    refused(product(runtime.read_record("intel-cpu"), **changes), cpu_choice.choose, fields, says, caplog)


@pytest.mark.parametrize(
    "changes, fields, says",
    [
        ({}, dict(across=16, down=16, rows=8, columns=8), "'depth'"),
        ({}, dict(across=0, down=16, rows=8, columns=8, depth=8), "across = 0 is not a positive number"),
        ({}, dict(across=12, down=16, rows=8, columns=8, depth=8), "across = 12 is no power of two"),
        ({}, dict(across=16, down=16, rows=8, columns=8, depth=32), "depth = 32 is more than 16"),
        ({}, dict(across=16, down=16, rows=8, columns=8, depth=8, steps=36), "does not divide the 36 steps"),
        ({}, dict(across=64, down=32, rows=1, columns=1, depth=8), "its 2048 work-items are more than a group's 1024"),
        ({}, dict(across=16, down=16, rows=16, columns=16, depth=8), "registers of 4 bytes are too many for 255"),
        ({}, dict(across=512, down=1, rows=1, columns=4, depth=8), "bytes of local memory are more than the group's"),
        (dict(longest=64), dict(across=16, down=16, rows=8, columns=8, depth=8), "a part sums more than 64 steps"),
    ],
)
def test_a_gpus_tile_that_does_not_fit_is_refused(changes, fields, says, caplog):
    refused(product(runtime.read_record("sm_90"), **changes), gpu_choice.choose, fields, says, caplog)


BY_UNIT = dict(across=8, down=16, rows=2, columns=4, depth=32, unit="emulated")


def test_a_gpus_own_tile_with_a_matrix_unit(device):
    traits = traits_with(device, "emulated", max_group=256)
    problem = product(traits, dtype="float16")
    tile, steps = gpu_choice.choose(own(problem, **BY_UNIT))
    assert (tile, steps) == (MatrixTile.of(EMULATED, down=2, across=2, tall=1, wide=2, depth=32), 0)
    assert (tile.height, tile.width, tile.items) == (32, 32, 128)


@pytest.mark.parametrize(
    "dtype, fields, says",
    [
        ("float32", {}, "the device multiplies its operands with no matrix unit 'emulated'"),
        ("float16", dict(unit="tensor"), "the device multiplies its operands with no matrix unit 'tensor'"),
        ("float16", dict(across=2), "across = 2 is no multiple of 4"),
        ("float16", dict(rows=1), "rows = 1 is no multiple of 2"),
        ("float16", dict(depth=8), "depth = 8 is no multiple of 16"),
        ("float16", dict(depth=64), "depth = 64 is more than 32"),
    ],
)
def test_a_gpus_tile_with_a_matrix_unit_that_does_not_fit_is_refused(dtype, fields, says, caplog):
    traits = dataclasses.replace(runtime.read_record("sm_90"), matrix_units=("emulated",), matrix_rates=(8.0,))
    refused(product(traits, dtype=dtype), gpu_choice.choose, BY_UNIT | fields, says, caplog)


def test_a_gpus_own_tile_goes_before_the_kernels_of_few_rows():
    problem = product(runtime.read_record("sm_90"), m=2)
    assert gpu_choice.few(problem) and not gpu_choice.few(own(problem, across=16, down=2, rows=1, columns=2, depth=8))


@pytest.mark.parametrize(
    "changes, fields, says",
    [
        ({}, dict(lanes=8, places=8, rows=2), "'vector'"),
        ({}, dict(lanes=0, places=8, rows=2, vector=1), "lanes = 0 is not a positive number"),
        ({}, dict(lanes=8, places=8, rows=2, vector=1, steps=-32), "steps = -32 is not a positive number"),
        ({}, dict(lanes=6, places=8, rows=2, vector=1), "lanes = 6 is no power of two"),
        ({}, dict(lanes=8, places=8, rows=4, vector=1), "rows = 4 is more than the product's 2 take"),
        ({}, dict(lanes=8, places=8, rows=2, vector=8), "8 adjacent elements of the large operand are no aligned vector"),
        (dict(n=190), dict(lanes=8, places=8, rows=2, vector=4), "4 adjacent elements of the large operand are no aligned vector"),
        ({}, dict(lanes=8, places=8, rows=2, vector=4, steps=30), "the vector of 4 does not divide the 30 steps of a part"),
        ({}, dict(lanes=64, places=32, rows=2, vector=1), "its 2048 work-items are more than a group's 1024"),
        ({}, dict(lanes=64, places=16, rows=2, vector=4), "its 32768 bytes of local memory are more than the group's 16384"),
    ],
)
def test_a_gpus_shape_for_few_rows_that_does_not_fit_is_refused(changes, fields, says, caplog):
    traits = dataclasses.replace(runtime.read_record("sm_90"), local_memory=16384)
    refused(product(traits, **{"m": 2, **changes}), gpu_choice.few, fields, says, caplog, "few_rows")


def test_sums_of_a_shape_for_few_rows_fit_the_registers(caplog):
    traits = dataclasses.replace(runtime.read_record("sm_90"), item_registers=16)
    fields = dict(lanes=8, places=8, rows=4, vector=4)
    refused(product(traits, m=4), gpu_choice.few, fields, "its 16 sums of 4 bytes are too many for 16 registers", caplog, "few_rows")


def test_a_convolutions_sum_asks_for_no_products_tile():
    traits = own(product(runtime.read_record("sm_90")), across=16, down=2, rows=1, columns=2, depth=8).traits
    problem = Problem(traits, 1, 64, 192, 96, None, None, "float32", None)
    assert gpu_choice.choose(problem) == gpu_choice.choose(dataclasses.replace(problem, traits=runtime.read_record("sm_90")))
