"""Work: what each launch of a list computes and moves, from its provenance: the shares of operations and layers, bytes, operations."""

from dataclasses import dataclass

from keras_ocl.compiler.launch.lower import HostCall
from keras_ocl.compiler.launch.provenance import Share
from keras_ocl.core import dtypes
from keras_ocl.core.dim import present
from keras_ocl.kernels.matrix.units import of_title
from keras_ocl.kernels.spec import KernelSpec


@dataclass(frozen=True)
class Work:
    """What a launch computes and moves, with the extents of the trace.

    Attributes:
        shares: the operations and layers that it computes, each with its fraction of the work.
        read, written: bytes of memory; for gathered operands at most the bytes gathered, in a loop the bytes of one step.
        operations: arithmetic operations of one region of the graph. If several launches share it, the one that moves the most bytes has
            them all; launches that count their own (Winograd convolutions) have those.
        steps: how often it repeats all that its amounts state, in `stages` successive parts; each work-group rereads the same `reread`
            bytes in every step.
        by_units: those operations that matrix units do, by kernels that are parts of it, as (unit's name, its instructions for each product
            of fragments, operations).
    """

    shares: tuple[Share, ...]
    read: int
    written: int
    operations: int
    steps: int = 1
    stages: int = 1
    reread: int = 0
    by_units: tuple[tuple[str, int, int], ...] = ()


def works(launches):
    """A list of the Work of each of a graph's launches; None for a Loop, whose launches have their own, and a HostEnd."""
    busiest = _busiest(launches)
    return [_work(launch, busiest) for launch in launches]


def _work(launch, busiest):
    provenance = launch.provenance
    if isinstance(launch, HostCall):
        read, written = sum(b.nbytes for b in launch.reads), sum(b.nbytes for b in launch.writes if b is not None)
        return Work(provenance.shares, read, written, int(provenance.operations))
    if not isinstance(launch, KernelSpec):
        return None
    parts = provenance.parts(launch)
    read, written = (sum(amounts) for amounts in zip(*map(_traffic, parts), strict=True))
    operations = [_operations(part, busiest) for part in parts]
    by_units = tuple((*unit, n) for part, n in zip(parts, operations, strict=True) if n and (unit := of_title(part.title)))
    steps = int(present(provenance.steps))
    return Work(provenance.shares, read, written, sum(operations), steps, len(parts), provenance.reread, by_units)


def _busiest(launches):
    """Dict from the provenance of each region of the graph to that one of its kernels which moves the most bytes."""
    found = {}
    for launch in launches:
        if isinstance(launch, KernelSpec):
            for part in launch.provenance.parts(launch):
                moved = sum(_traffic(part))
                if part.provenance not in found or moved > found[part.provenance][0]:
                    found[part.provenance] = moved, part
    return {provenance: part for provenance, (_, part) in found.items()}


def _operations(part, busiest):
    """Operations of a kernel: its own number, or its region's if it is the busiest kernel of that region, else 0."""
    if part.operations is not None:
        return int(present(part.operations))
    return int(part.provenance.operations) if busiest[part.provenance] is part else 0


def _traffic(part: KernelSpec):
    """(bytes read, bytes written) by a kernel or a part of it: its buffers' bytes, but no more than the elements loaded or replaced.

    Where a loop's steps access slices of a buffer, the bytes of one step count.
    """
    loads, stores, totals = part.provenance.loads, part.provenance.stores, {"in": 0, "out": 0}
    for a in part.args:
        if a.kind not in totals:
            continue
        nbytes = a.value.nbytes
        if a.parts and None not in a.parts:
            nbytes = sum(map(present, a.parts.values())) * dtypes.itemsize(a.dtype)
        elif a.kind == "in" and a.value in loads:
            nbytes = min(nbytes, int(loads[a.value]) * dtypes.itemsize(a.dtype))
        elif a.kind == "out" and a.value in stores:
            nbytes = min(nbytes, stores[a.value] * dtypes.itemsize(a.dtype))
        elif a.kind == "out" and part.replaced is not None:
            nbytes = min(nbytes, present(part.replaced) * dtypes.itemsize(a.dtype))
        totals[a.kind] += nbytes
    return totals["in"], totals["out"]
