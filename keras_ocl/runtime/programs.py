"""Programs: OpenCL C in, kernel objects out; compiled once, remembered in memory and on disk."""

import hashlib
import threading
from collections import OrderedDict

import pyopencl as cl
from pyopencl import _cl
from pyopencl.characterize import has_src_build_cache

from keras_ocl.runtime import host
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.errors import KernelBuildError
from keras_ocl.runtime.profilers import BUILD

SCHEMA = "1"  # raise when the meaning of a cache entry changes
STANDARD = "-cl-std=CL1.2"
IN_MEMORY = 1024  # kernels whose programs are kept although nobody may be using them; others come back from disk


class Programs:
    """The programs of one device.

    A kernel is known by its function name, source and options. Kernels asked for together that are not known
    yet are compiled as one program; each is remembered on its own, so another set of them finds it too.
    """

    def __init__(self, device):
        self.device = device
        # PoCL and NVIDIA remember what they compile. Asking PoCL for a binary would compile every kernel twice
        # (again for unknown work-group sizes), 100 ms each, and save 50 ms per program.
        self.disk = None if has_src_build_cache(device.handle) else DiskCache()
        self._programs = OrderedDict()  # kernel's key -> built program, the last used at the end
        self._lock = threading.Lock()
        d = device.handle
        about = (SCHEMA, device.platform, d.platform.version, d.name, d.version, device.driver, host.cpu_flags(), cl.VERSION_TEXT)
        self._identity = "\0".join(about)

    def build(self, specs, options=""):
        """Kernel objects for `specs` as a dict by function name.

        A spec is (function name, source) or (function name, source, helpers), helpers being texts (functions,
        macros, pragmas) that the source needs and that are put once in front of all sources.
        Every call makes fresh kernel objects (their arguments belong to the caller). Raises KernelBuildError.
        """
        if "-cl-std" not in options:
            options = f"{STANDARD} {options}".strip()
        specs = list(dict.fromkeys((name, source, tuple(rest[0]) if rest else ()) for name, source, *rest in specs))
        keys = {spec: self._key(spec, options) for spec in specs}
        with self._lock:
            if self.disk is not None:
                self._load(keys)
            missing = [spec for spec in specs if keys[spec] not in self._programs]
            if missing:
                with self.device.span(f"{BUILD} {len(missing)} kernels"):
                    self._compile(missing, keys, options)
            programs = {spec[0]: self._programs[keys[spec]] for spec in specs}
            for key in keys.values():
                self._programs.move_to_end(key)
            while len(self._programs) > IN_MEMORY:
                self._programs.popitem(last=False)
        return {name: _kernel(program, name) for name, program in programs.items()}

    def forget(self):
        """Drop all programs held in memory; the disk cache stays."""
        with self._lock:
            self._programs.clear()

    def _key(self, spec, options):
        name, source, helpers = spec
        return hashlib.sha256("\0".join((name, source, *helpers, options, self._identity)).encode()).hexdigest()

    def _load(self, keys):
        """Fetch what is on disk of the kernels not known yet."""
        for key in keys.values():
            if key in self._programs:
                continue
            entry = self.disk.get(key)
            if entry is None:
                continue
            program_key, members, binary = entry
            program = self._from_binary(binary, members)
            if program is None:
                self.disk.remove(program_key)  # it is built anew below
                continue
            for member_key in members.values():
                self._programs.setdefault(member_key, program)

    def _compile(self, specs, keys, options):
        names = [spec[0] for spec in specs]
        texts = [text for _, _, helpers in specs for text in helpers] + [text for _, text, _ in specs]
        source = "\n".join(dict.fromkeys(texts))
        device, handle = self.device, self.device.handle
        program = _cl._Program(device.context, source)
        try:
            program._build(options.encode(), [handle])
        except cl.Error as error:
            try:
                log = program.get_build_info(handle, cl.program_build_info.LOG) or str(error)
            except cl.Error:
                log = str(error)
            raise KernelBuildError(names, device, options, log, source) from None
        device.statistics.builds += 1
        device.statistics.kernels += len(specs)
        members = {spec[0]: keys[spec] for spec in specs}
        if self.disk is not None:
            try:
                binary = program.get_info(cl.program_info.BINARIES)[0]
            except cl.Error:
                binary = None  # a driver that gives no binaries: no disk cache
            if binary:
                self.disk.put(members, binary)
                # A program that was compiled holds on to its compiler's memory, megabytes of it; one made of the binary does not.
                program = self._from_binary(binary, members) or program
        for key in members.values():
            self._programs[key] = program

    def _from_binary(self, binary, names):
        """The program that the binary holds, or None if the driver rejects it or kernels are missing from it."""
        try:
            program = _cl._Program(self.device.context, [self.device.handle], [binary])
            program._build(b"", [self.device.handle])
            present = program.get_info(cl.program_info.KERNEL_NAMES).split(";")
        except cl.Error:
            return None
        return program if set(names) <= set(present) else None


def _kernel(program, name):
    try:
        return cl.Kernel(program, name)
    except cl.Error:
        raise
    except Exception:
        # pyopencl keeps Python code in a database under the user's cache folder, and fails where it cannot write there.
        if cl._PYOPENCL_NO_CACHE:
            raise
        cl._PYOPENCL_NO_CACHE = True
        return cl.Kernel(program, name)
