"""Matrix product kernels against NumPy in float64, on the current device, with all schedules."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import gemm
from keras_ocl.kernels.contraction import Tile
from keras_ocl.kernels.gemm import cpu as gemm_cpu
from keras_ocl.kernels.gemm import cpu_choice as gemm_choice
from keras_ocl.kernels.gemm import gpu_choice
from keras_ocl.kernels.gemm import strips as gemm_strips
from keras_ocl.kernels.gemm.parts import Names, Problem
from keras_ocl.kernels.schedule import schedule_names
from keras_ocl.kernels.spec import Args, Sink
from keras_ocl.runtime.overrides import Overrides
from tests.drivers import on_rusticl
from tests.kernels.launching import launch, launch_all, named
from tests.pairwise import pairwise


def cpu(device):
    return dataclasses.replace(device.traits, schedule="cpu")


def random(rng, shape, dtype):
    if dtypes.is_float(dtype):
        return rng.standard_normal(shape).astype(dtypes.numpy_dtype(dtype))
    return rng.integers(-8 if dtypes.is_signed(dtype) else 0, 8, shape).astype(dtypes.numpy_dtype(dtype))


def stored(matrix, transposed, offset, name, dtype):
    """The buffer's contents for a logical (batch, rows, columns) array, and the Operand that describes it."""
    batch, rows, columns = matrix.shape
    flat = (matrix.swapaxes(1, 2) if transposed else matrix).ravel()
    strides = (1, rows) if transposed else (columns, 1)
    padding = np.zeros(offset, matrix.dtype)
    operand = gemm.Operand(named(name), dtype, *strides, batch_stride=0 if batch == 1 else rows * columns, offset=offset)
    return np.concatenate([padding, flat]), operand


def planned(device, traits, a, b, dtype, *, transposed=(False, False), offset=0, batched=False, out=None, wrap=lambda e: e, **options):
    """(kernels, storages by name, result as it was) of the plan for logical arrays a (batch, m, k) and b (batch, k, n)."""
    batch, m, k, n = max(len(a), len(b)), a.shape[1], a.shape[2], b.shape[2]
    out = out or dtypes.accumulator(dtype)
    host_a, operand_a = stored(a, transposed[0], offset, "a", dtype)
    host_b, operand_b = stored(b, transposed[1], offset, "b", dtype)
    shape = (batch, m, n) if batched else (m, n)
    specs = gemm.plan(
        traits,
        batch=batch if batched else None,
        m=wrap(m),
        n=n,
        k=k,
        a=operand_a,
        b=operand_b,
        dtype=dtype,
        sink=Sink(named("c"), shape, out),
        **options,
    )
    result = np.full(shape, 77, dtypes.numpy_dtype(out))
    return specs, {"a": device.upload(host_a), "b": device.upload(host_b), "c": device.upload(result)}, result


def multiply_all(device, traits, problems):
    """The products (batch, m, n) of several (a, b, dtype, options of `planned`), whose kernels are built together."""
    plans = [planned(device, traits, a, b, dtype, **options) for a, b, dtype, options in problems]
    launch_all(device, [(specs, buffers) for specs, buffers, _ in plans])
    found = [device.download(buffers["c"], result.dtype, result.shape) for _, buffers, result in plans]
    return [c.reshape(-1, *c.shape[-2:]) for c in found]


def multiply(device, traits, a, b, dtype, **options):
    return multiply_all(device, traits, [(a, b, dtype, options)])[0]


def check(device, traits, a, b, dtype, **options):
    check_all(device, traits, [(a, b, dtype, options)])


def check_all(device, traits, problems):
    for (a, b, dtype, options), got in zip(problems, multiply_all(device, traits, problems), strict=True):
        want = a.astype(np.float64) @ b.astype(np.float64)
        if dtypes.is_float(dtype):
            precision = {"float64": 1e-13, "float32": 2e-6}[dtypes.accumulator(dtype)]
            if options.get("out") in ("float16", "bfloat16"):
                precision = {"float16": 1e-3, "bfloat16": 8e-3}[options["out"]]
            atol = precision * 4 * (1 + a.shape[2]) ** 0.5
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=precision, atol=atol, err_msg=f"{a.shape} @ {b.shape}, {options}")
        else:
            np.testing.assert_array_equal(got.astype(np.float64), want)


SIZES = [
    (4, 2, 2), (1, 100, 1), (17, 33, 31), (13, 70, 10), (64, 64, 64), (1, 300, 257), (7, 129, 48), (130, 260, 129),
    (33, 600, 97), (300, 9, 1),
]  # fmt: skip


