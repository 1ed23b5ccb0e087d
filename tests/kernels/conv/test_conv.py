"""Convolution kernels against NumPy in float64, on the current device, with all schedules and as eager code calls them."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim
from keras_ocl.kernels import conv, prelude
from keras_ocl.kernels.conv import Geometry, Problem, winograd
from keras_ocl.kernels.conv import filter_layout as conv_filter_layout
from keras_ocl.kernels.conv import forward_cpu as conv_forward_cpu
from keras_ocl.kernels.conv import geometry as conv_geometry
from keras_ocl.kernels.conv import winograd_cpu as conv_winograd_cpu
from keras_ocl.kernels.conv import winograd_gpu as conv_winograd_gpu
from keras_ocl.kernels.schedule import schedule_names
from keras_ocl.kernels.spec import Sink
from tests.kernels.launching import launch, launch_all, named
from tests.pairwise import pairwise

FUNCTIONS = ("forward", "input_grad", "filter_grad")
PRECISION = {"float32": 3e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.2e-2}

# input, filter, the rest of Geometry.of()
GEOMETRIES = [
    ((2, 9, 11, 3), (3, 3, 3, 5), dict(padding=1)),
    ((2, 9, 33, 16), (3, 3, 16, 32), dict(padding=1)),
    ((3, 16, 17, 7), (3, 2, 7, 20), dict(padding=((1, 0), (0, 2)), strides=2)),
    ((2, 12, 12, 64), (5, 5, 64, 70), dict(padding=2)),
    ((2, 13, 14, 4), (3, 3, 4, 33), dict(padding=2, dilation=2)),
    ((2, 13, 14, 4), (3, 3, 4, 16), dict(padding=(0, 1), strides=(2, 1), dilation=(1, 3))),
    ((1, 5, 6, 1), (3, 3, 1, 1), dict()),
    ((5, 20, 6), (3, 6, 11), dict(padding=((2, 0),))),
    ((4, 50, 1), (7, 1, 8), dict(strides=3, padding=2)),
    ((2, 5, 6, 7, 3), (2, 3, 3, 3, 18), dict(padding=1)),
    ((2, 5, 6, 7, 4), (3, 3, 3, 4, 6), dict(padding=1, strides=2)),
    ((2, 8, 8, 12), (3, 3, 4, 24), dict(padding=1, groups=3)),
    ((2, 8, 8, 64), (3, 3, 32, 64), dict(padding=1, groups=2)),
    ((2, 9, 8, 40), (3, 3, 1, 40), dict(padding=1, groups=40)),
    ((2, 9, 8, 10), (3, 3, 1, 30), dict(padding=1, groups=10, strides=2)),
    ((2, 7, 8, 16), (3, 3, 16, 16), dict(padding=2, input_dilation=2)),
    ((2, 7, 8, 5), (4, 4, 5, 9), dict(padding=(3, 2), input_dilation=(3, 2), strides=(2, 1))),
    ((2, 7, 8, 5), (2, 2, 5, 9), dict(padding=1, input_dilation=3, dilation=2)),
    ((2, 13, 14, 4), (3, 4, 4, 17), dict(padding=1, strides=(3, 2), dilation=2)),
    ((2, 9, 10, 16), (3, 3, 8, 32), dict(padding=1, strides=2, groups=2)),
    ((2, 11, 9, 6), (2, 2, 6, 10), dict(strides=(4, 5))),
    ((3, 12, 5), (4, 5, 9), dict(padding=3, input_dilation=4, strides=6, dilation=2)),
    ((9, 4, 4, 8), (4, 4, 8, 19), dict()),
    ((33, 2, 2, 8), (3, 3, 8, 19), dict(padding=1)),
    ((3, 10, 10, 24), (1, 1, 24, 48), dict()),
    ((3, 10, 10, 24), (1, 1, 24, 48), dict(strides=2)),
    ((3, 7, 9, 50), (1, 1, 50, 65), dict()),
    ((2, 9, 15, 35), (3, 3, 35, 3), dict(padding=1)),
    ((2, 9, 15, 16), (3, 3, 16, 1), dict(padding=1, strides=2)),
    ((2, 9, 14, 2), (4, 4, 2, 33), dict(padding=1, strides=2)),
    ((2, 10, 10, 3), (3, 3, 3, 16), dict(padding=((-1, 1), (-2, -1)))),
    ((2, 6, 5, 8), (1, 5, 8, 16), dict(padding=(0, 2))),
    ((2, 6, 5, 8), (5, 1, 8, 16), dict(padding=(2, 0))),
]
FEW = [GEOMETRIES[i] for i in (0, 2, 7, 11, 13)]


def places(g):
    """Every (output place, input place, tap) that meet."""
    for tap in itertools.product(*(range(k) for k in g.filter[: g.rank])):
        for out in itertools.product(*(range(o) for o in g.output[1:-1])):
            spread = [o * g.strides[i] + k * g.dilation[i] - g.padding[i][0] for i, (o, k) in enumerate(zip(out, tap, strict=True))]
            source = [t // d for t, d in zip(spread, g.input_dilation, strict=True)]
            aligned = all(t % d == 0 for t, d in zip(spread, g.input_dilation, strict=True))
            if aligned and all(0 <= s < e for s, e in zip(source, g.input[1:], strict=False)):
                yield out, tuple(source), tap


def reference(g, x, w, dy):
    """The convolution and its two gradients in float64."""
    x, w, dy = (a.astype(np.float64) for a in (x, w, dy))
    y, dx, dw = np.zeros(g.output), np.zeros(g.input), np.zeros(g.filter)
    inputs, outputs = g.group_inputs, g.group_outputs
    for out, source, tap in places(g):
        for group in range(g.groups):
            ci, co = slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
            at_x, at_y = (slice(None), *source, ci), (slice(None), *out, co)
            y[at_y] += x[at_x] @ w[tap][:, co]
            dx[at_x] += dy[at_y] @ w[tap][:, co].T
            dw[tap][:, co] += x[at_x].T @ dy[at_y]
    return {"forward": y, "input_grad": dx, "filter_grad": dw}


def random(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtypes.numpy_dtype(dtype))


def example(g, dtype="float32"):
    """Random operands {"x", "w", "dy"}, and their `reference`, which all schedules are compared with."""
    input, output = (tuple(int(e) for e in shape) for shape in (g.input, g.output))
    return _example(dataclasses.replace(g, input=input, output=output), dtype)


@functools.cache
def _example(g, dtype):
    arrays = {"x": random(g.input, dtype, 0), "w": random(g.filter, dtype, 1), "dy": random(g.output, dtype, 2)}
    return arrays, reference(g, **arrays)


def specs_of(what, traits, g, dtype, sink=None, **options):
    first, second, shape = {
        "forward": ("x", "w", g.output),
        "input_grad": ("dy", "w", g.input),
        "filter_grad": ("x", "dy", g.filter),
    }[what]
    operands = {first: named(first), second: named(second)}
    return getattr(conv, what)(Problem(traits, g, dtype, sink or Sink(named("out"), shape, dtype), **operands, **options)), shape


def compute(device, traits, what, g, arrays, dtype, sink=None, stored=None, **options):
    """The result of one of the three functions for host arrays {"x", "w", "dy"}, in float64. stored: its dtype in memory."""
    return compute_all(device, traits, g, arrays, dtype, {what: sink}, stored, **options)[what]


def compute_all(device, traits, g, arrays, dtype, sinks=None, stored=None, **options):
    """The results of several of the functions by name. sinks: from each to its Sink, or None; by default of all, which store plainly."""
    launches, results = [], {}
    for what, sink in (sinks or dict.fromkeys(FUNCTIONS)).items():
        specs, shape = specs_of(what, traits, g, dtype, sink, **options)
        results[what] = np.full(tuple(int(e) for e in shape), 77, dtypes.numpy_dtype(stored or dtype))
        launches.append((specs, {name: device.upload(array) for name, array in (arrays | {"out": results[what]}).items()}))
    launch_all(device, launches)
    found = (device.download(buffers["out"], out.dtype, out.shape) for (_, buffers), out in zip(launches, results.values(), strict=True))
    return {what: result.astype(np.float64) for what, result in zip(results, found, strict=True)}


def check(device, traits, g, dtype="float32", **options):
    arrays, wanted = example(g, dtype)
    for what, got in compute_all(device, traits, g, arrays, dtype, **options).items():
        want = wanted[what]
        scale = max(1.0, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=PRECISION[dtype] * scale, err_msg=f"{what} of {g}")


@pytest.mark.parametrize("input,filter,options", GEOMETRIES)
def test_outputs_of_a_phase_use_the_same_taps(input, filter, options):
    """As many as the axis says, equally far apart in the filter and in the input."""
    plain = Geometry.of(input, filter, **options)
    for g in (plain, plain.transposed()):
        for axis in conv_geometry.axes(g, merge=False)[1:]:
            taps, all_taps = {}, range(-(-axis.taps // axis.tap_period) * axis.tap_period)
            for out in range(3 * axis.period):
                places = [(tap, out * axis.stride + tap * axis.dilation - axis.low) for tap in all_taps]
                met = [(tap, place // axis.spread) for tap, place in places if place % axis.spread == 0]
                assert {b[0] - a[0] for a, b in itertools.pairwise(met)} <= {axis.tap_period}
                assert {b[1] - a[1] for a, b in itertools.pairwise(met)} <= {axis.tap_advance}
                assert len(met) in (0, axis.phase_taps)
                assert taps.setdefault(out % axis.period, [tap for tap, _ in met]) == [tap for tap, _ in met]


@pytest.mark.parametrize("input,filter,options", GEOMETRIES)
def test_geometries(device, traits, input, filter, options):
    check(device, traits, Geometry.of(input, filter, **options))


@pytest.mark.parametrize("input,filter,options", GEOMETRIES)
def test_geometries_with_the_choices_of_a_large_gpu(device, input, filter, options):
    """Its tiles, whose work-items' odometers move by other steps, and its parts of sums are other ones than a small device's."""
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=132, max_group=1024, local_memory=49152)
    check(device, traits, Geometry.of(input, filter, **options))


PACKED = [
    ((6, 16, 17, 90), (5, 5, 90, 70), dict(padding=2)),
    ((20, 14, 13, 100), (3, 3, 100, 101), dict(padding=((0, 1), (2, 0)), strides=2)),
    ((40, 40, 150), (9, 150, 97), dict(padding=4, dilation=2)),
]


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("input,filter,options", PACKED)
def test_packed_filters(device, input, filter, options, batch):
    """Filters whose blocks of channels are put one after the other, for the batch that was the hint and for a smaller one."""
    traits = dataclasses.replace(device.traits, schedule="cpu", vector_width=16, compute_units=1)
    g = Geometry.of((Dim(batch or input[0], hint=input[0]), *input[1:]), filter, **options)
    for geometry in (g, g.transposed()):
        blocks = conv_forward_cpu.filter_blocks(Problem(traits, geometry, "float32", None))
        assert len(blocks) > 1 and sum(lanes * count for lanes, count in blocks) == geometry.output[-1]
    check(device, traits, g)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_packed_filters_of_other_dtypes(device, dtype):
    if dtype == "float64" and not device.traits.fp64:
        pytest.skip("the device has no float64")
    traits = dataclasses.replace(device.traits, schedule="cpu", vector_width=16)
    g = Geometry.of(*PACKED[0][:2], **PACKED[0][2])
    assert all(conv_forward_cpu.filter_blocks(Problem(traits, geometry, dtype, None)) for geometry in (g, g.transposed()))
    check(device, traits, g, dtype)


@pytest.mark.parametrize("flipped, blocks", [(True, None), (True, [(7, 2), (3, 1)]), (False, [(7, 2), (3, 1)]), (False, [(17, 1)])])
def test_filter_layouts(device, flipped, blocks):
    """The order of a filter's elements, against NumPy's reshaping."""
    inputs, outputs = (17, 35) if flipped else (35, 17)
    g = Geometry.of((1, 9, 9, inputs), (3, 2, inputs, outputs))
    w = random(g.filter, "float32", 0)
    rows = (w[::-1, ::-1].swapaxes(2, 3) if flipped else w).reshape(-1, 17)
    wanted, done = [], 0
    for lanes, count in blocks or [(17, 1)]:
        for _ in range(count):
            wanted.append(rows[:, done : done + lanes].ravel())
            done += lanes
    problem = Problem(device.traits, g, "float32", None, w=named("w"))
    assert conv_filter_layout.arrange(problem) == ([], problem), "it has this order"
    specs, arranged = conv_filter_layout.arrange(problem, flipped, blocks)
    assert (arranged.transposed, arranged.packed) == (flipped, blocks is not None)
    buffers = {"w": device.upload(w), arranged.w: device.upload(np.zeros(w.size, "float32"))}
    launch(device, specs, buffers)
    np.testing.assert_array_equal(device.download(buffers[arranged.w], np.float32, (w.size,)), np.concatenate(wanted))


def test_a_filter_that_is_flipped_twice(device):
    """Has the order that it had; each time the geometry says in which order the filter is read."""
    g = Geometry.of((1, 9, 9, 12), (3, 2, 6, 10), groups=2)
    w = random(g.filter, "float32", 0)
    problem = Problem(device.traits, g.transposed(), "float32", None, w=named("w"), transposed=True)
    first, straight = conv_filter_layout.arrange(problem)
    second, again = conv_filter_layout.arrange(straight, transposed=True)
    assert (straight.transposed, again.transposed) == (False, True)
    buffers = {"w": device.upload(w), again.w: device.upload(np.zeros(w.size, "float32"))}
    launch(device, [*first, *second], buffers)
    np.testing.assert_array_equal(device.download(buffers[again.w], np.float32, g.filter), w)


WINOGRAD = [
    ((9, 16, 16, 32), (3, 3, 32, 32), dict(padding=1)),
    ((30, 11, 9, 32), (3, 3, 32, 64), dict(padding=((0, 2), (1, 0)))),
    ((7, 15, 17, 64), (3, 3, 64, 48), dict()),
]


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("input,filter,options", WINOGRAD)
def test_fast_algorithm(device, input, filter, options, batch):
    """Winograd's transforms, for the batch that was the hint and for a smaller one: right, and as exact as the direct sum."""
    if device.traits.local_memory < 2**16:
        pytest.skip("Winograd's blocks do not fit into this device's local memory; the direct kernels serve it")
    traits = dataclasses.replace(device.traits, schedule="cpu", vector_width=16, compute_units=1)
    g = Geometry.of((Dim(batch or input[0], hint=input[0]), *input[1:]), filter, **options)
    assert conv_winograd_cpu.choose_tile(Problem(traits, g, "float32", None)), "this geometry is not one for Winograd's algorithm"
    arrays, wanted = example(g)
    for what, got in compute_all(device, traits, g, arrays, "float32").items():
        assert np.abs(got - wanted[what]).max() <= 3e-6 * np.abs(wanted[what]).max(), what


