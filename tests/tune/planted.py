"""A measuring process whose times a formula says, with faults planted in some candidates: `python planted.py FAULT DEVICE`.

Times are 1 ms divided by the number of results of a product's register tile, rows times vectors; those of the default are 0.5 ms. FAULT is
"", or what happens to the second candidate, which is the fastest then: "crash", "hang", "wrong", "refused".
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from keras_ocl.runtime.programs import UNOPTIMISED  # noqa: E402
from keras_ocl.tune import process, trial  # noqa: E402
from keras_ocl.tune.problem import choices  # noqa: E402

fault, name = sys.argv[1:]
built, wrong, seconds = trial._Runs.built, trial._Runs.wrong, {}


def with_fault(self, choice):
    fields = dict(choice.fields) if choice else {}
    faulty = fault and choice == choices(self._problem, self._device.traits)[1]
    if faulty and fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif faulty and fault == "hang":
        time.sleep(1000)
    elif faulty and fault == "refused":
        raise trial.Refused("it is the second one")
    launches = built(self, choice)
    seconds[id(launches)] = (1e-6 if faulty else 1e-3 / (fields["rows"] * fields["vectors"]) if choice else 0.5e-3), launches
    return launches


def sample(self, made, count):
    return [seconds[id(launches)][0] for launches in made]


def spoilt(self, launches):
    return "it is the second one" if fault == "wrong" and seconds[id(launches)][0] == 1e-6 else wrong(self, launches)


trial._OPTIONS = UNOPTIMISED  # takes less time to build
trial._Runs.built, trial._Runs.sample, trial._Runs.wrong = with_fault, sample, spoilt
process.main(name)
