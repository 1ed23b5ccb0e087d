"""An OpenCL backend for Keras 3.

``KERAS_BACKEND=ocl`` is enough to use it: a Keras script then runs unchanged on any OpenCL 1.2 device. Importing this package before Keras
has the same effect. What it offers beyond Keras's own API is loaded on first use.

Devices and memory:

- ``devices()`` lists the OpenCL devices with their traits; ``with keras.device("gpu:0")`` chooses one.
- ``memory_info()`` tells how many bytes of a device's memory are in use.
- ``clear_cache()`` deletes compiled kernels and gives unused memory back.

Training loops of your own:

- ``jit(function)`` compiles a function of arrays and Keras variables into a list of kernel launches.
- ``GradientTape()`` records operations and computes gradients, as TensorFlow's does.
- ``grad(function)`` and ``value_and_grad(function)`` make functions that return gradients.
- ``callback(function, x)`` calls a Python function with values from inside compiled code.
- ``all_reduce(x)`` sums tensors over the ranks of an MPI job, each of which has its own data.
- ``CentralStorage()`` divides batches among the devices of one process, one of which has the variables.

Kernels, profiles and checks:

- ``custom_op(source, inputs)`` makes a differentiable Keras operation of OpenCL C.
- ``profile(by="operation")`` measures where time and memory go, by kernel, operation or layer.
- ``precision()`` lets float32 products be computed from operands of fewer bits on matrix units.
- ``checks()`` makes an index out of range, a NaN and an infinity raise an error that names the operation and the layer.

Errors, besides Python's own:

- ``OutOfMemory``, a ``MemoryError``: a buffer does not fit on the device.
- ``DeviceLost``, a ``RuntimeError``: a device no longer answers.
- ``KernelBuildError``, a ``RuntimeError``: OpenCL C that the device's compiler refused.
- ``UnsupportedKeras``, an ``ImportError``: the installed Keras is a version that this package does not know.

``python -m keras_ocl doctor`` explains which device is used, and what to install where there is none. The logger ``keras_ocl`` names the
device at its first use.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from keras_ocl.plugin import install

if TYPE_CHECKING:
    from keras_ocl.callback import callback
    from keras_ocl.central import CentralStorage
    from keras_ocl.collectives import all_reduce
    from keras_ocl.compiler.jit import jit
    from keras_ocl.core.autodiff import GradientTape
    from keras_ocl.core.checks import checks
    from keras_ocl.core.precision import precision
    from keras_ocl.custom import custom_op
    from keras_ocl.gradient import grad, value_and_grad
    from keras_ocl.monitor import clear_cache, memory_info
    from keras_ocl.plugin.rewrite import UnsupportedKeras
    from keras_ocl.profiler import profile
    from keras_ocl.runtime import DeviceLost, KernelBuildError, OutOfMemory, devices

__version__ = "0.1.0"

__all__ = [
    "CentralStorage",
    "DeviceLost",
    "GradientTape",
    "KernelBuildError",
    "OutOfMemory",
    "UnsupportedKeras",
    "__version__",
    "all_reduce",
    "callback",
    "checks",
    "clear_cache",
    "custom_op",
    "devices",
    "grad",
    "jit",
    "memory_info",
    "precision",
    "profile",
    "value_and_grad",
]

# public name -> the module that defines it; those of _WITH_KERAS need Keras to be imported first
_ALONE = {
    "DeviceLost": "runtime",
    "KernelBuildError": "runtime",
    "OutOfMemory": "runtime",
    "UnsupportedKeras": "plugin.rewrite",
    "checks": "core.checks",
    "clear_cache": "monitor",
    "devices": "monitor",
    "memory_info": "monitor",
    "precision": "core.precision",
    "profile": "profiler",
}
_WITH_KERAS = {
    "CentralStorage": "central",
    "GradientTape": "core.autodiff",
    "all_reduce": "collectives",
    "callback": "callback",
    "custom_op": "custom",
    "grad": "gradient",
    "jit": "compiler.jit",
    "value_and_grad": "gradient",
}

# A program that imports this package first expects Keras to use it, even if keras.json, which Keras writes itself, names another backend.
if "keras" not in sys.modules and not os.environ.get("KERAS_BACKEND"):
    os.environ["KERAS_BACKEND"] = "ocl"
install()


def __getattr__(name: str) -> object:
    if name not in _ALONE | _WITH_KERAS:
        raise AttributeError(f"module 'keras_ocl' has no attribute {name!r}")
    if name in _WITH_KERAS:
        import_module("keras")
    module = import_module(f"keras_ocl.{_ALONE.get(name) or _WITH_KERAS[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
