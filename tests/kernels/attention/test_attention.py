"""Attention kernels against NumPy in float64, on the current device, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import attention
from keras_ocl.kernels.attention import gpu_choice
from keras_ocl.kernels.attention.parts import FORWARD, KEY_VALUE_GRADIENT, QUERY_GRADIENT, Writer
from keras_ocl.kernels.spec import Sink
from tests.kernels.launching import launch, named
from tests.pairwise import pairwise

PRECISION = {"float64": 1e-13, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}


SCHEDULES = ["cpu", "cpu, many heads", "gpu", "reference"]


@pytest.fixture(params=SCHEDULES)
def traits(request, device):
    """Whether heads are many depends on how many compute units there are to be kept busy. Few registers make small tiles, soon compiled."""
    units = 0 if "many" in request.param else 10**6
    return dataclasses.replace(device.traits, schedule=request.param.split(",")[0], compute_units=units, item_registers=64)


def operands(batch, time, source, heads, key_heads, depth, value_depth, dtype="float32", seed=0):
    """query, key, value, do."""
    rng = np.random.default_rng(seed)
    asked, keys = (batch, time, heads), (batch, source, key_heads)
    shapes = ((*asked, depth), (*keys, depth), (*keys, value_depth), (*asked, value_depth))
    return [rng.normal(size=s).astype(dtypes.numpy_dtype(dtype)) for s in shapes]


def reference(query, key, value, do, scale, causal=False, mask=None, bias=None):
    """out, dq, dk, dv in float64."""
    query, key, value, do = (np.asarray(a, "f8") for a in (query, key, value, do))
    key_heads, groups = key.shape[2], query.shape[2] // key.shape[2]
    key, value = np.repeat(key, groups, 2), np.repeat(value, groups, 2)
    logits = np.einsum("btnd,bsnd->bnts", query, key) * scale + (0 if bias is None else np.asarray(bias, "f8"))
    allowed = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
    if causal:
        allowed = allowed & np.tril(np.ones(logits.shape[2:], bool))
    logits = np.where(allowed, logits, attention.MASKED)
    weights = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(-1, keepdims=True)
    products = np.einsum("btnv,bsnv->bnts", do, value)
    slopes = np.where(allowed, weights * (products - (products * weights).sum(-1, keepdims=True)), 0) * scale

    def grouped(x):
        return x.reshape(*x.shape[:2], key_heads, groups, x.shape[3]).sum(3)

    return (
        np.einsum("bnts,bsnv->btnv", weights, value),
        np.einsum("bnts,bsnd->btnd", slopes, key),
        grouped(np.einsum("bnts,btnd->bsnd", slopes, query)),
        grouped(np.einsum("bnts,btnv->bsnv", weights, do)),
    )


def problem(traits, arrays, scale=0.3, causal=False, extents=None, all_arguments=False):
    """The Problem of `arrays` by name; `extents` replaces (batch, time, source)."""
    query, key, value = (arrays[n] for n in ("query", "key", "value"))
    batch, time, source = extents or (*query.shape[:2], key.shape[1])
    leading = {"query": (batch, time), "do": (batch, time), "key": (batch, source), "value": (batch, source)}
    leading |= {name: (batch, time) for name in ("peak", "rescale", "delta")}
    shapes = {n: (*leading[n], *a.shape[2:]) if n in leading else a.shape for n, a in arrays.items()}
    given = {n: attention.Operand(named(n), a.dtype.name, tuple(shapes[n])) for n, a in arrays.items()}
    return attention.Problem(
        traits, batch, time, source, query.shape[2], *key.shape[2:], value.shape[3], query.dtype.name, scale, causal, given, all_arguments
    )


def attend(device, traits, query, key, value, do, mask=None, bias=None, sources=None, **options):
    """out, dq, dk, dv; the kernels' texts are added to the set `sources`."""
    arrays = {"query": query, "key": key, "value": value}
    arrays |= {n: a for n, a in (("mask", mask), ("bias", bias)) if a is not None}
    buffers = {n: device.upload(a) for n, a in arrays.items()}
    wide = np.dtype("f8" if query.dtype == "f8" else "f4")

    def run(plan, names, arrays, *results):
        p = problem(traits, arrays, **options)
        extents = {"asked": (p.batch, p.time, p.heads), "keys": (p.batch, p.source, p.key_heads)}
        sinks = [Sink(named(n), (*extents[kind], *more), dtype.name) for n, (kind, more, dtype) in zip(names, results, strict=True)]
        specs = plan(p, sinks)
        for name, sink in zip(names, sinks, strict=True):
            dtype = dtypes.numpy_dtype(sink.dtype)
            buffers[name] = device.upload(np.full(tuple(int(n) for n in sink.shape), 77, dtype))
        if sources is not None:
            sources.update(s.source("f") for s in specs)
        if specs:
            launch(device, specs, buffers)
        return [
            device.download(buffers[name], dtypes.numpy_dtype(s.dtype), tuple(int(n) for n in s.shape))
            for name, s in zip(names, sinks, strict=True)
        ]

    depth, value_depth = (query.shape[3],), (value.shape[3],)
    statistic = ("asked", (), wide)
    out, peak, rescale = run(
        attention.forward, ["out", "peak", "rescale"], arrays, ("asked", value_depth, query.dtype), statistic, statistic
    )
    arrays |= {"do": do, "peak": peak, "rescale": rescale, "delta": (np.asarray(out, wide) * np.asarray(do, wide)).sum(-1)}
    buffers |= {n: device.upload(arrays[n]) for n in ("do", "delta")}
    results = ("asked", depth, query.dtype), ("keys", depth, key.dtype), ("keys", value_depth, key.dtype)
    return out, *run(attention.gradient, ["dq", "dk", "dv"], arrays, *results)


