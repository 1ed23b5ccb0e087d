"""Executable: a compiled graph as a list of launches whose arguments are already set."""

import struct
import threading

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler import lower as lowering
from keras_ocl.compiler.loops.lower import Loop, lower_loop
from keras_ocl.compiler.plan import Interval, place
from keras_ocl.compiler.provenance import key
from keras_ocl.core import dtypes
from keras_ocl.kernels.spec import STEP

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


class _Host:
    """A host operation with its buffers."""

    def __init__(self, call, resolve):
        self.node, self.label = call.node, runtime.Label(call.node.name, call.provenance)
        self.reads = [resolve(n) for n in call.reads]
        self.writes = [n if n is None else resolve(n) for n in call.writes]


class _Repeat:
    """A loop with its buffers and kernel objects: for each variant the segments of a step and where the step's number is an argument."""

    def __init__(self, loop, resolve, variants):
        self.loop, self.variants = loop, variants
        self.before, self.after, self.last = (
            [(resolve(source), resolve(target), *rest) for source, target, *rest in copies]
            for copies in (loop.before, loop.after, loop.last)
        )
        self.condition = loop.condition and [resolve(h) for h in loop.condition]
        # Steps of kernels alone are launched by the device in one go.
        self.plain = loop.condition is None and all(len(segments) == 1 and type(segments[0]) is list for segments, _ in variants)