def test_winograd_transforms_of_filters_are_shared(device):
    """By filters of all sizes; the products know their sizes."""
    traits = dataclasses.replace(device.traits, schedule="cpu", vector_width=16, compute_units=1, local_memory=2**20)
    filters = [(3, 3, 64, 64), (3, 3, 32, 128), (3, 3, 96, 32)]
    geometries = [Geometry.of((Dim(4), 32, 33, f[2]), f, padding=1) for f in filters]
    texts = [[spec.source("f") for spec in specs_of("forward", traits, g, "float32")[0]] for g in geometries]
    assert len({transform for transform, _ in texts}) == 1 and len({product for _, product in texts}) == 3


@pytest.fixture(params=[winograd.TWO, winograd.FOUR], ids=["2x2", "4x4"])
def always(request, monkeypatch):
    """The only of Winograd's algorithms, with which all convolutions that it suits are computed on GPUs."""
    for name in ("choose", "choose_gradient"):
        monkeypatch.setattr(conv_winograd_gpu, name, lambda problem: request.param if winograd.applies(problem) else None)
    return request.param


@pytest.mark.parametrize(
    "input,filter,padding",
    [((1, 7, 10, 256), (3, 3, 256, 13), 1), ((3, 9, 7, 6), (3, 3, 6, 17), ((0, 2), (-1, 0)))],
)
def test_fast_algorithm_of_gpus(device, always, input, filter, padding):
    """With unknown extents and an epilogue, at the longest sum that tiles of 4x4 may have, too: as exact as the direct one."""
    traits = dataclasses.replace(device.traits, schedule="gpu")
    sizes = (Dim(n, hint=n + 3, probe=probe) for n, probe in zip(input, (1299709, 1299721, 1299743), strict=False))
    g = Geometry.of((*sizes, input[3]), filter, padding=padding)
    arrays, wanted = example(g)
    assert all(len(specs_of(what, traits, g, "float32")[0]) >= 4 for what in FUNCTIONS)
    for what, got in compute_all(device, traits, g, arrays, "float32", adding(g)).items():
        want = wanted[what]
        assert np.abs(got - want - 77).max() <= 3e-6 * np.abs(want).max() + 8e-6, what  # 77 + y is rounded to a float


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_fast_algorithm_keeps_infinities_and_nan_in_their_tiles(device, always, value):
    traits = dataclasses.replace(device.traits, schedule="gpu")
    g = Geometry.of((2, 13, 11, 5), (3, 3, 5, 6), padding=1)
    arrays = {"x": random(g.input, "float32", 0), "w": random(g.filter, "float32", 1)}
    want = reference(g, **arrays, dy=np.zeros(g.output))["forward"]
    arrays["x"][1, 6, 4, 2] = value
    got = compute(device, traits, "forward", g, arrays, "float32")
    assert not np.isfinite(got[1, 5:8, 3:6]).any()
    m = always.outputs
    tiles = [np.arange(n) // m * m - 1 for n in (13, 11)]
    rows, columns = ((first <= at) & (at < first + m + 2) for first, at in zip(tiles, (6, 4), strict=True))
    others = np.ones(g.output, bool)
    others[1] = ~np.logical_and.outer(rows, columns)[..., None]
    np.testing.assert_allclose(got[others], want[others], rtol=0, atol=3e-5)


def test_choice_of_the_fast_algorithm():
    """By the price of bytes and multiply-adds, for float32, within the device's memory."""
    traits = runtime.read_record("sm_86")

    def launches(size, channels, dtype="float32", what="forward", traits=traits):
        g = Geometry.of((Dim(128), size, size, channels), (3, 3, channels, channels), padding=1)
        return len(specs_of(what, traits, g, dtype)[0])

    assert launches(32, 32) == launches(32, 64) == 1
    assert [launches(32, 192, what=what) for what in ("forward", "input_grad")] == [4, 4]
    assert launches(32, 192, "float16") == 1 and launches(32, 192, traits=dataclasses.replace(traits, global_memory=2**30)) == 1
    assert launches(32, 32, traits=dataclasses.replace(traits, byte=7)) == 4, "memory that is fast beside the arithmetic"


@pytest.mark.parametrize("name", ["sm_86", "gfx1100", "dg2"])
def test_the_fast_algorithm_stays_where_fewer_bits_multiply_no_faster(name):
    """A precision that the device's units make no use of changes nothing; products of transformed operands are float32."""
    g = Geometry.of((Dim(100), 32, 32, 192), (3, 3, 192, 192), padding=1)
    exact, fewer = (Problem(runtime.read_record(name), g, "float32", None, precision=precision) for precision in ("float32", "tf32"))
    for choose in (conv_winograd_gpu.choose, conv_winograd_gpu.choose_gradient):
        assert choose(exact) is choose(fewer) is winograd.FOUR


@pytest.mark.parametrize("size,channels", [(32, 32), (32, 96), (56, 64), (28, 128), (14, 256)])
def test_choice_of_the_fast_algorithm_is_what_is_fastest_on_an_h200(size, channels):
    g = Geometry.of((Dim(64), size, size, channels), (3, 3, channels, channels), padding=1)
    assert conv_winograd_gpu.choose(Problem(runtime.read_record("sm_90"), g, "float32", None)) is winograd.FOUR


@pytest.mark.parametrize("input,filter,options", GEOMETRIES)
def test_eager_kernels(device, input, filter, options):
    check(device, device.traits, Geometry.of(input, filter, **options), all_arguments=True)


@pytest.mark.parametrize("traits,dtype,geometry", pairwise(schedule_names(), ["float64", "float16", "bfloat16"], FEW), indirect=["traits"])
def test_dtypes(device, traits, dtype, geometry):
    input, filter, options = geometry
    if dtype == "float64" and not device.traits.fp64:
        pytest.skip("the device has no float64")
    check(device, traits, Geometry.of(input, filter, **options), dtype)


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("input,filter,options", FEW)
def test_narrow_vectors(device, width, input, filter, options):
    traits = dataclasses.replace(device.traits, schedule="cpu", vector_width=width)
    check(device, traits, Geometry.of(input, filter, **options))


@pytest.mark.parametrize("width", [2, 4])
def test_narrow_vectors_of_float16(device, width):
    """Of more channels than a vector has lanes: blocks of them are loaded at once."""
    traits = dataclasses.replace(device.traits, schedule="cpu", vector_width=width)
    check(device, traits, Geometry.of((2, 9, 8, 21), (3, 3, 21, 40), padding=1), "float16")


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 9, 15, 17, 31, 33, 50, 70])
def test_channel_counts(device, traits, channels):
    check(device, traits, Geometry.of((2, 6, 5, channels), (3, 3, channels, 71 - channels), padding=1))


