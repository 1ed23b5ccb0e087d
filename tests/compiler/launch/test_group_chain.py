"""Chains of one work-group: small kernels of a GPU that depend on one another are one launch, and compute what they compute one by one."""

import dataclasses
import random

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import lowering, runtime
from keras_ocl.compiler.launch.group_chain import in_one_group
from keras_ocl.kernels import schedule
from keras_ocl.kernels.spec import Args, Buffer
from tests.kernels.launching import launch

RNG = np.random.default_rng(5)
GPU = runtime.read_record("sm_90")
TEAM = 256


class Alone:
    """Stands for what a kernel computes."""

    launches = 1

    def __init__(self, work=1000):
        self.work = work

    def parts(self, spec):
        return [spec]


def element(x, y, count, shift=1, work=1000):
    """Each item stores twice another one's value, plus 1."""
    args = Args()
    p, q = args.pointer(x, "float32"), args.pointer(y, "float32", out=True)
    body = f"const int i = {args.place('global', 0)};\n{args.leave(f'i >= {count}')}\n{q}[i] = 2 * {p}[(i + {shift}) % {count}] + 1;\n"
    return args.kernel("element", body, (-(-count // 64) * 64,), (64,), title="test", provenance=Alone(work))


def team(x, y, groups):
    """Each item stores its neighbour's value, by way of local memory; some return behind the barrier."""
    args = Args()
    p, q, local = args.pointer(x, "float32"), args.pointer(y, "float32", out=True), args.local("float", TEAM)
    own, group = args.place("local", 0), args.place("group", 0)
    body = f"""{local}[{own}] = {p}[{args.place("global", 0)}];
        {args.barrier()}
        {args.leave(f"{own} % 3 == 1")}
        {q}[{group} * {TEAM} + {own}] = {local}[{TEAM - 1} - {own}] - {group};
    """
    return args.kernel("team", body, (groups * TEAM,), (TEAM,), title="test", provenance=Alone())


def run(launches, buffers, values):
    device = runtime.current_device()
    storages = {b: device.upload(value) for b, value in zip(buffers, values, strict=True)}
    launch(device, launches, storages)
    return [device.download(s, np.dtype("float32"), (1024,)) for s in storages.values()]


def test_a_group_does_the_work_of_items_and_of_groups():
    buffers = [Buffer(1024, "float32") for _ in range(6)]
    a, b, c, d, e, f = buffers
    specs = [element(a, b, 1000, 7), team(b, c, 3), element(c, d, 700, 500), team(d, e, 1), element(e, f, 100)]
    joined = in_one_group(specs, GPU)
    assert len(joined) == 1 and joined[0].grid == joined[0].group == (TEAM,)
    values = RNG.normal(size=(6, 1024)).astype("float32")
    one_by_one, together = run(specs, buffers, values), run(joined, buffers, values)
    np.testing.assert_array_equal(one_by_one, together)
    i = np.arange(1000)
    np.testing.assert_array_equal(together[1][:1000], 2 * values[0][(i + 7) % 1000] + 1)


def test_kernels_that_do_not_depend_on_one_another_are_no_chain():
    """They take no turns if they are joined side by side."""
    specs = [element(Buffer(64, "float32"), Buffer(64, "float32"), 64) for _ in range(3)]
    assert in_one_group(specs, GPU) == specs


def test_what_a_later_kernel_needs_comes_along():
    a, b, c, d, e = (Buffer(64, "float32") for _ in range(5))
    first, other, large = element(a, b, 64), element(a, c, 64), element(a, e, 10**7, work=10**9)
    args = Args()
    p, q, r = args.pointer(b, "float32"), args.pointer(c, "float32"), args.pointer(d, "float32", out=True)
    i = args.place("global", 0)
    last = args.kernel("both", f"{r}[{i}] = {p}[{i}] + {q}[{i}];\n", (64,), (64,), title="test", provenance=Alone())
    joined = in_one_group([first, large, other, last], GPU)
    assert [list(spec.provenance.parts(spec)) for spec in joined] == [[first, other, last], [large]]
    updating = dataclasses.replace(other, overwrites=True)
    assert len(in_one_group([first, large, updating, last], GPU)) == 3  # `updating` and `last`: no state is overwritten earlier


def test_large_kernels_and_other_schedules_have_no_chains():
    a, b, c = (Buffer(10**6, "float32") for _ in range(3))
    specs = [element(a, b, 10**6, work=10**7), element(b, c, 10**6, work=10**7)]
    assert in_one_group(specs, GPU) == specs
    few = [element(a, b, 10), element(b, c, 10)]
    assert len(in_one_group(few, GPU)) == 1
    assert in_one_group(few, dataclasses.replace(GPU, schedule="reference")) == few


@pytest.mark.parametrize("seed", range(20))
def test_no_kernel_passes_one_that_it_depends_on(seed):
    rng, buffers = random.Random(seed), [Buffer(64, "float32") for _ in range(12)]
    specs = []
    for _ in range(60):
        x, y = rng.sample(buffers, 2)
        spec = element(x, y, 60, work=10**9 if rng.random() < 0.3 else 100)
        spec = dataclasses.replace(spec, grid=(10**7,)) if spec.provenance.work > 100 else spec
        specs.append(dataclasses.replace(spec, overwrites=rng.random() < 0.2 and len(specs) >= 10))
    numbers = {spec.provenance: k for k, spec in enumerate(specs)}
    order = [numbers[part.provenance] for found in in_one_group(specs, GPU) for part in found.provenance.parts(found)]

    def results(order):
        values = {b: k for k, b in enumerate(buffers)}
        for k in order:
            (read,), (written,) = ([a.value for a in specs[k].args if a.kind == kind] for kind in ("in", "out"))
            values[written] = hash((k, values[read], values[written]))
        return values

    assert order != list(range(len(specs))) or len(in_one_group(specs, GPU)) < len(specs)
    assert results(order) == results(range(len(specs)))
    for place, k in enumerate(order):
        assert not specs[k].overwrites or set(range(k)) <= set(order[:place])  # nothing is overwritten earlier


def classifier():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2000,)), keras.layers.Dense(7, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_classifiers_loss_is_one_launch(policy):
    """With the metrics and the loss's gradient, where a step's other kernels are larger."""

    def model():
        return classifier(), np.zeros((40, 2000), "float32"), np.zeros(40, "int32"), 40

    keras.config.set_dtype_policy(policy)
    try:
        train, _ = lowering.lower(model, GPU)
    finally:
        keras.config.set_dtype_policy("float32")
    of_loss = [x for x in train.launches if any("compile_loss" in share.origin.layer for share in x.shares)]
    assert len(of_loss) == 1


def test_training_is_the_same_to_the_last_bit(monkeypatch):
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule="gpu", compute_units=68))
    x, y = RNG.normal(size=(40, 2000)).astype("float32"), RNG.integers(0, 7, 40)

    def steps():
        keras.utils.clear_session()
        model = classifier()
        logs = [model.train_on_batch(x[:n], y[:n]) for n in (16, 16, 40, 3)]  # all with the kernels of the first
        with keras_ocl.profile() as profile:
            model.train_on_batch(x[:16], y[:16])
        return len(profile.launches), [*map(np.asarray, logs), *model.get_weights()]

    number, joined = steps()
    monkeypatch.setitem(schedule._KNOWN, "gpu", dataclasses.replace(schedule.get("gpu"), group_chained=0))
    more, separate = steps()
    assert number < more
    for a, b in zip(joined, separate, strict=True):
        np.testing.assert_array_equal(a, b)
