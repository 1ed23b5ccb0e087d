"""Groups for kernels that leave them open, and grids within the number of groups that a device launches."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.kernels.launch import fitted, open_group, pieces
from keras_ocl.kernels.spec import Args, KernelSpec
from tests.kernels.launching import launch, named

GPU = runtime.read_record("sm_86")
LIMITS = [(), (2**24 - 1, 2**16 - 1, 2**16 - 1), (7, 80, 3), (10_000, 1, 1), (1, 10_000, 1)]


def marking(grid, group, by_group, all_arguments=False):
    """A kernel whose work-items count where they are in an array of the grid's shape, by their ids or those of their groups."""
    args = Args(all_arguments)
    out = args.pointer(named("out"), "int32", out=True)
    sides = (*(group or ()), 1, 1, 1)
    ids = [f"({args.place('group', k)} * {sides[k]} + {args.place('local', k)})" if by_group else args.place("global", k) for k in range(3)]
    nx, ny, _ = (args.int(n) for n in (*grid, 1, 1)[:3])
    return args.kernel("mark", f"{out}[({ids[2]} * {ny} + {ids[1]}) * {nx} + {ids[0]}] += 1;\n", grid, group, title="marks")


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("eager", [False, True])
def test_each_work_item_is_where_it_was_and_once(device, limits, eager):
    traits = dataclasses.replace(device.traits, schedule="gpu", max_groups=limits)
    cases = [((n,), None, False) for n in (1, 64, 127, 640)]
    cases += [(grid, None, False) for grid in ((1, 127), (5, 31), (97, 3), (40, 1), (3, 5, 7), (1, 1, 13), (64, 1, 9))]
    cases += [(grid, (4, 2, 1), by_group) for grid in ((4, 2, 1), (20, 26, 7), (4, 62, 1)) for by_group in (False, True)]
    for grid, group, by_group in cases:
        spec = fitted(marking(grid, group, by_group, eager), traits, eager)
        assert spec.group is not None and all(n % side == 0 for n, side in zip(spec.grid, spec.group, strict=False))
        counts = [n // side for n, side in zip((*spec.grid, 1, 1)[:3], (*spec.group, 1, 1)[:3], strict=True)]
        assert not limits or all(count <= limit for count, limit in zip(counts, limits, strict=True)), (grid, counts)
        shape = (*grid, 1, 1)[2::-1]
        storage = device.upload(np.zeros(shape, np.int32))
        launch(device, [spec], {"out": storage})
        assert (device.download(storage, np.int32, shape) == 1).all(), (grid, group)


def test_groups_are_full_where_the_grid_is():
    for grid in itertools.product((1, 6, 100), (1, 6, 100), (1, 6)):
        group = open_group(grid, 64)
        assert math.prod(group) <= 64
        assert max(grid) < 100 or math.prod(group) >= 32, (grid, group)
    assert open_group((1_000_003,), 64) == (64,) and open_group((1, 1_000_003), 64) == (1, 64) and open_group((50, 2), 16) == (16, 1)


def test_what_leaves_it_to_the_driver(device):
    reference = dataclasses.replace(device.traits, schedule="reference")
    assert fitted(marking((127,), None, False), reference).group is None
    of_a_user = KernelSpec("", (), "for (int k = i; k < n; k += get_global_size(0)) ;", (127,), None, scalar=True, sized=True, title="")
    spec = fitted(of_a_user, dataclasses.replace(device.traits, schedule="gpu", max_groups=(1, 1, 1)))
    assert spec.group is None and spec.grid == (127,)


def test_guards_of_a_users_kernel_take_no_names_from_it():
    args = Args()
    out = args.pointer(named("out"), "float32", out=True)
    body = f"const size_t i = get_global_id(0);\n__global float* const global_0 = {out};\nglobal_0[i] = i;\n"
    spec = fitted(args.kernel("", body, (127,), None, scalar=True, title=""), GPU)
    assert spec.group == (64,) and spec.source("k").count("global_0") == 2
    assert "  if (get_global_id(0) >= 127) return;\n" in spec.source("k")


def test_a_head_has_one_guard():
    args = Args()
    spec = args.kernel("", f"{args.pointer(named('out'), 'int32', out=True)}[{args.place('global', 1)}] = 0;\n", (127, 127), None, title="")
    spec = fitted(dataclasses.replace(spec, guards=("!(p1[0] & 1)",)), GPU)
    head = "  const size_t global_0 = get_global_id(0);\n  const size_t global_1 = get_global_id(1);\n"
    assert f"{{\n{head}  if (!(p1[0] & 1) || global_0 >= 127) return;\n  p0[global_1] = 0;\n}}" in spec.source("k")


def test_lengths_that_outgrow_the_limit(monkeypatch):
    """What serves all lengths is traced anew from where its kernels have too many groups."""
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule="gpu", max_groups=(40, 3, 2)))
    traced = []

    def function(x, w):
        traced.append(x.shape)
        return P.add(P.cumsum(P.dot_general(x, w, ((1,), (0,))), 1), P.exp(P.neg(x)))

    compiled, w = Jitted(function), np.random.default_rng(0).normal(size=(7, 7)).astype("float32")
    for again in (False, True):
        before = len(traced)
        for n in (3, 5, 9, 17, 1000, 1001, 40, 600):
            x = np.random.default_rng(n).normal(size=(n, 7)).astype("float32")
            np.testing.assert_allclose(to_numpy(compiled(x, w)), np.cumsum(x @ w, 1) + np.exp(-x), rtol=1e-4, atol=1e-4)
        assert not again or len(traced) == before