TRANSPOSED = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("traits,size,transposed", pairwise(schedule_names(), SIZES, TRANSPOSED), indirect=["traits"])
def test_sizes_and_transposes(device, traits, size, transposed):
    m, k, n = size
    rng = np.random.default_rng(m + k + n)
    check(device, traits, random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32"), "float32", transposed=transposed)


@pytest.mark.parametrize("m,k,n", [(3, 5, 7), (17, 33, 31), (64, 300, 40), (2, 5000, 3)])
@pytest.mark.parametrize("transposed", [(False, False), (False, True)])
def test_all_arguments(device, traits, m, k, n, transposed):
    rng = np.random.default_rng(1)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    check(device, traits, a, b, "float32", transposed=transposed, all_arguments=True)


@pytest.mark.parametrize(
    "traits,batches,transposed", pairwise(schedule_names(), [(3, 3), (3, 1), (1, 3)], TRANSPOSED[:3]), indirect=["traits"]
)
def test_batched_broadcast_and_offset(device, traits, batches, transposed):
    rng = np.random.default_rng(2)
    a, b = random(rng, (batches[0], 9, 20), "float32"), random(rng, (batches[1], 20, 35), "float32")
    check(device, traits, a, b, "float32", transposed=transposed, batched=True, offset=5)


DTYPES = ["float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"]


@pytest.mark.parametrize(
    "traits,dtype,size,transposed",
    pairwise(schedule_names(), DTYPES, [(3, 5, 7), (21, 50, 40)], [(False, False), (False, True)]),
    indirect=["traits"],
)
def test_dtypes(device, traits, dtype, size, transposed):
    m, k, n = size
    if dtype == "float64" and not device.traits.fp64:
        pytest.skip("the device has no float64")
    rng = np.random.default_rng(3)
    a, b = random(rng, (1, m, k), dtype), random(rng, (1, k, n), dtype)
    out = dtype if dtype in ("float16", "bfloat16") else None
    check(device, traits, a, b, dtype, transposed=transposed, out=out)


def test_strides_that_are_not_one(device, traits):
    rng = np.random.default_rng(4)
    a, b = random(rng, (1, 14, 22), "float32"), random(rng, (1, 22, 40), "float32")
    specs = gemm.plan(
        traits, batch=None, m=7, n=20, k=11, dtype="float32", sink=Sink(named("c"), (7, 20), "float32"),
        a=gemm.Operand(named("a"), "float32", 44, 2), b=gemm.Operand(named("b"), "float32", 80, 2, offset=1),
    )  # fmt: skip
    buffers = {"a": device.upload(a), "b": device.upload(b), "c": device.allocate(7 * 20 * 4)}
    launch(device, specs, buffers)
    got = device.download(buffers["c"], np.dtype("float32"), (7, 20))
    np.testing.assert_allclose(got, a[0, ::2, ::2] @ b[0, ::2, 1::2], rtol=1e-5, atol=1e-5)


def test_same_buffer_on_both_sides(device, traits):
    x = random(np.random.default_rng(5), (20, 30), "float32")
    specs = gemm.plan(
        traits, batch=None, m=20, n=20, k=30, dtype="float32", sink=Sink(named("c"), (20, 20), "float32"),
        a=gemm.Operand(named("x"), "float32", 30, 1), b=gemm.Operand(named("x"), "float32", 1, 30),
    )  # fmt: skip
    buffers = {"x": device.upload(x), "c": device.allocate(20 * 20 * 4)}
    launch(device, specs, buffers)
    np.testing.assert_allclose(device.download(buffers["c"], x.dtype, (20, 20)), x @ x.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("k,n", [(40, 33), (10, 64), (700, 10)])
def test_another_batch_size_has_the_same_source(device, traits, k, n, transposed):
    """m (a layer's product), or k (its kernel's gradient), is the batch."""
    rng = np.random.default_rng(6)
    for which in ("m", "k"):
        sources = set()
        for value in (32, 3, 50):
            size = Dim(value, hint=32, probe=1000003)
            m, depth = (size, k) if which == "m" else (k, size)
            a, b = random(rng, (1, int(m), int(depth)), "float32"), random(rng, (1, int(depth), n), "float32")
            operands = [
                gemm.Operand(named("a"), "float32", *((1, m) if transposed[0] else (depth, 1))),
                gemm.Operand(named("b"), "float32", *((1, depth) if transposed[1] else (n, 1))),
            ]
            sink = Sink(named("c"), (m, n), "float32")
            specs = gemm.plan(traits, batch=None, m=m, n=n, k=depth, a=operands[0], b=operands[1], dtype="float32", sink=sink)
            sources.add(tuple(s.source(f"f{i}") for i, s in enumerate(specs)))
            buffers = {
                "a": device.upload(np.ascontiguousarray(a[0].T if transposed[0] else a[0])),
                "b": device.upload(np.ascontiguousarray(b[0].T if transposed[1] else b[0])),
                "c": device.allocate(int(m) * n * 4),
            }
            launch(device, specs, buffers)
            got = device.download(buffers["c"], np.dtype("float32"), (int(m), n))
            np.testing.assert_allclose(got, a[0] @ b[0], rtol=1e-4, atol=1e-4)
        assert len(sources) == 1


def test_sequence_length_in_every_place(device, traits):
    """Attention: the unknown length is rows, columns or depth; short ones must not run past the end."""
    rng = np.random.default_rng(7)
    for places in ("mn", "k", "n"):
        sources = set()
        for value in (64, 5, 129):
            size = Dim(value, hint=64, probe=1000003)
            m, n, k = (size if letter in places else 24 for letter in "mnk")
            batch = Dim(2, hint=4, probe=1299709)
            a, b = random(rng, (2, int(m), int(k)), "float32"), random(rng, (2, int(k), int(n)), "float32")
            specs = gemm.plan(
                traits, batch=batch, m=m, n=n, k=k, dtype="float32", sink=Sink(named("c"), (batch, m, n), "float32"),
                a=gemm.Operand(named("a"), "float32", k, 1, m * k), b=gemm.Operand(named("b"), "float32", n, 1, k * n),
            )  # fmt: skip
            sources.add(tuple(s.source(f"f{i}") for i, s in enumerate(specs)))
            buffers = {"a": device.upload(a), "b": device.upload(b), "c": device.allocate(2 * int(m) * int(n) * 4)}
            launch(device, specs, buffers)
            got = device.download(buffers["c"], np.dtype("float32"), (2, int(m), int(n)))
            np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)
        assert len(sources) == 1


def test_eager_sizes_share_few_sources(device, traits):
    sources = set()
    for m in (2, 3, 5, 9, 40, 100):
        for n in (3, 20, 50, 90, 200):
            for k in (2, 7, 30, 90):
                a, b = gemm.Operand(named("a"), "float32", k, 1), gemm.Operand(named("b"), "float32", n, 1)
                sink = Sink(named("c"), (m, n), "float32")
                specs = gemm.plan(traits, batch=None, m=m, n=n, k=k, a=a, b=b, dtype="float32", sink=sink, all_arguments=True)
                sources.add(tuple(s.source(f"f{i}") for i, s in enumerate(specs)))
    assert len(sources) <= 24


def test_split_products_are_summed_in_order(device, traits):
    k = 40000
    rng = np.random.default_rng(8)
    a, b = random(rng, (1, 3, k), "float32"), random(rng, (1, k, 5), "float32")
    operands = {"a": gemm.Operand(named("a"), "float32", k, 1), "b": gemm.Operand(named("b"), "float32", 5, 1)}
    traits = dataclasses.replace(traits, compute_units=32)
    specs = gemm.plan(traits, batch=None, m=3, n=5, k=k, dtype="float32", sink=Sink(named("c"), (3, 5), "float32"), **operands)
    assert len(specs) == (1 if traits.schedule == "reference" else 2)
    runs = [multiply(device, traits, a, b, "float32") for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    check(device, traits, a, b, "float32")
    batched = np.concatenate([b, b + 1])
    check(device, traits, a, batched, "float32", batched=True)


def test_split_of_an_unknown_depth_has_one_source(device, traits):
    rng = np.random.default_rng(12)
    traits = dataclasses.replace(traits, compute_units=32)
    sources = set()
    for value in (40000, 9000, 20):
        k = Dim(value, hint=40000, probe=1000003)
        a, b = random(rng, (value, 3), "float32"), random(rng, (value, 5), "float32")
        operands = {"a": gemm.Operand(named("a"), "float32", 1, 3), "b": gemm.Operand(named("b"), "float32", 5, 1)}
        specs = gemm.plan(traits, batch=None, m=3, n=5, k=k, dtype="float32", sink=Sink(named("c"), (3, 5), "float32"), **operands)
        sources.add(tuple(s.source(f"f{i}") for i, s in enumerate(specs)))
        buffers = {"a": device.upload(a), "b": device.upload(b), "c": device.allocate(60)}
        launch(device, specs, buffers)
        np.testing.assert_allclose(device.download(buffers["c"], a.dtype, (3, 5)), a.T @ b, rtol=1e-4, atol=1e-3)
    assert len(sources) == 1


def test_empty_and_zero_depth(device, traits):
    def specs(m, n, k, batch=None):
        operands = {"a": gemm.Operand(named("a"), "float32", k, 1), "b": gemm.Operand(named("b"), "float32", n, 1)}
        return gemm.plan(traits, batch=batch, m=m, n=n, k=k, dtype="float32", sink=Sink(named("c"), (m, n), "float32"), **operands)

    assert specs(0, 3, 4) == specs(3, 0, 4) == specs(3, 3, 4, batch=0) == []
    for m, n in ((3, 3), (40, 100)):
        buffers = {"a": device.allocate(4), "b": device.allocate(4), "c": device.upload(np.full((m, n), 7, np.float32))}
        launch(device, specs(m, n, 0), buffers)
        assert not device.download(buffers["c"], np.dtype("float32"), (m, n)).any()


@pytest.mark.parametrize("transposed", [(False, False), (False, True)])
def test_nan_and_infinity_propagate(device, traits, transposed):
    a, b = np.ones((1, 20, 37), np.float32), np.ones((1, 37, 21), np.float32)
    a[0, 3, 36], a[0, 5, 0], b[0, 36, 20] = np.nan, np.inf, -np.inf
    got = multiply(device, traits, a, b, "float32", transposed=transposed)[0]
    np.testing.assert_array_equal(got, a[0] @ b[0])


def launched_product(device, a, b, dtype, depth, out, transposed=(True, False), offset=0):
    """(names of the kernels, the product of (1, m, k) and (1, k, n)); `depth` stands for k."""
    m, n = a.shape[1], b.shape[2]
    operand_a, operand_b = (stored(e, t, offset, h, dtype) for e, t, h in ((a, transposed[0], "a"), (b, transposed[1], "b")))
    sink, operands = Sink(named("c"), (m, n), out), dict(a=operand_a[1], b=operand_b[1])
    specs = gemm.plan(cpu(device), batch=None, m=m, k=depth, n=n, dtype=dtype, sink=sink, **operands)
    empty = np.full((m, n), 77, dtypes.numpy_dtype(out))
    buffers = {"a": device.upload(operand_a[0]), "b": device.upload(operand_b[0]), "c": device.upload(empty)}
    launch(device, specs, buffers)
    return [spec.name for spec in specs], device.download(buffers["c"], empty.dtype, (m, n))


@pytest.mark.parametrize("transposed", [(True, False), (True, True)])
@pytest.mark.parametrize("m,k,n", [(1029, 300, 700), (1030, 256, 513), (602, 4501, 400)])
def test_packed_strips(device, monkeypatch, m, k, n, transposed):
    """A long, strided left operand is packed first, which changes no bit: last strips, split depths, and an unknown depth."""
    if k > 1000 and on_rusticl():
        pytest.skip("CPUs' tiles of a product so deep take llvmpipe more than ten minutes")
    rng = np.random.default_rng(m)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    deep = k > 1000  # takes seconds
    for offset, depth in ((0, k), (5, Dim(k, hint=2 * k)), *(() if deep else ((5, k), (0, Dim(k, hint=k))))):
        names, got = launched_product(device, a, b, "float32", depth, "float32", transposed, offset)
        with monkeypatch.context() as patch:
            patch.setattr(gemm_strips, "suits", lambda problem, tile: False)
            others, in_place = launched_product(device, a, b, "float32", depth, "float32", transposed, offset)
        assert names == ["matrix product packing", *others]
        assert ("sum of a split matrix product" in names) == (deep and isinstance(depth, Dim))
        np.testing.assert_array_equal(got, in_place)
        if not deep:
            np.testing.assert_allclose(got, a[0].astype(np.float64) @ b[0], rtol=2e-6, atol=8e-6 * (1 + k) ** 0.5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8"])
def test_packed_strips_of_other_dtypes(device, dtype):
    if dtype == "float64" and not device.traits.fp64:
        pytest.skip("the device has no float64")
    rng = np.random.default_rng(8)
    a, b = random(rng, (1, 2050, 130), dtype), random(rng, (1, 130, 600), dtype)
    want, out = a[0].astype(np.float64) @ b[0].astype(np.float64), dtypes.accumulator(dtype)
    precision = {"float64": 1e-13, "float32": 2e-6, "int32": 0}[out]
    names, got = launched_product(device, a, b, dtype, 130, out)
    assert names[0] == "matrix product packing"
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=precision, atol=precision * 4 * 131**0.5)


@pytest.mark.parametrize("steps", [1, 8])
def test_passes_over_a_panel_read_no_strips(device, steps):
    """They read the rows of a tile by their stride, which packing makes meaningless: 4 x 65536 x 256 was wrong."""
    least = ("product.strips", 1), ("product.strips_stride", 1), ("product.strips_panels", 1)
    traits = dataclasses.replace(cpu(device), overrides=Overrides("own.toml", tuning=least))
    rng, tile = np.random.default_rng(14), gemm_cpu.Tile("rows", 4, 1, 4, steps=steps)
    a, b = random(rng, (1, 4, 70), "float32"), random(rng, (1, 70, 64), "float32")
    operand, sink = stored(a, True, 0, "a", "float32")[1], Sink(named("c"), (4, 64), "float32")
    problem = Problem(traits, None, 4, 64, 70, operand, gemm.Operand(named("b"), "float32", 64, 1), "float32", sink)
    assert gemm_strips.suits(problem, tile) == (steps == 1)
    check(device, traits, a, b, "float32", transposed=(True, False), tile=tile)


def test_complex_is_refused(device, traits):
    x = gemm.Operand(named("a"), "complex64", 1, 1)
    with pytest.raises(TypeError, match="complex64"):
        gemm.plan(traits, batch=None, m=1, n=1, k=1, a=x, b=x, dtype="complex64", sink=Sink(named("c"), (1, 1), "complex64"))


@pytest.mark.parametrize("m,k,n", [(5, 40, 9), (30, 50, 70), (25, 300, 33), (12, 64, 64)])
@pytest.mark.parametrize("transposed", TRANSPOSED[:3])
@pytest.mark.parametrize("tile", [(2, 2, 4, 0), (4, 1, 8, 0), (3, 2, 6, 32), (3, 1, 6, 32, 2), (4, 1, 16, 512)])
def test_tiles_for_cpus(device, tile, m, k, n, transposed):
    tile = gemm_cpu.Tile("rows", *tile)
    if not tile.block and (transposed[1] or n < tile.vectors * cpu(device).vector_width):
        pytest.skip("B is not read in place here")
    rng = np.random.default_rng(9)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    check(device, cpu(device), a, b, "float32", transposed=transposed, tile=tile)


WIDE = [(1, 64, 512), (1, 301, 700), (2, 77, 517), (4, 9, 530), (3, 8, 1024), (2, 5, 600)]


@pytest.mark.parametrize("dtype,size,transposed", pairwise(["float32", "float16", "int8", "float64"], WIDE, [False, True]))
def test_few_rows_pass_over_wide_panels(device, dtype, size, transposed):
    m, k, n = size
    if dtypes.needs_double(dtype) and not device.traits.fp64:
        pytest.skip("the device has no float64")
    rng, tile = np.random.default_rng(12), gemm_cpu.Tile("rows", m, 32, m, steps=8)
    a, b = random(rng, (1, m, k), dtype), random(rng, (1, k, n), dtype)
    check(device, cpu(device), a, b, dtype, transposed=(transposed, False), tile=tile)


def test_few_rows_of_a_far_matrix_are_streamed(device):
    traits = cpu(device)
    far, near = (1024, 1024), (256, 1024)
    for m, (k, n), expected in ((1, far, True), (2, far, True), (3, far, False), (1, near, False), (1, (2**16, 16), False)):
        a, b = gemm.Operand(named("a"), "float32", k, 1), gemm.Operand(named("b"), "float32", n, 1)
        problem = Problem(dataclasses.replace(traits, compute_units=2), None, m, n, k, a, b, "float32", Sink(named("y"), (m, n), "float32"))
        tile = gemm_choice.choose(problem)
        assert (tile.steps > 1) == expected
        if expected:
            assert gemm_choice.groups(problem, tile) % 2 == 0, "one unit has more to do than the other"


def chosen(device, m, k, n, uniform=0, width=8):
    """The tile for a product on two units with vectors of `width` elements, with `uniform` values in its epilogue."""
    traits = dataclasses.replace(cpu(device), compute_units=2, vector_width=width)
    a, b, sink = gemm.Operand(named("a"), "float32", k, 1), gemm.Operand(named("b"), "float32", n, 1), Sink(named("y"), (m, n), "float32")
    sink.uniform = uniform
    return gemm_choice.choose(Problem(traits, None, m, n, k, a, b, "float32", sink))


def test_where_many_rows_read_the_right_operand_it_is_packed(device):
    """Packed, the product of 12544 x 1024 x 256 takes two thirds of the time that it takes with rows in place, 1 KiB apart."""
    for m, packed in ((4, False), (8, False), (128, True), (12544, True)):
        assert bool(chosen(device, m, 1024, 256).block) == packed, m


def test_rows_that_touch_are_read_in_place(device):
    """A product of 32 x 784 x 16 takes 14 us with them in place, 19 us packed."""
    assert not chosen(device, 32, 784, 16).block


def test_an_epilogue_with_many_values_leaves_them_registers(device):
    """Dropout after a product of 128 x 512 x 512 took three times as long with 6 x 2 vectors of sums, of which some were in memory."""
    tile = chosen(device, 128, 512, 512, uniform=4)
    assert 16 - (tile.rows + 1) * tile.vectors - 1 >= 3
    assert chosen(device, 128, 512, 512, uniform=4, width=16) == chosen(device, 128, 512, 512, width=16), "there are 32 registers"


@pytest.mark.parametrize("m,k,n", [(5, 40, 9), (30, 50, 70), (12, 64, 64)])
@pytest.mark.parametrize("tile", [(4, 4, 8, 0, 2), (1, 4, 4, 0, 1), (3, 1, 6, 0, 4)])
def test_dot_tiles(device, tile, m, k, n):
    rng = np.random.default_rng(10)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    check(device, cpu(device), a, b, "float32", transposed=(False, True), tile=gemm_cpu.Tile("dots", *tile))


GPU_TILES = [
    (16, 16, 4, 4, 16), (8, 4, 8, 8, 8), (4, 1, 1, 2, 4), (1, 1, 1, 1, 1), (8, 4, 8, 8, 8, 1), (8, 8, 4, 8, 8, 2),
    (4, 8, 8, 4, 16), (64, 1, 1, 4, 2),
]  # fmt: skip


@pytest.mark.parametrize("m,k,n", [(45, 200, 70), (8, 96, 64), (33, 67, 1)])
@pytest.mark.parametrize("tile", [(8, 8, 4, 4, 16, 4, 4), (16, 4, 2, 2, 8, 4, 2), (8, 2, 1, 2, 4, 4, 8)])
def test_groups_with_slices_of_k(device, tile, m, k, n):
    """The last slice has fewer steps, or as many; some results lie outside."""
    traits, rng = dataclasses.replace(device.traits, schedule="gpu"), np.random.default_rng(15)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    check(device, traits, a, b, "float32", tile=Tile(*tile))


def test_small_products_have_groups_of_one_size():
    """So that they can be joined; a step of a loop, and what takes much longer than a launch, has the fastest."""
    traits = runtime.read_record("sm_90")

    def items(m, n, k, **more):
        operands = [gemm.Operand(named(name), "float32", stride, 1) for name, stride in (("x", k), ("w", n))]
        sink = Sink(named("y"), (m, n), "float32")
        tile, _ = gpu_choice.choose(Problem(traits, None, m, n, k, *operands, "float32", sink, **more))
        return tile.items * tile.slices

    assert items(512, 512, 128) == 256 and items(512, 512, 128, repeated=True) == 128


def test_slices_take_the_place_of_parts_where_tiles_are_few():
    """A launch that adds sums of parts costs more; a depth that varies has no slices."""
    traits, found = runtime.read_record("sm_90"), []
    for k in (1568, Dim(1600, hint=1568), 32):
        a, b = gemm.Operand(named("a"), "float32", k, 1), gemm.Operand(named("b"), "float32", 512, 1)
        problem = Problem(traits, None, 128, 512, k, a, b, "float32", Sink(named("c"), (128, 512), "float32"))
        tile, steps = gpu_choice.choose(problem)
        found.append((tile.slices > 1, steps > 0))
    assert found == [(True, False), (False, True), (False, False)]


@pytest.mark.parametrize("tile", GPU_TILES)
def test_tiles_for_gpus(device, tile):
    traits = dataclasses.replace(device.traits, schedule="gpu")
    rng = np.random.default_rng(11)
    a, b = random(rng, (1, 45, 50), "float32"), random(rng, (1, 50, 70), "float32")
    check(device, traits, a, b, "float32", tile=Tile(*tile))


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("tile", [(8, 4, 4, 8, 8), (8, 8, 4, 2, 16)])
def test_vectors_of_gpus(device, tile, transposed):
    """Extents, offsets and strides that four, two or no elements divide, with whole tiles and without."""
    traits, rng = dataclasses.replace(device.traits, schedule="gpu"), np.random.default_rng(12)
    problems = []
    for m, k, n in ((64, 32, 128), (36, 20, 52), (34, 22, 54), (35, 21, 53), (64, 21, 128), (36, 32, 53)):
        for offset in (0, 2, 3) if m == 36 else (0,):
            a, b = random(rng, (2, m, k), "float32"), random(rng, (2, k, n), "float32")
            options = dict(transposed=transposed, offset=offset, batched=True, tile=Tile(*tile))
            problems += [(a, b, "float32", options), (a, b, "float32", options | {"all_arguments": True})]
    check_all(device, traits, problems)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float64"])
@pytest.mark.parametrize("m,n", [(1, 1), (1, 300), (3, 64), (8, 33), (300, 1), (64, 3), (31, 8), (5, 6)])
def test_few_rows_or_columns_on_gpus(device, m, n, dtype):
    if dtypes.needs_double(dtype) and not device.traits.fp64:
        pytest.skip("the device has no float64")
    traits, rng = dataclasses.replace(device.traits, schedule="gpu", compute_units=32), np.random.default_rng(13)
    problems = []
    for k in (1, 37, 64, 1000) if dtype == "float32" else (76,):
        for transposed in ((False, False), (True, False), (False, True), (True, True)) if k in (64, 76) else ((False, False), (True, True)):
            a, b = random(rng, (2, m, k), dtype), random(rng, (2, k, n), dtype)
            problems.append((a, b, dtype, dict(transposed=transposed, batched=True, offset=k % 3)))
            problems.append((a[:1], b[:1], dtype, dict(transposed=transposed, all_arguments=True)))
    check_all(device, traits, problems)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("m,k,n", [(17, 33, 31), (130, 260, 129), (45, 1500, 67), (9, 77, 515), (257, 65, 12), (36, 2100, 52)])
def test_the_choices_of_a_large_gpu(device, m, k, n, transposed):
    """Its tiles and its parts of sums are other ones than a small device's."""
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=132, max_group=1024, local_memory=49152)
    rng = np.random.default_rng(14)
    a, b = random(rng, (2, m, k), "float32"), random(rng, (2, k, n), "float32")
    options = dict(batched=True, offset=k % 3), {}, dict(all_arguments=True)
    operands = (a, b), (a[:1], b[:1]), (a[:1], b[:1])
    check_all(device, traits, [(*ab, "float32", dict(transposed=transposed, **more)) for ab, more in zip(operands, options, strict=True)])


class Doubled:
    """A source: twice the matrix in memory."""

    read = 4

    def __init__(self, handle):
        self.handle = handle

    def in_lanes(self, extents):
        return True

    def load(self, args, row, column, extents, width, wide):
        pointer, kind = args.pointer(self.handle, "float32"), f"float{width}" if width > 1 else "float"
        read = f"vload{width}(0, {pointer} + place)" if width > 1 else f"{pointer}[place]"
        return f"const int place = ({row}) * {args.int(extents[1])} + ({column});\nconst {kind} twice = 2 * {read};\n", "twice"


@pytest.mark.parametrize("m,k,n", [(1, 300, 64), (3, 77, 31), (8, 2100, 52), (17, 33, 31), (40, 128, 128), (45, 1500, 67)])
def test_a_right_operand_that_gpus_compute(device, m, k, n):
    """Of few rows, and in tiles; in vectors or element by element, with sums in parts and without."""
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=132, max_group=1024, local_memory=49152)
    rng, handles = np.random.default_rng(17), {x: named(x) for x in "abc"}
    a, b = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
    left, right = gemm.Operand(handles["a"], "float32", k, 1), gemm.Operand(handles["b"], "float32", n, 1, source=Doubled(handles["b"]))
    sink = Sink(handles["c"], (m, n), "float32")
    specs = gemm.plan(traits, batch=None, m=m, n=n, k=k, a=left, b=right, dtype="float32", sink=sink)
    assert ("lanes along the sum" in specs[0].title) == (m <= 8) and len(specs) == (2 if k > 1000 or m == 1 else 1)
    buffers = {"a": device.upload(a), "b": device.upload(b), "c": device.upload(np.zeros((m, n), "float32"))}
    launch(device, specs, buffers)
    found = device.download(buffers["c"], np.dtype("float32"), (m, n))
    np.testing.assert_allclose(found, 2 * a.astype(np.float64) @ b, rtol=2e-6, atol=1e-5 * k**0.5)


