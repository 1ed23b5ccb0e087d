"""Overlap: a thread computes host operations while the device goes on with launches that do not read their results.

Collectives of large arrays are such operations. fuse/partition.py starts each as soon as its operands are there; this module finds the last
place where each may end. Until then its buffers are live, so nothing else is planned into their memory.
"""

from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.compiler.launch.lower import HostCall, HostEnd, buffers
from keras_ocl.core import dtypes
from keras_ocl.core.dim import hint

WORTH = 2**18  # bytes of operands: to exchange more takes longer than two threads take to wake one another


def overlapped(launches, resolve):
    """`launches` with a HostEnd inserted for each host operation that other launches overlap with.

    Args:
        resolve: function from a launch's Buffer to the Buffer whose memory it uses.
    """
    found, running = [], []  # running: (HostCall, the Buffers of its results) of operations that have not ended
    for launch in launches:
        beside = isinstance(launch, HostCall) and launch.node.primitive.overlaps(**launch.node.params) and _bytes(launch) > WORTH
        touched = _touched(launch, resolve)
        if beside:
            touched -= {resolve(launch.reads[-1])}  # stands for the operation before it alone, after which it begins anyway
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
    """End the first `count` running operations here; the thread computes them in order, so each waits for those before it."""
    if count == 1 and found[-1] is running[0][0]:
        count = 0  # there is no launch to overlap with: it is computed without the thread
        del running[0]
    found += [HostEnd(call) for call, _ in running[:count]]
    del running[:count]
