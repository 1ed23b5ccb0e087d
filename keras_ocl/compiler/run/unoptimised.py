"""The choice of kernels that are first built without optimisation (runtime/programs.py).

They are those whose first runs are over before an optimised build would be ready.
"""

import functools
import math
from collections import Counter

from keras_ocl import runtime
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.core.dim import hint
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import KernelSpec

_RUNS = 8  # first runs that have to be over by then: later ones are slow as well until the optimised kernels are ready
_LOSS = 3  # an unoptimised kernel's run takes so many times what its estimate says, by times measured here


def unoptimised_builds(launches, named, traits):
    """The runtime.UnoptimisedBuilds of a function's kernels, which chooses those to build without optimisation first.

    Args:
        launches: the function's launches; all but KernelSpecs and Loops are ignored.
        named: (KernelSpec, (function name, source, helper texts)) of all of them, as lower.program_spec gives.
        traits: the device's.

    `launches` and `named` are iterated once, when kernels turn out not to be compiled yet.
    """
    price = schedule_of(traits).compilation * traits.compute_units

    @functools.cache
    def estimates():
        names, work = {id(launch): name for launch, (name, *_) in named}, Counter()
        for launch, times in _runs(launches, 1):
            work[names[id(launch)]] += _work(launch, times)
        return work

    def weight(spec):
        return estimates()[spec[0]]

    def excess(spec, runs):
        return runs * weight(spec) - price * (len(spec[1]) + sum(map(len, spec[2])))

    def choose(specs):
        # As many as have done their runs, all together, before they would be compiled; first those with long compilation for their work.
        total, chosen = 0, set()
        for over, spec in sorted((excess(spec, _RUNS), spec) for spec in specs):
            total += over
            if total >= 0:
                break
            chosen.add(spec)
        return chosen

    return runtime.UnoptimisedBuilds(choose, weight, lambda spec, runs: excess(spec, _LOSS * runs))


def _work(launch, times):
    """Estimate of the operations, with loads and stores, of so many launches of a kernel; infinite for a user's kernel."""
    parts = [part.provenance for part in launch.provenance.parts(launch)]
    return times * (math.inf if launch.scalar else max(1, sum(part.work / part.launches for part in parts)))


def _runs(launches, times):
    """(KernelSpec, number of times it is launched in a run; infinite in a while loop) of each kernel."""
    for launch in launches:
        if isinstance(launch, Loop):
            yield from _runs(launch.launches, math.inf if launch.length is None else times * max(1, hint(launch.length)))
        elif isinstance(launch, KernelSpec):
            yield launch, times
