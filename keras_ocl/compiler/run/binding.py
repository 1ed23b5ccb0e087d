"""Binding: launches get their memory and their kernel objects, whose arguments are set once.

Buffers that live only during a run lie in one arena. Inputs and outputs, which come from outside, are bound again if they changed since
the last run. Where unknown extents get other values, the numbers computed from them are set again: arguments, grids, sizes, steps.
"""

import itertools
import struct
from functools import partial

from keras_ocl import runtime
from keras_ocl.compiler.launch import lower as lowering
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.compiler.run.plan import Interval, place
from keras_ocl.compiler.run.unoptimised import unoptimised_builds
from keras_ocl.core import dtypes
from keras_ocl.core.dim import present, product
from keras_ocl.core.facts import Changing
from keras_ocl.kernels.spec import STEP

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
    """A host operation with its buffers; `ends`: whether a BoundEnd follows, before which a thread computes it."""

    def __init__(self, call, resolve, changing):
        node, self.ends = call.node, False
        self.node = node
        self.label = runtime.Label(node.name, call.provenance)
        self.reads = [resolve(b) for b in call.reads]
        self.writes = [b if b is None else resolve(b) for b in call.writes]
        self.read_shapes = _shapes([n.shape for n in node.inputs], changing)
        self.written_shapes = _shapes([shape for shape, _ in node.results or [(node.shape, node.dtype)]], changing)
        self.params = dict(node.params)
        for name in node.primitive.dynamic_extents:
            changing.use_all(node.params[name], partial(self.params.__setitem__, name))


class BoundEnd:
    """The place where the operation of a BoundHost, which a thread computes, must be done."""

    def __init__(self, host):
        self.host = host
        host.ends = True


class BoundLoop:
    """A loop with its buffers and kernel objects: for each variant, a step's segments and the arguments that hold the step's number.

    `length`: the number of steps of a scan; None for a while loop.
    """

    def __init__(self, loop, resolve, variants, changing):
        self.loop, self.variants, self.length = loop, variants, None
        self.before, self.after, self.last = (_copies(copies, resolve, changing) for copies in (loop.before, loop.after, loop.last))
        if loop.length is not None:
            changing.use(loop.length, partial(setattr, self, "length"))
        self.condition = loop.condition and [resolve(b) for b in loop.condition]
        self.state = loop.state and resolve(loop.state)
        self.guards = [(resolve(flag), taken) for flag, taken in loop.guards]
        # Steps that consist of kernels alone are launched by the device in one go.
        self.plain = all(len(segments) == 1 and type(segments[0]) is list for segments, _ in variants)


def _shapes(shapes, changing):
    """A list of the shapes at the present extents, which `changing` keeps up to date."""
    now = [None] * len(shapes)
    for k, shape in enumerate(shapes):
        changing.use_all(shape, partial(now.__setitem__, k))
    return now


def _copies(copies, resolve, changing):
    """A list of a loop's copies, between resolved buffers, which `changing` keeps up to date."""
    now = [None] * len(copies)
    for k, (source, target, *numbers) in enumerate(copies):
        source, target = resolve(source), resolve(target)
        changing.use_all(numbers, lambda numbers, k=k, source=source, target=target: now.__setitem__(k, (source, target, *numbers)))
    return now


