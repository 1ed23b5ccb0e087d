"""Programs on disk: a later process lowers only what changed, computes the same bits and profiles the same.

A new Jitted of the same function stands for a later process, but for one test that starts some.
"""

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import keras_ocl
from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.compiler.run import sources, stored
from keras_ocl.core.dim import key
from keras_ocl.primitives import linalg
from keras_ocl.runtime.overrides import Overrides

ROOT = Path(__file__).parents[3]
rng = np.random.default_rng(5)


def product(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


def rows(x, w):
    return P.tanh(product(product(x, w), w))


def scan(x):
    (last,), ys = P.scan(lambda _, carries, slices: ([product(carries[0], x)], [P.tanh(carries[0])]), [x], [], 3)
    return product(last, x), ys


def nested(x):
    """A loop that ends by a condition, around another."""

    def step(carries):
        number, y = carries
        (y,), _ = P.scan(lambda _, inner, slices: ([P.tanh(product(inner[0], x))], []), [y], [], 3)
        return [P.add(number, P.constant(1, "int32")), y]

    return P.while_loop(lambda carries: P.lt(carries[0], P.constant(4, "int32")), step, [P.constant(0, "int32"), x])[1]


def branches(x):
    return keras.ops.cond(keras.ops.sum(x) > 0, lambda: product(x, P.tanh(x)), lambda: keras.ops.sort(x, axis=0))


def with_host(x):
    q, r = linalg.qr(product(x, x))
    return product(q, r)


def constants(x):
    return product(x, keras.ops.convert_to_tensor(np.eye(len(x), dtype="float32") * 3))


def gradient(x):
    return keras_ocl.grad(lambda x: keras.ops.sum(scan(x)[0]))(x)


def draws(x):
    return x + keras.random.uniform(x.shape, seed=7)


SQUARE = [(24, 24)]
CASES = {
    "rows": (rows, [(6, 40), (40, 40)]),
    "scan": (scan, SQUARE),
    "nested loops": (nested, SQUARE),
    "branches": (branches, SQUARE),
    "a host operation": (with_host, SQUARE),
    "a constant": (constants, SQUARE),
    "a gradient of a loop": (gradient, SQUARE),
    "random numbers": (draws, SQUARE),
    "sort": (lambda x: keras.ops.sort(x, axis=0), [(64, 5)]),
}


@pytest.fixture
def lowered(steps, monkeypatch):
    """The names of the functions that were lowered."""
    names, lower = [], sources._lower

    def noted(device_traits, traits, name, all_arguments, *rest):
        if not all_arguments:
            names.append(name)
        return lower(device_traits, traits, name, all_arguments, *rest)

    monkeypatch.setattr(sources, "_lower", noted)
    return names


def arrays(shapes):
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def bits(result):
    return [to_numpy(t).tobytes() for t in keras.tree.flatten(result)]


def executable(jitted):
    (found,) = jitted.traces
    return found.executable


def facts(jitted):
    """The facts that the only trace of a Jitted relies on."""
    (family,) = {found.family for found in jitted.traces}
    (member,) = family._members
    return {(function, key(a), key(b), outcome) for function, a, b, outcome in member.facts}


@pytest.mark.parametrize("dynamic", [False, (0,)])
@pytest.mark.parametrize("case", CASES)
def test_what_is_unchanged_is_not_lowered(lowered, case, dynamic):
    function, shapes = CASES[case]
    given, first, second = arrays(shapes), Jitted(function, dynamic, "case"), Jitted(function, dynamic, "case")
    expected = bits(first(*given))
    assert lowered.count("case") == 1
    assert bits(second(*given)) == expected and lowered.count("case") == 1
    one, other = executable(first), executable(second)
    assert one.program == other.program and str(one.program) == str(other.program)
    assert dynamic is False or facts(first) == facts(second)


@pytest.mark.parametrize("case", CASES)
def test_a_profile_lowers_it_and_tells_the_same(lowered, case):
    function, shapes = CASES[case]
    given, found = arrays(shapes), []
    for _ in range(2):
        jitted = Jitted(function, name="case")
        jitted(*given)
        with keras_ocl.profile() as profile:
            jitted(*given)
        table = [(by, row.title, row.launches, row.bytes, row.in_place_bytes) for by in ("operation", "layer") for row in profile.table(by)]
        found.append((sorted(table), profile.predicted_bytes(), executable(jitted).requested(), executable(jitted).state_bytes()))
        assert executable(jitted).sources.program == executable(jitted).program
    assert found[0] == found[1] and lowered.count("case") == 2


def test_facts_of_lowering_hold_in_later_processes(lowered):
    """Up to 64 rows are sorted in another way than more, which lowering decides: the trace is the same."""

    def ordered(x):
        return keras.ops.sort(x, axis=0)

    small, large = arrays([(64, 3), (100, 3)])
    for _ in range(2):
        function = Jitted(ordered, dynamic=(0,))
        for x in (small, large, small):
            np.testing.assert_array_equal(to_numpy(function(x)), np.sort(x, axis=0))
        assert len(function.traces) == 2
    assert lowered.count("ordered") == 2


def test_other_extents_of_the_first_trace_are_others(lowered):
    """Facts hold for the values at which they were found out."""
    for n, times in ((64, 1), (32, 2), (64, 2), (100, 3)):
        Jitted(rows, (0,))(*arrays([(n, 8), (8, 8)]))
        assert lowered.count("rows") == times


def net(width=8):
    keras.utils.clear_session()
    keras.utils.set_random_seed(2)
    hidden = layers.Dense(width, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(3)])
    model.compile("adam", "mse")
    return model


