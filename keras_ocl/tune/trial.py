"""One problem on a device: the kernels of several choices of its tile, whether they are right, and their times beside one another."""

import dataclasses
import math
import statistics
import struct
import time

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.launch.lower import program_spec
from keras_ocl.compiler.run.binding import size_of
from keras_ocl.core import dtypes
from keras_ocl.core.dim import present, product
from keras_ocl.kernels.launch import fitted
from keras_ocl.kernels.overrides import asked
from keras_ocl.tune import reference
from keras_ocl.tune.problem import kernels, operations, plain, smaller, with_choice

RIGHT, WRONG, REFUSED, UNFIT = "right", "wrong", "refused", "unfit"
_OPTIONS = "-cl-denorms-are-zero"  # as compiled functions have
# Seconds of a sample: as many runs as that takes, at most `_MOST`. The fastest counts: what else the machine does only makes runs slower.
_LEAST, _MOST = 0.02, 50
_PILOT = 2e8  # operations of the problem that tells a device's speed
_ROUNDS = 3  # samples of a candidate beside the default
# A candidate that is so many times slower than the best is measured once, or in few runs of one sample.
_CLOSE, _FAR, _FEW = 1.1, 2.5, 3
_FORMATS = {"int": "i", "uint": "I", "long": "q", "ulong": "Q", "float": "f", "double": "d"}


class Refused(Exception):
    """A kernel does not run; the message is a clause."""


class Unfit(Refused):
    """No kernel takes this tile."""


class Trial:
    """A problem on a device. The default is what the device's traits give without the problem's own tile.

    Runs of what is compared take turns, one launch after the other, and their times are those of the device's events: what else the machine
    does, and how fast it is at the moment, affects all of them alike.

    Attributes:
        seconds: time of one run of the default. share: the part of the problem's operations that a run does, at most 1: of a problem that
            would take too long, a smaller one is measured.

    Args:
        device: the Device. problem: the tune.problem.Problem. limit: seconds that one run may take.

    Raises:
        Refused: the default does not run, or is wrong.
        ValueError: there are no such kernels outside a fused one.
    """

    def __init__(self, device, problem, limit):
        small = smaller(problem, _PILOT)
        self._runs = _Runs(device, small)
        rate = self._runs.operations / self._runs.sample([self._runs.built(None)], 3)[0]
        if smaller(problem, rate * limit) != small:
            self._runs = None  # gives its memory back
            self._runs = _Runs(device, smaller(problem, rate * limit))
        self.share = self._runs.operations / operations(plain(problem, device.traits)[0])
        self._default = self._runs.built(None)
        if why := self._runs.wrong(self._default):
            raise Refused(f"the usual kernel is wrong: {why}")
        self._count = min(_MOST, math.ceil(_LEAST / self._runs.sample([self._default], 3)[0]))
        self.seconds = self._runs.sample([self._default], self._count)[0]

    def attempt(self, choice, bound):
        """(verdict, reason as a clause, time as a multiple of the default's or None) of a choice.

        bound: the best such time so far: what is clearly slower is measured once.
        """
        try:
            made = self._runs.built(choice)
            if why := self._runs.wrong(made):
                return WRONG, why, None
        except runtime.KernelBuildError as error:
            return REFUSED, _line(error.reason), None
        except Unfit as error:
            return UNFIT, str(error), None
        except (*runtime.FAILURES, RuntimeError, Refused) as error:
            return REFUSED, _line(error), None
        ratios = [self._ratio(made, min(_FEW, self._count))]
        if ratios[0] < _FAR * bound:
            ratios = []
            while len(ratios) < _ROUNDS and min(ratios, default=0) < _CLOSE * bound:
                ratios.append(self._ratio(made, self._count))
        return RIGHT, "", statistics.median(ratios)

    def _ratio(self, made, count):
        """The time of built launches as a multiple of the default's."""
        usual, own = self._runs.sample([self._default, made], count)
        return own / usual

    def race(self, choices, rounds, seconds):
        """The times of the default and of each choice, in seconds, for each round; fewer rounds if `seconds` have passed."""
        end, found = time.monotonic() + seconds, []
        made = [self._default, *(self._runs.built(c) for c in choices)]
        self._runs.sample(made, 1)  # some drivers compile in the first run of a kernel object
        for k in range(rounds):
            if k and time.monotonic() > end:
                break
            found.append(self._runs.sample(made, self._count))
        return found


