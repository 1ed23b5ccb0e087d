"""Queries about a device's memory and caches, and how to reset them."""

from keras_ocl import compiler, runtime  # with the compiler, which tries their matrix units before `devices` lists them
from keras_ocl.runtime import Device, devices

__all__ = ["clear_cache", "devices", "memory_info"]


def _device(name: str | None) -> Device:
    return runtime.current_device() if name is None else runtime.find_device(name)


def memory_info(device: str | None = None) -> dict[str, int]:
    """Tells how a device's memory is used.

    Args:
        device: a device's name such as "gpu:0"; by default the current one.

    Returns:
        A dict of byte counts: `current` and `peak` (in tensors and intermediates, now and at most so far), `reserved` (obtained from
        the driver, in use or not), `available` (can still be handed out), `budget` (the limit of `reserved`) and `arena` (the part of
        `current` that the intermediates of all compiled functions share).

    Raises:
        RuntimeError: no device has that name; lists those there are.
    """
    used = _device(device)
    found = {name: getattr(used.memory, name) for name in ("current", "peak", "reserved", "available", "budget")}
    return {**found, "arena": used.arena.nbytes}


def clear_cache(device: str | None = None) -> int:
    """Forgets a device's compiled functions and programs, in memory and on disk, and gives unused memory back to the driver.

    Models keep working: their steps, and functions made by `jit`, are traced and compiled again when they are next called.

    Args:
        device: a device's name such as "gpu:0"; by default the current one.

    Returns:
        The number of programs that were deleted from disk.

    Raises:
        RuntimeError: no device has that name; lists those there are.
    """
    used = _device(device)
    compiler.forget(used)
    used.programs.forget()
    used.release_unused()
    disk = used.programs.steps  # None where nothing runs
    return 0 if disk is None else disk.clear()
