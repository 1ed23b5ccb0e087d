"""Which kernels may begin as drafts, compiled without optimisation (runtime/programs.py): those whose first runs are over before they would
be compiled with it."""

import functools
import math
from collections import Counter

from keras_ocl import runtime
from keras_ocl.compiler.loops.lower import Loop
from keras_ocl.core.dim import hint
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import KernelSpec

_RUNS = 8  # that have to be over, as all further ones are late until the better kernels are there
_LOSS = 3  # a draft's run takes so many times what its estimate says, by times measured here


def drafts(launches, named, traits):
    """The runtime.Drafts of a function's kernels.

    Args:
        launches: its KernelSpecs and Loops; what else there is takes no part.
        named: (KernelSpec, (function name, ...)) of all of them, as lower.program_specs gives.
        traits: the device's.
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
        # As many as are over together, those first for which the compiler takes longest beside what they do.
        total, chosen = 0, set()
        for over, spec in sorted((excess(spec, _RUNS), spec) for spec in specs):
            total += over
            if total >= 0:
                break
            chosen.add(spec)
        return chosen

    return runtime.Drafts(choose, weight, lambda spec, runs: excess(spec, _LOSS * runs))


def _work(launch, times):
    """About how many operations, with loads and stores, so many launches of a kernel take; infinitely many where nobody knows."""
    parts = [part.provenance for part in launch.provenance.parts(launch)]
    return times * (math.inf if launch.scalar else max(1, sum(part.work / part.launches for part in parts)))


def _runs(launches, times):
    """(KernelSpec, how often it is launched) of each."""
    for launch in launches:
        if isinstance(launch, Loop):
            yield from _runs(launch.launches, math.inf if launch.length is None else times * max(1, hint(launch.length)))
        elif isinstance(launch, KernelSpec):
            yield launch, times
