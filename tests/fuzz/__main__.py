"""`python -m tests.fuzz --seconds N --seed S`: random programs, and models where TensorFlow is installed, until the time is up.

A failing one is made small, printed, and ends the run. Add it, as printed, to FOUND in tests/fuzz/test_fuzz.py or test_models.py with what
was wrong. Should the process crash, as in a device's compiler, the file that `--last` names holds what it was at.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", help="as KERAS_OCL_DEVICE")
parser.add_argument("--steps", type=int, default=8, help="most operations of a program; 0: no programs")
parser.add_argument("--layers", type=int, default=6, help="most layers of a model; 0: no models")
parser.add_argument("--accesses", action="store_true", help="kernels compare each access with its buffer; one outside is a failure")
last = Path(tempfile.gettempdir(), f"keras_ocl-fuzz-{os.getpid()}.txt")
parser.add_argument("--last", type=Path, default=last, help="holds the present case while it runs")
options = parser.parse_args()
os.environ["KERAS_BACKEND"] = "ocl"
if options.device:
    os.environ["KERAS_OCL_DEVICE"] = options.device

import warnings  # noqa: E402

import keras  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from keras_ocl import runtime  # noqa: E402
from tests.accesses import checking  # noqa: E402
from tests.fuzz.checks import check_gradient, check_results, supported  # noqa: E402
from tests.fuzz.model_checks import check_model  # noqa: E402
from tests.fuzz.models import models  # noqa: E402
from tests.fuzz.programs import programs  # noqa: E402
from tests.fuzz.reference import Reference  # noqa: E402

warnings.filterwarnings("ignore", "Degrees of freedom|Mean of empty", RuntimeWarning)  # of the reference
warnings.filterwarnings("ignore", "You are using a softmax over axis")  # of extent 1
warnings.filterwarnings("ignore", "(?s).*mask", UserWarning)  # of layers that end masks
warnings.filterwarnings("ignore", "The model does not have any trainable weights", UserWarning)
warnings.filterwarnings("ignore", "Do not use the `random` module")  # of Keras's initializers, whose values no model keeps
runtime.current_device().programs.steps = None  # checks change what lowers, of which the digest of a stored Program knows nothing
start, counts, spent = time.monotonic(), {"programs": [0, 0], "models": [0, 0], "models left out": [0, 0]}, {"programs": 0.0, "models": 0.0}
quiet = dict(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
)


failed = False  # from then on only making it small counts, not the time


def left():
    return failed or time.monotonic() - start < options.seconds


@contextlib.contextmanager
def noticing(case):
    global failed
    options.last.write_text(f"{case!r}\n")
    try:
        with checking.installed() if options.accesses else contextlib.nullcontext():
            yield
    except Exception:
        failed = True
        raise


def counted(kind, steps):
    counts[kind] = [counts[kind][0] + 1, counts[kind][1] + steps]


def check(program):
    if left() and supported(program):
        with noticing(program):
            check_results(program)
            check_gradient(program)
        counted("programs", len(program.steps))


def checked_with(reference):
    def check(model):
        keras.backend.clear_session()
        if left() and model.steps:
            with noticing(model):
                checked = check_model(model, reference)
            counted("models" if checked else "models left out", len(model.steps))

    return check


def hunt(stack):
    """1 once something fails, 0 when the time is up. Programs and models get the same time."""
    work = {"programs": (programs(steps=options.steps), check, 20)} if options.steps else {}
    if options.layers and find_spec("tensorflow") is None:
        print("No models: TensorFlow is not installed.")
    elif options.layers:
        work["models"] = (models(layers=options.layers), checked_with(stack.enter_context(Reference())), 5)
    batch = 0
    while work and left():
        kind = min(work, key=spent.get)
        drawn, function, several = work[kind]
        began = time.monotonic()
        run = seed(options.seed * 10_000 + batch)(settings(max_examples=several, **quiet)(given(drawn)(function)))
        batch += 1
        try:
            run()
        except Exception as error:  # whatever a program or a model makes fail
            print(f"{type(error).__name__}: {error}", *getattr(error, "__notes__", []), sep="\n")
            return 1
        spent[kind] += time.monotonic() - began
    return 0


with contextlib.ExitStack() as stack:
    status = hunt(stack)
options.last.unlink(missing_ok=True)
print(*(f"{n} {kind} of {steps} steps" for kind, (n, steps) in counts.items()), f"{time.monotonic() - start:.0f} s", sep=", ")
sys.exit(status)