def check(device, traits, arrays, scale=0.3, causal=False, mask=None, bias=None, tolerance=None, **options):
    found = attend(device, traits, *arrays, mask=mask, bias=bias, scale=scale, causal=causal, **options)
    wanted = reference(*arrays, scale, causal, mask, bias)
    tolerance = tolerance or PRECISION[arrays[0].dtype.name]
    for name, x, y in zip(("out", "dq", "dk", "dv"), found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x, "f8"), y, rtol=tolerance, atol=4 * tolerance * max(1, np.abs(y).max()), err_msg=name)


def test_sizes_and_groups(device, traits):
    """With extents as literals, and as arguments, where sizes share kernels."""
    for size in ((1, 37, 41, 4, 2, 8, 5), (1, 1, 70, 3, 1, 43, 130)):
        check(device, traits, operands(*size))
    for size in ((1, 33, 45, 6, 2, 17, 6), (2, 34, 41, 4, 2, 18, 7)):
        check(device, traits, operands(*size), all_arguments=True)


def test_causal(device, traits):
    """Also where there are more queries than keys, or fewer."""
    for size in ((2, 34, 41, 4, 2, 18, 7), (1, 60, 35, 4, 2, 17, 8), (1, 33, 70, 4, 2, 17, 8)):
        check(device, traits, operands(*size), causal=True, all_arguments=True)


@pytest.mark.parametrize(
    ("traits", "dtype"),
    [
        ("cpu", "float16"),
        ("cpu, many heads", "float64"),
        ("cpu, many heads", "bfloat16"),
        ("gpu", "float64"),
        ("gpu", "float16"),
        ("gpu", "bfloat16"),
    ],
    indirect=["traits"],
)
def test_dtypes(device, traits, dtype):
    if dtype == "float64" and not device.traits.fp64:
        pytest.skip("the device has no float64")
    bias = operands(1, 1, 9, 1, 1, 1, 19, dtype)[1].reshape(1, 1, 1, 9)
    check(device, traits, operands(1, 19, 9, 2, 2, 5, 6, dtype), causal=True, bias=bias)


@pytest.mark.parametrize("masked, biased", [((2, 4, 37, 41), (1, 4, 1, 41)), ((1, 4, 1, 41), (2, 1, 37, 1))])
def test_bias_and_mask(device, traits, masked, biased):
    """Some rows are masked as a whole: they weigh all positions alike."""
    rng = np.random.default_rng(1)
    mask, bias = rng.uniform(size=masked) < 0.5, rng.normal(size=biased).astype("float32")
    mask[:, :, :1, :20] = False
    check(device, traits, operands(2, 37, 41, 4, 2, 4, 4), causal=masked[2] > 1, mask=mask, bias=bias)


SINGLE = [(1, 1, 70, 4, 4, 64, 64), (3, 1, 16, 6, 2, 43, 7), (2, 1, 1, 4, 1, 1, 33), (2, 1, 33, 2, 2, 80, 256), (1, 1, 15, 3, 3, 5, 2)]


@pytest.mark.parametrize("traits,dtype,size", pairwise(SCHEDULES, ["float32", "float16"], SINGLE), indirect=["traits"])
def test_a_single_query(device, traits, size, dtype):
    """Also where a mask or bias differs from head to head, or leaves nothing."""
    arrays = operands(*size, dtype)
    batch, _, source, heads, *_ = size
    check(device, traits, arrays)
    rng = np.random.default_rng(2)
    mask = rng.uniform(size=(batch, 1, 1, source)) < 0.5
    mask[-1] = False
    check(device, traits, arrays, mask=mask, bias=rng.normal(size=(1, heads, 1, source)).astype(dtype))
    check(device, traits, arrays, mask=rng.uniform(size=(1, heads, 1, 1)) < 0.5, causal=True)


