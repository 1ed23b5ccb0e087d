"""What a backend's results must satisfy against the reference backend's: what the studies' criteria are made of.

A verdict is a dict {"row", "backend", "name", "passed", "text"}.
"""

import math
import statistics

from comparisons.measures import differ
from comparisons.workers import EXACT

FIRST_STEPS, FIRST_TOLERANCE = 10, 1e-4  # so far the first losses may be from the reference's, relatively
ONCE = 1.1  # times the reference's time that a time measured once may be


def verdict(result, name, passed, text):
    """Return a verdict on the result of a study's row."""
    return {"row": result["row"], "backend": result["backend"], "name": name, "passed": bool(passed), "text": text}


def compared(results, reference, rows=None):
    """Return (result, the reference backend's result of the same row) of the rows (all, or those named) that ran on both."""
    good = {(r["row"], r["backend"]): r for r in results if "error" not in r and (rows is None or r["row"] in rows)}
    of_reference = reference, reference + EXACT
    return [(r, good[row, reference]) for (row, backend), r in good.items() if backend not in of_reference and (row, reference) in good]


def exact_runs(results, reference):
    """Return {row: result} of what the reference backend computed in float64."""
    return {r["row"]: r for r in results if r["backend"] == reference + EXACT and "error" not in r}


def no_slower(results, reference):
    """A study's rows: a step of training, and one of `predict`, take no longer than the reference's, as far as the spreads tell."""
    verdicts = []
    for result, base in compared(results, reference):
        for name, keys in (("no slower", ("step_ms", "fit_ms")), ("predict no slower", ("predict_ms",))):
            key = next((key for key in keys if result.get(key) and base.get(key)), None)
            if key is None:
                continue
            ours, theirs = result[key], base[key]
            if ours["n"] == 1:
                slower = ours["median"] > ONCE * theirs["median"]
            else:
                slower = ours["median"] > theirs["median"] and differ(ours, theirs)
            verdicts.append(verdict(result, name, not slower, f"{ours['median']:.3g} ms per step, {reference} {theirs['median']:.3g} ms"))
    return verdicts


def accuracies(result):
    """Return the test accuracy of each start."""
    return [start["test_accuracy"] for start in result["starts"]]


def mean_and_deviation(values):
    """Return (mean, sample standard deviation; 0 for a single value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def relative_differences(losses, reference):
    """Return |a - b| / |b| for each step that both lists have; a NaN counts as infinite."""
    differences = (abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, reference, strict=False))
    return [math.inf if math.isnan(difference) else difference for difference in differences]


def worst_differences(result, reference, steps):
    """Return for each start the largest relative difference of the losses within the first `steps` steps, at least one of them."""
    pairs = zip(result["step_losses"], reference["step_losses"], strict=False)
    return [max(relative_differences(ours[:steps], theirs[:steps])) for ours, theirs in pairs]


def recorded_steps(*results):
    """Return how many per-step losses all the results have, from every start."""
    return min(min(map(len, result.get("step_losses") or [[]])) for result in results)


def first_steps(results, reference):
    """Without dropout, the first losses agree within 1e-4 relative, from the median start.

    They are compared with the float64 run where there is one: on some CPUs TensorFlow's own float32 losses are farther than that from it.
    """
    verdicts, exact = [], exact_runs(results, reference)
    for result, base in compared(results, reference):
        base, dtype = (exact[result["row"]], "float64") if result["row"] in exact else (base, "float32")
        if recorded_steps(result, base) >= FIRST_STEPS:
            worst = worst_differences(result, base, FIRST_STEPS)
            middle = statistics.median(worst)
            text = (
                f"losses of the first {FIRST_STEPS} steps differ by at most {middle:.1e} from the {dtype} ones of {reference} from the "
                f"median of {len(worst)} starts, {FIRST_TOLERANCE:.0e} allowed (from the worst: {max(worst):.1e})"
            )
            verdicts.append(verdict(result, "first steps", middle <= FIRST_TOLERANCE, text))
    return verdicts


def solved(result):
    """Return the numbers of the starts whose test accuracy is 1."""
    return {number for number, value in enumerate(accuracies(result)) if value == 1.0}


def same_starts_solved(results, reference, row):
    """The starts of a row that the reference solves are solved, and no others."""
    verdicts = []
    for result, base in compared(results, reference, (row,)):
        ours, theirs = solved(result), solved(base)
        text = f"solves {len(ours)} of {len(result['starts'])} starts, {reference} {len(theirs)}"
        if ours != theirs:
            text += f"; differ at {sorted(ours ^ theirs)}"
        verdicts.append(verdict(result, "same starts solved", ours == theirs, text))
    return verdicts
