"""`python -m tests.emulated FOLDER [DEVICE] [WHAT] [ARGUMENT...]`: tests of this project on an emulated AMD GPU.

FOLDER is a checkout of tinygrad, whose emulator of AMD's instruction sets executes the machine code that clang makes of kernels. It is not
changed. ARGUMENTs go to what runs. CONTRIBUTING.md says what must be installed, and docs/extending/emulated.md what is emulated.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.emulated import program, settings

_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
# What -> (its program, the arguments where none is given, what it is).
WHAT = {
    "driver": ((*_PYTEST, "tests/emulated/test_driver.py"), (), "the emulated device by itself"),
    "kernels": (_PYTEST, ("tests/kernels", "tests/primitives", "--every", "5"), "tests of kernels and primitives, or of the paths given"),
    "operations": (_PYTEST, ("tests/ops", "--every", "10"), "tests of keras.ops, or of the paths given"),
    "models": (("-m", "tests.emulated.models"), (), "training steps of small models, compared with a CPU runtime; names choose some"),
    "fuzz": (("-m", "tests.fuzz"), ("--layers", "0", "--seconds", "120"), "random programs"),
    "verify": (("-m", "tests.emulated.verifying"), ("--short",), "python -m keras_ocl verify"),
}


def main(arguments=None):
    own = parser().parse_args(arguments)
    # A device may be left out: then what stands in its place is what to run.
    if own.device in WHAT:
        own.device, own.what, own.arguments = "gfx1100", own.device, [*([own.what] if own.what else []), *own.arguments]
    what = own.what or "kernels"
    try:
        if what not in WHAT:
            raise settings.Unusable(f"There is no {what!r} to run; there are {', '.join(WHAT)}.")
        given = {"EMULATED_CHECKOUT": str(own.folder), "EMULATED_DEVICE": settings.known(own.device)}
        chosen = settings.Settings.of({**os.environ, **given})
        settings.check(chosen.checkout)
    except settings.Unusable as error:
        sys.exit(str(error))
    command, usual, _ = WHAT[what]
    environment = program.environment(chosen)
    if what == "models":
        environment["EMULATED_EXPECTED"] = expected(chosen)
    os.chdir(program.ROOT)
    os.execve(sys.executable, [*program.prefix(chosen), *command, *(own.arguments or usual)], environment)


def parser():
    lines = [f"{name}: {text}" for name, (_, _, text) in WHAT.items()]
    lines += ["devices:", *(f"{name}: {text}" for name, text in settings.DEVICES.items())]
    made = argparse.ArgumentParser(
        prog="python -m tests.emulated",
        description="Tests on an emulated AMD GPU.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("folder", type=Path, help="a checkout of tinygrad")
    made.add_argument("device", nargs="?", default="gfx1100", help=f"one of {', '.join(settings.DEVICES)} (default: gfx1100)")
    made.add_argument("what", nargs="?", help=f"one of {', '.join(WHAT)} (default: kernels)")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of what runs, in place of its usual ones")
    return made


def expected(chosen):
    """The file of what the models give on the device that this machine has, made at the first call."""
    path = chosen.cache.resolve() / "models.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "tests.emulated.models", "--write", str(path)], cwd=program.ROOT, check=True)
    return str(path)


if __name__ == "__main__":
    main()
