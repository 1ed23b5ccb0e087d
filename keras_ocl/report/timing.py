"""Times of repeated calls: the best and the median of several runs."""

import statistics
import time
from collections.abc import Callable, Sequence

RUNS = 7
LEAST = 0.03  # seconds of a run, which calls several times where one call takes less
MOST = 2.0  # seconds after which no run begins


def timed(call: Callable[[], object], wait: Callable[[], object]) -> dict[str, float]:
    """Time a function that enqueues work; `wait` returns when that is done.

    Returns:
        What `summary` gives of RUNS runs, or of as many as begin within MOST seconds. Two calls before them are not timed.
    """
    for _ in range(2):  # the first compiles
        call()
        wait()
    once = _seconds(call, wait, 1)
    calls, runs, ends = max(1, int(LEAST / once)), [], time.perf_counter() + MOST
    while not runs or len(runs) < RUNS and time.perf_counter() < ends:
        runs.append(_seconds(call, wait, calls) / calls)
    return summary(runs)


def _seconds(call, wait, calls):
    began = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return time.perf_counter() - began


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """The best and the median of runs in milliseconds, and their number: {"best_ms", "median_ms", "n"}."""
    best, median = min(seconds), statistics.median(seconds)
    return {"best_ms": _rounded(best * 1e3), "median_ms": _rounded(median * 1e3), "n": len(seconds)}


def rates(times: dict[str, float], amount: float) -> dict[str, float]:
    """Amounts per second by the times of a `summary`: {"best", "median"}; `amount` is that of one call."""
    return {name: _rounded(amount / (times[f"{name}_ms"] / 1e3)) for name in ("best", "median")}


def _rounded(value):
    """Four digits: no time is known to more."""
    return float(f"{value:.4g}")
