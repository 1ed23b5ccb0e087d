"""What a backend's results must satisfy against the reference backend's.

Each function takes the candidate's result and the reference's (dicts as comparisons.runner documents them) and returns a verdict
{"script", "backend", "name", "passed", "text"}, or None where the runs are too short or too different to be judged by it.
"""

import math
import statistics

from comparisons.runner import SCRIPTS

MNIST_ACCURACY = 0.98
CIFAR_POINTS = 1.5
FIRST_STEPS, FIRST_TOLERANCE = 10, 1e-4
LONG_STEPS, LONG_FACTOR = 100, 2.0
ROUNDING = 1e-6  # distances below a few float32 roundings of a loss are no evidence of anything


def verdict(result, name, passed, text):
    """Return a verdict on `result`."""
    return {"script": result["script"], "backend": result["backend"], "name": name, "passed": bool(passed), "text": text}


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


def distance(losses, reference):
    """Return the root mean square of the relative differences."""
    return math.sqrt(statistics.fmean(d * d for d in relative_differences(losses, reference)))


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
    """Without dropout, the first losses agree within 1e-4 relative."""
    ours, theirs = result.get("step_losses", []), reference.get("step_losses", [])
    if min(len(ours), len(theirs)) < FIRST_STEPS:
        return None
    worst = max(relative_differences(ours[:FIRST_STEPS], theirs[:FIRST_STEPS]))
    text = f"losses of the first {FIRST_STEPS} steps differ by {worst:.1e} at most, {FIRST_TOLERANCE:.0e} allowed"
    return verdict(result, "first steps", worst <= FIRST_TOLERANCE, text)


def long_run(result, reference, exact):
    """Without dropout, the losses are no farther from the reference's float64 run `exact` than twice its float32 run is."""
    runs = [r.get("step_losses", [])[:LONG_STEPS] for r in (result, reference, exact)]
    if min(map(len, runs)) < LONG_STEPS:
        return None
    ours, theirs = distance(runs[0], runs[2]), distance(runs[1], runs[2])
    allowed = max(LONG_FACTOR * theirs, ROUNDING)
    text = (
        f"losses of {LONG_STEPS} steps are {ours:.1e} from {reference['backend']} in float64 (root mean square), "
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
        verdicts.append(first_steps(result, base))
        exact = good.get((script, reference, "float64"))
        if exact is not None:
            verdicts.append(long_run(result, base, exact))
    return [v for v in verdicts if v is not None]