def test_small_work_groups(device):
    traits = dataclasses.replace(device.traits, schedule="gpu", max_group=64)
    check(device, traits, Geometry.of((2, 9, 11, 6), (3, 3, 6, 20), padding=1))


@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize(
    "input,filter,options",
    [
        ((2, 3, 4, 70), (3, 3, 70, 72), dict(padding=1)),
        ((2, 7, 5, 147), (3, 3, 147, 230), dict(padding=1, strides=2)),
        ((2, 5, 4, 256), (3, 3, 128, 256), dict(padding=2, dilation=2, groups=2)),
        ((2, 3, 3, 231), (4, 4, 231, 66), dict(padding=2, input_dilation=2)),
    ],
)
def test_sums_in_parts(device, input, filter, options, batch):
    """Few pixels and long sums, which are cut so that all units have work: with an epilogue, for another batch than the hint."""
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=256)
    g = Geometry.of((Dim(batch, hint=2, probe=1299709), *input[1:]), filter, **options)
    assert all(len(specs_of(what, traits, g, "float32")[0]) == 2 for what in ("forward", "input_grad"))
    arrays, wanted = example(g)
    for what, got in compute_all(device, traits, g, arrays, "float32", adding(g)).items():
        np.testing.assert_allclose(got, wanted[what] + 77, rtol=0, atol=1e-5 * np.abs(wanted[what]).max())