class _Runs:
    """A problem's operands on a device, and runs of its kernels."""

    def __init__(self, device, problem):
        self._device, self._problem, self._number = device, problem, 0
        p, operands, result, self._shape = plain(problem, device.traits)
        rng = np.random.default_rng(0)
        self._arrays = {name: reference.filled(buffer, rng) for name, buffer in operands.items()}
        self._storages = {name: device.upload(array) for name, array in self._arrays.items()}
        self._result, self._dtype = device.allocate(result.nbytes), dtypes.numpy_dtype(result.dtype)
        self._expected, self.operations = None, operations(p)

    def built(self, choice):
        """The launches of _bound() with a choice of the tile; None: without one. Raises Refused, and what the runtime raises."""
        self._number += 1
        traits = with_choice(self._device.traits, self._problem, choice, f"candidate {self._number}")
        p, operands, result, _ = plain(self._problem, traits)
        with asked() as seen:
            specs = [fitted(spec, traits, p.all_arguments) for spec in kernels(self._problem, p)]
        if seen.refused:
            raise Unfit(seen.refused[0])
        if choice is not None and (choice.kind, self._problem.key) not in seen.problems:
            raise Unfit(f"no kernel asks for a tile of the kind {choice.kind}")
        storages = {result: self._result, **{operands[name]: storage for name, storage in self._storages.items()}}
        return _bound(self._device, traits, specs, storages)

    def sample(self, made, count):
        """The least time of `count` runs of each of some built launches, in seconds; their runs take turns.

        One more comes before them, which waits for the driver's threads to wake up.
        """
        device, events, times = self._device, [], [[] for _ in made]
        orders = [range(len(made)), range(len(made) - 1, -1, -1)]  # none always runs after the same one
        with runtime.profiled(device, runtime.Profiler(events.append)):
            self._enqueue(made[0])
            for k in range(count):
                for i in orders[k % 2]:
                    self._enqueue(made[i])
        event = iter(events[len(made[0]) :])
        for k in range(count):
            for i in orders[k % 2]:
                run = [next(event) for _ in made[i]]
                times[i].append((run[-1].end - run[0].start) * 1e-9)
        return [min(t) for t in times]

    def _enqueue(self, launches):
        for kernel, grid, group, _ in launches:
            self._device.enqueue(kernel, grid, group)

    def wrong(self, launches):
        """What is wrong with the results of built launches, as a clause; "" where all are right."""
        device = self._device
        device.write(self._result, np.full(self._result.nbytes, 0xFF, np.uint8))  # NaN in floating dtypes
        self._enqueue(launches)
        if self._expected is None:
            self._expected = reference.Expected(self._problem, plain(self._problem, device.traits)[0], self._arrays)
        return self._expected.wrong(device.download(self._result, self._dtype, self._shape))


def _bound(device, traits, specs, storages):
    """The launches of KernelSpecs, as (kernel, grid, group, memory to keep alive); storages: {Buffer: Storage}, for scratch made here."""
    texts, found = [program_spec(spec, traits) for spec in specs], []
    device.build(texts, _OPTIONS)
    for spec, text in zip(specs, texts, strict=True):
        kernel = device.build([text], _OPTIONS)[text[0]]  # compiled above; an object for each launch, since it has its arguments
        group = spec.group and tuple(map(int, (*spec.group, 1, 1)[: len(spec.grid)]))
        if group and product(group) > device.group_limit(kernel):
            raise Refused(f"a group of {product(group)} work-items is more than the {device.group_limit(kernel)} of its kernel")
        behind = len(spec.args)
        for position, arg in enumerate(spec.args):
            if arg.is_pointer:
                if arg.value not in storages:
                    storages[arg.value] = device.allocate(max(1, arg.value.nbytes))
                storage = storages[arg.value]
                if traits.sub_buffers:
                    runtime.set_argument(kernel, position, storage)
                else:
                    kernel.set_arg(position, storage.base)
                    runtime.set_argument(kernel, behind, struct.pack("Q", storage.offset))
                    behind += 1
            elif arg.kind == "local":
                runtime.set_argument(kernel, position, runtime.local_memory(present(arg.value) * size_of(arg.dtype)))
            else:
                runtime.set_argument(kernel, position, struct.pack(_FORMATS[arg.kind], present(arg.value)))
        found.append((kernel, tuple(int(present(n)) for n in spec.grid), group, storages))
    return found


def _line(error):
    """The first line of an error's text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def opened(device, choices):
    """A device like `device` whose traits have these choices of tiles, as in Overrides, in place of its own."""
    own = dataclasses.replace(device.traits.overrides, file="candidates", choices=choices)
    return runtime.open_again(device, dataclasses.replace(device.traits, overrides=own))
