"""The pyopencl versions that this package works with; checked before pyopencl is imported, as an older one may fail anywhere."""

import re
from importlib import metadata

OLDEST_PYOPENCL = (2024, 2, 7)  # the first that tells which drivers cache what they compile


def check():
    """Raise ImportError where an older pyopencl is installed."""
    try:
        version = metadata.version("pyopencl")
    except metadata.PackageNotFoundError:  # importing it says so; a bundled program may also lack pip's metadata
        return
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST_PYOPENCL:
        oldest = ".".join(map(str, OLDEST_PYOPENCL))
        raise ImportError(
            f"keras_ocl does not support pyopencl {version}. Supported is pyopencl {oldest} and later: pip install 'pyopencl>={oldest}'."
        )


check()
