"""Finds OpenCL: the system's ICDs, and runtimes installed from PyPI. Unusable ones are left out without an error.

The loader inside pyopencl's wheels reads /etc/OpenCL/vendors, or what OCL_ICD_VENDORS names instead. It does not know the runtimes in
this Python environment, whose wheels may carry an .icd with a placeholder path. So we make a folder of .icd files for all of them, name
it to the loader, and remove it.
"""

import contextlib
import ctypes
import importlib.metadata
import logging
import os
import stat
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from keras_ocl.runtime import drivers
from keras_ocl.runtime.disk_cache import cache_folder
from keras_ocl.runtime.private import check_folder, make_private
from keras_ocl.runtime.state import Process, check_not_forked

logger = logging.getLogger("keras_ocl")

SYSTEM_VENDORS = "/etc/OpenCL/vendors"
WINDOWS_LIBRARIES = ("intelocl64.dll", "pocl.dll")

SHARED_MEMORY = "/dev/shm"  # a file system in memory on Linux, for where disks are full or read-only
NOT_LOADED = OSError, UnicodeDecodeError  # the second where the linker's message names a path that is not UTF-8
LONGEST_LINE = 8192  # bytes read of a path, twice the longest that Linux allows

ADVICE = (
    'install one with `pip install "keras-ocl[cpu]"` (a CPU runtime, x86-64 Linux and Windows), '
    "`apt install pocl-opencl-icd` (Debian, Ubuntu) or your GPU vendor's OpenCL driver"
)


@dataclass(frozen=True)
class Runtime:
    """One OpenCL implementation on this machine: its library, and where that was named."""

    library: str  # a path, or a bare file name that the dynamic linker resolves; "" where the .icd file names none
    origin: str  # the .icd file or the PyPI distribution
    problem: str = ""  # why it is not loaded, as a clause


def runtimes():
    """All implementations found, loadable or not, each library once, and .icd files that name no library."""
    found = {}
    for runtime in (*_from_folder(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS), *_from_distributions()):
        library = runtime.library or runtime.origin
        found.setdefault(os.path.realpath(library) if os.sep in library else library, runtime)
    return list(found.values())


def _from_folder(path):
    """The Runtimes in what OCL_ICD_VENDORS may name: a folder of .icd files, one .icd file, or a library."""
    if os.path.isdir(path):
        try:
            names = sorted(name for name in os.listdir(path) if name.endswith(".icd"))
        except OSError as error:
            yield Runtime("", path, f"the folder cannot be read: {error.strerror}")
            return
        for name in names:
            yield _from_file(os.path.join(path, name))
    elif path.endswith(".icd"):
        if os.path.exists(path):
            yield _from_file(path)
    elif path.endswith((".dll", ".dylib")) or ".so" in os.path.basename(path):
        yield Runtime(path, "OCL_ICD_VENDORS")


def _from_file(icd):
    """The Runtime that an .icd file names, or one with the problem of the file."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        with open(icd, "rb", opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))) as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                return Runtime("", icd, "it is no file")
            line = f.readline(LONGEST_LINE).strip()
    except OSError as error:
        return Runtime("", icd, f"it cannot be read: {error.strerror}")
    # A path's bytes do not depend on Python's locale.
    return Runtime(os.fsdecode(line), icd) if line and b"\0" not in line else Runtime("", icd, "it names no library")


def _from_distributions():
    for distribution in importlib.metadata.distributions():
        try:
            record = distribution.read_text("RECORD") or ""
        except (OSError, ValueError):  # not UTF-8
            continue
        if sys.platform == "win32":
            wanted = [line.split(",")[0] for line in record.splitlines() if line.split(",")[0].endswith(WINDOWS_LIBRARIES)]
            for name in wanted:
                yield Runtime(str(Path(distribution.locate_file(name)).resolve()), distribution.metadata["Name"])
        elif ".icd," in record:
            yield from _from_wheel(distribution, [line.split(",")[0] for line in record.splitlines()])


def _from_wheel(distribution, files):
    """The libraries of a wheel's .icd files, found by file name because the paths inside are placeholders."""
    origin = distribution.metadata["Name"]
    for icd in (f for f in files if f.endswith(".icd")):
        named = _from_file(str(distribution.locate_file(icd))).library
        if not named:
            continue
        same = [f for f in files if os.path.basename(f) == os.path.basename(named)]
        if os.path.isabs(named) and os.path.exists(named):
            yield Runtime(named, origin)
        elif same:
            yield Runtime(str(Path(distribution.locate_file(same[0])).resolve()), origin)
        # else the wheel names a library that it does not contain (an emulator of another package): nothing to load


def with_problems(found):
    """The same runtimes with `problem` filled in: each driver is tried again, and loaded if it survives. Used by doctor only."""
    checked = []
    for runtime in _with_deaths(found, anew=True):
        try:
            if not runtime.problem:
                ctypes.CDLL(runtime.library)
            checked.append(runtime)
        except NOT_LOADED as error:
            hint = "; `pip install intel-cmplr-lib-rt` holds the libraries it needs" if "intelocl" in runtime.library else ""
            checked.append(replace(runtime, problem=f"it cannot be loaded: {error}{hint}"))
    return checked


def _with_deaths(found, anew=False):
    """The same runtimes, with a `problem` for those whose drivers die when tried in a process of their own."""
    died = drivers.deaths([runtime.library for runtime in found if not runtime.problem], _loading_mode(), anew)
    return [replace(runtime, problem=f"it {died[runtime.library]}") if runtime.library in died else runtime for runtime in found]