def test_a_single_query_with_infinities_and_nan(device, traits):
    query, key, value, do = operands(6, 1, 50, 2, 2, 4, 4)
    bias = np.zeros((6, 1, 1, 50), "float32")
    bias[0] = -np.inf  # nothing else: NaN
    bias[1, ..., :40] = -np.inf
    bias[2, ..., 7], bias[3, ..., 45] = np.nan, np.inf
    value[4, 49, 0, 1] = np.inf  # in the last row, behind which a block goes on
    out, *_ = attend(device, traits, query, key, value, do, bias=bias)
    with np.errstate(invalid="ignore"):
        wanted = reference(query, key, value, do, 0.3, bias=bias)[0]
    assert np.isnan(out[[0, 2, 3]]).all() and np.isinf(out[4, 0, 0, 1])
    np.testing.assert_allclose(out[[1, 4, 5]], wanted[[1, 4, 5]], rtol=1e-4, atol=1e-5)


def test_a_single_query_has_one_source_for_all_lengths(device, traits):
    sources = set()
    for batch, source in ((3, 40), (1, 70)):
        extents = (Dim(batch, 3, 1000003), 1, Dim(source, 40, 15485863))
        arrays = operands(batch, 1, source, 4, 2, 4, 6)
        found = attend(device, traits, *arrays, extents=extents, sources=sources)
        np.testing.assert_allclose(found[0], reference(*arrays, 0.3)[0], rtol=1e-4, atol=1e-4)
    assert len(sources) <= 3


def test_infinities_and_nan(device, traits):
    arrays = operands(1, 6, 50, 1, 1, 4, 4)
    bias = np.zeros((1, 1, 6, 50), "float32")
    bias[..., 0, :] = -np.inf  # a row of nothing else is NaN
    bias[..., 1, :40] = -np.inf
    bias[..., 2, 7], bias[..., 3, 45] = np.nan, np.inf
    out, dq, _, _ = attend(device, traits, *arrays, bias=bias)
    with np.errstate(invalid="ignore"):
        wanted = reference(*arrays, 0.3, bias=bias)
    assert np.isnan(out[0, [0, 2, 3]]).all() and np.isnan(dq[0, [0, 2, 3]]).all()
    for x, y in zip((out, dq), wanted[:2], strict=True):
        np.testing.assert_allclose(x[0, [1, 4, 5]], y[0, [1, 4, 5]], rtol=1e-4, atol=1e-5)


def test_large_logits(device, traits):
    query, key, value, do = operands(1, 40, 40, 4, 2, 17, 7)
    check(device, traits, [query * 20, key * 20, value, do], all_arguments=True, tolerance=1e-3)  # logits of 1000 have errors of 1e-4