def trained(width=8):
    """The weights' bits after three steps of a model, whose states are overwritten in place."""
    model, (x, y) = net(width), np.split(np.random.default_rng(1).normal(size=(4, 12, 6)).astype("float32"), 2)
    for _ in range(3):
        model.train_on_batch(x[0], y[0][:, :3])
    predicted = model.predict_on_batch(x[1])
    return [w.tobytes() for w in model.get_weights()] + [predicted.tobytes()]


def test_a_model_trains_to_the_same_bits(lowered):
    first = trained()
    names = list(lowered)
    assert any("train_step" in name for name in names)
    assert trained() == first and lowered == names
    trained(9)
    assert sum("train_step" in name for name in lowered) == 2 * sum("train_step" in name for name in names)


def key_of(function, *given, name="f", traits=None):
    """The key under which a function of arrays is stored on a device of other traits that is not there."""
    found, device = [], runtime.RecordDevice("record", traits or runtime.read_record("intel-cpu"))
    with pytest.MonkeyPatch.context() as patch, runtime.device_scope(device):
        patch.setattr(stored, "program", lambda sources, disk: (found.append(stored.key_of(sources)), sources.program)[1])
        Jitted(function, name=name).compiled(*given)
    (only,) = found
    return only


def test_whatever_changes_a_program_changes_its_key(monkeypatch):
    x, w = arrays([(6, 40), (40, 40)])
    traits = runtime.read_record("intel-cpu")
    own = dataclasses.replace(traits, overrides=Overrides("file", ("cpu",), (("product.block", 128),)))

    def deeper(x, w):
        return P.tanh(rows(x, w))

    def elsewhere(x, w):
        with keras.name_scope("layer"):
            return rows(x, w)

    def other(x, w):
        return rows(x, w), P.tanh(x)

    def leaky(slope):
        return lambda x, w: keras.ops.leaky_relu(rows(x, w), slope)

    def repeated(times):
        return lambda x, w: P.scan(lambda _, carries, slices: ([product(carries[0], w)], []), [x], [], times)

    def within(value):
        return lambda x, w: P.scan(lambda _, carries, slices: ([keras.ops.add(carries[0], value)], []), [x], [], 3)

    keys = [key_of(rows, x, w), key_of(rows, x[:5], w), key_of(rows, x.astype("float16"), w.astype("float16"))]
    keys += [key_of(rows, x, w, name="g"), *(key_of(f, x, w) for f in (deeper, elsewhere, other))]
    keys += [key_of(make(n), x, w) for make in (leaky, repeated, within) for n in (2, 3)]
    for field, value in (("vector_width", 4), ("max_group", 7), ("schedule", "reference"), ("quirks", frozenset({"unmap_aborts"}))):
        keys.append(key_of(rows, x, w, traits=dataclasses.replace(traits, **{field: value})))
    keys.append(key_of(rows, x, w, traits=own))
    monkeypatch.setattr(stored, "_package", lambda: "another version")
    keys.append(key_of(rows, x, w))
    assert None not in keys and len(set(keys)) == len(keys)
    assert key_of(rows, x, w) == keys[-1]


