"""Whether all ranks have the same values of the variables that each has whole: at the start, and every so many steps on request."""

import hashlib

import numpy as np


def differing(communicator, variables):
    """Positions of the variables whose values are not the same on all ranks. Collective."""
    digests = [hashlib.sha256(np.ascontiguousarray(v).tobytes()).digest() for v in variables]
    everybody = communicator.gather_objects(digests)
    return [k for k, ours in enumerate(zip(*everybody, strict=True)) if len(set(ours)) > 1]


class Drift:
    """Compares after every `steps` steps.

    Args:
        communicator: of all ranks.
        steps: after how many; 0 for never.
    """

    def __init__(self, communicator, steps):
        self._communicator, self._steps, self._done = communicator, steps, 0

    def step_done(self, variables):
        """A step has assigned these variables.

        Raises:
            RuntimeError: one of them is not the same on all ranks.
        """
        self._done += 1
        if not self._steps or self._done % self._steps:
            return
        found = differing(self._communicator, variables)
        if found:
            first = variables[found[0]]
            raise RuntimeError(
                f"Ranks have drifted apart: after {self._done} steps {len(found)} of {len(variables)} variables differ, {first.path} of"
                f" shape {tuple(first.shape)} first. Something assigns it on some ranks only, or their devices round differently."
            )
