"""The contest "How Much Did It Rain? II": an hour of polarimetric radar readings each, and the rain that a gauge measured in it."""

import csv
from itertools import groupby, islice
from operator import itemgetter

import numpy as np

from comparisons.data import Data, sources

READINGS = 19  # at most so many readings an hour
QUANTILES = "", "_5x5_10th", "_5x5_50th", "_5x5_90th"
MEASURES = "Ref", "RefComposite", "RhoHV", "Zdr", "Kdp"
FEATURES = ["minutes_past", "radardist_km", *(measure + quantile for measure in MEASURES for quantile in QUANTILES)]
REFLECTIVITIES = [i for i, name in enumerate(FEATURES) if name.startswith("Ref")]  # in dBZ
RATIOS = [i for i, name in enumerate(FEATURES) if name.startswith("Zdr")]  # in dB
HOURS = 100_000  # of the stand-in
PATTERN = "*train*.csv"
TEST_PATTERN = "*test*.csv"
TESTED = 5  # one hour in so many is a test hour where no file has test hours with their rain


def marshall_palmer(reflectivity):
    """Return the rain in mm/h of a radar reflectivity in dBZ: Z = 200 R^1.6 (Marshall & Palmer 1948)."""
    return (10 ** (reflectivity / 10) / 200) ** (1 / 1.6)


def hours(path, limit=None):
    """Yield (readings, rain) of the hours in a CSV file, at most `limit`: float64 (readings, 22), NaN for a missing value, and mm.

    Raises ValueError, naming the file, for one that lacks a column.
    """
    with open(path, newline="") as file:
        reader = csv.reader(file)
        head = next(reader, [])
        lacking = [name for name in ("Id", *FEATURES, "Expected") if name not in head]
        if lacking:
            raise ValueError(f"{path} has no column {', '.join(lacking)}: give the contest's CSV with the rain that was measured")
        take, identity, expected = itemgetter(*map(head.index, FEATURES)), head.index("Id"), head.index("Expected")
        for _, group in islice(groupby(reader, itemgetter(identity)), limit):
            group = list(group)
            yield np.array([[value or "nan" for value in take(row)] for row in group], "float64"), float(group[0][expected])


def prepare(readings):
    """Return an hour's readings (readings, 22) as float32 (19, 24): the network's features, zeros for missing values and readings.

    Reflectivities become rain (marshall_palmer), ratios in dB plain ratios; the last two features are the number of readings and the mean
    of the hour's rain by `Ref` (which mean the document does not say).
    """
    readings = readings[:READINGS].copy()
    readings[:, REFLECTIVITIES] = marshall_palmer(readings[:, REFLECTIVITIES])
    readings[:, RATIOS] = 10 ** (readings[:, RATIOS] / 10)
    readings = np.nan_to_num(readings, nan=0.0)
    result = np.zeros((READINGS, len(FEATURES) + 2), "float32")
    result[: len(readings), :-2] = readings
    result[: len(readings), -2] = len(readings)
    result[: len(readings), -1] = readings[:, REFLECTIVITIES[0]].mean()
    return result


def stand_in(count, generator):
    """Return `count` hours as (x, y): rain that rises and falls, seen by all the radar's measures with noise."""
    rate = generator.gamma(0.7, 2.0, (count, 1)) * (1 + 0.5 * np.sin(generator.uniform(0, 6, (count, 1)) + np.arange(READINGS) / 3))
    x = generator.normal(0, 0.3, (count, READINGS, len(FEATURES) + 2)).astype("float32")
    x += np.log1p(rate)[..., None].astype("float32")
    present = np.arange(READINGS) < generator.integers(5, READINGS + 1, (count, 1))
    return x * present[..., None], rate.mean(1, keepdims=True).astype("float32")


def stacked(found, limit):
    """Return (x, y) of an iterator of hours: float32 (hours, 19, 24) and (hours, 1)."""
    x, y = [], []
    for readings, rain in islice(found, limit):
        x.append(prepare(readings))
        y.append([rain])
    return np.array(x, "float32").reshape(-1, READINGS, len(FEATURES) + 2), np.array(y, "float32").reshape(-1, 1)


def load(folder=None, examples=None, test_examples=None):
    """Return hours as Data: float32 (hours, 19, 24), zeros after an hour's last reading; rain in mm as float32 (hours, 1).

    Args:
        folder: has the contest's train.csv; test hours are of test.csv where that has the rain ("Expected"; the contest's has not), else
            one of every five. Otherwise a stand-in of 100,000 hours and a fifth of that to test.
        examples, test_examples: at most so many.
    """
    path = sources.find(folder, PATTERN)
    if path is None:
        generator = np.random.default_rng(0)
        counts = [min(limit or most, most) for limit, most in ((examples, HOURS), (test_examples, HOURS // TESTED))]
        notice = f"{sources.notice('rain', PATTERN)}; it has {HOURS} hours, the contest's 13,765,201 readings are about 1.2 million"
        (x, y), (x_test, y_test) = (stand_in(count, generator) for count in counts)
        return Data(x, y, x_test, y_test, False, notice)
    test = sources.find(folder, TEST_PATTERN)
    if test is not None and "Expected" in test.open().readline():
        return Data(*stacked(hours(path), examples), *stacked(hours(test), test_examples))
    split = [[], []]
    wanted = examples, test_examples
    for number, hour in enumerate(hours(path)):
        side = number % TESTED == TESTED - 1
        if wanted[side] is None or len(split[side]) < wanted[side]:
            split[side].append(hour)
        elif all(most is not None and len(kept) >= most for most, kept in zip(wanted, split, strict=True)):
            break
    return Data(*stacked(split[0], None), *stacked(split[1], None))