def test_other_batches_and_lengths_have_the_same_source(device, traits):
    sources = set()
    for batch, time, source in ((3, 40, 30), (1, 3, 70)):
        extents = (Dim(batch, 3, 1000003), Dim(time, 40, 1299709), Dim(source, 30, 15485863))
        arrays = operands(batch, time, source, 2, 1, 4, 6)
        found = attend(device, traits, *arrays, extents=extents, causal=True, sources=sources)
        for x, y in zip(found, reference(*arrays, 0.3, True), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    assert len(sources) <= 3


def test_empty_results_and_operands(device, traits):
    for arrays in (operands(0, 3, 4, 1, 1, 2, 2), operands(1, 0, 4, 1, 1, 2, 2)):
        p = problem(traits, dict(zip(("query", "key", "value"), arrays, strict=False)))
        assert attention.forward(p, [Sink(named(n), (p.batch, p.time, 1), "float32") for n in "abc"]) == []
    _, _, dk, dv = attend(device, traits, *operands(1, 0, 4, 1, 1, 2, 2))
    assert not dk.any() and not dv.any()
    _, dq, _, _ = attend(device, traits, *operands(1, 3, 0, 1, 1, 2, 2))
    assert not dq.any()


def test_private_memory_is_bounded(device):
    """Long rows leave room for fewer positions."""
    check(device, dataclasses.replace(device.traits, schedule="cpu"), operands(1, 3, 4, 1, 1, 3000, 3))


def test_gpu_tiles_respect_the_device(device):
    arrays = dict(zip(("query", "key", "value"), operands(1, 2, 2, 1, 1, 128, 256), strict=False))
    for memory, group in ((32768, 256), (16384, 64), (4096, 4), (65536, 1)):
        traits = dataclasses.replace(device.traits, schedule="gpu", local_memory=memory, max_group=group)
        for scheme in (FORWARD, QUERY_GRADIENT, KEY_VALUE_GRADIENT):
            tile = gpu_choice.choose(problem(traits, arrays), scheme)
            assert tile.items <= group and tile.local_bytes(4) <= memory


@pytest.mark.parametrize("record", ["sm_86", "gfx1030", "dg2"])
@pytest.mark.parametrize("size", [(32, 64, 64, 4, 4, 32, 32), (4, 512, 77, 8, 8, 64, 64), (1, 1000, 1000, 2, 1, 20, 128)])
def test_gpu_tiles_fit_registers_and_gradients_share_a_launch(record, size):
    traits = runtime.read_record(record)
    given = problem(traits, dict(zip(("query", "key", "value"), operands(*size), strict=False)))
    tiles = {scheme: gpu_choice.choose(given, scheme) for scheme in (FORWARD, QUERY_GRADIENT, KEY_VALUE_GRADIENT)}
    for scheme, tile in tiles.items():
        assert 1.6 * gpu_choice.registers(tile, scheme) <= traits.item_registers
    assert tiles[QUERY_GRADIENT].items == tiles[KEY_VALUE_GRADIENT].items


@pytest.mark.parametrize("tile", [(16, 4, 4, 4), (16, 8, 2, 4), (8, 4, 4, 8)])
def test_large_gpu_tiles(device, monkeypatch, tile):
    """Those that GPUs with many registers take: of rows that are loaded as vectors and of others, in several blocks and chunks."""
    tile = gpu_choice.Tile(*tile, depth=16, fragment=4)
    if tile.local_bytes(4) > device.traits.local_memory or tile.items > device.traits.max_group:
        pytest.skip("the device has no room for such a group")
    monkeypatch.setattr(gpu_choice, "choose", lambda problem, scheme: tile)
    traits = dataclasses.replace(device.traits, schedule="gpu")
    arrays = operands(1, 70, 141, 2, 1, 20, 68)
    mask = np.random.default_rng(0).uniform(size=(1, 1, 70, 141)) < 0.7
    check(device, traits, arrays, mask=mask)
    check(device, traits, operands(1, 131, 67, 2, 2, 65, 12), causal=True)


def test_small_groups(device):
    traits = dataclasses.replace(device.traits, schedule="gpu", max_group=4)
    check(device, traits, operands(1, 5, 9, 1, 1, 3, 40), causal=True)


def test_where_these_kernels_pay(device):
    cpu = dataclasses.replace(device.traits, schedule="cpu", compute_units=2)
    rows = attention.Operand(named("x"), "float32", (4, 50, 2, 64))

    def pays(traits=cpu, bias=False, **changes):
        return attention.pays(traits, dataclasses.replace(rows, **changes), rows, bias)

    assert pays()
    assert not pays(dataclasses.replace(cpu, compute_units=64))
    assert not pays(bias=True) and not pays(dtype="float16")
    assert not pays(shape=(4, 50, 2, 128))
    single = {"shape": (4, 1, 2, 64)}
    assert pays(**single) and pays(bias=True, dtype="float16", **single) and pays(dataclasses.replace(cpu, compute_units=64), **single)
    assert not pays(shape=(4, 1, 2, 512)) and not pays(shape=(4, Dim(1, 9, 1299709), 2, 512))


def test_where_it_is_one_kernel_on_a_gpu():
    gpu = runtime.read_record("sm_90")

    def pays(shape=(32, 128, 4, 32), dtype="float32", bias=False, source=None):
        query = attention.Operand(named("x"), dtype, shape)
        key = dataclasses.replace(query, shape=(shape[0], source or shape[1], *shape[2:]))
        return attention.pays(gpu, query, key, bias)

    assert pays() and pays((2, 512, 2, 64)) and pays((32, Dim(20, 128, 1299709), 4, 32))
    assert not pays((32, 512, 8, 64)) and not pays((1, 1024, 1, 64))  # multiply-adds; a long walk
    assert not pays((32, 1, 12, 64), source=400) and not pays((32, 128, 4, 32), source=8)
    assert not pays(bias=True) and not pays(dtype="float64")
    assert pays(dtype="float16") and pays(dtype="bfloat16")  # their sums are float32


def test_wide_indices_only_when_needed():
    def index(batch):
        shape = (batch, 1024, 16, 64)
        given = {n: attention.Operand(named(n), "float32", shape) for n in ("query", "key", "value")}
        return attention.Problem(None, batch, 1024, 1024, 16, 16, 64, 64, "float32", 1.0, False, given).index

    assert index(100) == "int"
    assert index(3000) == "long"


def test_a_bias_too_large_for_narrow_indices():
    def place(batch):
        given = {"bias": attention.Operand(named("bias"), "float32", (batch, 16, 1024, 1024))}
        problem = attention.Problem(None, batch, 1024, 1024, 16, 16, 64, 64, "float32", 1.0, False, given)
        return Writer(problem, FORWARD, ()).place("bias", "own", "other")

    assert place(100) == "batch * 16777216 + head * 1048576 + (int)own * 1024 + (int)other"
    assert place(200) == "(long)batch * 16777216 + (long)head * 1048576 + (long)own * 1024 + (long)other"
