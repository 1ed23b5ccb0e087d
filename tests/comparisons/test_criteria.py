"""The verdicts on the plain scripts, on made-up results."""

import copy

import pytest

from comparisons.studies import parity, scripts


def result(row="cifar_cnn", backend="ocl", accuracies=(0.6, 0.6, 0.6), epochs=15, losses=None):
    """Return a result with these test accuracies and per-step losses."""
    starts = [{"train_loss": [1.0], "test_loss": 1.0, "test_accuracy": value} for value in accuracies]
    made = dict(row=row, backend=backend, epochs=epochs, examples=[60000, 10000], starts=starts)
    return made | ({"step_losses": losses} if losses else {})


def losses(error=0.0, starts=5, steps=100):
    """Return per-step losses that are off by the relative `error`."""
    return [[(1 + start + 1 / (1 + step)) * (1 + error) for step in range(steps)] for start in range(starts)]


def judge(results):
    """Return the verdicts of both studies' criteria."""
    return [v for criterion in {*scripts.STUDY.criteria, *parity.STUDY.criteria} for v in criterion(results, "tensorflow")]


def passed(results, name):
    """Return whether the verdict called `name` was positive; None when there is none."""
    found = [v["passed"] for v in judge(results) if v["name"] == name]
    return found[0] if found else None


@pytest.mark.parametrize("ours, theirs, same", [((1, 0.5, 1), (1, 0.75, 1), True), ((1, 0.5, 1), (0.5, 1, 1), False)])
def test_xor_must_solve_the_same_starts(ours, theirs, same):
    pair = [result("xor", accuracies=ours), result("xor", "tensorflow", theirs)]
    assert passed(pair, "same starts solved") is same


@pytest.mark.parametrize("value, good", [(0.9801, True), (0.9799, False)])
def test_mnist_must_reach_98_percent(value, good):
    pair = [result("mnist_mlp", accuracies=[value], epochs=8), result("mnist_mlp", "tensorflow", [0.98], epochs=8)]
    assert passed(pair, "test accuracy") is good


def test_short_or_small_runs_are_not_judged_by_accuracy():
    assert passed([result("mnist_mlp", accuracies=[0.5], epochs=7), result("mnist_mlp", "tensorflow", [0.9])], "test accuracy") is None
    small = result("mnist_mlp", accuracies=[0.5], epochs=8) | {"examples": [1500, 297]}
    assert passed([small, result("mnist_mlp", "tensorflow", [0.9])], "test accuracy") is None
    assert passed([result(accuracies=[0.1]), result(backend="tensorflow")], "test accuracy") is None


@pytest.mark.parametrize("value, good", [(0.586, True), (0.614, True), (0.584, False), (0.616, False)])
def test_cifar_mean_must_be_within_a_point_and_a_half(value, good):
    pair = [result(accuracies=[value - 0.1, value, value + 0.1]), result(backend="tensorflow")]
    assert passed(pair, "test accuracy") is good


@pytest.mark.parametrize("error, good", [(0.9e-4, True), (1.1e-4, False), (float("nan"), False)])
def test_first_steps_must_agree(error, good):
    pair = [result(losses=losses(error, steps=10)), result(backend="tensorflow", losses=losses(steps=10))]
    assert passed(pair, "first steps") is good


def test_first_steps_are_judged_by_the_median_start():
    ours = losses()
    ours[0] = losses(0.1)[0]
    assert passed([result(losses=ours), result(backend="tensorflow", losses=losses())], "first steps") is True
    ours[1:3] = losses(0.1)[1:3]
    assert passed([result(losses=ours), result(backend="tensorflow", losses=losses())], "first steps") is False


@pytest.mark.parametrize("error, good", [(1.9e-3, True), (2.1e-3, False)])
def test_long_run_is_measured_against_float64(error, good):
    runs = [result(losses=losses(error)), result(backend="tensorflow", losses=losses(-1e-3))]
    runs.append(result(backend="tensorflow float64", losses=losses()))
    assert passed(runs, "long run") is good
    assert passed(runs[:2], "long run") is None


def test_failed_runs_are_not_judged():
    failed = dict(row="cifar_cnn", backend="ocl", error="exit status 1")
    assert judge([failed, result(backend="tensorflow")]) == []


def test_judging_changes_nothing():
    pair = [result(losses=losses()), result(backend="tensorflow", losses=losses())]
    before = copy.deepcopy(pair)
    judge(pair)
    assert pair == before
