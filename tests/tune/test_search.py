"""The search, with times that a table says: what it keeps, what it never keeps, and when it ends."""

import itertools

import pytest

from keras_ocl.tune.problem import Choice, Problem
from keras_ocl.tune.search import WORTH, search
from keras_ocl.tune.trial import REFUSED, RIGHT, UNFIT, WRONG

PROBLEM = Problem("product", "float32 m=8 n=8 k=8 a=float32(8,1) b=float32(8,1)")


def tile(**fields):
    return Choice.of("product", fields)


class Bench:
    """Says times: `times` by Choice as multiples of the default's, times a factor of `noise` in turn; a verdict in place of a time."""

    def __init__(self, times, noise=(1.0,), cost=1.0):
        self.times, self._noise, self._cost = times, itertools.cycle(noise), cost
        self.now, self.asked, self.raced = 0.0, [], []

    def clock(self):
        return self.now

    def start(self, problem, seconds):
        self.now += self._cost
        return 0.001, 1.0

    def attempt(self, choice, bound):
        self.now += self._cost
        self.asked.append(choice)
        found = self.times[choice]
        return (RIGHT, "", found * next(self._noise)) if isinstance(found, float) else (found, "why", None)

    def race(self, choices, rounds, seconds):
        self.raced = choices
        rounds = min(rounds, int(seconds / self._cost))
        self.now += rounds * self._cost
        return [[0.001, *(0.001 * self.times[c] * next(self._noise) for c in choices)] for _ in range(rounds)]


def searched(times, until=1000.0, known=None, **bench):
    bench = Bench(times, **bench)
    candidates = [choice for choice in times if choice != known]
    return search(PROBLEM, candidates, bench, until, known, bench.clock), bench


def test_the_fastest_is_kept_with_its_gain():
    times = {tile(rows=r): 1.0 - 0.1 * (r == 5) for r in range(1, 9)}
    found, _ = searched(times)
    assert found.best == tile(rows=5) and found.finished
    assert found.gain == pytest.approx(1 / 0.9) == found.at_least and (found.seconds, found.tried) == (0.001, 8)


@pytest.mark.parametrize("time", [1.0, 1.3, 1 / WORTH + 1e-6])
def test_what_is_slower_or_hardly_faster_is_not_kept(time):
    found, _ = searched({tile(rows=r): time for r in range(1, 9)})
    assert found.best is None and found.finished


def test_what_is_within_the_noise_is_not_kept():
    # Lucky samples make some candidates look a third faster; half of the rounds say that they are slower.
    found, bench = searched({tile(rows=r): 1.0 for r in range(1, 9)}, noise=(0.75, 1.35, 0.75, 1.3, 0.9, 1.1, 1.2))
    assert bench.raced and found.best is None


def test_what_is_faster_in_spite_of_noise_is_kept():
    found, _ = searched({tile(rows=1): 1.0, tile(rows=2): 0.7}, noise=(0.9, 1.1, 1.0, 0.8, 1.3))
    assert found.best == tile(rows=2) and WORTH < found.at_least < found.gain


@pytest.mark.parametrize("verdict", [WRONG, REFUSED, "crashed", "hung"])
def test_what_is_not_right_is_never_kept(verdict):
    found, bench = searched({tile(rows=1): verdict, tile(rows=2): 0.9, tile(rows=3): 1.0})
    assert found.best == tile(rows=2) and tile(rows=1) not in bench.raced
    assert found.wrong == {tile(rows=1): f"{verdict}, why"}


def test_what_no_kernel_takes_does_not_count():
    found, _ = searched({tile(rows=1): UNFIT, tile(rows=2): 0.9})
    assert found.best == tile(rows=2) and found.wrong == {} and found.tried == 1


def test_only_wrong_ones_leave_the_default():
    found, _ = searched({tile(rows=r): WRONG for r in range(1, 4)})
    assert found.best is None and len(found.wrong) == 3


def test_a_misleading_order_is_left_by_way_of_the_neighbours_of_the_best():
    times = {tile(rows=1, vectors=1): 1.0} | {tile(rows=100 + k, vectors=100 + k): 1.5 for k in range(300)}
    times |= {tile(rows=r, vectors=1): 1.0 - 0.05 * r for r in range(2, 5)} | {tile(rows=4, vectors=2): 0.6}
    found, _ = searched(times)
    assert found.best == tile(rows=4, vectors=2) and found.tried < 50


def test_a_class_of_tiles_that_the_estimates_put_last_is_tried():
    times = {tile(kind="rows", block=0, rows=r): 1.0 for r in range(1, 300)}
    times |= {tile(kind="dots", block=8, rows=1000 + r): 0.8 for r in range(1, 300)}
    found, _ = searched(times)
    assert dict(found.best.fields)["kind"] == "dots"


def test_the_search_ends_where_nothing_gets_better():
    found, bench = searched({tile(rows=r): 1.2 for r in range(1, 500)})
    assert found.tried == len(bench.asked) == 36


def test_the_time_is_kept():
    found, bench = searched({tile(rows=r): 1.0 - r / 1000 for r in range(1, 500)}, until=60.0)
    assert 50 <= bench.now <= 60 and found.finished


def test_without_time_for_rounds_nothing_is_decided():
    found, _ = searched({tile(rows=r): 0.5 for r in range(1, 9)}, until=5.0)
    assert found.best is None and not found.finished


def test_what_the_file_has_is_tried_first_and_kept_if_it_is_the_fastest():
    times = {tile(rows=r): 1.0 for r in range(1, 400)} | {tile(rows=1000): 0.8}
    found, bench = searched(times, known=tile(rows=1000))
    assert bench.asked[0] == tile(rows=1000) == found.best
