"""What is measured of a row of a study: functions that take a Context and return keys of the row's result."""

import statistics
from dataclasses import dataclass

from comparisons.study import Extent, Row

PREDICTS = 5  # repeats of a timed predict, after one that compiles


@dataclass
class Context:
    """What a measure gets: the Row, its Extent, the worker's Subject (model and data), and `progress(text, done, total)` to report."""

    row: Row
    extent: Extent
    subject: object
    progress: callable
    out: str  # a folder of the study's own, for files


def spread(values):
    """Return repeated measurements as the dict {"median", "low", "high", "n"}; low and high are the quartiles."""
    values = sorted(values)
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = high = values[0]
    return {"median": statistics.median(values), "low": low, "high": high, "n": len(values)}


def is_spread(value):
    """Tell whether `value` is what `spread` returns."""
    return isinstance(value, dict) and value.keys() == {"median", "low", "high", "n"}


def differ(a, b):
    """Tell whether two Spreads differ by more than their spread: the ranges between their quartiles do not overlap."""
    return a["low"] > b["high"] or b["low"] > a["high"]