def test_states_and_their_updates_are_part_of_the_key():
    counts = [keras.Variable(np.zeros(5, "float32")) for _ in range(2)]

    def counted(targets):
        def step(x):
            total = counts[0] + counts[1] + x
            for target in targets:
                target.assign(total)
            return total

        return step

    x = np.ones(5, "float32")
    keys = [key_of(counted(targets), x) for targets in ([], counts[:1], counts[1:], counts)]
    assert len(set(keys)) == 4


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package's sources, which count as imported; a function that returns its digest."""
    folder = tmp_path / "keras_ocl"
    for part in stored._PARTS:
        shutil.copytree(Path(stored._PACKAGE) / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(stored, "_PACKAGE", str(folder))
    monkeypatch.setattr(stored, "__file__", str(folder / "compiler" / "run" / "stored.py"))
    monkeypatch.setattr(stored, "_IMPORTED", float("inf"))
    return folder, stored._package.__wrapped__


def test_each_source_file_is_part_of_the_version(package, monkeypatch):
    folder, digest = package
    found = [digest()]
    assert digest() == found[0] is not None
    for name in ("core/dim.py", "kernels/gemm/cpu.py", "primitives/dot.py", "compiler/fuse/cost.py"):
        (folder / name).write_text((folder / name).read_text().replace("1", "2", 1))
        found.append(digest())
    monkeypatch.setattr(sys, "version", "4")
    found.append(digest())
    assert len(set(found)) == len(found)


def test_without_the_sources_that_it_imported_a_process_stores_nothing(package, monkeypatch):
    folder, digest = package
    monkeypatch.setattr(stored, "_IMPORTED", os.stat(folder / "core" / "dim.py").st_ctime)  # changed since
    assert digest() is None
    monkeypatch.setattr(stored, "_IMPORTED", float("inf"))
    os.unlink(folder / "compiler" / "run" / "stored.py")  # a program that was bundled without them
    assert digest() is None


def test_what_means_nothing_to_other_processes_is_not_stored(lowered, steps):
    seen = []
    x = np.ones((4, 4), "float32")
    for _ in range(2):
        Jitted(lambda x: keras_ocl.callback(seen.append, product(x, x)), name="called")(x)
        Jitted(keras_ocl.custom_op("out[i] = 2 * x[i];", inputs="x"), name="custom")(x)
    assert len(seen) == 2 and lowered == ["called", "custom"] * 2 and not steps.entries()


def the_entry(steps):
    ((_, _, path),) = steps.entries()
    return Path(path)


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


def broken(path, steps):
    """Entries in the place of the one at `path`, as they may be found there."""
    data = path.read_bytes()
    yield lambda: path.write_bytes(data[: len(data) // 2])
    yield lambda: path.write_bytes(b"")
    yield lambda: path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    others = [pickle.dumps(x) for x in (5, (5, ()), Evil(), (Evil(), ()))]
    for wrong in (b"", b"no zlib", *map(zlib.compress, (b"no pickle", *others))):
        yield lambda wrong=wrong: steps.put_step(path.name, wrong)


def test_an_entry_that_cannot_be_read_is_replaced(lowered, steps, capsys):
    (x,) = arrays(SQUARE)
    expected = bits(Jitted(scan, name="case")(x))
    path = the_entry(steps)
    for times, spoil in enumerate(broken(path, steps), 2):
        spoil()
        assert bits(Jitted(scan, name="case")(x)) == expected and lowered.count("case") == times
        assert bits(Jitted(scan, name="case")(x)) == expected and lowered.count("case") == times
    assert "unpickled" not in capsys.readouterr().out


def test_kernels_that_need_smaller_groups_are_stored_too(lowered, monkeypatch):
    device = runtime.current_device()
    monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, schedule="gpu"))
    monkeypatch.setattr(device, "group_limit", lambda kernel: 24)
    (x,) = arrays([(48, 48)])
    expected, times = bits(Jitted(scan, name="case")(x)), lowered.count("case")
    assert times > 1
    assert bits(Jitted(scan, name="case")(x)) == expected and lowered.count("case") == times


SCRIPT = """
import hashlib, json, sys
import keras, numpy as np
import keras_ocl
from keras_ocl.compiler.run import sources

lower, lowered = sources._lower, []
def noted(device_traits, traits, name, all_arguments, *rest):
    lowered.extend([] if all_arguments else [name])
    return lower(device_traits, traits, name, all_arguments, *rest)
sources._lower = noted

keras.utils.set_random_seed(1)
L = keras.layers
model = keras.Sequential([keras.Input((6,)), L.Dense(8, "tanh"), L.Dropout(0.3), L.Dense(2)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
rng, logs = np.random.default_rng(0), []
for rows in (8, 5, 7):
    logs.append(model.train_on_batch(rng.normal(size=(rows, 6)), rng.integers(0, 2, rows)))
logs.append(model.predict(rng.normal(size=(12, 6)), batch_size=8, verbose=0).tolist())
weights = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
before = len(lowered)
with keras_ocl.profile() as profile:
    model.train_on_batch(rng.normal(size=(8, 6)), rng.integers(0, 2, 8))
table = sorted((row.title, row.launches) for row in profile.table("layer"))
print(json.dumps([before, [logs, weights, table]]))
"""


def test_a_second_process_lowers_nothing(tmp_path):
    """With batches that vary, random numbers, and states in place."""
    ours = {"KERAS_BACKEND": "ocl", "KERAS_OCL_COMPILERS": "0", "KERAS_OCL_CACHE_DIR": str(tmp_path / "cache")}
    found = []
    for _ in range(2):
        options = {"cwd": ROOT, "env": {**os.environ, **ours}, "capture_output": True, "text": True, "timeout": 300}
        run = subprocess.run([sys.executable, "-c", SCRIPT], **options)
        assert run.returncode == 0, run.stderr
        found.append(json.loads(run.stdout.splitlines()[-1]))
    (lowered, first), (later, second) = found
    assert lowered > 0 == later and first == second