def test_no_kernels_without_results(device, traits):
    g = Geometry.of((0, 8, 8, 4), (3, 3, 4, 8))
    assert specs_of("forward", traits, g, "float32")[0] == []
    assert specs_of("input_grad", traits, g, "float32")[0] == []


def test_filter_gradient_of_no_images_is_zero(device, traits):
    g = Geometry.of((0, 8, 8, 4), (3, 3, 4, 8))
    arrays = {"x": np.zeros(g.input, np.float32), "dy": np.zeros(g.output, np.float32)}
    assert not compute(device, traits, "filter_grad", g, arrays, "float32").any()


@pytest.mark.parametrize("channels", [3, 21, 40])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_of_another_dtype(device, traits, channels, dtype):
    """A cast in the epilogue: what loads the operands does not depend on how the result is stored."""
    g = Geometry.of((2, 9, 8, channels), (3, 3, channels, 40), padding=1)
    arrays, wanted = example(g, dtype)
    sinks = {what: Sink(named("out"), specs_of(what, traits, g, dtype)[1], "float32") for what in FUNCTIONS}
    for what, got in compute_all(device, traits, g, arrays, dtype, sinks, stored="float32").items():
        want = wanted[what]
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max(), err_msg=what)


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_special_values_stay_where_they_belong(device, traits, special):
    """A NaN or infinity reaches the outputs that read it, and no other: padding and masked pixels read nothing."""
    g = Geometry.of((2, 7, 9, 3), (3, 3, 3, 5), padding=1)
    x = np.ones(g.input, np.float32)
    x[0, 0, 0, 1] = x[1, 6, 8, 2] = special
    y = compute(device, traits, "forward", g, {"x": x, "w": np.ones(g.filter, np.float32)}, "float32")
    want = np.zeros(g.output, bool)
    want[0, :2, :2] = want[1, 5:, 7:] = True
    np.testing.assert_array_equal(~np.isfinite(y), want)