@pytest.mark.parametrize("m,k,n", [(17, 33, 31), (64, 128, 128), (45, 1500, 67), (33, 2100, 52)])
def test_a_left_operand_that_gpus_compute(device, m, k, n):
    """In vectors or element by element, with sums in parts and without."""
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=132, max_group=1024, local_memory=49152)
    rng, handles = np.random.default_rng(16), {x: named(x) for x in "abc"}
    a, b = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
    left, right = gemm.Operand(handles["a"], "float32", k, 1, source=Doubled(handles["a"])), gemm.Operand(handles["b"], "float32", n, 1)
    for rows in (m, Dim(m, hint=m)):
        sink = Sink(handles["c"], (m, n), "float32")
        specs = gemm.plan(traits, batch=None, m=rows, n=n, k=k, a=left, b=right, dtype="float32", sink=sink)
        assert len(specs) == (2 if k > 1000 else 1)
        buffers = {"a": device.upload(a), "b": device.upload(b), "c": device.upload(np.zeros((m, n), "float32"))}
        launch(device, specs, buffers)
        found = device.download(buffers["c"], np.dtype("float32"), (m, n))
        np.testing.assert_allclose(found, 2 * a.astype(np.float64) @ b, rtol=2e-6, atol=1e-5 * k**0.5)


