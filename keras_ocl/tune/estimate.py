"""How far a schedule's estimates of products are off, and numbers of its tuning table that fit what was measured.

The error is the root mean square of the logarithms of estimated over measured times, of which each problem's mean is taken away, since only
ratios within a problem count. The fit is coordinate descent over factors of the numbers. It is checked by cross-validation: numbers that
were fitted to half of the problems choose tiles for the other half, among those that were measured.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping

from keras_ocl.kernels.overrides import number_of
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.tune.problem import Choice, Problem, plain

LEAST = 8  # problems for a fit
_CANDIDATES = 5  # least candidates of a problem that counts
_SLOW = 2.0  # times of the default from which a candidate does not count: nobody would choose it
_FACTORS = (0.6, 1.6)
_SWEEPS = 2
_LESS = 0.995  # a squared error that is less: so many times the best
WORTH = 1.02  # gain of the chosen tiles, in the geometric mean, for which fitted numbers are kept

Measured = Mapping[Problem, Mapping[Choice, float]]  # times as multiples of the default's


def usable(measured: Measured) -> dict[Problem, dict[Choice, float]]:
    """The products with enough candidates, and of these the tiles of which estimates are made and that are not far slower."""
    products = {problem: times for problem, times in measured.items() if problem.operation == "product"}
    found = {p: {c: t for c, t in times.items() if c.kind == "product" and t < _SLOW} for p, times in products.items()}
    return {problem: times for problem, times in found.items() if len(times) >= _CANDIDATES}


class Estimates:
    """Estimates of what was measured, by other numbers of the tuning table than the device has.

    Args:
        traits: the device's. measured: what usable() gives.
    """

    def __init__(self, traits, measured):
        self._traits, self._measured = traits, measured

    def error(self, problems, numbers):
        """The root mean square error over problems, as a factor less 1: 0.1 for estimates that are off by a tenth."""
        return math.exp(math.sqrt(self._squared(problems, numbers))) - 1

    def _squared(self, problems, numbers):
        found = []
        for problem in problems:
            off = [math.log(estimate / time) for estimate, time in self._pairs(problem, numbers).values()]
            found.append(statistics.pvariance(off) if len(off) > 1 else 0.0)
        return statistics.mean(found)

    def _pairs(self, problem, numbers):
        """{Choice: (estimate, measured time)} of a problem."""
        own = dataclasses.replace(self._traits.overrides, file=f"fit {sorted(numbers.items())}", tuning=tuple(numbers.items()))
        p, times = plain(problem, dataclasses.replace(self._traits, overrides=own))[0], self._measured[problem]
        found = {}
        for kind, estimate, fields in schedule_of(self._traits).candidates(problem.operation, p):
            choice = Choice.of(kind, fields)
            if choice in times:
                found[choice] = estimate, times[choice]
        return found

    def chosen(self, problem, numbers):
        """The measured time of the candidate with the least estimate."""
        return min(self._pairs(problem, numbers).values())[1]

    def fit(self, problems):
        """Numbers, as {name: value}, with less error over problems: those of the schedule's `costs`, each times a factor."""
        usual = dict(self._traits.overrides.tuning)
        costs = {name: number_of(self._traits, name) for name in schedule_of(self._traits).costs}
        numbers, least = dict(usual), self._squared(problems, usual)
        if not least:
            return {}
        for _ in range(_SWEEPS):
            for name, factor in ((name, factor) for name in costs for factor in _FACTORS):
                other = {**numbers, name: float(f"{numbers.get(name, costs[name]) * factor:.4g}")}
                squared = self._squared(problems, other)
                if squared < _LESS * least:
                    numbers, least = other, squared
        return {name: value for name, value in numbers.items() if name in costs and value != usual.get(name)}


@dataclasses.dataclass(frozen=True)
class Fit:
    """What fitting gave.

    Attributes:
        error, after: of the estimates by the device's numbers, and by the fitted ones, as of Estimates.error().
        gain: the time of the tiles that the estimates choose divided by that with fitted numbers, the geometric mean over problems that
            were not fitted to. numbers: {name: value}, empty where they gain too little.
        problems: number of products.
    """

    error: float
    after: float
    gain: float
    numbers: dict[str, float]
    problems: int


def fit(traits, measured) -> Fit | None:
    """The Fit of a device's estimates to what was measured; None for too few products, or a schedule without `costs`."""
    found = usable(measured)
    if len(found) < LEAST or not schedule_of(traits).costs:
        return None
    estimates, problems, usual = Estimates(traits, found), list(found), dict(traits.overrides.tuning)
    gains = []
    for held, others in ((problems[::2], problems[1::2]), (problems[1::2], problems[::2])):
        numbers = {**usual, **estimates.fit(others)}
        gains += [math.log(estimates.chosen(p, usual) / estimates.chosen(p, numbers)) for p in held]
    gain, numbers = math.exp(statistics.mean(gains)), estimates.fit(problems)
    after = estimates.error(problems, {**usual, **numbers})
    kept = numbers if gain > WORTH and min(gains) > -math.log(WORTH) else {}
    return Fit(estimates.error(problems, usual), after, gain, kept, len(found))
