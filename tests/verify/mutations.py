"""`python -m tests.verify.mutations [--schedule cpu|gpu] [--family NAME ...]`: which mutations of kernels `verify` finds.

Each kind of mutation is planted in each kind of kernel of a family, one at a time, and the short form of the family is run on it. A
mutation is found where the family is not right; then it must be kept out, and what takes its place be right. What is not found is listed:
either the mutant computes the same, or cases lack something.
"""

import argparse
import dataclasses
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path

from keras_ocl import runtime
from keras_ocl.kernels.schedule import families_of
from keras_ocl.verify import run
from keras_ocl.verify.process import verdicts
from keras_ocl.verify.request import RIGHT
from tests.verify.faults import Fault

_FAULTY = str(Path(__file__).parent / "faulty.py")

# Name -> the pattern, what takes its place, and how many of its occurrences (0: all).
MUTATIONS = {
    "lost barriers": (r"barrier\(CLK_\w+\);", "", 0),
    "lost first barrier": (r"barrier\(CLK_\w+\);", "", 1),
    "a multiply-add without its product": (r"\bfma\((\w+), (\w+), (\w+)\)", r"(\3)", 1),
    "a multiply-add of one operand": (r"\bfma\((\w+), (\w+), (\w+)\)", r"fma(\1, \1, \3)", 1),
    "a loop without its last step": (r"(for \([^;]*; \w+ < )([^;]*);", r"\1(\2) - 1;", 1),
    "a last loop without its last step": (r"(.*for \([^;]*; \w+ < )([^;]*);", r"\1(\2) - 1;", 1),
    "the wrong half of a vector": (r"\.hi\b", ".lo", 1),
    "the wrong lane": (r"\.s1\b", ".s0", 1),
    "a lane reads its neighbour's": (r"get_local_id\(0\)", "(get_local_id(0) ^ 1)", 1),
    "an item at the wrong place": (r"get_global_id\(0\)", "(get_global_id(0) & ~1)", 1),
    "maximum for minimum": (r"\b(f?)min\(", r"\1max(", 1),
    "a comparison off by one": (r" < (\w+)\)", r" <= \1)", 1),
    "the other value of a choice": (r"(\([^()?]*\)) \? ([^:?;]+) : ([^;?]+);", r"\1 ? \3 : \2;", 1),
    "a build that is refused": (r"\{\n", "{\nno_such_type x;\n", 1),
    "flushed denormal numbers": (r"#pragma OPENCL FP_CONTRACT OFF", "", 1),
}
LAUNCHES = ("lost group", "refuse", "crash")


def main() -> int:
    """Run what the arguments ask for; 1 where a mutation was not found or not kept out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schedule", choices=("cpu", "gpu"), action="append")
    parser.add_argument("--family", nargs="+", default=())
    parser.add_argument("--limit", type=int, help="most mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = runtime.current_device()
    mutants = [fault for schedule in options.schedule or ("cpu", "gpu") for fault in _mutants(_opened(device, schedule), options.family)]
    if options.limit:
        mutants = random.Random(options.seed).sample(mutants, min(options.limit, len(mutants)))
    missed, left = [], []
    for schedule, name, fault in mutants:
        row = _verified(_opened(device, schedule), schedule, fault)
        line = f"{schedule} {fault.family}: {fault.title.replace(chr(92), '')}: {name}: {row.outcome.text()}"
        print(line, flush=True)
        if row.instead is None:
            missed.append(line)
        elif row.instead.verdict != RIGHT:
            left.append(f"{line}; in its place: {row.instead.text()}")
    print(f"\n{len(mutants)} mutants, {len(missed)} not found:", *missed, f"{len(left)} found, but not kept out:", *left, sep="\n")
    return 1 if missed or left else 0


def _opened(device, schedule, without=()):
    return runtime.open_again(device, dataclasses.replace(device.traits, kind=schedule, schedule=schedule).without(without))


def _verified(device, schedule, fault):
    process = [sys.executable, _FAULTY, schedule, json.dumps(dataclasses.asdict(fault))]
    runtime.remove_quarantine(runtime.target_of(device))
    *_, report = run.verify(device, [fault.family], True, limit=30, process=process)
    (row,) = report.rows
    return row


def _mutants(device, families):
    """Yields (schedule, a mutation's name, Fault) of all mutations of all kinds of kernels that the short form of the families uses."""
    for family in families_of(device.traits):
        if family.name in families if families else family.name != "steps":
            instead = _kernels(_opened(device, device.traits.schedule, {family.name}), family.name)
            for title, kernels in _kernels(_opened(device, device.traits.schedule, family.beside), family.name).items():
                # A compiler's fault is in these texts, and would be found in an earlier family if what takes their place has them, too.
                kernels = {name: kernels[name] for name in kernels.keys() - instead.get(title, {}).keys()}
                names = tuple(kernels)
                for name, (old, new, times) in MUTATIONS.items():
                    if any(re.sub(old, new, source, count=times, flags=re.DOTALL) != source for source in kernels.values()):
                        yield device.traits.schedule, name, Fault(family.name, title, old, new, times, kernels=names)
                for launch in LAUNCHES if names else ():
                    yield device.traits.schedule, launch, Fault(family.name, title, launch=launch, kernels=names)


def _kernels(device, family):
    """{pattern of kernels' titles, in which any number may stand for each: {kernel's name: its source}}."""
    found, build = {}, device.programs.build

    def built(specs, *others, **options):
        for name, source, *_ in specs:
            title = re.sub(r"\d+", r"\\d+", re.escape(source.partition("\n")[0]))
            found.setdefault(title, {})[name] = source
        return build(specs, *others, **options)

    device.programs.build = built
    list(verdicts(device, family, short=True))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERAS_OCL_CACHE_DIR"] = folder  # its records are not those of the device
        sys.exit(main())
