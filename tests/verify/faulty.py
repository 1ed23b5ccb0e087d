"""A family's process with a planted fault: `python faulty.py SCHEDULE NAME REQUEST`, or a fault's fields as JSON in place of NAME."""

import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from keras_ocl import runtime
from keras_ocl.verify import process
from tests.verify.faults import FAULTS, Fault, plant

schedule, name, request = sys.argv[1:]
fault = FAULTS[schedule, name] if (schedule, name) in FAULTS else Fault(**json.loads(name))
open_again = runtime.open_again


def with_fault(device, traits):
    found = open_again(device, dataclasses.replace(traits, schedule=schedule, kind=schedule))
    plant(found, fault)
    return found


runtime.open_again = with_fault
process.main(request)
