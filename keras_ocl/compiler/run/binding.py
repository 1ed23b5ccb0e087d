"""Binding: a Program gets its memory and kernel objects, whose arguments are set once.

Buffers that live only during a run lie in one arena. Inputs and outputs, which come from outside, are bound again if they changed since
the last run. Where unknown extents get other values, the numbers computed from them are set again: arguments, grids, sizes, steps.
"""

import itertools
import struct

from keras_ocl import runtime
from keras_ocl.compiler.run.plan import Interval, live_bytes, place
from keras_ocl.compiler.run.program import Formula, HostCall, HostEnd, Local, Loop, Pointer, Step, inside, launches_of, value, values
from keras_ocl.compiler.run.sources import Computed
from keras_ocl.compiler.run.unoptimised import unoptimised_builds
from keras_ocl.core.dim import product
from keras_ocl.core.primitive import Primitive

_MARGIN = 8  # a buffer that outgrows its place in the arena gets an eighth more bytes than it needs now
_COUNTED = 2**63  # bytes: more than the kernels' 64-bit indices reach
_NOWHERE = object()  # value of `home` that is no arena's Storages

_FORMATS = {
    "int": "i",
    "uint": "I",
    "long": "q",
    "ulong": "Q",
    "float": "f",
    "double": "d",
    "short": "h",
    "ushort": "H",
    "char": "b",
    "uchar": "B",
}


class GroupTooLarge(RuntimeError):
    """A built kernel's work-group has more work-items than the device can run of it; `limit` is the most that it can."""

    def __init__(self, name, items, limit):
        super().__init__(f"{name}: its groups have {items} work-items, but the device can run {limit} of this kernel in a group")
        self.limit = limit


class BoundHost:
    """A program.HostCall with its buffers; `ends`: whether a BoundEnd follows, before which a thread computes it.

    Args:
        sources: the lowered launches by number, which know the operations' provenance, and the code of users' own ones.
    """

    def __init__(self, call, sources, frame):
        self._call, self.ends, self.single = call, False, call.single
        self.primitive = Primitive.named(call.primitive) or sources[call.number].node.primitive
        self.label = runtime.Label(call.primitive, Computed(sources, call.number))
        self.reads = [frame[a.buffer] for a in call.reads]
        self.writes = [a.buffer if a.buffer is None else frame[a.buffer] for a in call.writes]
        self.read_dtypes, self.written_dtypes = ([a.dtype for a in arrays] for arrays in (call.reads, call.writes))

    def set(self, numbers):
        """Compute shapes and parameters from the values of the formulas."""
        self.read_shapes, self.written_shapes = ([values(a.shape, numbers) for a in some] for some in (self._call.reads, self._call.writes))
        self.params = {
            name: values(given, numbers) if isinstance(given, tuple) and any(type(n) is Formula for n in given) else given
            for name, given in self._call.params
        }


class BoundEnd:
    """The place where the operation of a BoundHost, which a thread computes, must be done."""

    def __init__(self, host):
        self.host = host
        host.ends = True


class BoundLoop:
    """A program.Loop with its buffers and kernel objects: for each variant, a step's segments and the arguments that hold its number.

    `length`: the number of steps of a scan; None for a while loop. `before`, `after`, `last`: copies (source, target, bytes, offsets).
    """

    def __init__(self, loop, frame, variants):
        self._loop, self._frame, self.variants, self.reverse = loop, frame, variants, loop.reverse
        self.condition = loop.condition and [frame[b] for b in loop.condition]
        self.state = None if loop.state is None else frame[loop.state]
        self.guards = [(frame[flag], taken) for flag, taken in loop.guards]
        # Steps that consist of kernels alone are launched by the device in one go.
        self.plain = all(len(segments) == 1 and type(segments[0]) is list for segments, _ in variants)

    def set(self, numbers):
        """Compute the length and the copies' sizes from the values of the formulas."""
        self.length = self._loop.length and value(self._loop.length, numbers)
        self.before, self.after, self.last = (
            [(self._frame[c.source], self._frame[c.target], *values((c.nbytes, c.start, c.end), numbers)) for c in copies]
            for copies in (self._loop.before, self._loop.after, self._loop.last)
        )