@contextlib.contextmanager
def _vendors_folder(found):
    """Context manager for a folder with one .icd file per runtime, for as long as the loader needs it; OSError if none can be made.

    The loader runs the libraries that the files name, so the folder is new, has a random name and belongs to the user (see `mkdtemp`).
    """
    problem = None
    with contextlib.ExitStack() as stack:
        for base in (lambda: None, _own_cache_folder, lambda: SHARED_MEMORY):
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras_ocl-", dir=base(), ignore_cleanup_errors=True))
                for i, runtime in enumerate(found):
                    Path(folder, f"{i:02d}.icd").write_bytes(os.fsencode(runtime.library) + b"\n")
                break
            except OSError as error:
                stack.close()
                problem = problem or error
        else:
            raise problem
        yield folder


def _own_cache_folder():
    """The cache folder, made if necessary; OSError where there is none that only this user can write to."""
    folder = cache_folder()
    if folder is None:
        raise FileNotFoundError("no home folder")
    make_private(folder)
    check_folder(folder, may_be_link=True)
    return folder


def _allocator_is_replaced():
    """Whether this process has a malloc that is not libc's (LD_PRELOAD, a sanitizer).

    A library loaded with RTLD_DEEPBIND would still get libc's, and memory of one would be freed by the other.
    """
    try:
        libc, process = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
    except OSError:
        return True
    names = "malloc", "calloc", "realloc", "free", "posix_memalign"
    here = {_address(process, name) for name in names} - {_address(libc, name) for name in names}
    return any(map(_is_defined, here))


def _address(library, name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


class _Symbol(ctypes.Structure):
    """An entry of an ELF symbol table; its fields have another order in 32 bits than in 64."""

    _start = [("name", ctypes.c_uint32)]
    _kind = [("info", ctypes.c_uint8), ("other", ctypes.c_uint8), ("section", ctypes.c_uint16)]
    _place = [("value", ctypes.c_size_t), ("size", ctypes.c_size_t)]
    _fields_ = _start + (_kind + _place if sys.maxsize > 2**32 else _place + _kind)


def _is_defined(address):
    """Whether the function at an address is defined there. In a program that is not position-independent, such as Debian's Python, a
    library's function has the address of the program's jump to it."""
    found, about = ctypes.POINTER(_Symbol)(), (ctypes.c_void_p * 4)()  # Dl_info
    try:
        ctypes.CDLL(None).dladdr1(ctypes.c_void_p(address), about, ctypes.byref(found), 1)  # RTLD_DL_SYMENT
    except AttributeError:  # not glibc
        return True
    return not found or found.contents.section != 0


def _loading_mode():
    """The mode for loading drivers with `ctypes.CDLL`: each uses its own LLVM. (TensorFlow makes its LLVM visible to every library that is
    loaded after it.)"""
    flag = getattr(os, "RTLD_DEEPBIND", None)
    return ctypes.DEFAULT_MODE if flag is None or _allocator_is_replaced() else os.RTLD_NOW | os.RTLD_LOCAL | flag


def _bind_deeply(found):
    """Load the runtimes before the loader does, if with a mode that the loader does not use."""
    mode = _loading_mode()
    for runtime in found if mode != ctypes.DEFAULT_MODE else ():
        with contextlib.suppress(*NOT_LOADED):  # the loader goes without them
            ctypes.CDLL(runtime.library, mode=mode)


@contextlib.contextmanager
def _told_to_the_loader(found, useless):
    """Within this context the loader finds the runtimes `found`, as far as it can be told. By itself it finds those of .icd files only, and
    would also load useless ones, if there are any (`useless`)."""
    variable = "OCL_ICD_FILENAMES" if sys.platform == "win32" else "OCL_ICD_VENDORS"
    before = os.environ.get(variable)
    with contextlib.ExitStack() as stack:
        if useless or any(not _is_icd(runtime) for runtime in found):
            if sys.platform == "win32":
                os.environ[variable] = os.pathsep.join([runtime.library for runtime in found])
            else:
                path = _named_by_a_path(found, useless, stack)
                if path is not None:
                    os.environ[variable] = path
        try:
            yield
        finally:
            # The loader has read the variable; programs that we start find runtimes for themselves.
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before


def _is_icd(runtime):
    return runtime.origin.endswith(".icd")


def _named_by_a_path(found, useless, stack):
    """The path for OCL_ICD_VENDORS: a folder of .icd files or, where none can be written, one library; None leaves it as it is."""
    try:
        return stack.enter_context(_vendors_folder(found))
    except OSError as error:
        kept = [] if useless else [runtime for runtime in found if _is_icd(runtime)]
        path = None if kept else found[0].library if found else os.devnull
        lost = [runtime.library for runtime in found if runtime not in (kept or found[:1])]
        if lost:
            logger.warning(
                "keras_ocl cannot write a folder of .icd files for OpenCL's loader (%s), which goes without %s: make room, or name a "
                "folder that can be written in TMPDIR.", error, ", ".join(lost),
            )  # fmt: skip
        return path


def platforms():
    """All platforms of all runtimes, [] if there are none. Loads pyopencl, and is the only place to do so first."""
    check_not_forked()
    listed = _with_deaths(runtimes())
    for runtime in listed:
        if runtime.library and runtime.problem:
            logger.warning(
                "keras_ocl leaves out the OpenCL driver %s (from %s): %s, as a trial in a process of its own has shown; "
                "`python -m keras_ocl doctor` tries it again.", runtime.library, runtime.origin, runtime.problem,
            )  # fmt: skip
    found = [runtime for runtime in listed if not runtime.problem]
    with _told_to_the_loader(found, useless=len(found) < len(listed)):
        _bind_deeply(found)
        import pyopencl as cl

        Process.started = True
        try:
            return cl.get_platforms()
        except cl.Error:  # PLATFORM_NOT_FOUND_KHR
            return []
