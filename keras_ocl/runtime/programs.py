"""Programs: OpenCL C in, kernel objects out; compiled once, remembered in memory and on disk.

Where processes beside this one compile, a caller may be given drafts at first: kernels compiled without optimisation, in a fifth of
the time. They give the same results, bit for bit, more slowly.
"""

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial, wraps

import platformdirs
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
IN_MEMORY = 128 << 20  # bytes of programs that are kept although nobody may be using them; others come back from disk
HELD, HELD_PER_BYTE = 256 << 10, 14  # bytes that Intel's runtime holds for a program that ran: for each, and for each byte of its binary
MANY = 16  # kernels asked for together for which other processes are started: that takes a quarter of a second
SEVERAL = 8  # kernels of which a process that runs already compiles parts; and when so many are compiled one is started, as more follow
PART = 4  # the fewest kernels of a part: each costs some 15 ms more
PARTS = 16
FIRST_RUN = 1.0  # seconds after which better kernels are begun although drafts have not run yet
OWN = 1500  # characters that take as long to compile without optimisation as what every kernel costs by itself; a helper's take twice that


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


class Program:
    """One of the driver's programs. The kernels that are made of it keep it.

    Attributes:
        handle: pyopencl's.
        held_bytes: about what the driver holds for it.
    """

    __slots__ = ("__weakref__", "handle", "held_bytes")

    def __init__(self, handle, code):
        """code: the program's binary, or its source where nobody knows that."""
        self.handle, self.held_bytes = handle, HELD + HELD_PER_BYTE * len(code)


class Drafts:
    """Which kernels that a caller got of Programs.build are drafts.

    Args:
        choose: function from specs, those of the first build, to a set of those for which drafts will do; none without it.
        weight: function from a spec to a number: the kernel of the greatest is done better first.
        excess: function from a spec and a number of runs to a number: how much more than the compiler's work so many runs of a draft take.
    """

    def __init__(self, choose=None, weight=None, excess=None):
        self.weight, self._excess, self._choose, self._chosen = weight, excess, choose or (lambda specs: set()), None
        self.awaited = set()  # Futures of binaries that are better
        self._first, self._last, self._runs = Future(), None, 0

    def chosen(self, specs):
        """The set of specs for which drafts will do."""
        if self._chosen is None:
            self._chosen = self._choose(specs)
        return self._chosen

    def better(self):
        """Whether building once more gives better kernels."""
        return any(future.done() for future in self.awaited)

    def ran(self, event):
        """A run of the kernels is enqueued, which ends with this event."""
        if not self._first.done():
            self._first.set_result(event)
        self._last = event
        self._runs += 1

    def await_run(self, device):
        """Wait until the last run is over: what is enqueued behind it would have to run with the kernels that there are now."""
        if self._last is not None:
            device.wait(self._last)

    def await_first(self, device):
        """Wait until the first run is over, for the thread that has better kernels begun: they would slow it down."""
        try:
            device.await_quietly(self._first.result(FIRST_RUN))
        except TimeoutError:
            pass

    def due(self, specs):
        """Whether drafts of these have run for as long as the compiler would have taken, so that it pays to wait for it."""
        return sum(self._excess(spec, self._runs) for spec in specs) > 0