class Binding:
    """Memory and kernel objects for a Program.

    Args:
        sources: the lowered launches by number (sources.Sources).
        allow_unoptimised: whether kernels that are not compiled yet may first be built without optimisation, where that pays.

    Raises GroupTooLarge where a kernel turns out to need smaller groups.

    Attributes:
        values: the unknown extents' present values, a tuple of ints; None while a change is under way.
        segments: lists of (kernel, grid, group, label), with BoundHost, BoundEnd and BoundLoop between the lists.
        storages: dict from a buffer's number to its Storage. The caller gives those of inputs and new outputs by `bind`; others get memory
            in the device's arena, by `enter`.
        lives: dict from a buffer in the arena to its Interval (liveness and place); `parts`: bytes of each of the arena's parts,
            `arena_bytes`: of all.
        sizes: dict from every buffer to its present size in bytes.
        home: the arena's Storages in which the buffers lie now.
        kernels: number of kernel objects.
        unoptimised: the runtime.UnoptimisedBuilds: which of the kernels are built without optimisation.
    """

    def __init__(self, device, program, sources, allow_unoptimised):
        self._device, self._program, self._sources = device, program, sources
        self._whole = not device.traits.sub_buffers
        self._formulas, self.values = program.numbers(), program.extents
        self._numbers = numbers = self._formulas(*self.values)  # symbol of a Formula -> its value; none while a change is under way
        self.sizes, buffers = {}, [(b, m.elements, m.itemsize) for b, m in enumerate(program.buffers)]
        self._measure(buffers, numbers)
        self.lives = {b: Interval(b, self.sizes[b], m.first, m.last) for b, m in enumerate(program.buffers) if m.first is not None}
        self._plan()
        self._places = {}  # buffer -> [(kernel, position of the pointer argument, position of its offset's argument)]
        # What changes with unknown extents: buffers, as in `_measure`; arguments (kernel, position, struct.Struct or bytes of an element
        # of local memory, symbol of a Formula); grids (segment, position there, grid); BoundHosts and BoundLoops.
        self._sized = [entry for entry in buffers if type(entry[1]) is Formula]
        self._scalars, self._locals, self._grids, self._others = [], [], [], []
        kernels, self.unoptimised = self._kernels(allow_unoptimised)
        self.kernels = sum(map(len, kernels.values()))
        self.segments, _ = self._bound_launches(program.launches, program.frame, kernels)
        self._change(numbers, {})
        self._bound = {}  # buffer -> the cl.Buffer, or (cl.Buffer, offset in bytes), that its kernels' arguments are set to
        self.storages = {}
        self.home = _NOWHERE

    def _measure(self, buffers, numbers):
        """Note in `sizes` the bytes of (buffer, elements, bytes of one) where formulas have the values `numbers`."""
        for buffer, elements, itemsize in buffers:
            count = numbers[elements.symbol] if type(elements) is Formula else elements
            if count * itemsize >= _COUNTED:
                raise self._device.memory.out_of_memory(f"{self._program.name} makes an array of {count} elements")
            self.sizes[buffer] = count * itemsize

    def _plan(self):
        traits = self._device.traits
        self.parts = place(self.lives.values(), traits.alignment, traits.max_allocation)

    @property
    def arena_bytes(self):
        return sum(self.parts)

    @property
    def live_bytes(self):
        """The most bytes of the arena's buffers that are alive at once: no arena can be smaller."""
        return live_bytes(self.lives.values(), self._device.traits.alignment)

    def change(self, values):
        """Set the unknown extents to these values. The arena's plan stays while each buffer fits into its place.

        If this is interrupted, the next run does it again.
        """
        numbers = self._formulas(*values)
        before, self.values, self._numbers = self._numbers, None, {}
        self._change(numbers, before)
        grown = [(interval, self.sizes[buffer]) for buffer, interval in self.lives.items() if self.sizes[buffer] > interval.nbytes]
        if grown or self.parts is None:
            self.parts = None
            self.leave()
            for interval, nbytes in grown:
                interval.nbytes = nbytes + nbytes // _MARGIN
            self._plan()
        self.values, self._numbers = values, numbers

    def enter(self, arena):
        """Place the buffers in an Arena's memory, until it calls `leave`. The caller holds its lock."""
        home = arena.enter(self, self.parts, self._program.name)
        for buffer, interval in self.lives.items():
            self.bind(buffer, home[interval.part].view(interval.offset, interval.nbytes))
        self.home = home

    def leave(self):
        """Let go of the arena's memory."""
        self.home = _NOWHERE
        for buffer in self.lives:
            self.storages[buffer] = self._bound[buffer] = None

    def bind(self, buffer, storage):
        """Make `storage` the buffer's memory, in the arguments of all kernels that use it."""
        self.storages[buffer] = storage
        if self._whole:
            self._bind_whole(buffer, storage)
            return
        mem = storage.mem
        if self._bound.get(buffer) is not mem:
            self._bound[buffer] = None  # if this is interrupted, the kernels' arguments are unknown
            for kernel, position, _ in self._places.get(buffer, ()):
                kernel.set_arg(position, mem)
            self._bound[buffer] = mem

    def _bind_whole(self, buffer, storage):
        base, offset = where = storage.base, storage.offset
        if self._bound.get(buffer) != where:
            self._bound[buffer] = None
            number = struct.pack("Q", offset)
            for kernel, position, behind in self._places.get(buffer, ()):
                kernel.set_arg(position, base)
                runtime.set_argument(kernel, behind, number)
            self._bound[buffer] = where

    def _kernels(self, allow_unoptimised):
        """(dict from a kernel's name to a list of kernel objects, one for each launch and variant; the runtime.UnoptimisedBuilds)."""
        device, program, sources = self._device, self._program, self._sources
        counts, builds = {}, runtime.UnoptimisedBuilds()
        for launch, times in launches_of(program.launches):
            counts[launch.kernel] = counts.get(launch.kernel, 0) + times
        texts = {name: (name, program.kernels[name].source, program.kernels[name].helpers) for name in counts}
        if allow_unoptimised:
            named = ((sources[launch.number], texts[launch.kernel]) for launch, _ in launches_of(program.launches))
            builds = unoptimised_builds((sources[launch.number] for launch in program.launches), named, device.traits)
        free = {}
        for repeat in range(max(counts.values(), default=0)):
            batch = [texts[name] for name, count in counts.items() if count > repeat]
            for name, kernel in device.build(batch, program.options, builds).items():
                free.setdefault(name, []).append(kernel)
        self._check_groups(free)
        return free, builds

    def _check_groups(self, built):
        """Raises GroupTooLarge if kernels need more work-items in a group than they can have, for the one with the smallest limit."""
        groups = {x.kernel: (x.name, product(x.group)) for x, _ in launches_of(self._program.launches) if x.group and product(x.group) > 1}
        short = [(self._device.group_limit(built[name][0]), items, title) for name, (title, items) in groups.items()]
        short = [entry for entry in short if entry[0] < entry[1]]
        if short:
            limit, items, title = min(short)
            raise GroupTooLarge(title, items, limit)

    def _bound_launches(self, launches, frame, kernels):
        """(segments, places): segments as in the attribute; places, the (kernel, argument position) of each step number.

        `frame`: the Program's numbers of the launches' buffers.
        """
        segments, steps, hosts = [[]], [], {}
        for launch in launches:
            kind = type(launch)
            if kind is HostCall:
                hosts[launch.number] = BoundHost(launch, self._sources, frame)
                segments += [hosts[launch.number], []]
                self._others.append(hosts[launch.number])
            elif kind is HostEnd:
                segments += [BoundEnd(hosts[launch.call]), []]
            elif kind is Loop:
                frames = [inside(launch, v, frame) for v in range(len(launch.variants))]
                segments += [BoundLoop(launch, frame, [self._bound_launches(launch.body, f, kernels) for f in frames]), []]
                self._others.append(segments[-2])
            else:
                kernel = kernels[launch.kernel].pop()
                self._bound_arguments(kernel, launch.arguments, frame, steps)
                if not launch.empty:
                    self._bound_grid(kernel, launch, segments[-1])
        return [s for s in segments if s != []] or [[]], steps

    def _bound_arguments(self, kernel, arguments, frame, steps):
        """Set a kernel's constant arguments, note where the others are, and add the (kernel, position) of step numbers to `steps`."""
        behind = itertools.count(len(arguments))
        for position, a in enumerate(arguments):
            kind = type(a)
            if kind is Pointer:
                self._places.setdefault(frame[a.buffer], []).append((kernel, position, next(behind)))
            elif kind is Step:
                steps.append((kernel, position))
            elif kind is Local:
                size = size_of(a.ctype)
                if type(a.elements) is Formula:
                    self._locals.append((kernel, position, size, a.elements.symbol))
                else:
                    runtime.set_argument(kernel, position, runtime.local_memory(a.elements * size))
            elif type(a.value) is Formula:
                self._scalars.append((kernel, position, struct.Struct(_FORMATS[a.ctype]), a.value.symbol))
            else:
                runtime.set_argument(kernel, position, struct.pack(_FORMATS[a.ctype], a.value))

    def _bound_grid(self, kernel, launch, segment):
        """Add a launch to a segment."""
        group = launch.group and (*launch.group, 1, 1)[: len(launch.grid)]
        computed = Computed(self._sources, launch.number, self._program.kernels[launch.kernel])
        label = runtime.Label(launch.name, computed, overwrites=launch.overwrites)
        segment.append((kernel, values(launch.grid, self._numbers), group, label))
        if any(type(n) is Formula for n in launch.grid):
            self._grids.append((segment, len(segment) - 1, launch.grid))

    def _change(self, numbers, before):
        """Set all that is computed from formulas to the values `numbers`; arguments only if they were others `before`."""
        self._measure(self._sized, numbers)
        for kernel, position, form, symbol in self._scalars:
            if numbers[symbol] != before.get(symbol):
                runtime.set_argument(kernel, position, form.pack(numbers[symbol]))
        for kernel, position, size, symbol in self._locals:
            if numbers[symbol] != before.get(symbol):
                runtime.set_argument(kernel, position, runtime.local_memory(numbers[symbol] * size))
        for segment, k, grid in self._grids:
            kernel, _, group, label = segment[k]
            segment[k] = kernel, values(grid, numbers), group, label
        for other in self._others:
            other.set(numbers)


def size_of(ctype):
    """Bytes of a C type, a scalar or a vector."""
    scalar = ctype.rstrip("0123456789")
    return struct.calcsize(_FORMATS[scalar]) * int(ctype[len(scalar) :] or 1)
