"""Find OpenCL: the system's ICDs, and the runtimes that were installed from PyPI.

The loader inside pyopencl's wheels reads /etc/OpenCL/vendors, or instead of it whatever OCL_ICD_VENDORS
names. It does not know about runtimes in this Python environment, whose wheels may carry an .icd with a
placeholder path. So we make a folder of .icd files that holds all of them, name it for the loader, and remove it.
"""

import contextlib
import ctypes
import importlib.metadata
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from keras_ocl.runtime.disk_cache import cache_folder
from keras_ocl.runtime.private import check_folder, make_private
from keras_ocl.runtime.state import Process, check_not_forked

SYSTEM_VENDORS = "/etc/OpenCL/vendors"
WINDOWS_LIBRARIES = ("intelocl64.dll", "pocl.dll")

ADVICE = (
    'install one with `pip install "keras-ocl[cpu]"` (a CPU runtime, x86-64 Linux and Windows), '
    "`apt install pocl-opencl-icd` (Debian, Ubuntu) or your GPU vendor's OpenCL driver"
)


@dataclass(frozen=True)
class Runtime:
    """One OpenCL implementation on this machine: a library, and where we learned of it."""

    library: str  # a path, or a bare file name that the dynamic linker resolves
    origin: str  # the .icd file or the PyPI distribution
    problem: str = ""  # why it cannot be loaded


def runtimes():
    """All implementations found, loadable or not, each library once."""
    found = {}
    for runtime in (*_from_folder(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS), *_from_distributions()):
        found.setdefault(os.path.realpath(runtime.library) if os.sep in runtime.library else runtime.library, runtime)
    return list(found.values())


def _from_folder(path):
    """What OCL_ICD_VENDORS may name: a folder of .icd files, one .icd file, or a library."""
    if os.path.isdir(path):
        for icd in sorted(Path(path).glob("*.icd")):
            yield Runtime(icd.read_text(errors="replace").split("\n")[0].strip(), str(icd))
    elif path.endswith(".icd"):
        if os.path.exists(path):
            yield Runtime(Path(path).read_text(errors="replace").split("\n")[0].strip(), path)
    elif path.endswith((".dll", ".dylib")) or ".so" in os.path.basename(path):
        yield Runtime(path, "OCL_ICD_VENDORS")


def _from_distributions():
    for distribution in importlib.metadata.distributions():
        record = distribution.read_text("RECORD") or ""
        if sys.platform == "win32":
            wanted = [line.split(",")[0] for line in record.splitlines() if line.split(",")[0].endswith(WINDOWS_LIBRARIES)]
            for name in wanted:
                yield Runtime(str(Path(distribution.locate_file(name)).resolve()), distribution.metadata["Name"])
        elif ".icd," in record:
            yield from _from_wheel(distribution, [line.split(",")[0] for line in record.splitlines()])


def _from_wheel(distribution, files):
    """The libraries behind a wheel's .icd files, found by file name because the paths inside are placeholders."""
    origin = distribution.metadata["Name"]
    for icd in (f for f in files if f.endswith(".icd")):
        try:
            named = Path(distribution.locate_file(icd)).read_text(errors="replace").split("\n")[0].strip()
        except OSError:
            continue
        same = [f for f in files if os.path.basename(f) == os.path.basename(named)]
        if os.path.isabs(named) and os.path.exists(named):
            yield Runtime(named, origin)
        elif same:
            yield Runtime(str(Path(distribution.locate_file(same[0])).resolve()), origin)
        # else the wheel names a library that it does not carry (an emulator of another package): nothing to load


def with_problems(found):
    """The same runtimes with `problem` filled in by loading each library; used by doctor only."""
    checked = []
    for runtime in found:
        try:
            ctypes.CDLL(runtime.library)
            checked.append(runtime)
        except OSError as error:
            hint = "; `pip install intel-cmplr-lib-rt` holds the libraries it needs" if "intelocl" in runtime.library else ""
            checked.append(Runtime(runtime.library, runtime.origin, f"{error}{hint}"))
    return checked


@contextlib.contextmanager
def _vendors_folder(found):
    """The path of a folder with one .icd file for each runtime, for as long as the loader needs it; None where no folder can be made.

    The loader runs the libraries that the files name, so the folder is new, of a random name and the user's own (as `mkdtemp` makes them).
    """
    with contextlib.ExitStack() as stack:
        folder = None
        for base in (lambda: None, _own_cache_folder):
            with contextlib.suppress(OSError):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="keras_ocl-", dir=base(), ignore_cleanup_errors=True))
                for i, runtime in enumerate(found):
                    Path(folder, f"{i:02d}.icd").write_text(runtime.library + "\n")
                break
        yield folder


def _own_cache_folder():
    """The cache folder, made if need be; OSError where there is none that only this user can write."""
    folder = cache_folder()
    if folder is None:
        raise FileNotFoundError("no home folder")
    make_private(folder)
    check_folder(folder, may_be_link=True)
    return folder


def _allocator_is_replaced():
    """Whether this process has a malloc that is not libc's (LD_PRELOAD, a sanitizer): what binds deeply would get libc's all the same,
    and free memory of one with the other.
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
    """An entry of an ELF symbol table; the standard has two orders of its fields."""

    _start = [("name", ctypes.c_uint32)]
    _kind = [("info", ctypes.c_uint8), ("other", ctypes.c_uint8), ("section", ctypes.c_uint16)]
    _place = [("value", ctypes.c_size_t), ("size", ctypes.c_size_t)]
    _fields_ = _start + (_kind + _place if sys.maxsize > 2**32 else _place + _kind)


def _is_defined(address):
    """Whether the function at an address is defined there: in a program that is not position-independent, as Debian's Python, a function of
    a library has the address of the program's jump to it."""
    found, about = ctypes.POINTER(_Symbol)(), (ctypes.c_void_p * 4)()  # Dl_info
    try:
        ctypes.CDLL(None).dladdr1(ctypes.c_void_p(address), about, ctypes.byref(found), 1)  # RTLD_DL_SYMENT
    except AttributeError:  # not glibc
        return True
    return not found or found.contents.section != 0


def _bind_deeply(found):
    """Load the runtimes so that each uses its own LLVM: TensorFlow makes its own visible to every library loaded after it."""
    flag = getattr(os, "RTLD_DEEPBIND", None)
    if flag is None or _allocator_is_replaced():
        return
    for runtime in found:
        with contextlib.suppress(OSError):  # the loader reports what cannot be loaded
            ctypes.CDLL(runtime.library, mode=os.RTLD_NOW | os.RTLD_LOCAL | flag)


def platforms():
    """All platforms of all runtimes, [] when there are none. Loads pyopencl; the only place that does so first."""
    check_not_forked()
    found = runtimes()
    variable = "OCL_ICD_FILENAMES" if sys.platform == "win32" else "OCL_ICD_VENDORS"
    before = os.environ.get(variable)
    with contextlib.ExitStack() as stack:
        if any(not runtime.origin.endswith(".icd") for runtime in found):
            if sys.platform == "win32":
                os.environ[variable] = os.pathsep.join([runtime.library for runtime in found])
            else:
                folder = stack.enter_context(_vendors_folder(found))
                if folder is not None:
                    os.environ[variable] = folder
        _bind_deeply(found)
        import pyopencl as cl

        Process.started = True
        try:
            return cl.get_platforms()
        except cl.Error:  # PLATFORM_NOT_FOUND_KHR
            return []
        finally:
            # The loader has read it; programs that we start shall find their own.
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before