@pytest.mark.parametrize("input,filter,options", [GEOMETRIES[i] for i in (0, 1, 2, 4, 7, 9, 11, 13, 15, 18, 19, 22, 23, 24, 25, 27, 29)])
def test_source_is_the_same_for_other_batches(device, traits, input, filter, options):
    """The batch is a Dim: another one changes arguments only, and the kernels remain right for it."""
    sources = []
    for batch in (input[0], 1, 7):
        g = Geometry.of((Dim(batch, hint=input[0], probe=1299709), *input[1:]), filter, **options)
        sources.append([s.source("f") for what in FUNCTIONS for s in specs_of(what, traits, g, "float32")[0]])
    assert sources[0] == sources[1] == sources[2]
    check(device, traits, g)


@pytest.mark.parametrize("what", ["forward", "input_grad", "filter_grad"])
def test_unknown_spatial_extents(device, traits, what):
    """Rows of unknown length: the hint decides the tiles, any other length is right."""
    sources = []
    for height, width in ((20, 30), (9, 5), (3, 41)):
        spatial = Dim(height, hint=20, probe=1000003), Dim(width, hint=30, probe=1299709)
        g = Geometry.of((2, *spatial, 5), (3, 3, 5, 20), padding=1, strides=(1, 2))
        arrays, wanted = example(g)
        want = wanted[what]
        got = compute(device, traits, what, g, arrays, "float32")
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * max(1.0, np.abs(want).max()))
        sources.append([s.source("f") for s in specs_of(what, traits, g, "float32")[0]])
    assert sources[0] == sources[1] == sources[2]