def test_few_rows_have_a_kernel_of_their_own():
    traits = runtime.read_record("sm_86")
    for m, n, own in ((1, 4096, True), (8, 4096, True), (9, 4096, False), (4096, 2, True), (Dim(4, hint=4), 512, True)):
        a, b = gemm.Operand(named("a"), "float32", 4096, 1), gemm.Operand(named("b"), "float32", n, 1)
        sink = Sink(named("c"), (m, n), "float32")
        first, *rest = gemm.plan(traits, batch=None, m=m, n=n, k=4096, a=a, b=b, dtype="float32", sink=sink)
        assert ("lanes along the sum" in first.title) == own, (m, n)
        if m in (1, 4096):
            assert len(rest) == (m == 1), "parts of k where the columns make too few groups"


@pytest.mark.parametrize("dtype,lanes", [("float32", 4), ("float16", 4), ("bfloat16", 4), ("int8", 4), ("float64", 2)])
def test_aligned_matrices_are_loaded_as_vectors(device, dtype, lanes):
    """Whole vectors where strides allow, which devices that have no others need to be aligned."""
    traits = dataclasses.replace(device.traits, schedule="gpu")
    for k, offset, vectors in ((64, 0, True), (64, 1, False), (65, 0, False), (Dim(64, hint=64), 0, False)):
        a, b = gemm.Operand(named("a"), dtype, k, 1, offset=offset), gemm.Operand(named("b"), dtype, 1, k, offset=offset)
        sink = Sink(named("c"), (64, 64), dtypes.accumulator(dtype))
        (spec,) = gemm.plan(traits, batch=None, m=64, n=64, k=k, a=a, b=b, dtype=dtype, sink=sink, tile=Tile(8, 8, 4, 4, 8, lanes))
        storage = dtypes.storage_ctype(dtype)
        loads = spec.body.count(f"vloada_half{lanes}(" if dtype == "float16" else f"(__global const {storage}{lanes}*)(")
        assert loads >= 2 if vectors else loads == 0, (k, offset)


