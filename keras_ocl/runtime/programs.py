"""Programs: OpenCL C in, kernel objects out; compiled once, remembered in memory and on disk.

Where processes beside this one compile, a caller may be given drafts at first: kernels compiled without optimisation, in a fifth of
the time. They give the same results, bit for bit, more slowly.
"""

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

import pyopencl as cl
from pyopencl import _cl
from pyopencl.characterize import has_src_build_cache

from keras_ocl.runtime import host
from keras_ocl.runtime.compilers import Compilers, most_compilers
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.errors import KernelBuildError
from keras_ocl.runtime.profilers import BUILD

SCHEMA = "1"  # raise when the meaning of a cache entry changes
STANDARD = "-cl-std=CL1.2"
FUSED = "-DFP_FAST_FMAF=1"  # CPUs' compilers do not tell; mad() is a product and a sum where nothing is optimised
HASTY = "-cl-opt-disable"
IN_MEMORY = 1024  # kernels whose programs are kept although nobody may be using them; others come back from disk
MANY = 16  # kernels asked for together for which other processes are started: that takes a quarter of a second
SEVERAL = 8  # kernels of which a process that runs already compiles parts; and when so many are compiled one is started, as more follow
PART = 4  # the fewest kernels of a part: each costs some 15 ms more
PARTS = 16
OWN = 4000  # characters that take as long to compile without optimisation as what every kernel costs by itself


def identity(handle):
    """Text that differs where a device's compiled programs may not run."""
    platform = handle.platform
    about = (platform.name.strip(), platform.version, handle.name, handle.version, handle.driver_version, host.cpu_flags(), cl.VERSION_TEXT)
    return "\0".join((SCHEMA, *about))


def build_program(context, handle, source, options):
    """A pyopencl program of OpenCL C. Raises pyopencl.Error."""
    program = _cl._Program(context, source)
    try:
        program._build(options.encode(), [handle])
    except cl.Error as error:
        error.program = program
        raise
    return program


def binary_of(program):
    """The compiled code of a program, None where the driver does not tell."""
    try:
        return program.get_info(cl.program_info.BINARIES)[0] or None
    except cl.Error:
        return None


class Drafts:
    """Which kernels that a caller got of Programs.build are drafts.

    Args:
        choose: function from specs, those of the first build, to a set of those for which drafts will do; none without it.
        weight: function from a spec to a number: the kernel of the greatest is done better first.
    """

    def __init__(self, choose=None, weight=None):
        self.weight, self._choose, self._chosen = weight, choose or (lambda specs: set()), None
        self.awaited = set()  # Futures of binaries that are better

    def chosen(self, specs):
        """The set of specs for which drafts will do."""
        if self._chosen is None:
            self._chosen = self._choose(specs)
        return self._chosen

    def better(self):
        """Whether building once more gives better kernels."""
        return any(future.done() for future in self.awaited)


