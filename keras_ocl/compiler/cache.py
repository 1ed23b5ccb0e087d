"""Caches of compiled functions. All together they keep a bounded number; what was not used for longest is forgotten first.

The numbers that eager code uses are kept here too, in their device's memory.
"""

import threading
import weakref

MOST = 4096  # compiled functions
MOST_BYTES = 1 << 30  # of what they hold
NUMBERS = 4096  # kept in memory
KERNEL_BYTES = 64 << 10  # about what the driver and we remember for a kernel

_all = weakref.WeakSet()
_numbers = {}  # (device, dtype, value) -> Storage
_lock = threading.RLock()


class Cache(dict):
    """Compiled functions by hashable identity: they have a `device`, and the number of bytes they hold as `held_bytes`.

    Whoever runs one sets its `used` to `Cache.now`, which counts what was compiled: so this costs nothing to speak of.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    now = 0

    def __init__(self):
        with _lock:
            _all.add(self)

    def add(self, identity, compiled):
        """Keeps `compiled`, the newest of all, and returns it."""
        with _lock:
            Cache.now += 1
            compiled.used = Cache.now
            self[identity] = compiled
            _bound()
        return compiled


def _entries(device=None):
    """[(cache, identity, compiled)] of a device, or of all, the one that was used longest ago first."""
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
        # A little more than needed, or every new one would look for the oldest.
        if count <= MOST - MOST // 64 and held <= MOST_BYTES - MOST_BYTES // 64:
            break
        cache.pop(identity, None)
        count, held = count - 1, held - compiled.held_bytes


def evict(device):
    """Forgets the half of a device's compiled functions that was not used for longest. Returns whether there were any."""
    entries = _entries(device)
    for cache, identity, _ in entries[: -(-len(entries) // 2)]:
        cache.pop(identity, None)
    return bool(entries)


def number(identity, upload):
    """The Storage of a number, (device, dtype, value). Eagerly the same few come back again and again: their memory is kept."""
    storage = _numbers.get(identity)
    if storage is None:
        if len(_numbers) >= NUMBERS:
            _numbers.clear()
        storage = _numbers[identity] = upload()
    return storage


def forget(device=None):
    """Forgets what was compiled for a device (all), and numbers: it is traced and compiled again when it is next called."""
    for cache, identity, _ in _entries(device):
        cache.pop(identity, None)
    for identity in [i for i in list(_numbers) if device in (None, i[0])]:
        _numbers.pop(identity, None)
