"""Errors of the runtime."""

from collections.abc import Iterable


class OutOfMemory(MemoryError):
    """A buffer does not fit; the message says what needed it, its size, and how much is free. The process stays usable."""


class DeviceLost(RuntimeError):
    """A device no longer answers, or stopped in the middle of an update; every use of it raises this, other devices still work."""


class KernelBuildError(RuntimeError):
    """OpenCL C that the device's compiler refused.

    Attributes:
        names: the kernels of the program.
        log: the compiler's output.
        reason: the first line of it that has an error.
        source: the whole source, unnumbered.
    """

    names: tuple[str, ...]
    log: str
    reason: str
    source: str
    _keras_call_info_injected = True  # else Keras, to add a call's arguments, would replace it by a RuntimeError without these attributes

    def __init__(self, names: Iterable[str], device: object, options: str, log: str, source: str) -> None:
        self.names, self.log, self.source = tuple(names), log, source
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        self.reason = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no log")
        numbered = "\n".join(f"{n:5d}  {line}" for n, line in enumerate(source.splitlines(), 1))
        super().__init__(
            f"kernel(s) {', '.join(self.names)} do not compile on {device} (options {options!r}): {self.reason}\n"
            f"--- compiler log ---\n{log.strip()}\n--- source ---\n{numbered}"
        )


FAILURES = (MemoryError, DeviceLost, KernelBuildError)  # failures of memory or devices, which no other way of computing avoids


def readable(nbytes: int) -> str:
    """`nbytes` as text: 1536 -> '1.5 KiB'."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{int(nbytes)} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
