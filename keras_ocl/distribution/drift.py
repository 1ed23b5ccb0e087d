"""Checks that variables which each rank has whole are equal on all ranks: at the start, and on request every so many steps."""

import hashlib

import numpy as np


def differing(communicator, variables):
    """Indices of the variables whose values are not equal on all ranks. Collective."""
    digests = [hashlib.sha256(np.ascontiguousarray(v).tobytes()).digest() for v in variables]
    everybody = communicator.gather_objects(digests)
    return [k for k, ours in enumerate(zip(*everybody, strict=True)) if len(set(ours)) > 1]


class Drift:
    """Compares the ranks' variables after every `steps` steps.

    Args:
        communicator: the Communicator of all ranks.
        steps: number of steps between comparisons; 0 for none.
    """

    def __init__(self, communicator, steps):
        self._communicator, self._steps, self._done = communicator, steps, 0

    def step_done(self, variables):
        """Call after a step that has assigned these variables.

        Raises:
            RuntimeError: a variable is not equal on all ranks.
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
