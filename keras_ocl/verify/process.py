"""The process that runs the cases of one family, so that a driver's crash or hang ends no more than that.

It ends when its standard input does, so that it does not outlive the process that started it. It prints lines of JSON:
{"case": name} when a case begins, {"case": name, "verdict": ..., "why": ...} when it has ended.
"""

import json
import os
import sys
import threading

from keras_ocl import runtime
from keras_ocl.verify.case import Case, judge
from keras_ocl.verify.cases import CASES
from keras_ocl.verify.request import REFUSED, RIGHT, WRONG, Request


def verdicts(device, family, short=False, begin=lambda name: None):
    """Yields (case's name, verdict, why) of the cases of a family on a Device; `begin` is called with a case's name before it runs."""
    for case in CASES[family](device.traits, short):
        begin(case.name)
        try:
            why = judge(device, case) if isinstance(case, Case) else case.judge(device)
        except runtime.KernelBuildError as error:
            yield case.name, REFUSED, _line(error.reason)
        except (*runtime.FAILURES, RuntimeError) as error:
            yield case.name, REFUSED, _line(error)
        else:
            yield case.name, WRONG if why else RIGHT, why


def _line(error):
    """The first line of an error's text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _end_with_input():
    while os.read(0, 64):  # not sys.stdin, whose lock a daemon thread must not hold when Python ends
        pass
    os._exit(1)


def main(argument):
    """Run the cases that a Request asks for."""
    request = Request.read(argument)
    threading.Thread(target=_end_with_input, daemon=True).start()
    if request.background and hasattr(os, "nice"):
        os.nice(10)
    found = runtime.find_device(request.device)
    device = runtime.open_again(found, found.traits.without(request.without))

    def say(**values):
        print(json.dumps(values), flush=True)

    for name, verdict, why in verdicts(device, request.family, request.short, lambda name: say(case=name)):
        say(case=name, verdict=verdict, why=why)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # drivers may crash when they end, which says nothing of kernels
