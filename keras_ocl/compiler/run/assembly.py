"""Assembly: lowered launches become a Program."""

import sys

from keras_ocl.compiler.launch import lower as lowering
from keras_ocl.compiler.launch.loops import lower as loops
from keras_ocl.compiler.run import program
from keras_ocl.core.dim import Dim, present
from keras_ocl.core.facts import Code
from keras_ocl.kernels.spec import STEP


def assemble(lowered, launches, name, options, traits, inputs, outputs, states, unknowns):
    """(the Program, its sources: a tuple of the lowered launches by number, those of loops' bodies too).

    Args:
        lowered: the Lowered graph.
        launches: its launches, fused or not.
        options: OpenCL's build options.
        inputs, outputs, states: nodes; of a state, the entry node.
        unknowns: the Dims that stay unknown; of all others the present value counts.
    """
    assembly, buffers = _Assembly(traits, unknowns), _Buffers(lowered.shared)
    given = tuple(buffers.number(n.buffer) for n in inputs)
    results = tuple(_outputs([n.buffer for n in outputs], buffers, given))
    external = {*given, *(r.buffer for r in results if r.memory != "shared")}
    found = assembly.launches(launches, buffers)
    memory = tuple(
        program.Memory(assembly.number(b.elements), b.dtype, *((None, None) if k in external else buffers.lives[k]))
        for k, b in enumerate(buffers.numbers)
    )
    held = tuple(program.State(buffers.number(n.buffer), n in lowered.overwritten) for n in states)
    extents, formulas = tuple(map(present, unknowns)), tuple(assembly.code.lines)
    whole = program.Program(name, extents, formulas, options, assembly.kernels, memory, found, given, results, held)
    return whole, tuple(assembly.sources)


def _outputs(outputs, buffers, inputs):
    seen = set()
    for buffer in outputs:
        number = buffers.number(buffer)
        if buffers.is_shared(buffer):
            yield program.Output(number, "shared")
        elif number in inputs:
            yield program.Output(number, "input")
        else:
            yield program.Output(number, "repeated" if number in seen else "new")
            seen.add(number)


class _Buffers:
    """The buffers of the launches outside of loops, or of a loop's body, numbered in the order of their first use.

    Args:
        shared: dict from a Buffer to the one whose memory it uses.

    Attributes:
        lives: dict from a number to the numbers of the first and the last launch that use the buffer.
    """

    def __init__(self, shared):
        self._shared, self.numbers, self.lives = shared, {}, {}

    def is_shared(self, buffer):
        """Whether it uses the memory of another Buffer."""
        return buffer in self._shared

    def number(self, buffer):
        """The number of the Buffer whose memory this one uses."""
        return self.numbers.setdefault(self._shared.get(buffer, buffer), len(self.numbers))

    def use(self, buffer, first, last):
        """`number` of a Buffer that is in use from launch `first` to launch `last`."""
        number = self.number(buffer)
        since, until = self.lives.get(number, (first, last))
        self.lives[number] = min(since, first), max(until, last)
        return number

    def frame(self, mapping, outside):
        """For a loop's variant: the numbers in `outside` of the Buffers; `mapping`: dict from Buffers of the body to Buffers outside."""
        return tuple([outside.number(mapping.get(b, b)) for b in self.numbers])


class _Assembly:
    def __init__(self, traits, unknowns):
        self._traits, self._varies = traits, bool(unknowns)
        self.code, self.kernels, self.sources = Code(unknowns), {}, []

    def number(self, extent):
        """The int or Formula for an extent."""
        return program.Formula(self.code.name(extent)) if self._varies and isinstance(extent, Dim) else present(extent)

    def launches(self, launches, buffers):
        """The program.Launches for lowered launches."""
        return tuple([self._launch(launch, buffers) for launch in launches])

    def _launch(self, launch, buffers):
        if isinstance(launch, loops.Loop):
            return self._loop(launch, buffers)
        number = len(self.sources)
        self.sources.append(launch)
        for buffer in lowering.buffers(launch):
            buffers.use(buffer, number, number)
        if isinstance(launch, lowering.HostCall):
            return self._host(number, launch, buffers)
        if isinstance(launch, lowering.HostEnd):
            return program.HostEnd(number, next(k for k, source in enumerate(self.sources) if source is launch.call))
        kernel, source, helpers = lowering.program_spec(launch, self._traits)
        self.kernels[kernel] = program.Kernel(sys.intern(source), helpers)  # many executables have the same text
        arguments, grid = tuple([self._argument(a, buffers) for a in launch.args]), tuple(map(self.number, launch.grid))
        # The comparison with an unknown extent is a fact of the trace.
        empty, group = 0 in launch.grid, launch.group and tuple(map(present, launch.group))
        return program.KernelLaunch(number, launch.name, kernel, arguments, grid, group, empty, launch.overwrites)

    def _argument(self, a, buffers):
        if a.is_pointer:
            return program.Pointer(buffers.number(a.value), a.kind == "out")
        if a.kind == "local":
            return program.Local(a.dtype, self.number(a.value))
        if a.value is STEP:
            return program.Step()
        return program.Scalar(a.kind, a.value if a.kind in ("float", "double") else self.number(a.value))

    def _host(self, number, call, buffers):
        node = call.node
        results = node.results or [(node.shape, node.dtype)]
        params = tuple(
            (key, tuple(map(self.number, given)) if key in node.primitive.dynamic_extents else given) for key, given in node.params.items()
        )
        reads = tuple(self._array(b, n.shape, n.dtype, buffers) for b, n in zip(call.reads, node.inputs, strict=True))
        writes = tuple(self._array(b, *result, buffers) for b, result in zip(call.writes, results, strict=True))
        return program.HostCall(number, call.name, node.primitive.name, params, reads, writes, not node.results)

    def _array(self, buffer, shape, dtype, buffers):
        return program.Array(None if buffer is None else buffers.number(buffer), tuple(map(self.number, shape)), dtype)

    def _loop(self, loop, outside):
        buffers, first = _Buffers(loop.shared), len(self.sources)
        body = self.launches(loop.launches, buffers)
        number = len(self.sources)
        self.sources.append(loop)
        for b, k in buffers.numbers.items():
            outside.use(loop.variants[0].get(b, b), *buffers.lives[k])
        held = tuple([outside.use(b, first, number) for b in loop.held])

        def copies(some):
            return tuple(
                [program.Copy(outside.number(source), outside.number(target), *map(self.number, rest)) for source, target, *rest in some]
            )

        return program.Loop(
            number,
            loop.name,
            body,
            tuple([buffers.frame(mapping, outside) for mapping in loop.variants]),
            held,
            copies(loop.before),
            copies(loop.after),
            copies(loop.last),
            None if loop.length is None else self.number(loop.length),
            loop.reverse,
            tuple([(outside.number(flag), taken) for flag, taken in loop.guards]),
            loop.condition and tuple(map(outside.number, loop.condition)),
            None if loop.state is None else outside.number(loop.state),
        )