class Binding:
    """Memory and kernel objects for launches.

    Args:
        launches: KernelSpecs, HostCalls, HostEnds and Loops in order.
        resolve: function from a launch's Buffer to the Buffer whose memory it uses.
        external: set of (resolved) Buffers whose memory the caller gives by `bind`; others get memory in the device's arena, by `enter`.
        options: OpenCL's build options.
        allow_unoptimised: whether kernels that are not compiled yet may first be built without optimisation, where that pays.
        name: what the memory is for, in error messages.
        unknowns: Dims that may have other values in other runs.

    Raises GroupTooLarge where a kernel turns out to need smaller groups.

    Attributes:
        changing: the facts.Changing that updates all numbers that depend on the unknowns.
        segments: lists of (kernel, grid, group, label), with BoundHost, BoundEnd and BoundLoop between the lists.
        storages: dict from a Buffer to its Storage.
        lives: dict from a Buffer in the arena to its Interval (liveness and place); `parts`: bytes of each of the arena's parts,
            `arena_bytes`: of all.
        sizes: dict from every Buffer, external ones too, to its present size in bytes.
        home: the arena's Storages in which the Buffers lie now.
        kernels: number of kernel objects.
        unoptimised: the runtime.UnoptimisedBuilds: which of the kernels are built without optimisation.
    """

    def __init__(self, device, launches, resolve, external, options, allow_unoptimised, name, unknowns=()):
        self._device, self._external, self._name, self.lives, self.sizes = device, external, name, {}, {}
        self.changing = Changing(unknowns)
        self._whole = not device.traits.sub_buffers
        for buffer in external:
            self._measure(buffer)
        self._live(launches, resolve, 0)
        self._plan()
        self._places = {}  # buffer -> [(kernel, position of the pointer argument, position of its offset's argument)]
        kernels, self.unoptimised = _kernels(device, launches, options, allow_unoptimised)
        self.kernels = sum(map(len, kernels.values()))
        self.segments, _ = self._bound_launches(launches, resolve, kernels)
        self._bound = {}  # buffer -> the cl.Buffer, or (cl.Buffer, offset in bytes), that its kernels' arguments are set to
        self.storages = {}
        self.home = _NOWHERE

    def _measure(self, buffer):
        """Note the buffer's bytes in `sizes`, which `changing` keeps up to date."""
        itemsize = dtypes.itemsize(buffer.dtype)

        def size(elements):
            if elements * itemsize >= _COUNTED:
                raise self._device.memory.out_of_memory(f"{self._name} makes an array of {elements} elements")
            self.sizes[buffer] = elements * itemsize

        self.changing.use(buffer.elements, size)

    def _plan(self):
        traits = self._device.traits
        self.parts = place(self.lives.values(), traits.alignment, traits.max_allocation)

    @property
    def arena_bytes(self):
        return sum(self.parts)

    def change(self, values):
        """Set the unknown extents to these values. The arena's plan stays while each buffer fits into its place.

        If this is interrupted, the next run does it again.
        """
        self.changing.set(values)
        grown = [(interval, self.sizes[buffer]) for buffer, interval in self.lives.items() if self.sizes[buffer] > interval.nbytes]
        if grown or self.parts is None:
            self.parts = None
            self.leave()
            for interval, nbytes in grown:
                interval.nbytes = nbytes + nbytes // _MARGIN
            self._plan()
        self.changing.values = values

    def enter(self, arena):
        """Place the buffers in an Arena's memory, until it calls `leave`. The caller holds its lock."""
        home = arena.enter(self, self.parts, self._name)
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

    def _live(self, launches, resolve, position):
        """Note the liveness of the buffers of `launches`, counting launches from `position`; returns the position after the last."""
        for launch in launches:
            if isinstance(launch, Loop):
                first = position
                position = self._live(launch.launches, launch.resolver(0, resolve), position)
                buffers, until = [resolve(b) for b in launch.held], position
            else:
                buffers, first, until = [resolve(b) for b in lowering.buffers(launch)], position, position
            for buffer in buffers:
                if buffer in self._external:
                    continue
                if buffer not in self.lives:
                    self._measure(buffer)
                    self.lives[buffer] = Interval(buffer, self.sizes[buffer], first, until)
                life = self.lives[buffer]
                life.first, life.last = min(life.first, first), max(life.last, until)
            position = until + 1
        return position

    def _bound_launches(self, launches, resolve, kernels):
        """(segments, places): segments as in the attribute; places, the (kernel, argument position) of each step number."""
        segments, steps, hosts = [[]], [], {}
        for launch in launches:
            if isinstance(launch, lowering.HostCall):
                hosts[launch] = BoundHost(launch, resolve, self.changing)
                segments += [hosts[launch], []]
                continue
            if isinstance(launch, lowering.HostEnd):
                segments += [BoundEnd(hosts[launch.call]), []]
                continue
            if isinstance(launch, Loop):
                variants = [
                    self._bound_launches(launch.launches, launch.resolver(v, resolve), kernels) for v in range(len(launch.variants))
                ]
                segments += [BoundLoop(launch, resolve, variants, self.changing), []]
                continue
            kernel, behind = kernels[id(launch)].pop(), itertools.count(len(launch.args))
            for position, a in enumerate(launch.args):
                if a.is_pointer:
                    self._places.setdefault(resolve(a.value), []).append((kernel, position, next(behind)))
                elif a.kind == "local":
                    size = size_of(a.dtype)
                    self.changing.use(a.value, partial(_set_local, kernel, position, size))
                elif a.value is STEP:
                    steps.append((kernel, position))
                elif a.kind in ("float", "double"):
                    runtime.set_argument(kernel, position, struct.pack(_FORMATS[a.kind], a.value))
                else:
                    self.changing.use(a.value, partial(_set_integer, kernel, position, struct.Struct(_FORMATS[a.kind])))
            if 0 not in launch.grid:
                group = launch.group and (*map(present, launch.group), 1, 1)[: len(launch.grid)]
                segment, label = segments[-1], runtime.Label(launch.name, launch.provenance, overwrites=launch.overwrites)
                segment.append(None)
                self.changing.use_all(launch.grid, partial(_set_grid, segment, len(segment) - 1, kernel, group, label))
        return [s for s in segments if s != []] or [[]], steps


