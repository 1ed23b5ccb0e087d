"""Programs: OpenCL C in, kernel objects out; compiled once, cached in memory and on disk.

Where other processes compile too, a caller may first get unoptimised builds of kernels, which take a fifth of the time to compile.
They give the same results, bit for bit, more slowly.
"""

import hashlib
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from keras_ocl.runtime import host
from keras_ocl.runtime.compilers import Compilers, most_compilers
from keras_ocl.runtime.disk_cache import DiskCache
from keras_ocl.runtime.driver import BuildFailure
from keras_ocl.runtime.errors import KernelBuildError
from keras_ocl.runtime.profilers import BUILD

STANDARD = "-cl-std=CL1.2"
FUSED = "-DFP_FAST_FMAF=1"  # CPU compilers do not define it; without it, unoptimised mad() is a separate product and sum
UNOPTIMISED = "-cl-opt-disable"
IN_MEMORY = 128 << 20  # bytes of the most recent programs, kept even if nobody uses them; older ones come back from disk
HELD, HELD_PER_BYTE = 256 << 10, 14  # bytes that Intel's runtime holds for a program that ran: per program, and per byte of its binary
MANY = 16  # kernels in one request for which other processes are started, which takes a quarter of a second
SEVERAL = 8  # kernels in one request that running processes help to compile; after so many compiled, one is started, as more follow
PART = 4  # fewest kernels compiled together as a part: each part costs some 15 ms more
PARTS = 16
FIRST_RUN = 1.0  # seconds after which optimised builds begin even if no unoptimised build has run yet
OWN = 1500  # an unoptimised kernel's fixed compile time, in characters of source; a helper's characters count twice


class Program:
    """One program of the driver. Kernels that are made from it keep it alive.

    Attributes:
        handle: the program as the driver knows it.
        held_bytes: estimate of the bytes that the driver holds for it.
    """

    __slots__ = ("__weakref__", "handle", "held_bytes")

    def __init__(self, handle, code):
        """code: the program's binary, or its source where the binary is unknown."""
        self.handle, self.held_bytes = handle, HELD + HELD_PER_BYTE * len(code)


class UnoptimisedBuilds:
    """Which of the kernels that a caller got from Programs.build are unoptimised builds.

    Args:
        choose: function from the specs of the first build to the set of those that may be unoptimised; by default none may.
        weight: function from a spec to a number: kernels with the greatest are optimised first.
        excess: function from a spec and a number of runs to the time lost by so many runs without optimisation, less the compiler's time.
    """

    def __init__(self, choose=None, weight=None, excess=None):
        self.weight, self._excess, self._choose, self._chosen = weight, excess, choose or (lambda specs: set()), None
        self.awaited = set()  # Futures of optimised binaries
        self._first, self._last, self._runs = Future(), None, 0

    def chosen(self, specs):
        """The set of specs that may be unoptimised."""
        if self._chosen is None:
            self._chosen = self._choose(specs)
        return self._chosen

    def better(self):
        """Whether another build would give optimised kernels."""
        return any(future.done() for future in self.awaited)

    def ran(self, event):
        """Note that a run of the kernels was enqueued; `event` is its last."""
        if not self._first.done():
            self._first.set_result(event)
        self._last = event
        self._runs += 1

    def await_run(self, device):
        """Wait until the last run is over, since runs enqueued behind it could only use the present kernels."""
        if self._last is not None:
            device.wait(self._last)

    def await_first(self, device):
        """Wait until the first run is over, or for FIRST_RUN seconds if none begins: optimised builds would slow it down."""
        try:
            device.await_quietly(self._first.result(FIRST_RUN))
        except TimeoutError:
            pass

    def due(self, specs):
        """Whether unoptimised builds of `specs` have run for so long that waiting for the compiler pays."""
        return sum(self._excess(spec, self._runs) for spec in specs) > 0


@dataclass(frozen=True)
class _UnoptimisedBuild:
    """A weak reference to a Program compiled without optimisation, and the Future of an optimised binary (or None).

    The binary has the kernels `specs`, this build's kernel among them.
    """

    program: weakref.ref
    future: Future
    specs: list
    keys: dict
    options: str


