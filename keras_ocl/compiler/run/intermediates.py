"""Intermediates: what each buffer of a compiled step's arena holds, when it is live, and whether it is kept for a gradient."""

import math
from collections import defaultdict
from dataclasses import dataclass

from keras_ocl.compiler.launch.work import works
from keras_ocl.compiler.run.program import HostCall, KernelLaunch, Loop, inside, value
from keras_ocl.core.dim import noting, present
from keras_ocl.core.origin import Origin


@dataclass(frozen=True)
class Intermediate:
    """A buffer of the arena.

    Attributes:
        origin: of the value that is written to it first, with the operation's name. primitive: the name of what computes that value.
        shape, dtype: of that value; scratch memory has one axis.
        nbytes: its bytes.
        first, last: the numbers of the launches between which it is live.
        kept: whether it is a residual (a saved activation): the forward part writes it, and a gradient is computed from it.
    """

    origin: Origin
    primitive: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    first: int
    last: int
    kept: bool


def intermediates(program, sources, sizes):
    """A tuple of the Intermediates of a Program; `sources`: its Sources; `sizes`: dict from each buffer to its bytes."""
    writers, reads = {}, set()
    for number, buffer, provenance, written in _uses(program.launches, sources, program.frame):
        if written:
            writers.setdefault(number, provenance.writer(buffer))
        if buffer in provenance.read_by_gradients:  # a joined kernel may read what it writes
            reads.add(number)
    return tuple(
        _intermediate(writers[k], memory, sizes[k], k in reads)
        for k, memory in enumerate(program.buffers)
        if memory.first is not None and k in writers
    )


def _intermediate(node, memory, nbytes, read):
    with noting(None):
        shape = tuple(map(present, node.shape))
    if math.prod(shape) * memory.itemsize != nbytes:
        shape = (nbytes // memory.itemsize,)
    origin = node.origin.named(node.name)
    return Intermediate(origin, node.name, shape, memory.dtype, nbytes, memory.first, memory.last, read and not origin.gradient)


def peak(some):
    """(number of the launch at which the most bytes are live, the Intermediates that are live then, the largest first)."""
    changes = defaultdict(int)
    for one in some:
        changes[one.first] += one.nbytes
        changes[one.last + 1] -= one.nbytes
    live = most = at = 0
    for number in sorted(changes):
        live += changes[number]
        if live > most:
            most, at = live, number
    return at, sorted((one for one in some if one.first <= at <= one.last), key=lambda one: -one.nbytes)


def traffic(launches, sources, numbers):
    """(bytes read, bytes written) by a Program's launches in all; of a while loop those of one step.

    numbers: the values of the Program's formulas.
    """
    read = written = 0
    for launch, work in zip(launches, works([sources[launch.number] for launch in launches]), strict=True):
        if isinstance(launch, Loop):
            amounts, times = traffic(launch.body, sources, numbers), 1 if launch.length is None else value(launch.length, numbers)
        elif work is not None:
            amounts, times = (work.read, work.written), work.steps
        else:
            continue
        read, written = read + times * amounts[0], written + times * amounts[1]
    return read, written


def _uses(launches, sources, frame):
    """(buffer's number, lowered Buffer, Provenance, whether it is written) of each use of memory by launches and in loops.

    `frame`: the Program's numbers of the launches' buffers.
    """
    for launch in launches:
        source = sources[launch.number]
        match launch:
            case Loop():
                yield from _uses(launch.body, sources, inside(launch, 0, frame))
                # Spare buffers and histories that only copies fill.
                yield from ((frame[k], b, source.provenance, True) for k, b in zip(launch.held, source.held, strict=True))
            case HostCall():
                yield from ((frame[a.buffer], b, source.provenance, False) for a, b in zip(launch.reads, source.reads, strict=True))
                written = zip(launch.writes, source.writes, strict=True)
                yield from ((frame[a.buffer], b, source.provenance, True) for a, b in written if b is not None)
            case KernelLaunch():
                for pointer, a in zip(launch.arguments, source.args, strict=True):
                    if a.is_pointer:
                        yield frame[pointer.buffer], a.value, source.provenance, a.kind == "out"
