"""The layer hook."""

from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.common.keras_tensor import KerasTensor

from keras_ocl import custom  # noqa: F401  (registers its class, which model files may name)
from keras_ocl.core.tensor import Tensor
from keras_ocl.hooks import hot_calls
from keras_ocl.hooks.building import bound_all_or_nothing


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

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Called for layers that were made in a `keras.RematScope`: `layer_call`, or what computes its inner values again."""
        if _rematerialises_layers(self):
            return layer_call
        # The arguments serve to infer the output's size; some layers ask them for what symbolic ones have alone.
        args, kwargs = tree.map_structure(lambda x: KerasTensor(x.shape, x.dtype) if type(x) is Tensor else x, (args, kwargs))
        return super().rematerialized_call(layer_call, *args, **kwargs)

    def _setattr_hook(self, name, value):
        if name == "build":  # Keras wraps the class's method anew for each layer
            value = bound_all_or_nothing(self, value)
        hot_calls.changed(self, name, value)
        return name, value


def _rematerialises_layers(layer):
    """Whether `layer` is a step's whole model and its layers are rematerialised: the gradient comes next, so repeating it saves nothing."""
    context = global_state.get_global_attribute("current_call_ctx")
    if not hasattr(layer, "train_step") or context is None or context.entry_layer is not layer:
        return False
    return any(part._remat_mode is not None for part in layer._flatten_layers(include_self=False))
