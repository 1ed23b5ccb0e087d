"""Caches of compiled functions. Together they keep a bounded number; the least recently used are evicted first.

The numbers (scalars) that eager code uses are kept here too, in their device's memory.
"""

import threading
import weakref

MOST = 4096  # compiled functions
MOST_BYTES = 1 << 30  # that compiled functions may hold together
NUMBERS = 4096  # most numbers kept in memory
KERNEL_BYTES = 64 << 10  # estimate of the bytes that the driver and we keep for a kernel

_all = weakref.WeakSet()
_numbers = {}  # (device, dtype, value) -> Storage
_lock = threading.RLock()


class Cache(dict):
    """Compiled functions by hashable identity: each has a `device`, and in `held_bytes` the number of bytes that it holds.

    Whoever runs one sets its `used` to `Cache.now`, which counts compilations: the order of use thus costs next to nothing.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    now = 0

    def __init__(self):
        with _lock:
            _all.add(self)

    def add(self, identity, compiled):
        """Keeps `compiled` as the most recently used, and returns it."""
        with _lock:
            Cache.now += 1
            compiled.used = Cache.now
            self[identity] = compiled
            _bound()
        return compiled


def _entries(device=None):
    """List of (cache, identity, compiled) of a device, or of all devices, the least recently used first."""
    with _lock:
        found = [(cache, *item) for cache in list(_all) for item in list(cache.items())]
    return sorted((entry for entry in found if device in (None, entry[2].device)), key=lambda entry: entry[2].used)


def _bound():
    kept = [compiled.held_bytes for cache in list(_all) for compiled in list(cache.values())]
    count, held = len(kept), sum(kept)
    if count <= MOST and held <= MOST_BYTES:
        return
    entries = _entries()
    for cache, identity, compiled in entries[:-1]:  # the newest is about to run
        # Evict a little more than needed, or every new function would have to sort all entries again.
        if count <= MOST - MOST // 64 and held <= MOST_BYTES - MOST_BYTES // 64:
            break
        cache.pop(identity, None)
        count, held = count - 1, held - compiled.held_bytes


def evict(device):
    """Forgets the least recently used half of a device's compiled functions. Returns whether there were any."""
    entries = _entries(device)
    for cache, identity, _ in entries[: -(-len(entries) // 2)]:
        cache.pop(identity, None)
    return bool(entries)


def number(identity, upload):
    """The Storage of a number, `identity` being (device, dtype, value). Eager code uses the same few again and again: they are kept."""
    storage = _numbers.get(identity)
    if storage is None:
        if len(_numbers) >= NUMBERS:
            _numbers.clear()
        storage = _numbers[identity] = upload()
    return storage


def forget(device=None):
    """Forgets compiled functions and numbers of a device (None: all); functions are traced and compiled again at their next call."""
    for cache, identity, _ in _entries(device):
        cache.pop(identity, None)
    for identity in [i for i in list(_numbers) if device in (None, i[0])]:
        _numbers.pop(identity, None)
