"""The process that tries a driver for another process; see drivers.py. It is run as a file, and imports only the standard library."""

import ctypes
import json
import os
import signal
import sys

# Indices into the table of functions that every OpenCL object of a driver begins with (the extension cl_khr_icd).
PLATFORM_INFO, DEVICE_IDS, DEVICE_INFO, CREATE_CONTEXT, RELEASE_CONTEXT = 1, 2, 3, 4, 7
ALL_DEVICES = 0xFFFFFFFF
PLATFORM_QUERIES = range(0x0900, 0x0905)  # profile, version, name, vendor, extensions
DEVICE_QUERIES = (*range(0x1000, 0x1037), 0x103D)
MOST = 64  # most platforms, and most devices of a platform

_integer, _unsigned, _size, _pointer = ctypes.c_int32, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p
_call = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)
_platform_ids = _call(_integer, _unsigned, _pointer, _pointer)
_device_ids = _call(_integer, _pointer, ctypes.c_uint64, _unsigned, _pointer, _pointer)
_info = _call(_integer, _pointer, _unsigned, _size, _pointer, _pointer)
_create_context = _call(_pointer, _pointer, _unsigned, _pointer, _pointer, _pointer, _pointer)
_release_context = _call(_integer, _pointer)


class _About(ctypes.Structure):
    """The Dl_info that dladdr fills in."""

    _fields_ = [("file", ctypes.c_char_p), ("base", _pointer), ("symbol", ctypes.c_char_p), ("address", _pointer)]


def _file_of(function):
    """The file that a function was loaded from; "" where that is unknown."""
    about = _About()
    try:
        known = ctypes.CDLL(None).dladdr(ctypes.cast(function, _pointer), ctypes.byref(about))
    except (AttributeError, OSError, TypeError):  # Windows
        return ""
    return os.path.realpath(os.fsdecode(about.file)) if known and about.file else ""


def _function(thing, place, kind):
    table = ctypes.cast(thing, ctypes.POINTER(ctypes.POINTER(_pointer)))[0]
    return kind(table[place])


def _listed(ask):
    """The objects that a function of (capacity, array, count) returns."""
    count, things = _unsigned(), (_pointer * MOST)()
    if ask(MOST, things, ctypes.byref(count)) != 0:
        return []
    return [thing for thing in things[: min(count.value, MOST)] if thing]


def _query(thing, place, names):
    ask, room = _function(thing, place, _info), ctypes.create_string_buffer(1 << 16)
    for name in names:
        ask(thing, name, len(room), room, ctypes.byref(_size()))


def try_driver(library, mode):
    """Use a driver's library as finding devices does; returns the library's file. OSError if it cannot be loaded."""
    driver = ctypes.CDLL(library, mode=mode)
    try:
        get = driver.clGetExtensionFunctionAddress
    except AttributeError:
        return ""
    get.restype, get.argtypes = _pointer, [ctypes.c_char_p]
    address = get(b"clIcdGetPlatformIDsKHR")
    for platform in _listed(_platform_ids(address)) if address else ():
        _query(platform, PLATFORM_INFO, PLATFORM_QUERIES)
        of_platform = _function(platform, DEVICE_IDS, _device_ids)
        for device in _listed(lambda *rest, p=platform, ids=of_platform: ids(p, ALL_DEVICES, *rest)):
            _query(device, DEVICE_INFO, DEVICE_QUERIES)
            one, error = (_pointer * 1)(device), _integer()
            context = _function(device, CREATE_CONTEXT, _create_context)(None, 1, one, None, None, ctypes.byref(error))
            if context:
                _function(context, RELEASE_CONTEXT, _release_context)(context)
    return _file_of(get)


def main(library, mode, seconds):
    """Try a driver, and write its file to the standard output as JSON; the process ends after `seconds` at most."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what drivers print must not reach the pipe
    if sys.platform == "win32":
        import msvcrt

        msvcrt.SetErrorMode(msvcrt.SEM_FAILCRITICALERRORS | msvcrt.SEM_NOGPFAULTERRORBOX)
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(seconds)  # also if no process is left that would end this one
    try:
        file = try_driver(library, mode)
    except (OSError, UnicodeDecodeError):  # the second where the linker's message names a path that is not UTF-8
        file = ""  # the loader leaves the library out
    os.write(answers, json.dumps(file).encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
