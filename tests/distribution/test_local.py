"""Several devices of one process: the collectives of their threads, training, and what else reads and writes variables meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.distribution.communicator import Communicator
from keras_ocl.distribution.team import Team
from tests.distribution.job import needs_mpi, run_job
from tests.plugin.process import run_python

# ---- collectives


def each(members, call):
    """`call(member)` of all, each in a thread of its own."""
    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(call, members))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "and", "or"])
def test_values(size, kind):
    team = Team(Communicator())
    members = [team.join() for _ in range(size)]
    rng = np.random.default_rng(size)
    cases = [[rng.integers(0, 7, (3, 0, 2)), rng.integers(-9, 9, (2, 5)).astype("int32")] for _ in members]
    if kind not in ("and", "or"):
        floats = [rng.normal(size=(4, 3)).astype("float32") for _ in members]
        floats[-1][1, 1] = np.nan
        cases = [[*case, x, x[0].astype("float16"), x[:, 0].astype(ml_dtypes.bfloat16)] for case, x in zip(cases, floats, strict=True)]
    name = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "and": "bitwise_and", "or": "bitwise_or"}[kind]
    expected = [getattr(np, name).reduce(np.stack([np.asarray(x, np.float64) if x.dtype.kind not in "iu" else x for x in parts]))
                for parts in zip(*cases, strict=True)]  # fmt: skip
    for found in each(members, lambda member: member.all_reduce(cases[member.rank], kind)):
        for got, wanted, given in zip(found, expected, cases[0], strict=True):
            assert got.dtype == given.dtype and got.shape == given.shape
            tolerance = 1e-6 if got.dtype.itemsize > 2 else 2e-2
            np.testing.assert_allclose(got.astype(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)


def test_bool_parts_and_objects():
    team = Team(Communicator())
    members = [team.join() for _ in range(3)]
    truths = [np.array([k == 1, True, False]) for k in range(3)]
    for kind, expected in (("sum", [True, True, False]), ("and", [False, True, False])):
        assert all(list(found[0]) == expected for found in each(members, lambda m, kind=kind: m.all_reduce([truths[m.rank]], kind)))
    extents, x = [2, 0, 1], np.arange(12.0).reshape(4, 3)
    parts = [x[:, :2], x[:, 2:2], x[:, 2:]]
    assert all(np.array_equal(found, x) for found in each(members, lambda m: m.all_gather(parts[m.rank], 1, extents)))
    scattered = each(members, lambda m: m.reduce_scatter(x, 1, extents))
    assert all(np.array_equal(found, 3 * part) for found, part in zip(scattered, parts, strict=True))
    assert each(members, lambda m: m.gather_objects(m.rank)) == [[0, 1, 2]] * 3
    assert [float(v) for v in each(members, lambda m: m.broadcast(np.array(m.rank), 2))] == [2, 2, 2]
    pairs = [m.split(m.rank % 2) for m in members]
    assert [(p.rank, p.size) for p in pairs] == [(0, 2), (0, 1), (1, 2)]
    assert [list(found[0]) for found in each(pairs, lambda m: m.all_reduce([np.ones(1)], "sum"))] == [[2], [1], [2]]


def test_a_member_that_fails_frees_the_others():
    team = Team(Communicator())
    members = [team.join() for _ in range(3)]

    def call(member):
        try:
            if member.rank == 1:
                raise ArithmeticError
            member.all_reduce([np.ones(2)], "sum")
        except (ArithmeticError, threading.BrokenBarrierError) as error:
            team.abort()
            return type(error)

    assert each(members, call) == [threading.BrokenBarrierError, ArithmeticError, threading.BrokenBarrierError]
    team.renew()
    assert [float(found[0]) for found in each(members, lambda m: m.all_reduce([np.float64(1)], "sum"))] == [3, 3, 3]


def test_a_member_that_fails_before_others_come():
    """Before the first meeting, and before the first behind another failure, when there is nothing yet at which they wait."""
    team = Team(Communicator())
    members = [team.join() for _ in range(2)]
    for _ in range(2):
        team.abort()
        with ThreadPoolExecutor(1) as threads, pytest.raises(threading.BrokenBarrierError):
            threads.submit(members[0].barrier).result(10)
        team.renew()
    each(members, lambda member: member.barrier())


# ---- training

TRAINING = """
    import keras, keras_ocl, numpy as np
    from keras.distribution import DataParallel, set_distribution
    from tests.distribution.models import make
    from tests.distribution.modes import prepare
    prepare()

    def train(name, steps=5):
        model, x, y, weights = make(name)
        model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        rows = lambda n: ([a[:n] for a in x] if isinstance(x, list) else x[:n], y[:n], weights[:n])
        losses = [model.train_on_batch(*rows(37 if k % 3 else 30)) for k in range(steps)]
        model.fit(x, y, batch_size=16, verbose=0)
        return np.array(losses), np.array(model.evaluate(x, y, batch_size=16, verbose=0)), model.predict(x, verbose=0)

    def compare(name, devices, kind=DataParallel, **options):
        set_distribution(None)
        alone = train(name)
        set_distribution(kind(devices=devices, **options))
        together = train(name)
        np.testing.assert_allclose(together[0], alone[0], rtol=1e-5, err_msg=name)
        for ours, theirs in zip(together[1:], alone[1:]):
            np.testing.assert_allclose(ours, theirs, rtol=5e-3, atol=5e-4, err_msg=name)
        print("equal")