def test_gpu_tiles_respect_the_device(device):
    for memory, group in ((16384, 64), (32768, 256), (1024, 4), (65536, 1)):
        traits = dataclasses.replace(device.traits, schedule="gpu", local_memory=memory, max_group=group)
        for dtype, size in (("float32", 4), ("float64", 8)):
            a = gemm.Operand(named("a"), dtype, 500, 1)
            problem = Problem(traits, None, 500, 500, 500, a, a, dtype, None)
            tile, _ = gpu_choice.choose(problem)
            assert tile.across * tile.down <= group
            assert tile.local_bytes(size) <= memory


@pytest.mark.parametrize("n", [2048, 4096])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_large_products_take_the_tile_that_is_fastest_on_an_h200(n, transposed):
    a, b = (gemm.Operand(named(x), "float32", *((1, n) if turned else (n, 1))) for x, turned in zip("ab", transposed, strict=True))
    problem = Problem(runtime.read_record("sm_90"), None, n, n, n, a, b, "float32", None)
    assert gpu_choice.choose(problem) == (Tile(16, 16, 8, 8, 8), 0)


def test_wide_indices_only_when_needed():
    def index(rows):
        a, b = gemm.Operand(named("a"), "float32", 65536, 1), gemm.Operand(named("b"), "float32", 8, 1)
        return Names(Problem(None, None, rows, 8, 65536, a, b, "float32", None), Args()).index

    assert index(1000) == "int"
    assert index(40000) == "long"
