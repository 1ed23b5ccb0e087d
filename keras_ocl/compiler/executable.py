"""Executable: a compiled graph that runs on storages of its inputs."""

import threading

from keras_ocl.compiler import lower as lowering
from keras_ocl.compiler.binding import Binding, buffer_bytes
from keras_ocl.compiler.loops.lower import Loop, lower_loop
from keras_ocl.compiler.provenance import key
from keras_ocl.compiler.replay import Replay


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
        options = "" if all_arguments else "-cl-denorms-are-zero"
        self._binding = Binding(device, self.launches, self._resolve, {*self._inputs, *self._outputs}, options, name)
        self._replay = Replay(device, self._binding.storages)
        self.arena_bytes = self._binding.arena_bytes
        self._sort_outputs()

    def _resolve(self, handle):
        return self._alias.get(handle, handle)

    def _sort_outputs(self):
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

    def run(self, storages):
        """Enqueue everything. `storages`: one per input. Returns one Storage per output; in-place ones are the entry's."""
        device, bind = self.device, self._binding.bind
        with self._lock:
            held = self._binding.storages
            for node, storage in zip(self._inputs, storages, strict=True):
                bind(node, storage)
            results = [None] * len(self._outputs)
            for k, node, nbytes in self._fresh:
                results[k] = device.allocate(nbytes, self.name)
                bind(node, results[k])
            for k, entry in self._replaced:
                results[k] = held[entry]
            for k, _, nbytes in self._copied + self._repeated:
                results[k] = device.allocate(nbytes, self.name)
            for k, node, _ in self._copied:  # before a kernel overwrites them
                device.copy(held[node], results[k])
            self._replay.launch(self._binding.segments)
            for k, node, _ in self._repeated:
                device.copy(held[node], results[k])
            if device.profiler is not None:
                device.profiler.ran(self, results)
            self._binding.release(self._passing)  # others own it: only they may keep it alive
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
        return self._memory(lambda handle: self._binding.storages[handle].nbytes, lambda k: results[k].nbytes)

    def _memory(self, of_buffer, of_result):
        """What `requested` returns, given functions from a buffer's handle and from an output's position to bytes."""
        owners = self._allocators()
        found = [(owners.get(handle), of_buffer(handle), 0) for handle in self._binding.lives]
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
