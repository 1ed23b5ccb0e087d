"""An OpenCL backend for Keras 3.

``KERAS_BACKEND=ocl`` is enough to use it; importing this package before Keras has the same effect. Importing it is nearly free: what
it offers beyond Keras's own API is loaded on first use.
"""

import os
import sys
from importlib import import_module

from keras_ocl.plugin import install

__version__ = "0.1.0"

# public name -> the module that defines it; the second kind works on tensors, which Keras has set up
_ALONE = {"devices": "runtime", "memory_info": "monitor", "profile": "profiler", "clear_cache": "monitor"}
_WITH_KERAS = {
    "jit": "compiler.jit",
    "grad": "gradient",
    "value_and_grad": "gradient",
    "GradientTape": "core.autodiff",
    "custom_op": "custom",
}

__all__ = ["__version__", *_ALONE, *_WITH_KERAS]

# Whoever imports this package first expects Keras to use it, even if keras.json, which Keras writes itself, names another backend.
if "keras" not in sys.modules and not os.environ.get("KERAS_BACKEND"):
    os.environ["KERAS_BACKEND"] = "ocl"
install()


def __getattr__(name):
    if name not in _ALONE | _WITH_KERAS:
        raise AttributeError(f"module 'keras_ocl' has no attribute {name!r}")
    if name in _WITH_KERAS:
        import_module("keras")
    module = import_module(f"keras_ocl.{_ALONE.get(name) or _WITH_KERAS[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