def test_eager_source_does_not_depend_on_extents(device):
    """Small eager convolutions of equal rank share one kernel."""
    sources = set()
    for input, filter, options in (((2, 9, 11, 3), (6, 5, 3, 5), dict(padding=2)), ((4, 7, 8, 6), (7, 6, 6, 9), dict(padding=3))):
        for what in ("forward", "input_grad", "filter_grad"):
            specs, _ = specs_of(what, device.traits, Geometry.of(input, filter, **options), "float32", all_arguments=True)
            sources.add((what, *(s.source("f") for s in specs)))
    assert len(sources) == 3


class Rectified(Sink):
    """An epilogue longer than a plain store: adds a bias, rectifies, scales."""

    def store(self, args, coordinates, value, width):
        bias = args.pointer(named("bias"), "float32")
        vector = prelude.vector_type("float", width)
        text = f"{vector} shifted = {value} + {prelude.load('float32', width, bias, coordinates[-1])};\n"
        text += f"shifted = fmax(shifted, ({vector})(0));\nshifted = shifted * 2.0f;\n"
        return text + super().store(args, coordinates, "shifted", width)


class Adding(Sink):
    """Adds to what is there, as an update in place does: each result may come once only."""

    def store(self, args, coordinates, value, width):
        pointer, offset = args.pointer(self.handle, self.dtype, out=True), coordinates[0]
        for extent, c in zip(self.shape[1:], coordinates[1:], strict=True):
            offset = f"({offset}) * {args.int(extent)} + {c}"
        return super().store(args, coordinates, f"({value} + {prelude.load(self.dtype, width, pointer, f'({offset})')})", width)


