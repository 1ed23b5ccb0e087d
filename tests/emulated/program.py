"""Runs a Python program with an emulated GPU as its OpenCL device.

    python -m tests.emulated.program FOLDER DEVICE SCRIPT ARGUMENT...
    python -m tests.emulated.program FOLDER DEVICE -m MODULE ARGUMENT...

Programs compile and launches run in Python, so each process that is to use the device must be started like this. It calls no
`atexit` functions of ours after a crash.
"""

import atexit
import ctypes
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.emulated import settings

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).parent / "driver"
_BUILD = ("gcc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")


def prefix(own):
    """The beginning of a command that runs a program on the device of the Settings `own`; `-m MODULE` or a script follows."""
    return [sys.executable, "-m", "tests.emulated.program", str(own.checkout.resolve()), own.device]


def environment(own):
    """Variables for a process that uses the device of the Settings `own`."""
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **own.environment(), "PYTHONPATH": os.pathsep.join(folders)}


def install(own):
    """Make this process, which has not used OpenCL yet, one with the emulated device beside the machine's. Returns the Callbacks."""
    from tests.emulated.callbacks import Callbacks

    own.cache.mkdir(parents=True, exist_ok=True)
    library = _driver(own.cache)
    vendors = own.cache / "vendors"
    vendors.mkdir(exist_ok=True)
    (vendors / "emulated.icd").write_text(f"{library}\n")
    os.environ["OCL_ICD_VENDORS"] = str(vendors)
    os.environ["KERAS_OCL_COMPILERS"] = "0"  # programs are compiled in this process alone
    os.environ.setdefault("KERAS_OCL_QUARANTINE", "manual")  # other processes have no such device
    os.environ["KERAS_OCL_DEVICE"] = own.device
    os.environ["PYOPENCL_NO_CACHE"] = "1"
    if own.guard:
        os.environ["KERAS_OCL_EXACT_BUFFERS"] = "1"
    # Whether a program's source is known, the shadow must see it built.
    os.environ["KERAS_OCL_CACHE_DIR"] = tempfile.mkdtemp() if own.shadow else str(own.cache / f"keras_ocl-{own.device}")
    callbacks = Callbacks(ctypes.CDLL(str(library)))
    if own.statistics:
        atexit.register(callbacks.show_statistics)
    return callbacks


def _driver(folder):
    """The driver, compiled where its sources are newer."""
    library, sources = folder / "libemulated.so", sorted(DRIVER.glob("*.[ch]"))
    if not library.exists() or library.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        new = library.with_suffix(f".{os.getpid()}")
        subprocess.run([*_BUILD, "-o", str(new), *(str(path) for path in sources if path.suffix == ".c")], check=True)
        new.replace(library)
    return library


def main(arguments):
    if len(arguments) < 3:
        sys.exit(__doc__)
    folder, device, *program = arguments
    os.environ.update(EMULATED_CHECKOUT=folder, EMULATED_DEVICE=device)
    try:
        own = settings.current()
        settings.check(own.checkout)
    except settings.Unusable as error:
        sys.exit(str(error))
    install(own)
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
