"""The pyopencl that this package works with; looked for before one is imported, as an older one may fail at anything."""

import re
from importlib import metadata

OLDEST_PYOPENCL = (2024, 2, 7)  # the first that tells which drivers keep what they compile


def check():
    """ImportError, in a sentence, where an older one is installed."""
    try:
        version = metadata.version("pyopencl")
    except metadata.PackageNotFoundError:  # its import says so; a program may also be bundled without what pip knows
        return
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST_PYOPENCL:
        oldest = ".".join(map(str, OLDEST_PYOPENCL))
        raise ImportError(
            f"keras_ocl does not support pyopencl {version}. Supported is pyopencl {oldest} and later: pip install 'pyopencl>={oldest}'."
        )


check()
