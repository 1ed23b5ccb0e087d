"""Executable: a compiled graph as a list of launches whose arguments are already set."""

import struct
import threading

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler import lower as lowering
from keras_ocl.compiler.fuse import partition
from keras_ocl.compiler.plan import Interval, place
from keras_ocl.core import dtypes
from keras_ocl.core.dim import product

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


def _nbytes(shape, dtype):
    return int(product(shape)) * dtypes.itemsize(dtype)


class Executable:
    """Runs a graph on one device.

    Args:
        graph: ir.Graph with outputs.
        inputs: the graph's input nodes, in the order of run()'s storages.
        updates: (entry node, position in graph.outputs) of states to update in place where that is safe.
        all_arguments: print every extent as an argument (eager code).

    The kernels' arguments are set once; run() sets again only those of buffers that changed since the last
    call. A lock makes it safe to run from several threads.
    """

    def __init__(self, device, graph, inputs, updates=(), all_arguments=False, name=""):
        self.device, self.name = device, name
        nodes = graph.live()
        users = {n: [] for n in nodes}
        for n in nodes:
            for i in n.inputs:
                users[i].append(n)
        regions, materialised, views = partition(graph, device.traits)
        pairs = [(entry, graph.outputs[k]) for entry, k in updates]
        single = [(e, n) for e, n in pairs if graph.outputs.count(n) == 1]
        regions = _updates_last(regions, {n for _, n in single})
        alias = lowering.in_place(regions, materialised, single, views)
        self.overwritten = set(alias.values())  # entry nodes whose storage run() writes to
        alias.update({node: _resolve(node, {**views, **alias}) for node in views})
        self.launches = lowering.lower(regions, materialised, users, device.traits, alias, all_arguments)
        self._inputs = list(inputs)
        self._outputs = list(graph.outputs)
        self._lock = threading.Lock()
        self._plan(alias)
        self._build()

    # ---- preparation

    def _plan(self, alias):
        external = set(self._inputs) | set(self._outputs)
        lives = {}
        for position, launch in enumerate(self.launches):
            for handle, nbytes in _buffers(launch):
                handle = alias.get(handle, handle)
                if handle in external:
                    continue
                if handle in lives:
                    lives[handle].last = position
                else:
                    lives[handle] = Interval(handle, nbytes, position, position)
        self.arena_bytes = place(lives.values(), self.device.traits.alignment)
        self._lives = lives
        self._alias = alias

    def _build(self):
        wanted = lowering.program_specs(self.launches, self.device.traits)
        specs = {id(launch): spec for launch, spec in wanted}
        free = {}
        counts = {}
        for spec in specs.values():
            counts[spec[0]] = counts.get(spec[0], 0) + 1
        unique = {spec[0]: spec for spec in specs.values()}
        for repeat in range(max(counts.values(), default=0)):
            batch = [unique[n] for n, c in counts.items() if c > repeat]
            for name, kernel in self.device.build(batch).items():
                free.setdefault(name, []).append(kernel)
        self._places = {}  # handle -> [(kernel, argument position)]
        self._segments = [[]]  # lists of (kernel, grid, group, label), and HostCalls between them
        for launch in self.launches:
            if isinstance(launch, lowering.HostCall):
                self._segments += [launch, []]
                continue
            kernel = free[specs[id(launch)][0]].pop()
            for position, a in enumerate(launch.args):
                if a.kind in ("in", "out"):
                    self._places.setdefault(self._alias.get(a.value, a.value), []).append((kernel, position))
                elif a.kind == "local":
                    runtime.set_argument(kernel, position, runtime.local_memory(int(a.value) * struct.calcsize(_FORMATS[a.dtype])))
                else:
                    runtime.set_argument(kernel, position, struct.pack(_FORMATS[a.kind], _number(a)))
            grid = tuple(int(g) for g in launch.grid)
            if 0 not in grid:
                group = launch.group and (*launch.group, 1, 1)[: len(grid)]
                self._segments[-1].append((kernel, grid, group, launch.name))
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
            nbytes = _nbytes(node.shape, node.dtype)
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
            for segment in self._segments:
                if type(segment) is list:
                    device.replay(segment)
                else:
                    self._host(segment)
            for k, node, _ in self._repeated:
                device.copy(held[node], results[k])
            for node in self._passing:
                held[node] = None  # others own it: only they may keep it alive
            return results

    def _host(self, call):
        arrays = []
        for node in call.node.inputs:
            storage = self._storages[self._alias.get(node, node)]
            arrays.append(self.device.download(storage, dtypes.numpy_dtype(node.dtype), tuple(int(n) for n in node.shape)))
        results = call.node.primitive.host(arrays, **call.node.params)
        shapes = call.node.results or [(call.node.shape, call.node.dtype)]
        for node, array, (shape, dtype) in zip(call.outputs, results if call.node.results else [results], shapes, strict=True):
            if node is None:
                continue
            array = np.asarray(array, dtypes.numpy_dtype(dtype), order="C")
            assert array.shape == tuple(shape), f"{call.node.name} on the host gave {array.shape}, not {tuple(shape)}"
            self.device.write(self._storages[self._alias.get(node, node)], array)


def _resolve(node, shared):
    """The node whose memory `node` is."""
    while node in shared:
        node = shared[node]
    return node


def _buffers(launch):
    """(handle, nbytes) of every buffer that a launch touches."""
    if isinstance(launch, lowering.HostCall):
        for n in [*launch.reads, *(w for w in launch.writes if w is not None)]:
            yield n, _nbytes(n.shape, n.dtype)
        return
    for a in launch.args:
        if a.kind not in ("in", "out"):
            continue
        handle = a.value
        if isinstance(handle, tuple):  # a result nobody reads
            node, k = handle
            shape, dtype = node.results[k]
            yield handle, _nbytes(shape, dtype)
        elif hasattr(handle, "elements"):
            yield handle, int(handle.elements) * dtypes.itemsize(handle.dtype)
        else:
            yield handle, _nbytes(handle.shape, handle.dtype)


def _updates_last(regions, updated):
    """Regions that only update states run last, so that every reader of an old value comes before them."""
    last = [r for r in regions if not r.consumers and all(n in updated for n in r.outputs)]
    chosen = set(map(id, last))
    return [r for r in regions if id(r) not in chosen] + last


def _number(arg):
    return float(arg.value) if arg.kind in ("float", "double") else int(arg.value)
