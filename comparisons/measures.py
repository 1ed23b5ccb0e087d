"""What is measured of a row of a study: functions that take a Context and return keys of the row's result.

Imports no Keras: the process that shows results uses `spread` and `differ` as well.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from comparisons.study import Extent, Row

WARM_FITS = 3  # the fewest warm epochs that the time of an epoch is the median of
WARM_SECONDS = 40  # after so long in warm epochs no more are added
PREDICTS = 3  # timed repeats of predict, after one that compiles


@dataclass
class Context:
    """What a measure gets.

    Attributes:
        row, extent: what is to be run, and how much of it.
        subject: the model and its data, see comparisons.subject.Subject.
        progress: the function (text, done=None, total=None) to report with.
        out: a folder for files of the study's own, shared by all its rows and backends.
    """

    row: Row
    extent: Extent
    subject: object
    progress: Callable
    out: str


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
    """Tell whether two spreads differ by more than they vary: the ranges between their quartiles do not overlap."""
    return a["low"] > b["high"] or b["low"] > a["high"]


def train_from(subject, starts, epochs, progress, evaluated=True):
    """Train a Subject from so many starts for so many epochs, then time it; return the result's keys for training.

    starts: a list of {"train_loss": [an epoch each], "train", "test": metrics by name, "test_loss", "test_accuracy" (None without one, and
        where the test data are not evaluated)}.
    first_step_s: seconds from `fit` to the end of its first step, tracing and compiling included.
    epoch_seconds: of the warm epochs, one after the other.
    """
    first, results, warm = subject.first_step(), [], []
    for start in range(starts):
        subject.restart(start)
        losses, logs = [], {}
        for epoch in range(epochs):
            cold = first.seconds is None
            progress("training", start * epochs + epoch, starts * epochs)
            logs, seconds = subject.fit(epoch, [first] if cold else ())
            losses.append(logs["loss"])
            if not cold:
                warm.append(seconds)
        progress("evaluating", start * epochs + epochs, starts * epochs)
        test = subject.evaluate() if evaluated else {}
        accuracy = test.get("accuracy")
        results.append({"train_loss": losses, "train": logs, "test": test, "test_loss": test.get("loss"), "test_accuracy": accuracy})
    while len(warm) < WARM_FITS and (not warm or sum(warm) < WARM_SECONDS):
        progress("timing", starts * epochs, starts * epochs)
        warm.append(subject.fit(epochs)[1])
    return {"starts": results, "first_step_s": first.seconds, "epoch_seconds": warm}


def train(context):
    """Train from every start and time the epochs.

    Adds to what `train_from` gives the spreads epoch_s (seconds of a warm epoch), fit_ms (milliseconds per step) and total_s (seconds of a
    whole training, compilation not counted).
    """
    subject, extent = context.subject, context.extent
    result = train_from(subject, extent.repeats, extent.epochs, context.progress, extent.evaluated)
    seconds = result["epoch_seconds"]
    return result | {
        "epoch_s": spread(seconds),
        "fit_ms": spread([s / subject.steps * 1e3 for s in seconds]),
        "total_s": spread([s * extent.epochs for s in seconds]),
    }


def train_error(context):
    """Evaluate the training data after the last start's training: `train_evaluated`, its metrics by name."""
    context.progress("evaluating the training data")
    return {"train_evaluated": context.subject.evaluate(context.subject.x, context.subject.y)}


def predict_times(subject):
    """Return the seconds of timed predictions of all training inputs, after one that compiles."""
    return [subject.predict_seconds() for _ in range(PREDICTS + 1)][1:]


def predict(context):
    """Time `predict` over the training inputs: predict_ms, milliseconds per step."""
    context.progress("predicting")
    return {"predict_ms": spread([s / context.subject.steps * 1e3 for s in predict_times(context.subject)])}


def steps(context):
    """Record the loss of each of the extent's first `steps` training batches, without dropout: step_losses, a list for each start."""
    extent = context.extent
    if not extent.steps:
        return {}
    context.progress("comparing steps")
    subject, starts = context.subject.without_dropout(), extent.step_repeats or extent.repeats
    return {"step_losses": [subject.step_losses(start, extent.steps) for start in range(starts)]}
