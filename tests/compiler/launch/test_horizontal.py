"""Horizontal fusion: kernels side by side are one launch, and compute what they compute one by one, to the last bit."""

import dataclasses
import random

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import lowering, runtime
from keras_ocl.compiler.launch.horizontal import side_by_side
from keras_ocl.compiler.launch.joining import REGISTERS
from keras_ocl.kernels import schedule
from keras_ocl.kernels.contraction import Tile
from keras_ocl.kernels.gemm import Operand, plan
from keras_ocl.kernels.spec import Args, Buffer, Sink
from tests.kernels.launching import launch

RNG = np.random.default_rng(5)
GPU = runtime.read_record("sm_86")


def normal(*shape):
    return (RNG.normal(size=shape) * 0.5).astype("float32")


class Alone:
    """Stands for what a kernel computes."""

    launches = 1

    def parts(self, spec):
        return [spec]


def itself(buffer):
    return buffer


# ---- kernels


def element(x, y, count, group):
    args = Args()
    p, q = args.pointer(x, "float32"), args.pointer(y, "float32", out=True)
    body = f"const int i = {args.place('global', 0)};\n{args.leave(f'i >= {count}')}\n"
    body += f"{q}[i] = 2 * {p}[i] + {args.scalar(count / 8, 'float')};\n"
    return args.kernel("element", body, (-(-count // group) * group,), (group,), title="test", provenance=Alone())


def team(x, y, grid, group):
    """Each item stores another one's value and its group's places; some return behind the barrier."""
    args, size, places = Args(), int(np.prod(group)), (*group, 1, 1)
    p, q, local = args.pointer(x, "float32"), args.pointer(y, "float32", out=True), args.local("float", size)
    local_ids, group_ids = ([args.place(kind, k) for k in range(3)] for kind in ("local", "group"))
    own = f"{local_ids[0]} + {places[0]} * ({local_ids[1]} + {places[1]} * {local_ids[2]})"
    across, down = grid[0] // group[0], (*grid, 1)[1] // places[1]
    body = f"""const int own = {own}, group = {group_ids[0]} + {across} * ({group_ids[1]} + {down} * {group_ids[2]});
        {local}[own] = {p}[own] + {args.place("global", 0)};
        {args.barrier()}
        {args.leave("own % 3 == 1")}
        {q}[group * {size} + own] = {local}[{size - 1} - own] + 100 * {group_ids[2]};
    """
    return args.kernel("team", body, grid, group, title="test", provenance=Alone())


def test_kernels_of_all_shapes_compute_what_they_do_alone():
    elements = [(1, 1), (100, 64), (130, 64), (5, 8), (100, 64)]
    teams = [((64,), (32,)), ((128,), (32,)), ((64, 1, 3), (32, 1, 1)), ((16, 6, 5), (8, 2, 1)), ((8, 2, 7), (8, 2, 1)), ((24, 4), (8, 2))]
    shapes = [(element, *shape) for shape in elements] + [(team, *shape) for shape in teams]
    buffers = [Buffer(512, "float32") for _ in range(2 * len(shapes))]
    specs = [write(x, y, *shape) for (write, *shape), x, y in zip(shapes, buffers[::2], buffers[1::2], strict=True)]
    device, values = runtime.current_device(), normal(len(buffers), 512)
    joined = side_by_side(specs, dataclasses.replace(GPU, quirks=device.traits.quirks), itself)
    barriers = "conditions_beside_barriers" not in device.traits.quirks
    assert len(joined) == (2 if barriers else 1 + len(teams))  # of groups of 32 items, and of 16
    found = []
    for launches in (specs, joined):
        storages = {b: device.upload(value) for b, value in zip(buffers, values, strict=True)}
        launch(device, launches, storages)
        found.append([device.download(s, np.dtype("float32"), (512,)) for s in storages.values()])
    np.testing.assert_array_equal(*found)
    assert all((after != before).any() for after, before in zip(found[0][1::2], values[1::2], strict=True))


@pytest.mark.parametrize("group", [(32,), (8, 2)])
def test_kernels_with_barriers_are_launches_of_their_own_where_conditions_beside_them_are_ignored(group):
    specs = [team(Buffer(512, "float32"), Buffer(512, "float32"), group, group) for _ in range(2)]
    for quirks, launches in ((GPU.quirks, 1), (GPU.quirks | {"conditions_beside_barriers"}, 2)):
        assert len(side_by_side(specs, dataclasses.replace(GPU, quirks=quirks), itself)) == launches


def test_products_beside_each_other_store_no_rows_beyond_their_own():
    """Both end inside a tile; what follows them in their buffers stays."""
    device, specs, storages, results = runtime.current_device(), [], {}, []
    traits = dataclasses.replace(GPU, quirks=device.traits.quirks)
    for columns, tile in ((38, Tile(16, 4, 4, 2, 16)), (35, Tile(16, 4, 8, 4, 16))):
        x = np.round(4 * normal(66, columns)) / 4
        given, result = Buffer(x.size, "float32"), Buffer(columns * columns, "float32")
        operands = dict(a=Operand(given, "float32", 1, columns), b=Operand(given, "float32", columns, 1))
        sink = Sink(result, (columns, columns), "float32")
        (spec,) = plan(traits, batch=None, m=columns, n=columns, k=66, dtype="float32", sink=sink, tile=tile, **operands)
        specs.append(dataclasses.replace(spec, provenance=Alone()))
        storages |= {given: device.upload(x), result: device.upload(np.full((columns + 32, columns), 77, np.float32))}
        results.append((result, np.concatenate((x.T @ x, np.full((32, columns), 77, np.float32)))))
    joined = side_by_side(specs, traits, itself)
    assert len(joined) == (2 if "conditions_beside_barriers" in traits.quirks else 1)
    launch(device, joined, storages)
    for result, expected in results:
        np.testing.assert_array_equal(device.download(storages[result], np.dtype("float32"), expected.shape), expected)


@pytest.mark.parametrize("seed", range(20))
def test_no_kernel_passes_one_that_it_depends_on(seed):
    rng, buffers = random.Random(seed), [Buffer(64, "float32") for _ in range(12)]
    specs = []
    for _ in range(60):
        x, y = rng.sample(buffers, 2)
        spec = element(x, y, rng.choice([1, 60, 10**7]), 64) if rng.random() < 0.7 else team(x, y, (64,), (32,))
        specs.append(dataclasses.replace(spec, overwrites=rng.random() < 0.2 and len(specs) >= 10))
    numbers = {spec.provenance: k for k, spec in enumerate(specs)}
    launches = [[numbers[part.provenance] for part in found.provenance.parts(found)] for found in side_by_side(specs, GPU, itself)]

    def results(order):
        values = {b: k for k, b in enumerate(buffers)}
        for k in order:
            (read,), (written,) = ([a.value for a in specs[k].args if a.kind == kind] for kind in ("in", "out"))
            values[written] = hash((k, values[read], values[written]))
        return values

    assert len(launches) < len(specs)
    for step in (1, -1):  # in a launch any may be first
        assert results(k for found in launches for k in found[::step]) == results(range(len(specs)))
    first = next(k for k, spec in enumerate(specs) if spec.overwrites)
    begins = next(i for i, found in enumerate(launches) if any(specs[k].overwrites for k in found))
    assert set(range(first)) <= {k for found in launches[:begins] for k in found}


@pytest.mark.parametrize(("elements", "first", "launches"), [(64, 8, 9), (2**20, 4, 10), (2**23, 1, 16)])
def test_kernels_that_depend_on_none_join_at_the_front(elements, first, launches):
    """As casts of weights, each right before the layer that reads it, do: as many as have results of 16 MiB, and later the others."""
    specs, x = [], Buffer(64, "float32")
    for _ in range(8):
        cast, y = Buffer(elements, "float32"), Buffer(64, "float32")
        layer = Args()
        p, q, r = layer.pointer(x, "float32"), layer.pointer(cast, "float32"), layer.pointer(y, "float32", out=True)
        body = f"{r}[{layer.place('global', 0)}] = {p}[0] + {q}[0];\n"
        specs.append(element(Buffer(64, "float32"), cast, 64, 64))
        specs.append(layer.kernel("layer", body, (10**7,), (64,), title="test", provenance=Alone()))
        x = y
    parts = [found.provenance.parts(found) for found in side_by_side(specs, GPU, itself)]
    assert [part.name for part in parts[0]] == ["element"] * first
    assert [part.name for found in parts for part in found].count("layer") == 8 and len(parts) == launches


def test_a_kernel_moves_on_where_that_saves_the_launch_of_another_one():
    """The last of `beside`, which depends on the first, would join the second of `chain`, before which the first has no place."""
    device, buffers = runtime.current_device(), [Buffer(2**16, "float32") for _ in range(6)]
    a, b, c, d, e, f = buffers
    chain = [team(x, y, (64,), (32,)) for x, y in ((a, b), (b, c), (c, d))]
    beside = [team(x, y, (64,), (32,)) for x, y in ((b, e), (e, f))]
    specs = [chain[0], *beside, *chain[1:]]
    joined = side_by_side(specs, dataclasses.replace(GPU, quirks=device.traits.quirks), itself)
    if "conditions_beside_barriers" in device.traits.quirks:
        assert joined == specs
        return
    assert [list(found.provenance.parts(found)) for found in joined] == [[chain[0]], [beside[0], chain[1]], [beside[1], chain[2]]]
    found, values = [], normal(6, 2**16)
    for launches in (specs, joined):
        storages = {buffer: device.upload(value) for buffer, value in zip(buffers, values, strict=True)}
        launch(device, launches, storages)
        found.append([device.download(s, np.dtype("float32"), (2**16,)) for s in storages.values()])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("elements", "items", "group", "launches"),
    [(2**18, 2**16, (16, 2), 3), (2**21, 64, (16, 2), 3), (2**21, 2**16, (32,), 3), (2**21, 2**16, (16, 2), 4)],
)
def test_a_kernel_that_fills_the_device_gives_up_its_launch_only_for_its_own_code(elements, items, group, launches):
    a, b, c, d, e, f = (Buffer(elements, "float32") for _ in range(6))
    chain = [team(x, y, (items,), (32,)) for x, y in ((a, b), (b, c), (c, d))]
    beside = [team(x, y, (items // 2, 2) if group[1:] else (items,), group) for x, y in ((b, e), (e, f))]
    assert len(side_by_side([chain[0], *beside, *chain[1:]], dataclasses.replace(GPU, quirks=frozenset()), itself)) == launches


def test_a_launch_has_no_more_arguments_than_registers_hold():
    specs = [element(Buffer(64, "float32"), Buffer(64, "float32"), 64, 64) for _ in range(200)]
    joined = side_by_side(specs, GPU, itself)
    assert all(len(found.args) <= REGISTERS for found in joined) and len(joined) == -(-200 // ((REGISTERS - 1) // 2))
    assert all(len(found.functions) == 1 for found in joined)  # equal bodies are written once
    teams = [team(Buffer(64, "float32"), Buffer(64, "float32"), (64,), (32,)) for _ in range(200)]
    found = side_by_side(teams, GPU, itself)[-1].args
    assert REGISTERS - 2 < len(found) <= REGISTERS and sum(a.kind == "local" for a in found) == 1  # arrays in local memory are shared
    assert side_by_side(specs, dataclasses.replace(GPU, schedule="reference"), itself) == specs


# ---- models


def model(depth=1):
    """With elements, reductions by teams of work-items, products and Dims."""
    keras.utils.set_random_seed(2)
    dense, layers = keras.layers.Dense, [keras.Input((20,))]
    for _ in range(depth):
        layers += [dense(40, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    found = keras.Sequential([*layers, dense(3, "softmax")])
    found.compile("lion", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return found


def test_the_updates_of_all_variables_are_few_launches():
    train, _ = lowering.lower(lambda: model(6), GPU)
    updates = [x for x in train.launches if any("lion" in share.origin.layer for share in x.shares)]
    assert len(updates) < 12  # of 26 variables and as many momenta
    assert all(sum(share.fraction for share in x.shares) == pytest.approx(1) for x in train.launches)


@pytest.fixture
def on_gpu(monkeypatch):
    """Kernels are those for GPUs, whatever the device is."""
    device = runtime.current_device()
    traits = dataclasses.replace(device.traits, schedule="gpu", compute_units=68, max_groups=GPU.max_groups)
    monkeypatch.setattr(device, "traits", traits)
    return device


def test_training_is_the_same_to_the_last_bit(on_gpu, monkeypatch):
    x, y = normal(40, 20), RNG.integers(0, 3, 40)

    def steps():
        keras.utils.clear_session()
        network = model()
        logs = [network.train_on_batch(x[:n], y[:n]) for n in (16, 16, 40, 3)]  # all with the kernels of the first
        with keras_ocl.profile() as profile:
            network.train_on_batch(x[:16], y[:16])
        return profile, [*map(np.asarray, logs), *network.get_weights(), *(np.asarray(v) for v in network.optimizer.variables)]

    profile, joined = steps()
    monkeypatch.setitem(schedule._KNOWN, "gpu", dataclasses.replace(schedule.get("gpu"), joined=0, group_chained=0))
    alone, separate = steps()
    assert len(profile.launches) <= len(alone.launches) - 8
    for a, b in zip(joined, separate, strict=True):
        np.testing.assert_array_equal(a, b)
    layers = [{row.name for row in found.table(by="layer")} for found in (profile, alone)]
    assert layers[0] == layers[1]
    assert any(" more" in label for label, _ in profile.launches)


def test_attributes_of_kernels_stay_with_their_code():
    """A joined kernel has those of its parts; parts with different ones stay apart."""
    eight, sixteen = (f"__attribute__((intel_reqd_sub_group_size({n})))\n" for n in (8, 16))
    kernels = []
    for attributes in (eight, "", sixteen, eight):
        x, y = Buffer(256, "float32"), Buffer(256, "float32")
        kernels.append(dataclasses.replace(element(x, y, 256, 64), attributes=attributes))
    found = side_by_side(kernels, GPU, itself)
    assert sorted(spec.attributes for spec in found) == [sixteen, eight] and len(found) == 2
    assert all(spec.attributes in "".join(spec.around()) for spec in found)


def test_a_joined_launch_tells_what_its_units_do():
    """The operations of the branch in bfloat16; those of the branch in float32 take a work-item's time, with the rest of the launch."""

    def make():
        x = keras.Input((512,))
        return keras.Model(x, [keras.layers.Dense(512, dtype=dtype)(x) for dtype in ("mixed_bfloat16", "float32")])

    (step,) = lowering.lower(make, runtime.read_record("sm_86"), train=False)
    launch, of_a_product = step.launches[-1], 2 * 32 * 512 * 512
    ((unit, instructions, operations),) = launch.by_units
    assert (unit, instructions) == ("mma_m16n8k16", 1)
    assert operations == pytest.approx(of_a_product, rel=0.05) and launch.operations == pytest.approx(2 * of_a_product, rel=0.05)
    assert launch.rate({unit: 16}) == pytest.approx(2 / (1 + 1 / 16), rel=0.02)
    terms = dataclasses.replace(launch, by_units=((unit, 4, operations),))
    assert terms.rate({unit: 16}) == pytest.approx(2 / (1 + 4 / 16), rel=0.02)
    assert dataclasses.replace(launch, by_units=()).rate({unit: 16}) == 1
