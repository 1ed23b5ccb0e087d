"""One problem on a device: the kernels of several choices of its tile, whether they are right, and their times beside one another."""

import dataclasses
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

RIGHT, WRONG, REFUSED = "right", "wrong", "refused"
_OPTIONS = "-cl-denorms-are-zero"  # as compiled functions have
_LEAST = 0.004  # seconds of a sample: as many launches as that takes
_PILOT = 2e8  # operations of the problem that tells a device's speed
_PAIRS = 3  # samples of a candidate and of the default in turn
_CLOSE = 1.1  # a candidate that is so many times slower than the best is not measured further
_FORMATS = {"int": "i", "uint": "I", "long": "q", "ulong": "Q", "float": "f", "double": "d"}


class Refused(Exception):
    """No kernel with this tile runs; the message is a clause."""


class Trial:
    """A problem on a device. The default is what the device's traits give without the problem's own tile.

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
        self._device, self._count = device, 0
        pilot = _Runs(device, smaller(problem, _PILOT))
        rate = pilot.operations / pilot.sample(pilot.built(None), 1)
        self._runs = _Runs(device, smaller(problem, rate * limit))
        self.share = self._runs.operations / operations(plain(problem, device.traits)[0])
        self._default, self._built = self._made(None), {}
        if why := self._runs.wrong(self._default):
            raise Refused(f"the usual kernel is wrong: {why}")
        self.seconds = min(self._sample(self._default) for _ in range(2))

    def _made(self, choice):
        """(launches, number of runs of a sample) of a choice, after a run. Raises what the runtime raises, and Refused."""
        launches = self._runs.built(choice)
        self._runs.sample(launches, 1)  # some drivers compile in the first launch
        return launches, max(1, int(_LEAST / self._runs.sample(launches, 1)))

    def _sample(self, made):
        return self._runs.sample(*made)

    def attempt(self, choice, bound):
        """(verdict, reason as a clause, time as a multiple of the default's or None) of a choice.

        bound: the best such time so far: what is clearly slower is measured once.
        """
        try:
            made = self._made(choice)
            if why := self._runs.wrong(made):
                return WRONG, why, None
        except runtime.KernelBuildError as error:
            return REFUSED, _line(error.reason), None
        except (*runtime.FAILURES, RuntimeError, Refused) as error:
            return REFUSED, _line(error), None
        self._built[choice] = made
        ratios = []
        for _ in range(_PAIRS):
            usual = self._sample(self._default)
            ratios.append(self._sample(made) / usual)
            if min(ratios) > _CLOSE * bound:
                break
        return RIGHT, "", float(np.median(ratios))

    def race(self, choices, rounds, seconds):
        """Samples in turn: a list for each round of the times of the default and of each choice; fewer rounds if `seconds` have passed."""
        made, found, end = [self._default, *(self._built[c] for c in choices)], [], time.monotonic() + seconds
        for k in range(rounds):
            if k and time.monotonic() > end:
                break
            turn = range(len(made)) if k % 2 else reversed(range(len(made)))  # none always comes after the same one
            times = {i: self._sample(made[i]) for i in turn}
            found.append([times[i] for i in range(len(made))])
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
        """The launches, as (kernel, grid, group), with a choice of the tile; None: without one. Raises Refused, and what the runtime raises."""
        self._number += 1
        traits = with_choice(self._device.traits, self._problem, choice, f"candidate {self._number}")
        p, operands, result, _ = plain(self._problem, traits)
        with asked() as seen:
            specs = [fitted(spec, traits, p.all_arguments) for spec in kernels(self._problem, p)]
        if seen.refused:
            raise Refused(seen.refused[0])
        if choice is not None and (choice.kind, self._problem.key) not in seen.problems:
            raise Refused(f"no kernel asks for a tile of the kind {choice.kind}")
        storages = {result: self._result, **{operands[name]: storage for name, storage in self._storages.items()}}
        return _bound(self._device, traits, specs, storages)

    def sample(self, launches, runs):
        """Seconds of one of `runs` runs."""
        device = self._device
        device.finish()
        began = time.perf_counter()
        for _ in range(runs):
            for kernel, grid, group, _ in launches:
                device.enqueue(kernel, grid, group)
        device.finish()
        return (time.perf_counter() - began) / runs

    def wrong(self, made):
        """What is wrong with the results of (launches, runs of a sample), as a clause; "" where all are right."""
        device = self._device
        device.write(self._result, np.full(self._result.nbytes, 0xFF, np.uint8))  # NaN in floating dtypes
        self.sample(made[0], 1)
        if self._expected is None:
            self._expected = reference.result(self._problem, plain(self._problem, device.traits)[0], self._arrays)
        found = device.download(self._result, self._dtype, self._shape)
        off = found != self._expected
        if not off.any():
            return ""
        # Winograd's algorithm divides; everything else is exact.
        least = float(np.abs(self._expected).max()) * 1e-4
        off = ~(np.abs(found.astype(np.float64) - self._expected) <= least)
        if not off.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(off)[0])
        return f"element {list(at)} is {found[at]} instead of {self._expected[at]}, {off.sum()} of {off.size} are wrong"


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
