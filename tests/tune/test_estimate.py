"""The fit of the estimates' numbers, to times that estimates by other numbers give."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.kernels.overrides import number_of
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.tune import estimate
from keras_ocl.tune.problem import Choice, Problem, choices, plain

SHAPES = [(24, 96, 40), (128, 512, 784), (64, 64, 64), (200, 300, 100), (512, 32, 64), (8, 256, 512), (96, 96, 1024), (1000, 48, 30)]
PROBLEMS = [Problem("product", f"float32 m={m} n={n} k={k} a=float32({k},1) b=float32({n},1)") for m, n, k in SHAPES]


@pytest.fixture
def traits():
    return runtime.read_record("intel-cpu")


def with_numbers(traits, numbers):
    own = dataclasses.replace(traits.overrides, file=f"own {numbers}", tuning=tuple(numbers.items()))
    return dataclasses.replace(traits, overrides=own)


def measured(traits, numbers, count=12):
    """Times of candidates from all over the list, by the estimates with other numbers."""
    found, true = {}, with_numbers(traits, numbers)
    for problem in PROBLEMS:
        tried = choices(problem, traits)
        tried = tried[:: max(1, len(tried) // 2 // count)]
        known = schedule_of(true).candidates("product", plain(problem, true)[0])
        times = {Choice.of(kind, fields): time for kind, time, fields in known}
        found[problem] = {choice: times[choice] / times[tried[0]] for choice in tried}
    return found


def test_costs_are_names_of_numbers(traits):
    for record in ("intel-cpu", "sm_90"):
        traits = runtime.read_record(record)
        assert all(type(number_of(traits, name)) is float for name in schedule_of(traits).costs)


def test_estimates_that_are_right_stay_as_they_are(traits):
    found = estimate.fit(traits, measured(traits, {}))
    assert (found.error, found.gain, found.numbers, found.problems) == (0, 1, {}, len(PROBLEMS))


def test_the_error_gets_less_and_the_numbers_count_where_they_choose_faster_tiles(traits, monkeypatch):
    wrong = with_numbers(traits, {"product.latency": 16.0})
    times, usual = measured(wrong, {}), {"product.latency": 16.0}
    found = estimate.fit(wrong, times)
    assert 0 < found.after < found.error / 2
    # What numbers are kept depends on the tiles that products choose by them to which they were not fitted.
    monkeypatch.setattr(estimate.Estimates, "fit", lambda self, problems: {"product.latency": 5.0})
    for before, with_one_before, kept in ((1.2, 1.2, True), (1.2, 1.0, True), (1.2, 0.9, False), (1.01, 1.01, False), (0.9, 0.9, False)):

        def chosen(self, problem, numbers, before=before, one=with_one_before):
            return 1.0 if numbers != usual else one if problem == PROBLEMS[3] else before

        monkeypatch.setattr(estimate.Estimates, "chosen", chosen)
        assert estimate.fit(wrong, times).numbers == ({"product.latency": 5.0} if kept else {})


def test_few_products_are_not_fitted_to(traits):
    times = dict(list(measured(traits, {"product.latency": 9.0}).items())[:-1])
    assert estimate.fit(traits, times) is None
    reference = dataclasses.replace(traits, schedule="reference")
    assert estimate.fit(reference, measured(traits, {"product.latency": 9.0})) is None