@dataclass(frozen=True)
class _Draft:
    """A weak reference to a Program compiled without optimisation, and the Future of a better binary of the kernels `specs` (or of None),
    among others.
    """

    program: weakref.ref
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
        self._programs = weakref.WeakValueDictionary()  # kernel's key -> Program: of kernels that are there, and the recent ones
        self._recent = OrderedDict()  # the Programs asked for last, the latest at the end -> None
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
            known = {spec: self._programs.get(keys[spec]) for spec in specs}  # from here on none of them goes
            missing = [spec for spec, program in known.items() if program is None]
            hasty = drafts.chosen(specs) if missing and drafts and self.drafts_are_exact and self.compilers.most else ()
            good = [spec for spec in missing if spec not in hasty]
            begun = {spec: self._draft(keys[spec]) for spec in missing if spec in hasty}
            fast = [spec for spec, program in begun.items() if program is None]
            if good or fast:
                with self.device.span(f"{BUILD} {len(good) + len(fast)} kernels"):
                    self._obtain(good, fast, keys, options, drafts)
            if hasty:
                drafts.awaited |= {self._drafts[keys[spec]].future for spec in missing if spec in hasty}
            programs = {spec[0]: known[spec] or self._programs.get(keys[spec]) or self._draft(keys[spec]) for spec in specs}
            kernels = {name: _kernel(program, name) for name, program in programs.items()}
            self._keep_recent(programs.values())
        return kernels

    @property
    def held_bytes(self):
        """About what the driver holds for the programs that are kept although nobody may be using them."""
        return sum(program.held_bytes for program in self._recent)

    def _draft(self, key):
        """The Program that is the draft of a kernel; None where there is none, or nobody has it any more."""
        draft = self._drafts.get(key)
        return draft and draft.program()

    def _add(self, keys, program):
        """The kernels of these keys are found in `program`, which is kept for the time being."""
        self._programs.update(dict.fromkeys(keys, program))
        self._recent[program] = None

    def _keep_recent(self, programs):
        """Keep these, and of others as many of the last as IN_MEMORY allows."""
        self._recent.update(dict.fromkeys(programs))
        for program in programs:
            self._recent.move_to_end(program)
        held = self.held_bytes
        while held > IN_MEMORY:
            held -= self._recent.popitem(last=False)[0].held_bytes

    def complete(self, drafts):
        """Have those better that `drafts` says are due: compile here what no process has begun, and wait for the others."""
        with self._lock:
            awaited = {id(draft.future): draft for draft in self._drafts.values() if draft.future in drafts.awaited}
            due = [draft for draft in awaited.values() if drafts.due(draft.specs)]
            for draft in reversed(due):  # processes take from the front
                if draft.future.cancel():
                    self._exchange(draft, None)
        for draft in due:
            if not draft.future.cancelled():
                draft.future.result()

    def _exchange(self, draft, program):
        """Put a better program in the place of a draft's; None: one that is on disk, or is compiled now."""
        keys = _members(draft.specs, draft.keys).values()
        if program:
            self._add(keys, program)
        else:
            self._obtain(draft.specs, [], draft.keys, draft.options)
        for key in keys:
            self._drafts.pop(key, None)

    def forget(self):
        """Drop all programs held in memory; the disk cache stays."""
        with self._lock:
            self._programs.clear()
            self._recent.clear()
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
            self._add([member_key for member_key in members.values() if member_key not in self._programs], program)

    def _store(self, members, binary):
        if binary:
            self.disk.put(members, binary)

    def _take_better(self):
        """Put what has been compiled well in the place of drafts; of drafts that are gone it is on disk."""
        self._drafts = {key: draft for key, draft in self._drafts.items() if draft.program() is not None}
        for draft in {id(d.future): d for d in self._drafts.values() if d.future.done()}.values():
            # One that was cancelled was to be compiled here, and that was interrupted.
            binary = None if draft.future.cancelled() else draft.future.result()
            self._exchange(draft, binary and self._from_binary(binary, _members(draft.specs, draft.keys)))

    def _unknown(self, specs, keys):
        """Those of `specs` that are neither in memory nor, by now, on disk."""
        self._load({spec: keys[spec] for spec in specs})
        return [spec for spec in specs if keys[spec] not in self._programs]

    def _obtain(self, specs, hasty, keys, options, drafts=None):
        """Compile `specs`, or wait for other processes that are compiling them, and `hasty` without optimisation."""
        if self.disk is None:
            self._compile(specs, hasty, keys, options, drafts)
            return
        while specs or hasty:
            claimed = set(self.disk.claims.take([keys[spec] for spec in specs]))
            try:
                mine = self._unknown([spec for spec in specs if keys[spec] in claimed], keys)
                if mine or hasty:
                    self._compile(mine, hasty, keys, options, drafts)
            finally:
                self.disk.claims.give_back(claimed)
            theirs, hasty = [spec for spec in specs if keys[spec] not in claimed], ()
            self.disk.claims.wait([keys[spec] for spec in theirs])
            specs = self._unknown(theirs, keys)

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
            if here and self.disk is not None:
                binary = binary_of(program.handle)
                # A program that was compiled holds on to its compiler's memory, megabytes of it; one made of the binary does not.
                program = binary and self._from_binary(binary, members) or program
            if how != options:
                programs.update(dict.fromkeys(part, program))
                self._recent[program] = None
                continue
            self._store(members, binary)
            self._add(members.values(), program)
        if hasty:
            self._begin_better(programs, keys, options, drafts)
        self.device.statistics.builds += 1
        self.device.statistics.kernels += count

    def _begin_better(self, programs, keys, options, drafts):
        """Have drafts (a dict from their specs) done better beside, the kernels of the greatest weight first."""
        parts = _divided(sorted(programs, key=drafts.weight, reverse=True), max(PART, -(-len(programs) // PARTS)))
        members = [_members(part, keys) for part in parts]
        sources, after = [_source(part) for part in parts], partial(drafts.await_first, self.device)

        def wanted(k):
            """Claims a part, unless other processes have compiled it, for whom it waits."""
            kernels = list(members[k].values())
            self.disk.claims.take_all(kernels)
            if any(self.disk.get(key) is None for key in kernels):
                return True
            self.disk.claims.give_back(kernels)
            return False

        def keep(k, binary):
            try:
                self._store(members[k], binary)
            finally:
                self.disk.claims.give_back(members[k].values())

        futures = self.compilers.begin(sources, options, wanted, keep, after)
        for part, future in zip(parts, futures, strict=True):
            for spec in part:
                self._drafts[keys[spec]] = _Draft(weakref.ref(programs[spec]), future, part, keys, options)

    def _build_here(self, specs, source, options):
        device, handle = self.device, self.device.handle
        try:
            return Program(build_program(device.context, handle, source, options), source)
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
        return Program(program, binary) if set(names) <= set(present) else None


def _divided(specs, size):
    """Lists of `size` specs."""
    return [specs[k : k + size] for k in range(0, len(specs), max(1, size))]


def _dealt(specs, count):
    """Up to `count` lists of specs that take about equally long to compile: the longest first, each to the list that is then shortest."""
    lists, shared, lengths = ([make() for _ in range(min(count, len(specs)))] for make in (list, set, int))

    def length(text, helpers):
        return OWN + len(text) + 2 * sum(map(len, helpers))

    for spec in sorted(specs, key=lambda spec: length(spec[1], spec[2]), reverse=True):
        with_it = [n + length(spec[1], {*spec[2]} - has) for n, has in zip(lengths, shared, strict=True)]
        shortest = with_it.index(min(with_it))
        lengths[shortest] = with_it[shortest]
        shared[shortest].update(spec[2])
        lists[shortest].append(spec)
    return lists


def _members(specs, keys):
    """Kernel names and keys of `specs`, as the disk cache wants them."""
    return {name: keys[name, *rest] for name, *rest in specs}


def _source(specs):
    """One text of all kernels of `specs`, what they need first and once."""
    texts = [text for _, _, helpers in specs for text in helpers] + [text for _, text, _ in specs]
    return "\n".join(dict.fromkeys(texts))


_creating = threading.local()


def _unless_ours(generate):
    @wraps(generate)
    def generated(*args, **kwargs):
        return (None, None) if getattr(_creating, "ours", False) else generate(*args, **kwargs)

    return generated


def _invoker():
    """pyopencl's module of that code."""
    try:
        # Where this folder cannot be made pyopencl's database complains of itself when it is deleted.
        os.makedirs(platformdirs.user_cache_dir("pytools", "pytools"), exist_ok=True)
        from pyopencl import invoker
    except Exception:
        # Its database cannot be written.
        cl._PYOPENCL_NO_CACHE = True
        from pyopencl import invoker
    return invoker


_invoker().generate_enqueue_and_set_args = _unless_ours(_invoker().generate_enqueue_and_set_args)


def _kernel(program, name):
    """A kernel object of a Program, which it keeps, that is launched by `Device` alone.

    pyopencl writes Python code for calling each kernel as a function, and keeps it by the kernel's name in a database under the user's
    cache folder: up to a millisecond each, for what nothing of ours calls, in a file that grows with every kernel.
    """
    _creating.ours = True
    try:
        kernel = cl.Kernel(program.handle, name)
    finally:
        _creating.ours = False
    kernel.ours = program
    return kernel