@dataclass(frozen=True)
class _Draft:
    """A program compiled without optimisation, and the Future of a better binary of the kernels `specs` (or of None), among others."""

    program: cl.Program
    future: Future
    specs: list
    keys: dict
    options: str


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
        self._compiled = 0  # kernels so far
        self._programs = OrderedDict()  # kernel's key -> built program, the last used at the end
        self._drafts = {}  # kernel's key -> _Draft, until it is done better
        self._lock = threading.Lock()
        self._identity = identity(device.handle)
        # GPUs' drivers compile for several threads, or have caches of their own.
        beside = self.disk is not None and device.kind == "cpu"
        self.compilers = Compilers(self._identity, most_compilers(device.traits.compute_units) if beside else 0)
        self.drafts_are_exact = beside and host.fuses_multiply_add()

    def build(self, specs, options="", drafts=None):
        """Kernel objects for `specs` as a dict by function name.

        A spec is (function name, source) or (function name, source, helpers), helpers being texts (functions,
        macros, pragmas) that the source needs and that are put once in front of all sources.
        Every call makes fresh kernel objects (their arguments belong to the caller). With a Drafts some of them may be such; it gets to
        know what to wait for. Raises KernelBuildError.
        """
        if "-cl-std" not in options:
            options = f"{STANDARD} {options}".strip()
        if self.drafts_are_exact:
            options = f"{options} {FUSED}"
        specs = list(dict.fromkeys((name, source, tuple(rest[0]) if rest else ()) for name, source, *rest in specs))
        keys = {spec: self._key(spec, options) for spec in specs}
        with self._lock:
            if self.disk is not None:
                self._load(keys)
            self._take_better()
            missing = [spec for spec in specs if keys[spec] not in self._programs]
            hasty = drafts.chosen(specs) if missing and drafts and self.drafts_are_exact and self.compilers.most else ()
            good = [spec for spec in missing if spec not in hasty]
            fast = [spec for spec in missing if spec in hasty and keys[spec] not in self._drafts]
            if good or fast:
                with self.device.span(f"{BUILD} {len(good) + len(fast)} kernels"):
                    self._compile(good, fast, keys, options, drafts)
            if hasty:
                drafts.awaited |= {self._drafts[keys[spec]].future for spec in missing if spec in hasty}
            programs = {spec[0]: self._programs.get(keys[spec]) or self._drafts[keys[spec]].program for spec in specs}
            for key in keys.values():
                if key in self._programs:
                    self._programs.move_to_end(key)
            while len(self._programs) > IN_MEMORY:
                self._programs.popitem(last=False)
        return {name: _kernel(program, name) for name, program in programs.items()}

    def forget(self):
        """Drop all programs held in memory; the disk cache stays."""
        with self._lock:
            self._programs.clear()
            self._drafts.clear()

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

    def _store(self, members, binary):
        if binary:
            self.disk.put(members, binary)

    def _take_better(self):
        """Put what has been compiled well in the place of drafts."""
        for draft in {id(d.future): d for d in self._drafts.values() if d.future.done()}.values():
            binary, members = draft.future.result(), _members(draft.specs, draft.keys)
            program = binary and self._from_binary(binary, members)
            if program:
                self._programs.update(dict.fromkeys(members.values(), program))
            else:
                self._compile(draft.specs, [], draft.keys, draft.options)
            for key in members.values():
                self._drafts.pop(key, None)

    def _compile(self, specs, hasty, keys, options, drafts=None):
        """Compile `specs`, and `hasty` without optimisation, in parts, of which processes that are there take some."""
        count, compilers = len(specs) + len(hasty), self.compilers
        divided = compilers.most and (count >= SEVERAL if compilers.running else len(specs) >= MANY)
        parts = [(part, options) for part in _divided(specs, max(PART, -(-len(specs) // PARTS)) if divided else len(specs))]
        if specs:  # for drafts alone it would come too late, and be in the way
            # The first program that a process asks for is a device's self-test: where that is not on disk nothing is, and much will follow.
            compilers.start(max(0, len(parts) - 1) or int(self._compiled >= SEVERAL or not self._programs))
            self._compiled += len(specs)
        parts += [(part, f"{options} {HASTY}") for part in _dealt(hasty, compilers.running + 1 if divided else 1)]
        tasks = [(_source(part), how) for part, how in parts]
        programs = {}
        for k, binary in compilers.share(tasks):
            part, how = parts[k]
            members = _members(part, keys)
            program = binary and self._from_binary(binary, members)
            here = not program
            if here:
                program = self._build_here(part, *tasks[k])
            if how != options:
                programs.update(dict.fromkeys(part, program))
                continue
            if here and self.disk is not None:
                binary = binary_of(program)
                # A program that was compiled holds on to its compiler's memory, megabytes of it; one made of the binary does not.
                program = binary and self._from_binary(binary, members) or program
            self._store(members, binary)
            self._programs.update(dict.fromkeys(members.values(), program))
        if hasty:
            self._begin_better(programs, keys, options, drafts.weight)
        self.device.statistics.builds += 1
        self.device.statistics.kernels += count

    def _begin_better(self, programs, keys, options, weight):
        """Have drafts (a dict from their specs) done better beside, the kernels of the greatest weight first."""
        parts = _divided(sorted(programs, key=weight, reverse=True), max(PART, -(-len(programs) // PARTS)))
        members = [_members(part, keys) for part in parts]
        futures = self.compilers.begin([_source(part) for part in parts], options, lambda k, binary: self._store(members[k], binary))
        for part, future in zip(parts, futures, strict=True):
            for spec in part:
                self._drafts[keys[spec]] = _Draft(programs[spec], future, part, keys, options)

    def _build_here(self, specs, source, options):
        device, handle = self.device, self.device.handle
        try:
            return build_program(device.context, handle, source, options)
        except cl.Error as error:
            try:
                log = error.program.get_build_info(handle, cl.program_build_info.LOG) or str(error)
            except (cl.Error, AttributeError):
                log = str(error)
            raise KernelBuildError([name for name, *_ in specs], device, options, log, source) from None

    def _from_binary(self, binary, names):
        """The program that the binary holds, or None if the driver rejects it or kernels are missing from it."""
        try:
            program = _cl._Program(self.device.context, [self.device.handle], [binary])
            program._build(b"", [self.device.handle])
            present = program.get_info(cl.program_info.KERNEL_NAMES).split(";")
        except cl.Error:
            return None
        return program if set(names) <= set(present) else None


def _divided(specs, size):
    """Lists of `size` specs."""
    return [specs[k : k + size] for k in range(0, len(specs), max(1, size))]


def _dealt(specs, count):
    """Up to `count` lists of specs that take about equally long to compile: the longest first, each to the list that is shortest so far."""
    lists = [[0, k, []] for k in range(min(count, len(specs)))]
    for spec in sorted(specs, key=lambda spec: len(spec[1]), reverse=True):
        shortest = min(lists)
        shortest[0] += OWN + len(spec[1])
        shortest[2].append(spec)
    return [found for *_, found in lists]


def _members(specs, keys):
    """Kernel names and keys of `specs`, as the disk cache wants them."""
    return {name: keys[name, *rest] for name, *rest in specs}


def _source(specs):
    """One text of all kernels of `specs`, what they need first and once."""
    texts = [text for _, _, helpers in specs for text in helpers] + [text for _, text, _ in specs]
    return "\n".join(dict.fromkeys(texts))


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