@pytest.mark.parametrize("eager", [False, True])
def test_long_kernels_are_several_launches(device, eager):
    """Of one text, which do what one did; as many as a second has room for by the estimate."""
    traits = dataclasses.replace(device.traits, schedule="gpu", max_groups=(10**6,) * 3, compute_units=10, clock=1000)
    cases = [((1000,), None, False), ((3, 700, 2), None, False), ((20, 26, 7), (4, 2, 1), True), ((4, 2, 9), (4, 2, 1), True)]
    for grid, group, by_group in cases:
        found = pieces(fitted(marking(grid, group, by_group, eager), traits, eager), traits, 9e10, eager)
        assert 4 <= len(found) <= 5 and len({spec.source("k") for spec in found}) == 1, grid
        shape = (*grid, 1, 1)[2::-1]
        storage = device.upload(np.zeros(shape, np.int32))
        launch(device, found, {"out": storage})
        assert (device.download(storage, np.int32, shape) == 1).all(), grid
    short = fitted(marking((1000,), None, False), traits)
    assert pieces(short, traits, 1e10) == [short]
    assert len(pieces(short, dataclasses.replace(traits, clock=0), 1e11)) > 5


def test_long_steps_of_a_function(monkeypatch):
    """A slow device: the same results in more launches, and lengths that have fewer parts are traced anew."""
    device = runtime.current_device()
    slow = dataclasses.replace(device.traits, schedule="gpu", max_groups=(10**6,) * 3, compute_units=1, clock=0.001)
    monkeypatch.setattr(device, "traits", slow)

    def function(x, w):
        return P.exp(P.neg(P.cumsum(P.dot_general(x, w, ((1,), (0,))), 0)))

    compiled, w = Jitted(function), np.full((64, 64), 1e-3, np.float32)
    for n in (300, 301, 40, 900, 5):
        x = np.random.default_rng(n).uniform(size=(n, 64)).astype("float32")
        np.testing.assert_allclose(to_numpy(compiled(x, w)), np.exp(-np.cumsum(x @ w, 0)), rtol=1e-3)
    names = [launch.name for launch in compiled.traces[0].executable.launches]
    assert len(names) > len(set(names)), names
