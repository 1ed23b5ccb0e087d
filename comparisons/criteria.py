"""What a backend's results must satisfy against the reference backend's.

A run of a hundred steps is chaotic: where a rounding error decides which way a ReLU, a max-pool or the sign of an RMSprop step goes, two of
TensorFlow's own kernels for the same product (TF_ENABLE_ONEDNN_OPTS=0 and 1) part by a thousand times the rounding error. So the per-step
losses are compared from several starts, as many as it takes for two of TensorFlow's own to be equally far from float64: the first steps by
the median over the starts, the long run by all of them together.

Each function takes the candidate's result and the reference's (dicts as comparisons.runner documents them) and returns a verdict
{"script" (or "row"), "backend", "name", "passed", "text"}, or None where the runs are too short or too different to be judged by it.
"""

import math
import statistics

from comparisons.measures import differ
from comparisons.runner import SCRIPTS

MNIST_ACCURACY = 0.98
CIFAR_POINTS = 1.5
FIRST_STEPS, FIRST_TOLERANCE = 10, 1e-4
LONG_STEPS, LONG_FACTOR = 100, 2.0
ONCE = 1.1  # times the reference's time that a time measured once may be
ROUNDING = 1e-6  # distances below a few float32 roundings of a loss are no evidence of anything


def verdict(result, name, passed, text):
    """Return a verdict on `result`, of a script or of a study's row."""
    what = "row" if "row" in result else "script"
    return {what: result[what], "backend": result["backend"], "name": name, "passed": bool(passed), "text": text}


def compared(results, reference, rows=None):
    """Return (result, the reference backend's result of the same row) of the rows (all, or those named) that ran on both."""
    good = {(r["row"], r["backend"]): r for r in results if "error" not in r and (rows is None or r["row"] in rows)}
    return [(r, good[row, reference]) for (row, backend), r in good.items() if backend != reference and (row, reference) in good]


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


def distance(result, reference):
    """Return the root mean square of the relative differences of the per-step losses, over all starts and steps."""
    pairs = zip(result["step_losses"], reference["step_losses"], strict=True)
    return math.sqrt(
        statistics.fmean(d * d for ours, theirs in pairs for d in relative_differences(ours[:LONG_STEPS], theirs[:LONG_STEPS]))
    )


def recorded_steps(*results):
    """Return how many per-step losses all the results have, from every start."""
    return min(min(map(len, result.get("step_losses") or [[]])) for result in results)


def full_job(result):
    """Tell whether `result` trained at least as long, and from as many starts, as the main job does."""
    script = SCRIPTS[result["script"]]
    return result["epochs"] >= script.epochs and len(result["starts"]) >= script.starts


def same_starts_solved(result, reference):
    """XOR: the same starts are solved."""
    if result["script"] != "xor":
        return None
    ours, theirs = ({i for i, value in enumerate(accuracies(r)) if value == 1.0} for r in (result, reference))
    text = f"solves {len(ours)} of {len(result['starts'])} starts, {reference['backend']} {len(theirs)}"
    if ours != theirs:
        text += f"; differ at {sorted(ours ^ theirs)}"
    return verdict(result, "same starts solved", ours == theirs, text)


def mnist_accuracy(result, reference):
    """MNIST MLP: 98 % on the real test set."""
    if result["script"] != "mnist_mlp" or not full_job(result) or result["examples"] != [60000, 10000]:
        return None
    mean, _ = mean_and_deviation(accuracies(result))
    return verdict(result, "test accuracy", mean >= MNIST_ACCURACY, f"test accuracy {mean:.2%}, at least {MNIST_ACCURACY:.0%} wanted")


def cifar_accuracy(result, reference):
    """CIFAR CNN: the mean over the starts within 1.5 points of the reference's."""
    if result["script"] != "cifar_cnn" or not full_job(result):
        return None
    (ours, our_deviation), (theirs, their_deviation) = (mean_and_deviation(accuracies(r)) for r in (result, reference))
    text = (
        f"test accuracy {ours:.2%} ± {our_deviation:.2%}, {reference['backend']} {theirs:.2%} ± {their_deviation:.2%}, "
        f"at most {CIFAR_POINTS} points apart wanted"
    )
    return verdict(result, "test accuracy", abs(ours - theirs) * 100 <= CIFAR_POINTS, text)


def first_steps(result, reference):
    """Without dropout, the first losses agree within 1e-4 relative, from the median start.

    `reference` is the float64 run where there is one: on some CPUs TensorFlow's own float32 losses are farther than that from it.
    """
    if recorded_steps(result, reference) < FIRST_STEPS:
        return None
    worst = worst_differences(result, reference, FIRST_STEPS)
    middle = statistics.median(worst)
    text = (
        f"losses of the first {FIRST_STEPS} steps differ by at most {middle:.1e} from the {reference['floatx']} ones of "
        f"{reference['backend']} from the median of {len(worst)} starts, "
        f"{FIRST_TOLERANCE:.0e} allowed (from the worst: {max(worst):.1e})"
    )
    return verdict(result, "first steps", middle <= FIRST_TOLERANCE, text)


def long_run(result, reference, exact):
    """Without dropout, the losses are no farther from the reference's float64 run `exact` than twice its float32 run is."""
    if recorded_steps(result, reference, exact) < LONG_STEPS:
        return None
    ours, theirs = distance(result, exact), distance(reference, exact)
    allowed = max(LONG_FACTOR * theirs, ROUNDING)
    text = (
        f"losses of {LONG_STEPS} steps from {len(exact['step_losses'])} starts are {ours:.1e} from {reference['backend']} in float64 "
        f"(root mean square), "
        f"{reference['backend']} in float32 {theirs:.1e}, {allowed:.1e} allowed"
    )
    return verdict(result, "long run", ours <= allowed, text)


def judge(results, reference):
    """Return the verdicts on all `results` but those of the backend `reference`, which they are measured against."""
    good = {(r["script"], r["backend"], r["floatx"]): r for r in results if "error" not in r}
    verdicts = []
    for (script, backend, floatx), result in good.items():
        base = good.get((script, reference, "float32"))
        if backend == reference or floatx != "float32" or base is None:
            continue
        if "starts" in result and "starts" in base:
            verdicts += [check(result, base) for check in (same_starts_solved, mnist_accuracy, cifar_accuracy)]
        exact = good.get((script, reference, "float64"))
        verdicts.append(first_steps(result, exact or base))
        if exact is not None:
            verdicts.append(long_run(result, base, exact))
    return [v for v in verdicts if v is not None]
