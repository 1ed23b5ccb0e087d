"""The plain scripts, XOR, an MNIST MLP and a CIFAR-10 CNN, on each backend: what they learn, how far their losses are apart, and times.

Runs that are too short or too different are not judged; studies/parity.py says why losses are compared from several starts.
"""

import statistics

from comparisons import measures
from comparisons.criteria import (
    FIRST_STEPS,
    accuracies,
    compared,
    first_steps,
    mean_and_deviation,
    recorded_steps,
    same_starts_solved,
    solved,
    verdict,
    worst_differences,
)
from comparisons.study import Chart, Column, Extent, Row, Study, Table

MNIST_ACCURACY = 0.98
CIFAR_POINTS = 1.5
STEPS = 100  # whose losses are compared


def script(name, batch, epochs, starts, step_starts):
    """Return the Row of a script; its job is the same, quick or full."""
    extent = Extent(epochs, starts, steps=STEPS, step_repeats=step_starts)
    return Row(
        name=name,
        table="scripts",
        model="scripts:build",
        options={"script": name},
        data="scripts:load",
        data_options={"script": name},
        batch=batch,
        quick=extent,
        full=extent,
        measures=("studies.scripts:train", "measures:steps"),
    )


def train(context):
    """Train from every start; fit_ms and predict_ms are the best milliseconds per step."""
    subject, extent = context.subject, context.extent
    result = measures.train_from(subject, extent.repeats, extent.epochs, context.progress)
    seconds = {"fit_ms": result["epoch_seconds"], "predict_ms": measures.predict_times(subject)}
    return result | {name: min(values) / subject.steps * 1e3 for name, values in seconds.items()}


# ---- columns


def train_loss(result):
    """Return the mean of the starts' last training losses."""
    return statistics.fmean(start["train_loss"][-1] for start in result["starts"]) if "starts" in result else None


def accuracy(result):
    """Return the test accuracy: solved starts for XOR, else the mean over the starts with its deviation."""
    if "starts" not in result:
        return None
    values = accuracies(result)
    if result["row"] == "xor":
        return f"{len(solved(result))}/{len(values)} solved"
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.2%}" + (f" ± {deviation:.2%}" if len(values) > 1 else "")


def difference(result, base):
    """Return the largest relative difference of the per-step losses to the reference: median over the starts, ten steps and all."""
    steps = recorded_steps(result, base) if base else 0
    if not steps:
        return None
    if result is base:
        return "reference"
    counts = min(steps, FIRST_STEPS), steps
    return "\n".join(f"{statistics.median(worst_differences(result, base, n)):.1e} ({n})" for n in counts)


# ---- criteria


def full_jobs(results, reference, name):
    """Return (result, the reference's result) of a script that was trained as long, and from as many starts, as its job is."""
    extent = STUDY.row(name).full
    pairs = compared(results, reference, [name])
    return [(r, base) for r, base in pairs if r["epochs"] >= extent.epochs and len(r["starts"]) >= extent.repeats]


def xor_starts(results, reference):
    """XOR: the same starts are solved."""
    return same_starts_solved(results, reference, "xor")


def mnist_accuracy(results, reference):
    """MNIST MLP: 98 % on the real test set."""
    verdicts = []
    for result, _ in full_jobs(results, reference, "mnist_mlp"):
        if result["examples"] == [60000, 10000]:
            mean, _ = mean_and_deviation(accuracies(result))
            text = f"test accuracy {mean:.2%}, at least {MNIST_ACCURACY:.0%} wanted"
            verdicts.append(verdict(result, "test accuracy", mean >= MNIST_ACCURACY, text))
    return verdicts


def cifar_accuracy(results, reference):
    """CIFAR CNN: the mean over the starts within 1.5 points of the reference's."""
    verdicts = []
    for result, base in full_jobs(results, reference, "cifar_cnn"):
        (ours, our_deviation), (theirs, their_deviation) = (mean_and_deviation(accuracies(r)) for r in (result, base))
        text = (
            f"test accuracy {ours:.2%} ± {our_deviation:.2%}, {reference} {theirs:.2%} ± {their_deviation:.2%}, "
            f"at most {CIFAR_POINTS} points apart wanted"
        )
        verdicts.append(verdict(result, "test accuracy", abs(ours - theirs) * 100 <= CIFAR_POINTS, text))
    return verdicts


# ---- the study


def curves(result):
    """Return the losses of the first steps, and those of each epoch of up to three trainings."""
    trainings = [start["train_loss"] for start in result.get("starts", [])[:3]]
    return {"step, without dropout": result.get("step_losses", [])[:1], "epoch": trainings}


ROWS = (
    script("xor", batch=4, epochs=5, starts=20, step_starts=20),
    script("mnist_mlp", batch=128, epochs=8, starts=1, step_starts=20),
    script("cifar_cnn", batch=32, epochs=15, starts=3, step_starts=5),
)

COLUMNS = (
    Column("train loss", train_loss, digits=4),
    Column("test accuracy", accuracy),
    Column("loss difference", difference, unit="steps", compares=True),
    Column("first step", lambda r: r.get("first_step_s"), digits=2, unit="s"),
    Column("fit", lambda r: r.get("fit_ms"), unit="ms/step"),
    Column("predict", lambda r: r.get("predict_ms"), unit="ms/step"),
    Column("peak", lambda r: r["peak_mib"], unit="MiB"),
)

STUDY = Study(
    name="scripts",
    title="The same script on each backend",
    source="",
    rows=ROWS,
    tables=(Table("scripts", "The same script on each backend", COLUMNS, head="script"),),
    charts=(
        *(Chart(f"{row.name}_loss", row.name, row.name, curves, "loss", kind="curves") for row in ROWS),
        Chart("fit", "Best step of fit", "scripts", lambda r: r.get("fit_ms"), "ms per step", logy=True),
        Chart("predict", "Best step of predict", "scripts", lambda r: r.get("predict_ms"), "ms per step", logy=True),
        Chart("first_step", "First step", "scripts", lambda r: r.get("first_step_s"), "s"),
    ),
    criteria=(xor_starts, mnist_accuracy, cifar_accuracy, first_steps),
)