class Executable:
    """Runs a graph on one device.

    Args:
        graph: ir.Graph with outputs.
        inputs: the graph's input nodes, in the order of run()'s storages.
        updates: (entry node, position in graph.outputs) of states to update in place where that is safe.
        all_arguments: print every extent as an argument (eager code).
        states: input nodes that hold variables.

    The kernels' arguments are set once; run() sets again only those of buffers that changed since the last
    call. A lock makes it safe to run from several threads.
    """

    def __init__(self, device, graph, inputs, updates=(), all_arguments=False, name="", states=()):
        self.device, self.name, self.is_eager, self._states = device, name, all_arguments, tuple(states)
        lowered = lowering.lower_graph(graph, updates, device.traits, all_arguments, lower_loop)
        self.launches = lowered.launches
        self.overwritten = lowered.overwritten  # entry nodes whose storage run() writes to
        self._alias = lowered.alias
        self._inputs = list(inputs)
        self._outputs = list(graph.outputs)
        self._lock = threading.Lock()
        # Gradients that vanish over many steps end in denormal numbers, with which CPUs compute 30 times as slowly. Like XLA and
        # TensorFlow, compiled functions take them for zero.
        self._options = "" if all_arguments else "-cl-denorms-are-zero"
        self._plan()
        self._build()

    # ---- preparation

    def _resolve(self, handle):
        return self._alias.get(handle, handle)

    def _plan(self):
        self._external = set(self._inputs) | set(self._outputs)
        self._lives = {}
        self._live(self.launches, self._resolve, 0)
        self.arena_bytes = place(self._lives.values(), self.device.traits.alignment)

    def _live(self, launches, resolve, position):
        """Notes when the buffers of `launches` are in use, counting launches from `position`; returns the position after."""
        for launch in launches:
            if isinstance(launch, Loop):
                first = position
                position = self._live(launch.launches, launch.resolver(0, resolve), position)
                handles, until = [resolve(h) for h in launch.held], position
            else:
                handles, first, until = [resolve(h) for h in _handles(launch)], position, position
            for handle in handles:
                if handle in self._external:
                    continue
                life = self._lives.setdefault(handle, Interval(handle, buffer_bytes(handle), first, until))
                life.first, life.last = min(life.first, first), max(life.last, until)
            position = until + 1
        return position

    def _kernels(self):
        """Kernel objects for all launches: a dict from the spec's id to a list."""
        found = lowering.program_specs(_specs(self.launches, 1), self.device.traits)
        unique, counts = {}, {}
        for _, spec in found:
            unique[spec[0]] = spec
            counts[spec[0]] = counts.get(spec[0], 0) + 1
        free = {}
        for repeat in range(max(counts.values(), default=0)):
            batch = [unique[n] for n, c in counts.items() if c > repeat]
            for name, kernel in self.device.build(batch, self._options).items():
                free.setdefault(name, []).append(kernel)
        kernels = {}
        for launch, spec in found:
            kernels.setdefault(id(launch), []).append(free[spec[0]].pop())
        return kernels

    def _bound_launches(self, launches, resolve, kernels):
        """(segments, places): lists of (kernel, grid, group, label) with _Host and _Repeat between; (kernel, position) of step numbers."""
        segments, steps = [[]], []
        for launch in launches:
            if isinstance(launch, lowering.HostCall):
                segments += [_Host(launch, resolve), []]
                continue
            if isinstance(launch, Loop):
                variants = [
                    self._bound_launches(launch.launches, launch.resolver(v, resolve), kernels) for v in range(len(launch.variants))
                ]
                segments += [_Repeat(launch, resolve, variants), []]
                continue
            kernel = kernels[id(launch)].pop()
            for position, a in enumerate(launch.args):
                if a.kind in ("in", "out"):
                    self._places.setdefault(resolve(a.value), []).append((kernel, position))
                elif a.kind == "local":
                    runtime.set_argument(kernel, position, runtime.local_memory(int(a.value) * struct.calcsize(_FORMATS[a.dtype])))
                elif a.value is STEP:
                    steps.append((kernel, position))
                else:
                    runtime.set_argument(kernel, position, struct.pack(_FORMATS[a.kind], _number(a)))
            grid = tuple(int(g) for g in launch.grid)
            if 0 not in grid:
                group = launch.group and (*launch.group, 1, 1)[: len(grid)]
                segments[-1].append((kernel, grid, group, runtime.Label(launch.name, launch.provenance)))
        return [s for s in segments if s != []] or [[]], steps

    def _build(self):
        self._places = {}  # handle -> [(kernel, argument position)]
        self._segments, _ = self._bound_launches(self.launches, self._resolve, self._kernels())
        self.arena = self.device.arena(max(self.arena_bytes, 1), self.name) if self._lives else None  # buffers may be empty
        self._bound = {}  # handle -> the cl.Buffer its kernels' arguments are set to
        self._storages = {}
        for handle, interval in self._lives.items():
            self._storages[handle] = self.arena.view(interval.offset, interval.nbytes)
            self._bind(handle, self._storages[handle])
        self._fresh = []  # (positions in the outputs, node, nbytes): outputs that get new memory each run
        self._copied = []  # (position, node, nbytes): outputs that are inputs
        self._repeated = []  # likewise: outputs listed before
        self._replaced = [(k, self._alias[n]) for k, n in enumerate(self._outputs) if n in self._alias]
        self._passing = [*self._inputs, *self._outputs]
        seen = {}
        for k, node in enumerate(self._outputs):
            nbytes = lowering.nbytes(node.shape, node.dtype)
            if node in self._alias:
                continue
            if node in self._inputs:
                self._copied.append((k, node, nbytes))
            elif node in seen:
                self._repeated.append((k, node, nbytes))
            else:
                seen[node] = k
                self._fresh.append((k, node, nbytes))

    # ---- running

    def _bind(self, handle, storage):
        mem = storage.mem
        if self._bound.get(handle) is not mem:
            self._bound[handle] = mem
            for kernel, position in self._places.get(handle, ()):
                kernel.set_arg(position, mem)

    def run(self, storages):
        """Enqueue everything. `storages`: one a input. Returns one Storage an output; in-place ones are the entry's."""
        device = self.device
        with self._lock:
            held = self._storages
            for node, storage in zip(self._inputs, storages, strict=True):
                held[node] = storage
                self._bind(node, storage)
            results = [None] * len(self._outputs)
            for k, node, nbytes in self._fresh:
                results[k] = held[node] = device.allocate(nbytes, self.name)
                self._bind(node, results[k])
            for k, entry in self._replaced:
                results[k] = held[entry]
            for k, _, nbytes in self._copied + self._repeated:
                results[k] = device.allocate(nbytes, self.name)
            for k, node, _ in self._copied:  # before a kernel overwrites them
                device.copy(held[node], results[k])
            self._launch(self._segments)
            for k, node, _ in self._repeated:
                device.copy(held[node], results[k])
            if device.profiler is not None:
                device.profiler.ran(self, results)
            for node in self._passing:
                held[node] = None  # others own it: only they may keep it alive
            return results

    # ---- memory, for profiles

    def requested(self):
        """The memory that a run asks for, known from shapes before anything runs.

        Returns:
            A list of (allocator, bytes, bytes in place), one for each buffer that is written: `allocator` is what asks for it, see
            Provenance.allocator (None for copies of inputs that are also outputs). Where a result overwrites the state that it
            replaces, the bytes are in place and none are asked for.
        """
        return self._memory(buffer_bytes, lambda k: buffer_bytes(self._outputs[k]))

    def handed_out(self, results):
        """`requested`, with the bytes of the Storages that a run got: `results` are what it returned."""
        return self._memory(lambda handle: self._storages[handle].nbytes, lambda k: results[k].nbytes)

    def _memory(self, of_buffer, of_result):
        """What `requested` returns, given functions from a buffer's handle and from an output's position to bytes."""
        owners = self._allocators()
        found = [(owners.get(handle), of_buffer(handle), 0) for handle in self._lives]
        found += [(owners.get(node), of_result(k), 0) for k, node, _ in self._fresh]
        found += [(None, of_result(k), 0) for k, _, _ in self._copied + self._repeated]
        updates = {entry: new for new, entry in reversed(self._alias.items()) if entry in self.overwritten}  # not the views of `new`
        return found + [(key(new), 0, of_buffer(entry)) for entry, new in updates.items()]

    def state_bytes(self):
        """Bytes of the variables that the function reads or assigns."""
        return sum(buffer_bytes(node) for node in self._states)

    def _allocators(self):
        """Buffer -> Provenance.allocator of the first launch that writes it."""
        found = {}

        def look(launches, resolve):
            for launch in launches:
                if isinstance(launch, Loop):
                    look(launch.launches, launch.resolver(0, resolve))
                    written = launch.held  # spare buffers and histories that only copies fill
                elif isinstance(launch, lowering.HostCall):
                    written = [w for w in launch.writes if w is not None]
                else:
                    written = [a.value for a in launch.args if a.kind == "out"]
                for handle in written:
                    found.setdefault(resolve(handle), launch.provenance.allocator(handle))

        look(self.launches, self._resolve)
        return found

    def _launch(self, segments):
        for segment in segments:
            kind = type(segment)
            if kind is list:
                self.device.replay(segment)
            elif kind is _Repeat:
                self._repeat(segment)
            else:
                self._host(segment)

    def _repeat(self, repeat):
        self._copy(repeat.before)
        if repeat.condition is not None:
            self._while(repeat)
        else:
            n, loop, count = repeat.loop.length, repeat.loop, len(repeat.variants)
            # The last step is of variant 0, which leaves the results where they belong.
            order = [(repeat.variants[(n - 1 - k) % count], n - 1 - k if loop.reverse else k) for k in range(n)]
            if repeat.plain:
                self.device.repeat([(segments[0], places, struct.pack("i", number)) for (segments, places), number in order])
            else:
                for variant, number in order:
                    self._step(variant, number)
        self._copy(repeat.after)

    def _step(self, variant, number):
        segments, places = variant
        for kernel, position in places:
            runtime.set_argument(kernel, position, struct.pack("i", number))
        self._launch(segments)

    def _while(self, repeat):
        count, done = len(repeat.variants), 0
        flag = repeat.condition[0]
        while self.device.download(self._storages[flag], np.dtype(bool), ()):
            variant = (done + 1) % count
            self._step(repeat.variants[variant], done)
            flag = repeat.condition[variant]
            done += 1
        if done % count:
            self._copy(repeat.last)

    def _copy(self, copies):
        for source, target, nbytes, start, end in copies:
            self.device.copy(self._storages[source], self._storages[target], nbytes, start, end)

    def _host(self, call):
        if not self.device.runs:
            return
        node = call.node
        arrays = []
        for handle, n in zip(call.reads, node.inputs, strict=True):
            shape = tuple(int(extent) for extent in n.shape)
            arrays.append(self.device.download(self._storages[handle], dtypes.numpy_dtype(n.dtype), shape))
        with self.device.operation(call.label):
            results = node.primitive.host(arrays, **node.params)
        shapes = node.results or [(node.shape, node.dtype)]
        for handle, array, (shape, dtype) in zip(call.writes, results if node.results else [results], shapes, strict=True):
            if handle is None:
                continue
            array = np.asarray(array, dtypes.numpy_dtype(dtype), order="C")
            assert array.shape == tuple(shape), f"{node.name} on the host gave {array.shape}, not {tuple(shape)}"
            self.device.write(self._storages[handle], array)


def _handles(launch):
    """Every buffer that a kernel or host operation touches."""
    if isinstance(launch, lowering.HostCall):
        return [*launch.reads, *(w for w in launch.writes if w is not None)]
    return [a.value for a in launch.args if a.kind in ("in", "out")]


def buffer_bytes(handle):
    """Bytes of the buffer that a handle stands for."""
    if isinstance(handle, tuple):  # a result nobody reads
        node, k = handle
        return lowering.nbytes(*node.results[k])
    if hasattr(handle, "elements"):
        return int(handle.elements) * dtypes.itemsize(handle.dtype)
    return lowering.nbytes(handle.shape, handle.dtype)


def _specs(launches, times):
    """Every KernelSpec as often as it needs kernel objects."""
    for launch in launches:
        if isinstance(launch, Loop):
            yield from _specs(launch.launches, times * len(launch.variants))
        elif not isinstance(launch, lowering.HostCall):
            yield from (launch for _ in range(times))


def _number(arg):
    return float(arg.value) if arg.kind in ("float", "double") else int(arg.value)
