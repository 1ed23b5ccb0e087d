"""The search for one problem's tile: candidates by their estimates, near the best and far from all, then the best ones in rounds.

Times are always compared with the default's, measured in alternation, since a machine's speed drifts. Exploring takes few samples of each
candidate; what looks best then runs in rounds of its own, so that the luck of the first samples does not count. A tile is better if the
whole confidence interval of its gain, the median of the rounds' ratios, is above `WORTH`: the interval's end is an order statistic
(the binomial distribution gives its confidence), which holds for noise of any distribution.
"""

import statistics
import sys
import time
from dataclasses import dataclass, field
from math import comb

from keras_ocl.tune.problem import Choice
from keras_ocl.tune.trial import RIGHT, UNFIT

WORTH = 1.02  # least gain, with confidence, for which a tile is kept
_CONFIDENCE = 0.96  # that the median is above the interval's end
_ROUNDS = 15
_LEAST_ROUNDS = 5  # fewer give no such interval
_FINALISTS = 3
_PATIENCE = 36  # candidates in turn that are no better, after which the search ends
_BETTER = 0.99  # a time that is better: so many times the best
_EXPLORING = 0.7  # share of the time for candidates; the rest is for rounds


@dataclass
class Result:
    """What a search found.

    Attributes:
        seconds: time of a run of the default. share: as in trial.Trial.
        best: the Choice that is better than the default, None where none is. gain: the default's time divided by its time; at_least: what
            the gain exceeds with confidence. Without one these are of the best that was measured in rounds, or 1.
        tried: number of candidates. ratios: {Choice: time as a multiple of the default's} of those that are right. wrong: {Choice: clause}
            of those that are wrong, refused, or ended their process.
        finished: whether rounds were measured, so that the result may take the place of an earlier one.
    """

    seconds: float
    share: float
    best: Choice | None = None
    gain: float = 1.0
    at_least: float = 1.0
    tried: int = 0
    ratios: dict[Choice, float] = field(default_factory=dict)
    wrong: dict[Choice, str] = field(default_factory=dict)
    finished: bool = False


def search(problem, candidates, bench, until, known=None, clock=time.monotonic):
    """The Result for a Problem.

    Args:
        candidates: Choices in the order of their estimates. known: the Choice that the device's file has now, or None; it is tried first.
        bench: measures, with the methods of run.Bench. until: the time of `clock` at which the search ends.

    Raises:
        What bench.start raises.
    """
    begin = clock()
    seconds, share = bench.start(problem, until - begin)
    found = Result(seconds, share)
    ratios = found.ratios
    end, waiting, best, idle = clock() + _EXPLORING * (until - clock()), _Waiting(candidates, known), 1.0, 0
    while idle < _PATIENCE and clock() < end and (choice := waiting.next(ratios)) is not None:
        verdict, why, ratio = bench.attempt(choice, best)
        if verdict == UNFIT:
            continue
        found.tried += 1
        idle += 1
        if verdict != RIGHT:
            found.wrong[choice] = f"{verdict}, {why}"
            continue
        ratios[choice] = ratio
        if ratio < _BETTER * best:
            best, idle = ratio, 0
    finalists = sorted((c for c in ratios if ratios[c] < 1 or c == known), key=ratios.__getitem__)[:_FINALISTS]
    rounds = bench.race(finalists, _ROUNDS, until - clock()) if finalists else []
    found.finished = not finalists and waiting.seen > 1 or len(rounds) >= _LEAST_ROUNDS
    if len(rounds) < _LEAST_ROUNDS:
        return found
    found.seconds = statistics.median(times[0] for times in rounds)
    for k, choice in enumerate(finalists, 1):
        gains = sorted(times[0] / times[k] for times in rounds)
        gain, at_least = statistics.median(gains), gains[_below(len(gains))]
        if at_least > WORTH and (found.best is None or gain > found.gain):
            found.best, found.gain, found.at_least = choice, gain, at_least
    return found


def _below(count):
    """The index, among `count` sorted samples, of one that the median exceeds with confidence."""
    below, chance = 0, 0.0
    while True:
        chance += comb(count, below) / 2**count  # that so many samples or fewer are below the median
        if chance > 1 - _CONFIDENCE:
            return max(0, below - 1)
        below += 1


class _Waiting:
    """Candidates that were not tried.

    In turn come the next by estimate, the next of those that differ from the fastest in one field, and the next of those that differ most
    from all that were tried: estimates may be wrong for a whole class of tiles.
    """

    def __init__(self, candidates, known):
        self._left = {choice: sys.maxsize for choice in [*([known] if known else []), *candidates]}  # least differences to those tried
        self.seen = 0

    def next(self, ratios):
        """The next Choice, None where there is none. ratios: the times of those that were tried and are right."""
        if not self._left:
            return None
        choice, turn = next(iter(self._left)), self.seen % 3
        if turn == 1 and ratios:
            best = min(ratios, key=ratios.__getitem__)
            choice = next((c for c in self._left if c.differences(best) == 1), choice)
        elif turn == 2:
            choice = max(self._left, key=self._left.__getitem__)  # the first of them
        self.seen += 1
        del self._left[choice]
        self._left = {c: min(least, c.differences(choice)) for c, least in self._left.items()}
        return choice
