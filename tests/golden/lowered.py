"""The golden file: for each model, record of a device and step, its launches' hashes and the arena's bytes."""

import dataclasses
import hashlib
import json
from pathlib import Path

import keras

from keras_ocl import lowering, runtime
from tests.golden.models import MODELS

FILE = Path(__file__).with_name("lowered.json")
RECORDS = ("intel-cpu", "pocl-cpu", "sm_86", "reference")


def traits(record):
    """The Traits of one of RECORDS; "reference" is sm_86 with the reference schedule."""
    if record == "reference":
        return dataclasses.replace(runtime.read_record("sm_86"), schedule="reference")
    return runtime.read_record(record)


def digest(launch):
    """Stands for a launch: its kernel's text, what that calls, and the geometry."""
    about = (launch.name if not launch.kernel else launch.kernel, launch.helpers, launch.grid, launch.group, launch.loops)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:8]


def summary(name, record):
    """dict from step to (what the golden file has of it, its launches)."""
    keras.utils.clear_session()
    steps = lowering.lower(MODELS[name], traits(record), name=record)
    return {
        step.name: ({"arena_bytes": step.arena_bytes, "launches": " ".join(map(digest, step.launches))}, step.launches) for step in steps
    }


def texts(name, record):
    """dict from step to the OpenCL C of its kernels, each once, without the names that are made of it, and with what it is launched on."""
    found = {}
    for step, (_, launches) in summary(name, record).items():
        parts, known = [], set()
        for launch in launches:
            source = launch.source.replace(launch.kernel, "kernel_") if launch.kernel else ""
            text = "\n".join(["", *launch.helpers, source])
            parts.append(f"// {launch.name}: {launch.grid} by {launch.group}" + ("" if text in known else text))
            known.add(text)
        found[step] = "\n".join([*parts, ""])
    return found


def difference(name, record, known, found):
    """What differs from the golden file, as text; "" where nothing does."""
    lines = []
    for step, (part, launches) in found.items():
        old = (known or {}).get(step, {"arena_bytes": None, "launches": ""})
        if part["arena_bytes"] != old["arena_bytes"]:
            lines.append(f"  {step}: the arena has {part['arena_bytes']} bytes, not {old['arena_bytes']}")
        new, before = part["launches"].split(), old["launches"].split()
        if len(new) != len(before):
            lines.append(f"  {step}: {len(new)} launches, not {len(before)}")
        changed = [launch.name for launch, a in zip(launches, new, strict=True) if a not in before]
        if changed:
            lines.append(f"  {step}: {len(changed)} launches changed: " + "; ".join(changed[:5]))
        elif new != before:
            lines.append(f"  {step}: the launches' order changed, or some are gone")
    return "\n".join([f"{name} on {record}:", *lines]) if lines else ""


def read():
    """The golden file's contents; {} where there is none."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(contents):
    """Replace the golden file."""
    FILE.write_text(json.dumps(contents, indent=1) + "\n")
