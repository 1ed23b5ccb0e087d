"""The layer hook."""

from keras_ocl import custom  # noqa: F401  (registers its class, which model files may name)


class OclLayer:
    """Base class that Keras mixes into every layer."""

    @property
    def _ocl_operation(self):
        """What profiles call the operations of `call`: the class of a layer that is not Keras's own; "" lets each go by its own name."""
        kind = type(self)
        return "" if kind.__module__.startswith("keras.") else kind.__name__
