"""Overlap: host operations that a thread computes while the device goes on with launches that do not read their results.

Collectives of large arrays are such operations. They come as early as their operands are there (fuse.py); here it is found how late each
may end. Until then its buffers are in use, so nothing else is planned into their memory.
"""

from keras_ocl.compiler.loops.lower import Loop
from keras_ocl.compiler.lower import HostCall, HostEnd, buffers
from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint

WORTH = 2**18  # bytes of operands that take longer to exchange than two threads to wake one another


def overlapped(launches, resolve):
    """`launches` with a HostEnd for each host operation that something overlaps with.

    Args:
        resolve: function from a launch's Buffer to the Buffer whose memory it uses.
    """
    found, running = [], []  # (HostCall, the Buffers of its results) that have not ended
    for launch in launches:
        beside = isinstance(launch, HostCall) and launch.node.primitive.overlaps(**launch.node.params) and _bytes(launch) > WORTH
        touched = _touched(launch, resolve)
        if beside:
            touched -= {resolve(launch.reads[-1])}  # it begins behind the operation before it anyway
        last = max((k for k, (_, results) in enumerate(running) if launch.overwrites or touched & results), default=-1)
        _end(found, running, last + 1)
        found.append(launch)
        if beside:
            running.append((launch, {resolve(b) for b in launch.writes if b is not None}))
    _end(found, running, len(running))
    return found


def _bytes(call):
    return sum(hint(b.elements) * dtypes.itemsize(b.dtype) for b in call.reads)


def _touched(launch, resolve):
    """The Buffers that a launch reads or writes."""
    if not isinstance(launch, Loop):
        return {resolve(b) for b in buffers(launch)}
    inner = launch.resolver(0, resolve)
    return set().union({resolve(b) for b in launch.held}, *(_touched(one, inner) for one in launch.launches))


def _end(found, running, count):
    """The first `count` of what is running ends here: it is computed in order, so each waits for those before it."""
    if count == 1 and found[-1] is running[0][0]:
        count = 0  # nothing is between: it is computed at once
        del running[0]
    found += [HostEnd(call) for call, _ in running[:count]]
    del running[:count]
