"""The layer hook."""

import functools
import warnings

from keras_ocl import custom  # noqa: F401  (registers its class, which model files may name)
from keras_ocl.hooks import hot_calls
from keras_ocl.hooks.building import bound_all_or_nothing


@functools.cache
def _warn_of_remat():
    """Warn once per process."""
    warnings.warn(
        "keras.RematScope saves no memory with the ocl backend, but costs time; a smaller batch with the optimizer's"
        " gradient_accumulation_steps saves some.",
        stacklevel=4,
    )


class OclLayer:
    """Base class that Keras mixes into every layer."""

    @property
    def _ocl_operation(self):
        """The name in profiles for the operations of `call`: the class of a user's layer; "" names each operation by itself."""
        kind = type(self)
        return "" if kind.__module__.startswith("keras.") else kind.__name__

    def __call__(self, *args, **kwargs):
        """Called at the end of Keras's `Layer.__call__`, once inputs are tensors and the layer is built."""
        return hot_calls.call(self, super().__call__, args, kwargs)

    def _setattr_hook(self, name, value):
        if name == "build":  # Keras wraps the class's method anew for each layer
            value = bound_all_or_nothing(self, value)
        elif name == "_remat_mode" and value is not None and value.mode is not None:
            _warn_of_remat()
        hot_calls.changed(self, name, value)
        return name, value