def adding(g):
    """A Sink that adds for each of the functions."""
    shapes = {"forward": g.output, "input_grad": g.input, "filter_grad": g.filter}
    return {what: Adding(named("out"), shape, "float32") for what, shape in shapes.items()}


@pytest.mark.parametrize("extent", [30, 31, 33, 36, 41, 44, 12, 5, 2])
@pytest.mark.parametrize(
    "shape, filter, options",
    [
        ((2, None, 9), (3, 9, 40), dict(padding=1)),
        ((2, None, 9), (5, 9, 70), dict(padding=2, strides=2)),
        ((2, 4, None, 32), (3, 3, 32, 2), dict(padding=1)),  # few outputs
        ((None, 3, 3, 8), (3, 3, 8, 19), dict(padding=1)),  # tiles along the batch
        ((2, None, 6), (3, 6, 20), dict(padding=1, input_dilation=2)),
    ],
)
def test_each_result_is_stored_once(device, traits, shape, filter, options, extent):
    """Where a tile at the end of an unknown extent is moved back, too."""
    g = Geometry.of(tuple(Dim(extent, hint=30, probe=1299709) if e is None else e for e in shape), filter, **options)
    arrays, wanted = example(g)
    got = compute(device, traits, "forward", g, arrays, "float32", sink=Adding(named("out"), g.output, "float32"))
    np.testing.assert_allclose(got, wanted["forward"] + 77, rtol=0, atol=1e-4)


