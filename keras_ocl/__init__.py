"""An OpenCL backend for Keras 3.

``KERAS_BACKEND=ocl`` is enough to use it; importing this package before Keras has the same effect. Importing it is nearly free: what
it offers beyond Keras's own API is loaded on first use.
"""

import os
import sys
from importlib import import_module

from keras_ocl.plugin import install

__version__ = "0.1.0"

# name -> the module that defines it
_RUNTIME = {"devices": "keras_ocl.runtime", "memory_info": "keras_ocl.runtime", "clear_cache": "keras_ocl.runtime"}
_WITH_KERAS = {
    "jit": "keras_ocl.compiler",
    "grad": "keras_ocl.gradient",
    "value_and_grad": "keras_ocl.gradient",
    "GradientTape": "keras_ocl.gradient",
    "profile": "keras_ocl.compiler",
    "custom_op": "keras_ocl.ops",
}

__all__ = ["__version__", *_RUNTIME, *_WITH_KERAS]

# Whoever imports this package first expects Keras to use it, even if keras.json, which Keras writes itself, names another backend.
if "keras" not in sys.modules and not os.environ.get("KERAS_BACKEND"):
    os.environ["KERAS_BACKEND"] = "ocl"
install()


def __getattr__(name):
    if name in _RUNTIME:
        value = getattr(import_module(_RUNTIME[name]), name)
    elif name in _WITH_KERAS:
        import_module("keras")
        value = getattr(import_module(_WITH_KERAS[name]), name)
    else:
        raise AttributeError(f"module 'keras_ocl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
