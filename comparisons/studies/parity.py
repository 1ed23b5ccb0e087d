"""The per-step losses alone of the plain scripts, also in float64 on the reference backend: `python -m comparisons --parity`.

A run of a hundred steps is chaotic: where a rounding error decides which way a ReLU, a max-pool or the sign of an RMSprop step goes, two of
TensorFlow's own kernels for the same product (TF_ENABLE_ONEDNN_OPTS=0 and 1) part by a thousand times the rounding error. So the per-step
losses are compared from several starts, as many as it takes for two of TensorFlow's own to be equally far from float64: the first steps by
the median over the starts, the long run by all of them together.
"""

import math
import statistics
from dataclasses import replace

from comparisons.criteria import compared, exact_runs, first_steps, recorded_steps, relative_differences, verdict
from comparisons.studies import scripts

LONG_FACTOR = 2.0
ROUNDING = 1e-6  # distances below a few float32 roundings of a loss are no evidence of anything


def distance(result, reference):
    """Return the root mean square of the relative differences of the per-step losses, over all starts and steps."""
    pairs = zip(result["step_losses"], reference["step_losses"], strict=True)
    return math.sqrt(
        statistics.fmean(d * d for ours, theirs in pairs for d in relative_differences(ours[: scripts.STEPS], theirs[: scripts.STEPS]))
    )


def long_run(results, reference):
    """Without dropout, the losses are no farther from the reference's float64 run than twice its float32 run is."""
    verdicts, runs = [], exact_runs(results, reference)
    for result, base in compared(results, reference):
        exact = runs.get(result["row"])
        if exact and recorded_steps(result, base, exact) >= scripts.STEPS:
            ours, theirs = distance(result, exact), distance(base, exact)
            allowed = max(LONG_FACTOR * theirs, ROUNDING)
            text = (
                f"losses of {scripts.STEPS} steps from {len(exact['step_losses'])} starts are {ours:.1e} from {reference} in float64 "
                f"(root mean square), {reference} in float32 {theirs:.1e}, {allowed:.1e} allowed"
            )
            verdicts.append(verdict(result, "long run", ours <= allowed, text))
    return verdicts


ROWS = tuple(replace(row, measures=("measures:steps",)) for row in scripts.STUDY.rows)
STUDY = replace(scripts.STUDY, name="parity", rows=ROWS, criteria=(first_steps, long_run))
