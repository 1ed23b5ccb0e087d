"""Trials on the device in use: kernels of both schedules are right by the reference, and a wrong one is found."""

import dataclasses

import numpy as np
import pytest

from keras_ocl import runtime
from keras_ocl.runtime.programs import UNOPTIMISED
from keras_ocl.tune import reference, trial
from keras_ocl.tune.problem import Choice, Problem, choices, plain
from keras_ocl.tune.trial import RIGHT, UNFIT, WRONG, Refused, Trial

PRODUCTS = [
    "float32 m=24 n=40 k=70 a=float32(70,1) b=float32(40,1)",
    "float32 batch=3 m=9 n=33 k=20 a=float32(180,1,9) b=float32(0,33,1) uniform=2",
    "float32 m=32* n=48 k=64 a=float32(64,1) b=float32(1,64)",
    "float32 m=3 n=100 k=64 a=float32(64,1) b=float32(100,1)",
    "float32 m=90 n=2 k=64 a=float32(64,1) b=float32(2,1)",
    "int32 m=16 n=32 k=24 a=int8(24,1) b=int8(32,1)",
]
CONVOLUTIONS = [
    "float32 input=2,9,8,8 filter=3,3,8,16 output=2,9,8,16 low=1,1",
    "float32 input=2,11,9,6 filter=3,2,6,8 output=2,5,8,8 low=1,0 strides=2,1",
    "float32 input=2,11,9,6 filter=3,3,3,8 output=2,7,5,8 low=0,0 dilation=2,2 groups=2",
    "float32 input=2,20,32 filter=3,32,32 output=2,20,32 low=1",
    "float32 input=3,14,14,16 filter=3,3,16,32 output=3,12,12,32 low=0,0",
]
TRANSPOSED = [
    "float32 input=2,5,5,8 filter=3,3,8,6 output=2,11,11,6 low=2,2 input_dilation=2,2 transposed",
    "float32 input=2,7,6,8 filter=3,3,4,6 output=2,9,8,6 low=2,2 groups=2 transposed",
]
CASES = [("product", key) for key in PRODUCTS] + [("convolution", key) for key in (*CONVOLUTIONS, *TRANSPOSED)]
CASES += [("filter_gradient", key) for key in CONVOLUTIONS]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trial, "_OPTIONS", UNOPTIMISED)
    monkeypatch.setattr(trial, "_MOST", 1)


def on(schedule):
    """The device in use with a schedule, and no choices of its own."""
    found = runtime.current_device()
    return trial.opened(runtime.open_again(found, dataclasses.replace(found.traits, schedule=schedule)), ())


@pytest.mark.parametrize("schedule", ["cpu", "gpu"])
@pytest.mark.parametrize("operation, key", CASES)
def test_the_default_and_candidates_are_right(operation, key, schedule):
    device, problem = on(schedule), Problem(operation, key)
    made = Trial(device, problem, 1.0)
    assert made.seconds > 0 and made.share == 1
    found = choices(problem, device.traits)
    some = [found[i * (len(found) - 1) // 2] for i in range(3)] if found else []
    verdicts = [made.attempt(choice, 9.0)[:2] for choice in dict.fromkeys(some)]
    fit = [verdict for verdict in verdicts if verdict[0] != UNFIT]
    # On CPUs a transposed convolution has the tile of another one.
    assert (fit or "transposed" in key) and all(verdict == (RIGHT, "") for verdict in fit), verdicts


def test_a_wrong_result_is_found(monkeypatch):
    made = Trial(on("cpu"), Problem("product", PRODUCTS[0]), 1.0)
    tiles = [Choice.of("product", dict(kind="rows", rows=4, vectors=1, chunk=n)) for n in (4, 8)]
    assert made.attempt(tiles[0], 9.0)[0] == RIGHT
    enqueue = made._runs._device.enqueue

    def lost(kernel, grid, group=None, label=""):
        enqueue(kernel, (grid[0], max(1, grid[1] - 1), *grid[2:]), group)

    monkeypatch.setattr(made._runs._device, "enqueue", lost)
    verdict, why, ratio = made.attempt(tiles[1], 9.0)
    assert verdict == WRONG and "of the result is wrong, as are" in why and ratio is None


@pytest.mark.parametrize("operation, key", [CASES[0], CASES[1], *CASES[-5:-2], CASES[6], CASES[-1]])
def test_one_wrong_element_is_found(operation, key):
    problem, rng = Problem(operation, key), np.random.default_rng(2)
    p, operands, *_ = plain(problem, runtime.read_record("intel-cpu"))
    arrays = {name: reference.filled(buffer, rng) for name, buffer in operands.items()}
    expected = reference.Expected(problem, p, arrays)
    made = Trial(on("reference"), problem, 1.0)._runs
    made._arrays, made._storages = arrays, {name: made._device.upload(array) for name, array in arrays.items()}
    launches = made.built(None)
    made._enqueue(launches)
    found = made._device.download(made._result, made._dtype, made._shape)
    assert expected.wrong(found) == ""
    assert expected.wrong(found * (1 + 1e-7)) == "", "Winograd's algorithm rounds"
    at = tuple(rng.integers(n) for n in found.shape)
    found[at] += 1
    assert expected.wrong(found).startswith(f"row {[int(i) for i in at[:-1]]} of the result is wrong")
    found[at] = np.nan if found.dtype.kind == "f" else 99
    assert expected.wrong(found)


def test_a_tile_that_no_kernel_takes_is_unfit():
    made = Trial(on("cpu"), Problem("product", PRODUCTS[0]), 1.0)
    assert made.attempt(Choice.of("product", dict(kind="rows", rows=30, vectors=1, chunk=30)), 1.0)[0] == UNFIT
    assert made.attempt(Choice.of("product", dict(colour="red")), 1.0)[0] == UNFIT
    assert made.attempt(Choice.of("winograd", dict(rows=1)), 1.0) == (UNFIT, "no kernel asks for a tile of the kind winograd", None)


def test_a_default_that_is_wrong_is_not_compared_with(monkeypatch):
    monkeypatch.setattr(trial._Runs, "wrong", lambda self, launches: "all are")
    with pytest.raises(Refused, match="^the usual kernel is wrong: all are$"):
        Trial(on("cpu"), Problem("product", PRODUCTS[0]), 1.0)


def test_what_is_far_slower_is_measured_in_few_runs(monkeypatch):
    made, runs = Trial(on("cpu"), Problem("product", PRODUCTS[0]), 1.0), []
    made._count, tile = 10, Choice.of("product", dict(kind="rows", rows=4, vectors=1, chunk=8))

    def sample(built, count):
        runs.append(count)
        return [1.0, ratio]

    monkeypatch.setattr(made._runs, "sample", sample)
    for ratio, counts in ((3.0, [3]), (1.2, [3, 10]), (1.0, [3, 10, 10, 10]), (0.8, [3, 10, 10, 10])):
        runs.clear()
        assert made.attempt(tile, 1.0) == (RIGHT, "", ratio) and runs == counts


def test_times_of_all_that_is_compared_in_each_round():
    made, tile = Trial(on("cpu"), Problem("product", PRODUCTS[0]), 1.0), Choice.of("product", dict(kind="rows", rows=4, vectors=1, chunk=8))
    rounds = made.race([tile, tile], 3, 60.0)
    assert len(rounds) == 3 and all(len(times) == 3 and min(times) > 0 for times in rounds)
    assert len(made.race([tile], 3, 0.0)) == 1
