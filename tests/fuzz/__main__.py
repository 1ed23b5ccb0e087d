"""`python -m tests.fuzz --seconds N --seed S`: random programs until the time is up.

A failing one is made small, printed, and ends the run. Add it, as printed, to FOUND in tests/fuzz/test_fuzz.py with what was wrong.
"""

import argparse
import os
import sys
import time

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", help="as KERAS_OCL_DEVICE")
parser.add_argument("--steps", type=int, default=8, help="most operations of a program")
options = parser.parse_args()
os.environ["KERAS_BACKEND"] = "ocl"
if options.device:
    os.environ["KERAS_OCL_DEVICE"] = options.device

import warnings  # noqa: E402

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from tests.fuzz.checks import check_gradient, check_results, supported  # noqa: E402
from tests.fuzz.programs import programs  # noqa: E402

warnings.filterwarnings("ignore", "You are using a softmax over axis")  # of extent 1
start, count, steps_run = time.monotonic(), 0, 0
quiet = dict(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
)


def check(program):
    global count, steps_run
    if time.monotonic() - start < options.seconds and supported(program):
        check_results(program)
        check_gradient(program)
        count, steps_run = count + 1, steps_run + len(program.steps)


status, batch = 0, 0
while time.monotonic() - start < options.seconds and not status:
    run = seed(options.seed * 10_000 + batch)(settings(max_examples=50, **quiet)(given(programs(steps=options.steps))(check)))
    batch += 1
    try:
        run()
    except Exception as error:  # whatever a program makes fail
        print(f"{type(error).__name__}: {error}", *getattr(error, "__notes__", []), sep="\n")
        status = 1
print(f"{count} programs of {steps_run} steps in {time.monotonic() - start:.0f} s")
sys.exit(status)
