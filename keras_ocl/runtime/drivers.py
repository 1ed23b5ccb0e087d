"""Which drivers may be loaded: one that crashes, ends the process or hangs during loading or queries would do so in every process.

So an unknown driver is tried in a process of its own first. The outcome is remembered in the cache folder, with the size and time of
the driver's file: a start with known drivers reads one file. A driver that died is tried again after a day, or by `doctor`.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from keras_ocl.runtime.disk_cache import cache_folder
from keras_ocl.runtime.host import interpreter
from keras_ocl.runtime.private import check_folder, read_private, write_private

logger = logging.getLogger("keras_ocl")

PROCESS = Path(__file__).with_name("driver_process.py")
FILE = "drivers"
PATIENCE = 30  # seconds for a driver to answer; NVIDIA's takes several where nothing else keeps the GPU awake
FORGET = 24 * 3600  # seconds after which a driver that died is tried again: the cause may be gone
MOST = 200  # remembered drivers
LINKER = "/etc/ld.so.cache"


def deaths(libraries, mode, anew=False):
    """How those of `libraries` that must not be loaded died: a dict from library to a clause such as "crashes (SIGSEGV)".

    Args:
        libraries: paths, or bare names that the dynamic linker resolves.
        mode: the mode in which they will be loaded, for `ctypes.CDLL`.
        anew: whether to try known drivers again, too.
    """
    remembered = _remembered()
    known = {} if anew else {library: entry for library in libraries if (entry := _current(remembered.get(_key(library))))}
    unknown = [library for library in libraries if library not in known and _may_be_there(library)]
    tried = _tried(unknown, mode)
    if tried:
        _remember({**remembered, **{_key(library): entry for library, entry in tried.items()}})
    return {library: entry["died"] for library, entry in {**known, **tried}.items() if entry["died"]}


def _may_be_there(library):
    return os.path.basename(library) == library or os.path.isfile(library)


def _key(library):
    """The key under which a driver is remembered: its path or, for a bare name, the name and where the dynamic linker looks for it."""
    if os.path.basename(library) != library:
        return os.path.realpath(library)
    return f"{library} {os.environ.get('LD_LIBRARY_PATH', '')} {_state(LINKER)}"


def _state(file):
    """[size in bytes, time in ns] of a file; None if it does not exist."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _current(entry):
    """The entry, if its file has not changed and it is not too old; else None."""
    if not entry or entry["file"] and _state(entry["file"]) != entry["state"]:
        return None
    return None if entry["died"] and not 0 <= time.time() - entry["when"] < FORGET else entry


def _remembered():
    """dict from key to entry, {} where nothing can be read; a file counts only if this user wrote it."""
    folder = cache_folder()
    try:
        check_folder(folder, may_be_link=True)
        entries = json.loads(read_private(folder / FILE))
        return {key: entry for key, entry in entries.items() if {"file", "state", "died", "when"} <= entry.keys()}
    except (OSError, ValueError, TypeError, AttributeError):  # not there, not ours, no folder, no such text
        return {}


def _remember(entries):
    newest = sorted(entries.items(), key=lambda entry: entry[1]["when"])[-MOST:]
    folder = cache_folder()
    with contextlib.suppress(OSError):  # drivers are tried again next time
        if folder is not None:
            if folder.exists():
                check_folder(folder, may_be_link=True)
            write_private(folder / FILE, json.dumps(dict(newest), indent=1).encode())


def _tried(libraries, mode):
    """dict from library to entry, for each library that could be tried; each is tried in a process of its own, all at once."""
    python, running, entries = interpreter(), {}, {}
    if python is None:
        return entries
    try:
        for library in libraries:
            command = [python, "-I", "-S", str(PROCESS), library, str(mode), str(PATIENCE)]
            with contextlib.suppress(OSError):  # no more processes: the driver is used untried
                running[library] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
                )
        end = time.monotonic() + PATIENCE + 5
        for library, process in running.items():
            died, file = _outcome(process, end)
            file = file or (os.path.realpath(library) if os.path.basename(library) != library else "")
            entries[library] = {"file": file, "state": _state(file) if file else None, "died": died, "when": time.time()}
    finally:
        for process in running.values():
            process.kill()
            with process:  # closes its pipes
                pass
    return entries


def _outcome(process, end):
    """(how the driver died or "", its file or "")."""
    try:
        answer, errors = process.communicate(timeout=max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _hangs(), ""
    with contextlib.suppress(ValueError):
        if process.returncode == 0 and isinstance(file := json.loads(answer), str):
            return "", file
    code = process.returncode
    if code == -getattr(signal, "SIGALRM", 0):
        return _hangs(), ""
    said = errors.decode(errors="replace").strip().splitlines()
    return _how(code) + (f": {said[-1][:200]}" if said else ""), ""


def _hangs():
    return f"does not answer within {PATIENCE} seconds"


def _how(code):
    if 0 <= code < 1 << 30:
        return f"ends the process (exit status {code})"
    try:
        return f"crashes ({signal.Signals(-code).name})"
    except ValueError:
        return f"crashes (status {code & 0xFFFFFFFF:#x})"  # Windows: an NTSTATUS
