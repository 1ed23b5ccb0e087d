"""What a user may ask about a device's memory, launches and caches, and how to reset them."""

import contextlib
from collections import defaultdict

from keras_ocl import compiler, runtime


def _device(name):
    return runtime.current_device() if name is None else runtime.find_device(name)


def memory_info(device=None):
    """Tells how a device's memory is used.

    Args:
        device: a device's name such as "gpu:0"; by default the current one.

    Returns:
        A dict of byte counts: `current` and `peak` (in tensors and intermediates, now and at most so far), `reserved` (held from the
        driver, free or not), `available` (what can still be handed out) and `budget` (what `reserved` may not exceed).

    Raises:
        RuntimeError: no device has that name; lists those there are.
    """
    memory = _device(device).memory
    return {name: getattr(memory, name) for name in ("current", "peak", "reserved", "available", "budget")}


def clear_cache(device=None):
    """Forgets a device's compiled programs, in memory and on disk, and gives unused memory back to the driver.

    Models keep working: what is already running keeps its kernels, everything else is compiled again when it is needed.

    Args:
        device: a device's name such as "gpu:0"; by default the current one.

    Returns:
        The number of programs that were deleted from disk.

    Raises:
        RuntimeError: no device has that name; lists those there are.
    """
    device = _device(device)
    compiler.clear()
    device.programs.forget()
    device.memory.trim()
    disk = device.programs.disk  # None where the driver keeps a cache of its own
    return 0 if disk is None else disk.clear()


class Profile:
    """The kernel launches of a `profile()` block.

    Attributes:
        launches: (label, milliseconds) of each launch, in order; complete when the block has ended. Operations that the host computes, such
            as LAPACK's, are among them with labels like "host cholesky".
    """

    def __init__(self, launches):
        self.launches = launches

    @property
    def milliseconds(self):
        """The time that all launches took, on the device or the host."""
        return sum(time for _, time in self.launches)

    def totals(self):
        """Sums up the launches by label.

        Returns:
            A list of (label, number of launches, milliseconds), the longest first.
        """
        times = defaultdict(list)
        for label, time in self.launches:
            times[label].append(time)
        return sorted(((label, len(each), sum(each)) for label, each in times.items()), key=lambda row: -row[2])

    def __str__(self):
        total = self.milliseconds
        lines = [f"{'ms':>10} {'share':>6} {'launches':>8}  kernel"]
        lines += [f"{time:10.3f} {time / total if total else 0:6.1%} {count:8}  {label}" for label, count, time in self.totals()]
        lines.append(f"{total:10.3f} {'':6} {len(self.launches):8}  total")
        return "\n".join(lines)


@contextlib.contextmanager
def profile(device=None):
    """Times every kernel that is launched in a ``with`` block, and every operation that runs on the host.

    ``with keras_ocl.profile() as times: model.fit(...)``, then ``print(times)`` shows a table, the most expensive kernel first.

    Args:
        device: a device's name such as "gpu:0"; by default the current one.

    Yields:
        A `Profile`.

    Raises:
        RuntimeError: no device has that name; lists those there are.
    """
    with runtime.profiling(_device(device)) as launches:
        yield Profile(launches)