def _set_integer(kernel, position, form, value):
    runtime.set_argument(kernel, position, form.pack(value))


def size_of(ctype):
    """Bytes of a C type, a scalar or a vector."""
    scalar = ctype.rstrip("0123456789")
    return struct.calcsize(_FORMATS[scalar]) * int(ctype[len(scalar) :] or 1)


def _set_local(kernel, position, size, elements):
    runtime.set_argument(kernel, position, runtime.local_memory(elements * size))


def _set_grid(segment, place, kernel, group, label, grid):
    segment[place] = kernel, grid, group, label


def _kernels(device, launches, options, allow_unoptimised):
    """Kernel objects for all launches: (dict from the id of a spec to a list of kernels, the runtime.UnoptimisedBuilds)."""
    found = lowering.program_specs(_specs(launches, 1), device.traits)
    unique, counts = {}, {}
    for _, spec in found:
        unique[spec[0]] = spec
        counts[spec[0]] = counts.get(spec[0], 0) + 1
    free, builds = {}, unoptimised_builds(launches, found, device.traits) if allow_unoptimised else runtime.UnoptimisedBuilds()
    for repeat in range(max(counts.values(), default=0)):
        batch = [unique[n] for n, c in counts.items() if c > repeat]
        for name, kernel in device.build(batch, options, builds).items():
            free.setdefault(name, []).append(kernel)
    _check_groups(device, found, free)
    kernels = {}
    for launch, spec in found:
        kernels.setdefault(id(launch), []).append(free[spec[0]].pop())
    return kernels, builds


def _check_groups(device, found, built):
    """Raises GroupTooLarge if kernels need more work-items in a group than they can have, for the one with the smallest limit."""
    groups = {name: (launch.name, product(launch.group)) for launch, (name, *_) in found if launch.group and product(launch.group) > 1}
    short = [(device.group_limit(built[name][0]), items, title) for name, (title, items) in groups.items()]
    short = [entry for entry in short if entry[0] < entry[1]]
    if short:
        limit, items, title = min(short)
        raise GroupTooLarge(title, items, limit)


def _specs(launches, times):
    """Every KernelSpec, once per kernel object that it needs: in a loop, one for each variant."""
    for launch in launches:
        if isinstance(launch, Loop):
            yield from _specs(launch.launches, times * len(launch.variants))
        elif not isinstance(launch, (lowering.HostCall, lowering.HostEnd)):
            yield from (launch for _ in range(times))
