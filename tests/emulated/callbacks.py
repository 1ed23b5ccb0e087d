"""What the driver calls: programs are compiled and kernels launched in Python."""

import atexit
import contextlib
import ctypes
import hashlib
import os
import traceback
from pathlib import Path

from tests.emulated import settings
from tests.emulated.code_objects import CodeObject
from tests.emulated.compiling import compile_object, describe
from tests.emulated.instructions import lock
from tests.emulated.launching import run
from tests.emulated.statistics import COUNTS, timed

_POINTER, _SIZE = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
_NUMBERS = ctypes.POINTER(ctypes.c_uint64)
# Of driver/objects.h: build_function, launch_function and drop_function.
_BUILD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, _POINTER, _SIZE, _POINTER, _POINTER)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, _NUMBERS, _NUMBERS, _NUMBERS),
    *(ctypes.c_uint32, ctypes.c_void_p, _POINTER, _NUMBERS),
)
_DROP = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_registered = []  # Callbacks, which live as long as the process


class Callbacks:
    """The driver's callbacks: `library` is the driver, loaded with ctypes."""

    def __init__(self, library):
        self.library, self.own = library, settings.current()
        self.codes = {}  # number of a program -> CodeObject
        self.sources = {}  # digest of a code object -> (source, options), for what compares with a CPU runtime
        self.functions = (_BUILD(self.build), _LAUNCH(self.launch), _DROP(self.drop))
        library.emulated_alloc.restype, library.emulated_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.emulated_run.argtypes = [ctypes.c_void_p]
        library.emulated_nearest.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
        library.emulated_set_callbacks.argtypes = [ctypes.c_void_p] * 3
        library.emulated_set_callbacks(*(ctypes.cast(function, ctypes.c_void_p) for function in self.functions))
        _registered.append(self)
        atexit.register(library.emulated_set_callbacks, None, None, None)  # OpenCL's objects live longer than Python

    def build(self, source, options, code, size, about, log):
        """Compile a program; 1 and a log if that fails."""
        try:
            found, messages = self._compiled(source.decode(errors="replace"), options.decode())
            log[0] = self._copy(messages.encode())
            if found is None:
                return 1
            code[0], size[0] = self._copy(found), len(found)
            about[0] = self._copy(describe(found).encode())
            return 0
        except Exception:  # no exception passes C code
            log[0] = self._copy(traceback.format_exc().encode())
            return 1

    def launch(self, number, code, size, name, grid, group, offset, nargs, kinds, values, sizes):
        """Execute a launch; not 0 if that fails."""
        try:
            with lock:
                if number not in self.codes:
                    self.codes[number] = CodeObject(ctypes.string_at(code, size), self.own.device)
            found, name = self.codes[number], name.decode()
            args = []
            for k, kind in enumerate(ctypes.string_at(kinds, nargs).decode()):
                value = (values[k] or 0) if kind == "g" else sizes[k] if kind == "l" else ctypes.string_at(values[k], sizes[k])
                args.append((kind, value))
            shape = (grid[:3], group[:3], offset[:3], args)
            with self._shadowed(ctypes.string_at(code, size), name, *shape, sizes[:nargs]):
                return run(self.library, found, name, *shape)
        except Exception:  # no exception passes C code
            traceback.print_exc()
            return 1

    def drop(self, number):
        """Forget a program."""
        code = self.codes.pop(number, None)
        if code is not None and self.own.statistics:
            code.counted()

    def show_statistics(self):
        """Print what has been executed."""
        for code in self.codes.values():
            code.counted()
        COUNTS.show(12 if self.own.statistics == 1 else None)

    def _compiled(self, source, options):
        """(a program's code object or None, the compiler's messages), from disk where it was compiled before."""
        key = hashlib.sha256(repr((self.own.device, options, source)).encode()).hexdigest()
        if self.own.dump:
            self.own.dump.mkdir(parents=True, exist_ok=True)
            Path(self.own.dump, f"{key[:12]}.cl").write_text(f"// {options}\n{source}")
        path, messages = self.own.cache / "objects" / key, ""
        with timed("seconds of compiling programs"):
            if path.exists():
                found = path.read_bytes()
            else:
                found, messages = compile_object(source, options, self.own.device)
                if found:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    temporary = path.with_suffix(f".{os.getpid()}")
                    temporary.write_bytes(found)
                    temporary.replace(path)
        COUNTS.totals["programs"] += 1
        if found and self.own.shadow:
            self.sources[hashlib.sha256(found).digest()] = source, options
        return found, messages

    def _shadowed(self, code, *launch):
        """A context in which a launch is compared with one on a CPU runtime, if the settings ask for that."""
        if not self.own.shadow:
            return contextlib.nullcontext()
        from tests.emulated import shadow

        return shadow.compared(self.sources.get(hashlib.sha256(code).digest()), *launch)

    def _copy(self, data):
        """A copy of `data` and a 0 in memory that the driver frees."""
        at = self.library.emulated_alloc(len(data) + 1)
        ctypes.memmove(at, data + b"\0", len(data) + 1)
        return at
