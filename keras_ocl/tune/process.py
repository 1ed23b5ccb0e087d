"""The process that measures, so that a driver's crash or hang in a candidate ends no more than that.

It reads lines of JSON, {"call": name, ...}, and answers each with a line: {"answer": ...}, or {"error": clause} where a problem has no
kernels that run.
"""

import json
import os
import sys
from dataclasses import dataclass

from keras_ocl import compiler, runtime  # noqa: F401 - the compiler tries matrix units
from keras_ocl.tune.problem import Choice, Problem
from keras_ocl.tune.trial import Refused, Trial, opened

_RUNS = 400  # runs of the default that should fit the seconds of a search
_LONGEST = 0.5  # seconds of a run, however long the search may take


@dataclass
class Server:
    """Answers calls on one device.

    Args:
        device: the device that was found. opened: makes the device to measure on of it and of choices of tiles.
    """

    device: runtime.Device
    opened: object = opened
    trial: Trial | None = None

    def start(self, operation, key, seconds, own):
        """(seconds of the default, share) of a problem, on a device with the choices `own` for others."""
        self.trial = None  # gives its memory back
        device = self.opened(self.device, tuple((kind, k, Choice.of(kind, fields).fields) for kind, k, fields in own))
        self.trial = Trial(device, Problem(operation, key), min(_LONGEST, seconds / _RUNS))
        return self.trial.seconds, self.trial.share

    def attempt(self, kind, fields, bound):
        """(verdict, reason, multiple of the default's time) of a choice."""
        return self.trial.attempt(Choice.of(kind, fields), bound)

    def race(self, choices, rounds, seconds):
        """Times of each round."""
        return self.trial.race([Choice.of(kind, fields) for kind, fields in choices], rounds, seconds)


def serve(server, lines, say):
    """Answer `lines` until they end; `say` is called with each answer's text."""
    for line in lines:
        call = json.loads(line)
        try:
            answer = {"answer": getattr(server, call.pop("call"))(**call)}
        except (Refused, runtime.KernelBuildError, *runtime.FAILURES, RuntimeError, ValueError) as error:
            answer = {"error": next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]}
        say(json.dumps(answer))


def main(name, make=Server):
    """Serve calls from the standard input on the device of this name."""
    serve(make(runtime.find_device(name)), sys.stdin, lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # drivers may crash when they end
