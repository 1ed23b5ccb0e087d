"""Kernel objects without the code that pyopencl generates for them."""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import platformdirs
import pyopencl as cl

_creating = threading.local()


def _unless_ours(generate: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(generate)
    def generated(*args: Any, **kwargs: Any) -> Any:
        return (None, None) if getattr(_creating, "ours", False) else generate(*args, **kwargs)

    return generated


def _invoker() -> Any:
    """pyopencl's module that generates code for launching kernels."""
    try:
        # Where this folder cannot be made, pyopencl's database prints an error when it is deleted.
        os.makedirs(platformdirs.user_cache_dir("pytools", "pytools"), exist_ok=True)
        from pyopencl import invoker
    except Exception:
        # Its database cannot be written.
        cl._PYOPENCL_NO_CACHE = True
        from pyopencl import invoker
    return invoker


_invoker().generate_enqueue_and_set_args = _unless_ours(_invoker().generate_enqueue_and_set_args)


def kernel_object(program: Any, name: str) -> Any:
    """A kernel object of a pyopencl program; only Device launches it.

    pyopencl would generate Python code for calling each kernel as a function, and keep it by the kernel's name in a database in the user's
    cache folder: up to a millisecond per kernel, for code that we never call, in a file that grows with every kernel.
    """
    _creating.ours = True
    try:
        return cl.Kernel(program, name)
    finally:
        _creating.ours = False