@pytest.mark.parametrize("outputs", [8, 21, 64])
def test_epilogue(device, traits, outputs):
    g = Geometry.of((2, 9, 11, 3), (3, 3, 3, outputs), padding=1)
    x, w, bias = random(g.input, "float32", 0), random(g.filter, "float32", 1), random((outputs,), "float32", 2)
    want = 2 * np.maximum(reference(g, x, w, np.zeros(g.output))["forward"] + bias, 0)
    sink = Rectified(named("out"), g.output, "float32")
    got = compute(device, traits, "forward", g, {"x": x, "w": w, "bias": bias}, "float32", sink=sink)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def test_same_results_from_run_to_run(device, traits):
    g = Geometry.of((5, 12, 12, 16), (3, 3, 16, 32), padding=1)
    arrays = {"x": random(g.input, "float32", 0), "dy": random(g.output, "float32", 1)}
    first = compute(device, traits, "filter_grad", g, arrays, "float32")
    np.testing.assert_array_equal(first, compute(device, traits, "filter_grad", g, arrays, "float32"))


def test_errors(device):
    with pytest.raises(ValueError, match="does not fit"):
        Geometry.of((1, 8, 8, 4), (3, 3, 3, 8))
    with pytest.raises(ValueError, match="1, 2 or 3 spatial dimensions"):
        Geometry.of((1, 8, 8, 8, 8, 4), (3, 3, 3, 3, 4, 8))
    with pytest.raises(TypeError, match="dtype int32 has no kernel"):
        specs_of("forward", device.traits, Geometry.of((1, 8, 8, 4), (3, 3, 4, 8)), "int32")
