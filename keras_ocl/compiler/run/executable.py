"""Executable: a compiled graph that runs on Storages (device memory) of its inputs."""

import dataclasses
import threading

from keras_ocl import runtime
from keras_ocl.compiler.cache import KERNEL_BYTES
from keras_ocl.compiler.run import stored
from keras_ocl.compiler.run.binding import Binding, GroupTooLarge
from keras_ocl.compiler.run.intermediates import intermediates, traffic
from keras_ocl.compiler.run.program import HostCall, HostEnd, Loop, inside
from keras_ocl.compiler.run.replay import Replay
from keras_ocl.compiler.run.sources import Sources


class Executable:
    """Runs a graph on one device.

    Args:
        graph: ir.Graph with outputs.
        inputs: the graph's input nodes, in the order of run()'s storages.
        updates: pairs (entry node, position in graph.outputs) of states to update in place where that is safe.
        all_arguments: whether every extent is a kernel argument rather than a literal (eager code).
        states: input nodes that hold variables.
        unknowns: Dims that may have other values in other runs; all numbers that depend on them are then computed again.

    The kernels' arguments are set once; run() sets again only those of buffers that changed since the last
    call. Intermediate results lie in the device's arena. A lock, shared by all executables that use the arena, makes it safe to run from
    several threads.

    Attributes:
        program: what it runs, as data (program.Program).
        sources: the launches that the program was made of, by number, which know their provenance (sources.Sources).
    """

    def __init__(self, device, graph, inputs, updates=(), all_arguments=False, name="", states=(), unknowns=()):
        self.device, self.name, self.is_eager = device, name, all_arguments
        self._lower(graph, inputs, updates, states, unknowns, device.traits)
        self.held_bytes = self._binding.kernels * KERNEL_BYTES
        self._arena = device.arena if self._binding.lives else None
        self._lock = self._arena.lock if self._arena else threading.Lock()
        self._sort_outputs()

    def _lower(self, graph, inputs, updates, states, unknowns, traits):
        """Lower the graph for a device with these traits, or read what was stored of it, and bind its kernels; where one must have smaller
        groups, lower all again."""
        given = self.name, self.is_eager, graph, inputs, updates, states, unknowns
        self.sources = Sources(self.device.traits, traits, *given)
        self.program = stored.program(self.sources, None if self.is_eager else self.device.programs.steps)
        try:
            self._bind()
        except GroupTooLarge as error:
            if traits.max_group == 1:
                raise
            fewer = dataclasses.replace(traits, max_group=max(1, min(error.limit, traits.max_group // 2)))
            self._lower(graph, inputs, updates, states, unknowns, fewer)

    def _bind(self):
        """Bind the program to kernel objects of the best programs compiled so far: optimised ones where they are ready."""
        self._binding = Binding(self.device, self.program, self.sources, not self.is_eager)
        self._replay = Replay(self.device, self._binding.storages)

    def _sort_outputs(self):
        """Sort the outputs' positions, with their buffers, by their memory (program.Output)."""
        found = {"new": [], "shared": [], "input": [], "repeated": []}
        for k, output in enumerate(self.program.outputs):
            found[output.memory].append((k, output.buffer))
        self._new, self._shared, self._copied, self._repeated = found.values()
        self._nothing = dict.fromkeys([*self.program.inputs, *(buffer for _, buffer in self._new)])

    @property
    def launches(self):
        """The lowered launches in order."""
        return self.sources.launches

    @property
    def arena_bytes(self):
        """Bytes of the arena that a run needs."""
        return self._binding.arena_bytes

    @property
    def live_bytes(self):
        """The most bytes alive in the arena at once, the least that it could have."""
        return self._binding.live_bytes

    def at(self, values):
        """The executable, with the unknown extents set to `values`, for `requested` and the like."""
        with self._lock:
            self._binding.change(values)
        return self

    def run(self, storages, values=(), publish=None):
        """Enqueue all launches; if that fails or is interrupted, none that overwrites a state has been enqueued.

        Args:
            storages: one Storage per input.
            values: the values of the unknown extents, a tuple of ints.
            publish: a function from the results to an iterator, whose steps are run at the moment when all is enqueued; see Device.replay.

        Returns:
            A list with one Storage per output; an output that is updated in place has the Storage of its entry node.
        """
        arena = self._arena
        with self._lock:
            if self._binding.unoptimised.awaited and not (arena and arena.users):
                self._improve(self._binding.unoptimised)
            if values != self._binding.values:
                self._binding.change(values)
            if arena is None:
                return self._enqueue(storages, publish)
            if arena.users:
                return self._interrupt(arena, storages, publish)
            try:
                arena.users = (self,)
                if self._binding.home is not arena.storages:
                    self._binding.enter(arena)
                return self._enqueue(storages, publish)
            finally:
                arena.users = ()

    def _improve(self, unoptimised):
        """Replace unoptimised builds by optimised ones that are ready, or that it pays to wait for by now."""
        unoptimised.await_run(self.device)
        self.device.programs.complete(unoptimised)
        if unoptimised.better():
            self._bind()

    def _interrupt(self, arena, storages, publish):
        """`run` in the middle of another run of this thread, whose results in the arena must stay: this run gets an arena of its own."""
        before, own = arena.users, runtime.Arena(self.device)
        if self in before:
            raise RuntimeError(f"{self.name}: called while it is running; a signal handler or __del__ must not call what it interrupts.")
        try:
            arena.users = (*before, self)
            self._binding.leave()
            self._binding.enter(own)
            return self._enqueue(storages, publish)
        finally:
            arena.users = before
            own.release()

    def _enqueue(self, storages, publish):
        device, bind = self.device, self._binding.bind
        held = self._binding.storages
        try:
            for buffer, storage in zip(self.program.inputs, storages, strict=True):
                bind(buffer, storage)
            results = [None] * len(self.program.outputs)
            sizes = self._binding.sizes
            for k, buffer in self._new:
                results[k] = device.allocate(sizes[buffer], self.name)
                bind(buffer, results[k])
            for k, buffer in self._shared:
                results[k] = held[buffer]
            for k, buffer in self._copied + self._repeated:
                results[k] = device.allocate(sizes[buffer], self.name)
            for k, buffer in self._copied:  # before a kernel overwrites them
                device.copy(held[buffer], results[k])
            copies = [(held[buffer], results[k]) for k, buffer in self._repeated if sizes[buffer]]
            self._replay.launch(self._binding.segments, copies, publish(results) if publish else ())
            if self._binding.unoptimised.awaited:
                self._binding.unoptimised.ran(device.last_event)
            profiler = device.profiler
            if profiler is not None:
                profiler.ran(self, results)
            return results
        finally:
            held.update(self._nothing)  # inputs and outputs belong to the caller: no reference of ours may keep them alive

    # ---- memory, for profiles

    def requested(self):
        """The memory that a run requests, known from shapes before anything runs.

        Returns:
            A list of (allocator, bytes, bytes in place), one per buffer that is written: `allocator` is the operation that requests it,
            see Provenance.allocator (None for copies of inputs that are also outputs). Where a result overwrites the state that it
            replaces, its bytes count as in place and none are requested.
        """
        sizes = self._binding.sizes
        return self._memory(sizes.__getitem__, lambda k: sizes[self.program.outputs[k].buffer])

    def handed_out(self, results):
        """Like `requested`, with the bytes of the Storages that a run really got; `results`: the Storages that it returned."""
        return self._memory(lambda buffer: self._binding.storages[buffer].nbytes, lambda k: results[k].nbytes)

    def _memory(self, of_buffer, of_result):
        """The list that `requested` returns; `of_buffer` gives the bytes of a buffer, `of_result` those of the output at a position."""
        owners = self._allocators()
        found = [(owners.get(buffer), of_buffer(buffer), 0) for buffer in self._binding.lives]
        found += [(owners.get(buffer), of_result(k), 0) for k, buffer in self._new]
        found += [(None, of_result(k), 0) for k, _ in self._copied + self._repeated]
        states = self.program.states
        return found + [(allocator, 0, of_buffer(states[k].buffer)) for k, allocator in self.sources.updates.items()]

    def intermediates(self):
        """A tuple of the intermediates.Intermediates of a run."""
        return intermediates(self.program, self.sources, self._binding.sizes)

    def traffic(self):
        """(bytes read, bytes written) by all launches of a run, see intermediates.traffic."""
        program = self.program
        return traffic(program.launches, self.sources, program.numbers()(*self._binding.values))

    def state_bytes(self):
        """Bytes of the variables that the function reads or assigns."""
        return sum(self._binding.sizes[state.buffer] for state in self.program.states)

    def _allocators(self):
        """Dict from a buffer to the Provenance.allocator of the first launch that writes it."""
        found = {}

        def look(launches, frame):
            for launch in launches:
                source = self.sources[launch.number]
                if isinstance(launch, Loop):
                    look(launch.body, inside(launch, 0, frame))
                    written = zip(launch.held, source.held, strict=True)  # spare buffers and histories that only copies fill
                elif isinstance(launch, HostEnd):
                    continue
                elif isinstance(launch, HostCall):
                    written = [(a.buffer, w) for a, w in zip(launch.writes, source.writes, strict=True) if w is not None]
                else:
                    written = [(p.buffer, a.value) for p, a in zip(launch.arguments, source.args, strict=True) if a.kind == "out"]
                for number, buffer in written:
                    found.setdefault(frame[number], source.provenance.allocator(buffer))

        look(self.program.launches, self.program.frame)
        return found
