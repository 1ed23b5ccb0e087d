"""The process that measures: a driver that crashes or hangs in a case costs a report no more than that case.

It prints lines of JSON: {"case": [section, name]} when a case begins, and the same with "result", or "error", when it has ended.
"""

import json
import os
import sys
from dataclasses import dataclass

from keras_ocl import runtime
from keras_ocl.report import limits, networks, operations

LIMITS, OPERATIONS, NETWORKS = SECTIONS = ("limits", "operations", "networks")


@dataclass(frozen=True)
class Request:
    """What a process is to do: a device's name, the cases as (section, name), and whether they are small, as tests want them."""

    device: str
    cases: tuple[tuple[str, str], ...]
    small: bool = False

    def text(self):
        """The request as one argument of a command line."""
        return json.dumps(vars(self))


def cases(kind, small=False):
    """All cases for a device of this kind as (section, name), in order."""
    names = {LIMITS: limits.LIMITS, OPERATIONS: operations.operations(kind, small), NETWORKS: networks.NETWORKS}
    return [(section, name) for section in SECTIONS for name in names[section]]


def measure(device, section, name, small):
    """The result of one case, a dict."""
    if section == LIMITS:
        return limits.LIMITS[name](device, small)
    if section == OPERATIONS:
        return operations.measure(device, operations.operations(device.kind, small)[name])
    return networks.fit(name, small)


def main(argument):
    """Measure the cases that a Request asks for."""
    request = Request(**json.loads(argument))
    with runtime.device_scope(request.device) as device:
        for section, name in request.cases:
            case = [section, name]
            print(json.dumps({"case": case}), flush=True)
            try:
                said = {"result": measure(device, section, name, request.small)}
            except Exception as error:  # the others are measured all the same
                said = {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
            print(json.dumps({"case": case, **said}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # drivers may crash when they end