"""


def test_losses_are_those_of_one_device(halves):
    code = TRAINING + f"""
    for name in ("recurrent", "recommender"):
        compare(name, {halves})
    """  # fmt: skip
    assert run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=halves[0].partition("/")[0]).count("equal") == 2


def test_devices_of_different_kinds_and_shares():
    names = [device.name for device in runtime.devices() if device.usable]
    if len({runtime.find_device(name).platform for name in names}) < 2:
        pytest.skip("two OpenCL platforms are needed")
    code = TRAINING + f"""
    compare("cnn", {names[:2]})
    """  # fmt: skip
    assert run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_SHARES="1,3").count("equal") == 1


@needs_mpi
def test_ranks_with_two_devices_each(halves):
    code = TRAINING + f"""
    compare("mlp", {halves} * 2)
    """  # fmt: skip
    # Bound to cores of its own, a rank would have one, which has no halves.
    assert run_job(code, 2, KERAS_OCL_BIND="0", KERAS_OCL_DEVICE=halves[0].partition("/")[0]).count("equal") == 2


BOTH = pytest.mark.parametrize("kind", ["DataParallel", "keras_ocl.CentralStorage"])


@BOTH
def test_others_read_and_write_between_steps(halves, kind):
    code = TRAINING + f"""
    x = np.linspace(-1, 1, 60).astype("float32").reshape(10, 6)

    def run(devices):
        set_distribution(devices and {kind}(devices=devices))
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        kernel, seen = model.layers[0].kernel, []
        scale = keras_ocl.jit(lambda: kernel.assign(kernel * 0.5))
        for k in range(4):
            seen.append(float(model.train_on_batch(x, x[:, :2])))
            before = kernel.value
            held = np.array(before)
            seen.append(float(keras.ops.sum(before)))
            model.train_on_batch(x, x[:, :2])
            assert np.array_equal(np.array(before), held)  # what is held does not change
            scale()
            seen.append(float(keras.ops.sum(kernel)))
            kernel.assign_add(np.full((6, 4), 0.1, "float32"))
            seen.append(float(keras.ops.sum(model(x))))
            model.set_weights([w * 1.1 for w in model.get_weights()])
        return seen

    np.testing.assert_allclose(run({halves}), run(None), rtol=1e-4)
    print("equal")
    """  # fmt: skip
    assert "equal" in run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=halves[0].partition("/")[0])


@BOTH
def test_weights_that_layers_assign(halves, kind):
    code = TRAINING + f"""
    from tests.keras.assignment_cases import losses

    def run(name, devices):
        set_distribution(devices and {kind}(devices=devices))
        return losses(name, "sgd")

    for name in ("spectral_normalization", "clipped", "normalizing_cell"):
        np.testing.assert_allclose(run(name, {halves}), run(name, None), rtol=1e-4, atol=1e-5)
        print("equal")
    """  # fmt: skip
    assert run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=halves[0].partition("/")[0]).count("equal") == 3


def test_a_condition(halves):
    """A step that is divided computes both branches."""
    code = TRAINING + f"""
    from tests.primitives.test_cond import Gated, N, RNG, X

    def run(devices):
        set_distribution(devices and DataParallel(devices=devices))
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((N,)), Gated(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x, y = np.concatenate([X, -X]), np.arange(96, dtype="float32").reshape(-1, 1) / 96
        return model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0).history["loss"]

    np.testing.assert_allclose(run({halves}), run(None), rtol=1e-4)
    print("equal")
    """  # fmt: skip
    assert "equal" in run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=halves[0].partition("/")[0])


@BOTH
def test_a_device_that_fails(halves, kind):
    """The error is the device's, and training goes on from the first device's values."""
    code = TRAINING + f"""
    from keras_ocl.distribution import local
    set_distribution({kind}(devices={halves}))
    model, x, y, _ = make("mlp")
    model.compile("adam", "sparse_categorical_crossentropy")
    before = model.train_on_batch(x, y)
    run_part = local.Part.launch

    def fails(part, *args):
        if part.device.name == "{halves[1]}":
            raise MemoryError("no more on the second one")
        return run_part(part, *args)

    local.Part.launch = fails
    try:
        model.train_on_batch(x, y)
    except MemoryError as error:
        print(error)
    local.Part.launch = run_part
    after = [model.train_on_batch(x, y) for _ in range(3)]
    assert np.isfinite(after).all() and after[-1] < before, (before, after)
    """  # fmt: skip
    output = run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=halves[0].partition("/")[0])
    assert "no more on the second one" in output


def test_what_does_not_fit(halves):
    code = TRAINING + f"""
    def refused(make):
        try:
            set_distribution(make())
            keras.layers.Dense(4).build((None, 6))
        except ValueError as error:
            print(str(error))
        finally:
            set_distribution(None)

    refused(lambda: DataParallel(devices=[{halves[0]!r}] * 2))
    refused(lambda: DataParallel(devices=["gpu:77", {halves[0]!r}]))
    """  # fmt: skip
    twice, missing = run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_DEVICE=halves[0].partition("/")[0]).splitlines()
    assert "names a device twice" in twice
    assert "gpu:77" in missing and "mpiexec -n 2" in missing