class Programs:
    """The programs of one device.

    A kernel is identified by its function name, source and options. Unknown kernels that are requested together are compiled as one
    program; each is remembered on its own, so another set of them finds it too.
    """

    def __init__(self, device):
        self.device = device
        # PoCL and NVIDIA cache what they compile. Asking PoCL for a binary would compile every kernel twice
        # (again for unknown work-group sizes), 100 ms each, and save 50 ms per program.
        caches = device.driver.caches_programs
        self.steps = DiskCache(warns=not caches) if device.runs else None  # where compiled steps are (compiler/run/stored.py)
        self.disk = None if caches else self.steps
        self._compiled = 0  # number of kernels so far
        self._programs = weakref.WeakValueDictionary()  # kernel's key -> Program: those that kernel objects keep alive, and the recent ones
        self._recent = OrderedDict()  # the most recently requested Programs, the latest last -> None
        self._unoptimised = {}  # kernel's key -> _UnoptimisedBuild, until an optimised program replaces it
        self._lock = threading.Lock()
        self._identity = device.driver.identity
        # GPU drivers compile in several threads, or have caches of their own.
        beside = self.disk is not None and device.kind == "cpu"
        self.compilers = Compilers(self._identity, most_compilers(device.traits.compute_units) if beside else 0)
        self.unoptimised_is_exact = beside and host.fuses_multiply_add()

    def build(self, specs, options="", unoptimised=None):
        """Kernel objects for `specs` as a dict by function name.

        A spec is (function name, source) or (function name, source, helpers); helpers are texts (functions, macros, pragmas) that the
        source needs, put once in front of all sources. Every call makes new kernel objects (their arguments belong to the caller). With
        `unoptimised`, an UnoptimisedBuilds, some may be unoptimised; it learns which Futures to wait for. Raises KernelBuildError.
        """
        if "-cl-std" not in options:
            options = f"{STANDARD} {options}".strip()
        if self.unoptimised_is_exact:
            options = f"{options} {FUSED}"
        specs = list(dict.fromkeys((name, source, tuple(rest[0]) if rest else ()) for name, source, *rest in specs))
        keys = {spec: self._key(spec, options) for spec in specs}
        with self._lock:
            if self.disk is not None:
                self._load(keys)
            self._take_optimised()
            known = {spec: self._programs.get(keys[spec]) for spec in specs}  # these references keep the programs alive
            missing = [spec for spec, program in known.items() if program is None]
            allowed = unoptimised.chosen(specs) if missing and unoptimised and self.unoptimised_is_exact and self.compilers.most else ()
            optimised = [spec for spec in missing if spec not in allowed]
            begun = {spec: self._unoptimised_program(keys[spec]) for spec in missing if spec in allowed}
            fast = [spec for spec, program in begun.items() if program is None]
            if optimised or fast:
                with self.device.span(f"{BUILD} {len(optimised) + len(fast)} kernels"):
                    self._obtain(optimised, fast, keys, options, unoptimised)
            if allowed:
                unoptimised.awaited |= {self._unoptimised[keys[spec]].future for spec in missing if spec in allowed}
            programs = {spec[0]: known[spec] or self._programs.get(keys[spec]) or self._unoptimised_program(keys[spec]) for spec in specs}
            kernels = {name: _kernel(self.device.driver, program, name) for name, program in programs.items()}
            self._keep_recent(programs.values())
        return kernels

    @property
    def held_bytes(self):
        """Estimate of the bytes that the driver holds for the recent programs, which are kept even if nobody uses them."""
        return sum(program.held_bytes for program in self._recent)

    def _unoptimised_program(self, key):
        """The unoptimised Program of a kernel; None where there is none, or it is no longer alive."""
        build = self._unoptimised.get(key)
        return build and build.program()

    def _add(self, keys, program):
        """Register `program` for the kernels with these keys, and keep it for the time being."""
        self._programs.update(dict.fromkeys(keys, program))
        self._recent[program] = None

    def _keep_recent(self, programs):
        """Mark `programs` as the most recent, and drop the oldest until IN_MEMORY bytes are left."""
        self._recent.update(dict.fromkeys(programs))
        for program in programs:
            self._recent.move_to_end(program)
        held = self.held_bytes
        while held > IN_MEMORY:
            held -= self._recent.popitem(last=False)[0].held_bytes

    def complete(self, unoptimised):
        """Optimise the builds that `unoptimised` says are due: compile here those that no process has begun, and wait for the others."""
        with self._lock:
            awaited = {id(build.future): build for build in self._unoptimised.values() if build.future in unoptimised.awaited}
            due = [build for build in awaited.values() if unoptimised.due(build.specs)]
            for build in reversed(due):  # other processes take from the front
                if build.future.cancel():
                    self._exchange(build, None)
        for build in due:
            if not build.future.cancelled():
                build.future.result()

    def _exchange(self, build, program):
        """Replace an unoptimised build by the optimised `program`; None: by one that is on disk, or is compiled now."""
        keys = _members(build.specs, build.keys).values()
        if program:
            self._add(keys, program)
        else:
            self._obtain(build.specs, [], build.keys, build.options)
        for key in keys:
            self._unoptimised.pop(key, None)

    def forget(self):
        """Drop all programs held in memory; the disk cache stays."""
        with self._lock:
            self._programs.clear()
            self._recent.clear()
            self._unoptimised.clear()

    def _key(self, spec, options):
        name, source, helpers = spec
        return hashlib.sha256("\0".join((name, source, *helpers, options, self._identity)).encode()).hexdigest()

    def _load(self, keys):
        """Load those kernels from disk that are not in memory yet."""
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

    def _take_optimised(self):
        """Replace unoptimised builds whose optimised binaries are ready; binaries for those that are gone are on disk."""
        self._unoptimised = {key: build for key, build in self._unoptimised.items() if build.program() is not None}
        for build in {id(b.future): b for b in self._unoptimised.values() if b.future.done()}.values():
            # A cancelled one was to be compiled here, but that was interrupted.
            binary = None if build.future.cancelled() else build.future.result()
            self._exchange(build, binary and self._from_binary(binary, _members(build.specs, build.keys)))

    def _unknown(self, specs, keys):
        """Those of `specs` that are neither in memory nor, by now, on disk."""
        self._load({spec: keys[spec] for spec in specs})
        return [spec for spec in specs if keys[spec] not in self._programs]

    def _obtain(self, specs, fast, keys, options, unoptimised=None):
        """Compile `specs`, or wait for other processes that are compiling them, and `fast` without optimisation."""
        if self.disk is None:
            self._compile(specs, fast, keys, options, unoptimised)
            return
        while specs or fast:
            claimed = set(self.disk.claims.take([keys[spec] for spec in specs]))
            try:
                mine = self._unknown([spec for spec in specs if keys[spec] in claimed], keys)
                if mine or fast:
                    self._compile(mine, fast, keys, options, unoptimised)
            finally:
                self.disk.claims.give_back(claimed)
            theirs, fast = [spec for spec in specs if keys[spec] not in claimed], ()
            self.disk.claims.wait([keys[spec] for spec in theirs])
            specs = self._unknown(theirs, keys)

    def _compile(self, specs, fast, keys, options, unoptimised=None):
        """Compile `specs`, and `fast` without optimisation, in parts, some of which other running processes take."""
        count, compilers = len(specs) + len(fast), self.compilers
        divided = compilers.most and (count >= SEVERAL if compilers.running else len(specs) >= MANY)
        parts = [(part, options) for part in _divided(specs, max(PART, -(-len(specs) // PARTS)) if divided else len(specs))]
        if specs:  # for unoptimised builds alone new processes would start too late, and be in the way
            # A process's first program is a device's self-test: if even that is not on disk, much will have to be compiled.
            compilers.start(max(0, len(parts) - 1) or int(self._compiled >= SEVERAL or not self._programs))
            self._compiled += len(specs)
        parts += [(part, f"{options} {UNOPTIMISED}") for part in _dealt(fast, compilers.running + 1 if divided else 1)]
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
                binary = self.device.driver.binary(program.handle)
                # A program that was compiled keeps megabytes of its compiler's memory in use; one made from the binary does not.
                program = binary and self._from_binary(binary, members) or program
            if how != options:
                programs.update(dict.fromkeys(part, program))
                self._recent[program] = None
                continue
            self._store(members, binary)
            self._add(members.values(), program)
        if fast:
            self._begin_optimised(programs, keys, options, unoptimised)
        self.device.statistics.builds += 1
        self.device.statistics.kernels += count

    def _begin_optimised(self, programs, keys, options, unoptimised):
        """Have unoptimised builds, a dict from spec to Program, optimised by other processes, the kernels of the greatest weight first."""
        parts = _divided(sorted(programs, key=unoptimised.weight, reverse=True), max(PART, -(-len(programs) // PARTS)))
        members = [_members(part, keys) for part in parts]
        sources, after = [_source(part) for part in parts], partial(unoptimised.await_first, self.device)

        def wanted(k):
            """Claims a part and returns True, unless other processes have compiled it; waits while they do."""
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
                self._unoptimised[keys[spec]] = _UnoptimisedBuild(weakref.ref(programs[spec]), future, part, keys, options)

    def _build_here(self, specs, source, options):
        device = self.device
        try:
            return Program(device.driver.compile(source, options), source)
        except BuildFailure as failure:
            raise KernelBuildError([name for name, *_ in specs], device, options, failure.log, source) from None

    def _from_binary(self, binary, names):
        """The program that the binary holds, or None if the driver rejects it or kernels are missing from it."""
        program, present = self.device.driver.load(binary) or (None, ())
        return Program(program, binary) if set(names) <= set(present) else None


def _divided(specs, size):
    """Lists of at most `size` specs each."""
    return [specs[k : k + size] for k in range(0, len(specs), max(1, size))]


def _dealt(specs, count):
    """At most `count` lists of specs with about equal compile times: the longest spec first, each into the list that is then shortest."""
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
    """dict from the kernel names of `specs` to their keys, as the disk cache takes it."""
    return {name: keys[name, *rest] for name, *rest in specs}


def _source(specs):
    """The source of all kernels of `specs` as one text, with their helpers first and once."""
    texts = [text for _, _, helpers in specs for text in helpers] + [text for _, text, _ in specs]
    return "\n".join(dict.fromkeys(texts))


def _kernel(driver, program, name):
    """A kernel object of a Program, which it keeps alive."""
    kernel = driver.kernel(program.handle, name)
    kernel.ours = program
    return kernel
