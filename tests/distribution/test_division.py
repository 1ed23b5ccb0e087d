"""Shares by measured speed: a clock that runs differently for each part stands for devices of unequal speed."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from keras_ocl.distribution import division
from keras_ocl.distribution.communicator import Communicator
from keras_ocl.distribution.division import GRAIN, TIMED, Division, proportional
from tests.distribution.job import needs_mpi, run_job
from tests.plugin.process import run_python

TRAINING = """
    import keras, numpy as np
    from keras.distribution import DataParallel, DeviceMesh, LayoutMap, ModelParallel, TensorLayout, list_devices, set_distribution
    from keras_ocl.distribution import division
    from tests.distribution.models import make

    seen, end = [], division.Division.end

    def ends(self):  # which steps have changed shares, to what
        changed = end(self)
        seen.append(self.shares if changed else None)
        return changed

    division.Division.end = ends

    def train(name, rows=lambda n: (0, n)):
        model, x, y, weights = make(name)
        model.compile("adam", "sparse_categorical_crossentropy")
        losses = []
        for n in [32, 30, *[32] * 10, 37]:
            a, b = rows(n)
            losses.append(model.train_on_batch([v[a:b] for v in x] if isinstance(x, list) else x[a:b], y[a:b], weights[a:b]))
        return np.array(losses)

    def clock(speed):
        now = [0.0]
        def clock():
            now[0] += speed()
            return now[0]
        division.clock = clock

    def compare(name, distribution, expected, rows=lambda n: (0, n)):
        set_distribution(None)
        alone = train(name)
        set_distribution(distribution)
        seen.clear()
        np.testing.assert_allclose(train(name, rows), alone, rtol=1e-5)
        assert seen == [None] * 6 + [expected] + [None] * 6, seen  # of both shapes the first step is not timed
        print("equal")
"""


@pytest.mark.parametrize(
    ("speeds", "shares"),
    [([1, 1], [8, 8]), ([3, 1], [12, 4]), ([1.0, 1.04], [8, 8]), ([1, 100], [0, 16]), ([1, 1, 1.5], [7, 7, 10]), ([1, 2, 4], [3, 7, 14])],
)
def test_shares_are_in_proportion(speeds, shares):
    assert proportional(speeds) == shares and sum(shares) == GRAIN * len(shares)


@needs_mpi
@pytest.mark.parametrize(("ranks", "shares"), [(2, (11, 5)), (3, (13, 7, 4))])  # of three, the first computed 10 rows
def test_ranks_of_unequal_speed(ranks, shares):
    code = TRAINING + f"""
    clock(lambda: [1, 2, 4][rank])
    compare("mlp", DataParallel(), {shares})
    """  # fmt: skip
    assert run_job(code, ranks, KERAS_OCL_SHARES="auto").count("equal") == ranks


@needs_mpi
def test_a_rank_that_is_too_slow_gets_no_rows():
    code = TRAINING + """
    clock(lambda: [100, 1][rank])
    compare("recurrent", DataParallel(), (0, 16))
    """  # fmt: skip
    assert run_job(code, 2, KERAS_OCL_SHARES="auto").count("equal") == 2


@needs_mpi
def test_ranks_of_equal_speed_keep_their_shares():
    code = TRAINING + """
    clock(lambda: 1)
    compare("mlp", DataParallel(), None)
    """  # fmt: skip
    assert run_job(code, 2, KERAS_OCL_SHARES="auto").count("equal") == 2


@needs_mpi
def test_ranks_that_share_the_model_have_the_slower_ones_speed():
    """Variables that are cut along the batch axis stay as they are."""
    code = TRAINING + """
    clock(lambda: [1, 1, 1, 3][rank])
    mesh = DeviceMesh((2, 2), ("batch", "model"), list_devices())
    layouts = LayoutMap(mesh)
    layouts[".*kernel"] = TensorLayout(("batch", "model"), mesh)
    compare("mlp", ModelParallel(layout_map=layouts, batch_dim_name="batch"), (12, 4))
    """  # fmt: skip
    assert run_job(code, 4, KERAS_OCL_SHARES="auto").count("equal") == 4


def test_devices_of_a_process(halves):
    code = TRAINING + f"""
    import threading
    local = threading.local()

    def clock():  # of each thread its own
        thread = threading.current_thread()
        local.now = getattr(local, "now", 0) + (1 if thread is threading.main_thread() else 3)
        return local.now

    division.clock = clock
    compare("mlp", DataParallel(devices={halves}), (12, 4))
    """  # fmt: skip
    environment = {"KERAS_BACKEND": "ocl", "KERAS_OCL_SHARES": "auto", "KERAS_OCL_DEVICE": halves[0].partition("/")[0]}
    assert "equal" in run_python(code, **environment)


@needs_mpi
def test_ranks_that_give_their_own_rows_divide_them_among_their_devices(halves):
    code = TRAINING + f"""
    import threading
    local = threading.local()

    def clock():
        slow = (threading.current_thread() is threading.main_thread()) == (rank == 0)
        local.now = getattr(local, "now", 0) + (3 if slow else 1)
        return local.now

    division.clock = clock
    rows = lambda n: [(0, n - 12), (n - 12, n)][rank]
    compare("mlp", DataParallel(devices={halves} * 2, auto_shard_dataset=False), (4, 12, 12, 4), rows)
    """  # fmt: skip
    environment = {"KERAS_OCL_SHARES": "auto", "KERAS_OCL_BIND": "0", "KERAS_OCL_DEVICE": halves[0].partition("/")[0]}
    assert run_job(code, 2, **environment).count("equal") == 2


def test_a_device_that_only_has_the_variables_gets_no_rows(monkeypatch):
    """Of CentralStorage with `storage` apart from the devices that compute."""
    axis = [SimpleNamespace(size=3, shares=(1, 1, 0), place=place) for place in range(3)]
    parts = [SimpleNamespace(batch_axis=each, communicator=SimpleNamespace(rank=each.place, seconds=0)) for each in axis]
    found = Division(SimpleNamespace(batch_axis=axis[0], world=Communicator(), measured=True, ranks=None), own=False)
    ticks = itertools.cycle([0, 1, 0, 3, 0, 5])  # seconds of the three parts
    monkeypatch.setattr(division, "clock", lambda: next(ticks))
    for step in range(1 + TIMED):
        found.begin([np.zeros(8)])
        for part, rows in zip(parts, (4, 4, 0), strict=True):
            found.run(part, SimpleNamespace(finish=lambda: None), rows, lambda: None)
        assert found.end() == (step == TIMED)
    assert found.shares == (18, 6, 0)


def test_what_is_no_share():
    code = """
        import keras
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0/1of2", "cpu:0/2of2"]))
        try:
            keras.layers.Dense(1).build((None, 1))
        except ValueError as error:
            print(error)
    """
    output = run_python(code, KERAS_BACKEND="ocl", KERAS_OCL_SHARES="Auto")
    assert "KERAS_OCL_SHARES='Auto': give 2 whole numbers above 0, one for each part of a batch, such as 2,1, or auto." in output
