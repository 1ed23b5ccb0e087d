"""The constructs of released Keras in which the name "ocl" must be added."""

from typing import NamedTuple

BACKEND = "ocl"
SUPPORTED_KERAS = ">=3.15,<3.16"


def supports(version):
    """Whether the edits are made for this version of Keras, such as "3.15.0"."""
    return version.split(".")[:2] == ["3", "15"]


class Branch(NamedTuple):
    """Puts a branch for our backend before the chain in `scope` that first tests for "tensorflow" and binds `binds`.

    `scope` is a dotted path of classes and functions, "" for the module's own body; `binds` is a name that the chain's first branch
    imports, or None when the chain binds nothing.
    """

    scope: str
    binds: str | None
    code: str

    def __str__(self):
        place = f" in {self.scope}" if self.scope else ""
        purpose = f" that binds {self.binds}" if self.binds else ""
        return f'the `if` that asks whether the backend is "tensorflow"{place}{purpose}'


class First(NamedTuple):
    """Puts `code` first in the function `scope`."""

    scope: str
    code: str

    def __str__(self):
        return f"the function {self.scope}"


class Then(NamedTuple):
    """Puts `code` after the statement `statement` in every function `scope`; in a function without it, puts `otherwise` first."""

    scope: str
    statement: str
    code: str
    otherwise: str


class Alike(NamedTuple):
    """Makes the comparison in `scope` that accepts the backend `like` accept ours too."""

    scope: str
    like: str

    def __str__(self):
        return f'the comparison with "{self.like}" in {self.scope}'


_SAVE = (
    'from keras.src import backend\nif backend.backend() == "ocl":\n    from keras_ocl.hooks.ranks import whole_values\n'
    "    held_until_saved = whole_values(model)\n    if held_until_saved is None:\n        return"
)

EDITS: dict[str, tuple[Branch | First | Alike, ...]] = {
    "keras.src.backend": (
        Branch("", "BackendVariable", "from keras_ocl.backend import *\nfrom keras_ocl.hooks.variable import Variable as BackendVariable"),
    ),
    "keras.src.backend.common.variables": (
        First("standardize_shape", "from keras_ocl.hooks.shapes import with_unknown\nshape = with_unknown(shape)"),
    ),
    "keras.src.backend.common.global_state": (
        Branch("clear_session", None, "if free_memory:\n    from keras_ocl.hooks.session import forget\n    forget()"),
    ),
    "keras.src.layers.layer": (Branch("", "BackendLayer", "from keras_ocl.hooks.layer import OclLayer as BackendLayer"),),
    "keras.src.models.model": (Branch("", "Trainer", "from keras_ocl.hooks.trainer import OclTrainer as Trainer"),),
    "keras.src.export.saved_model": (
        Branch("", "BackendSavedModelExportArchive", "from keras_ocl.export import OclExportArchive as BackendSavedModelExportArchive"),
    ),
    "keras.src.export.onnx": (
        Branch(
            "export_onnx",
            "tf2onnx",
            "from keras_ocl.export import export_onnx as export\nexport(model, filepath, input_signature, opset_version)",
        ),
    ),
    # Before Keras tests for the package openvino.
    "keras.src.export.openvino": (First("export_openvino", "from keras_ocl.export import refuse_openvino\nrefuse_openvino()"),),
    "keras.src.optimizers.optimizer": (
        Branch("", "BackendOptimizer", "from keras_ocl.hooks.optimizer import OclOptimizer as BackendOptimizer"),
    ),
    # A loss object is called once for each step of a loop with a tape.
    "keras.src.losses.loss": (
        First(
            "Loss.__call__",
            'if backend.backend() == "ocl":\n    from keras_ocl.hooks.losses import call\n'
            "    compiled = call(self, y_true, y_pred, sample_weight)\n    if compiled is not NotImplemented:\n        return compiled",
        ),
    ),
    # The `except:` in it would swallow Ctrl-C while it waits for the device.
    "keras.src.utils.python_utils": (
        First(
            "pythonify_logs",
            'from keras.src import backend\nif backend.backend() == "ocl":\n    from keras_ocl.hooks.logs import pythonify_logs as ours\n'
            "    return ours(logs)",
        ),
    ),
    # A matrix product can read packed values directly if one operation unpacks them. It cannot with Keras's nine operations, which use
    # another order of elements.
    "keras.src.quantizers.quantizers": (
        First(
            "unpack_int4",
            'if backend.backend() == "ocl":\n    from keras_ocl.ops.quantization import unpacked\n'
            "    ours = unpacked(packed, orig_len, axis, dtype)\n    if ours is not None:\n        return ours",
        ),
    ),
    # Loading TensorFlow takes longer than loading Keras, and more memory than a small model's training.
    "keras.src.utils.rng_utils": (First("set_random_seed", "from keras_ocl.hooks.seeds import tensorflow as tf"),),
    "keras.src.utils.backend_utils": (
        Alike("DynamicBackend.set_backend", "tensorflow"),
        Branch("DynamicBackend.__getattr__", None, 'return getattr(importlib.import_module("keras_ocl.backend"), name)'),
    ),
    # Keras reads the shape of the first step, even of sequences without steps.
    "keras.src.layers.rnn.rnn": (
        First(
            "RNN.call",
            'if backend.backend() == "ocl" and sequences.shape[1] == 0:\n    from keras_ocl.hooks.rnn import without_steps\n'
            "    return without_steps(self, sequences, initial_state, training)",
        ),
    ),
    "keras.src.callbacks.tensorboard": (Alike("TensorBoard.__init__", "tensorflow"),),  # which backends can profile
    "keras.src.layers.normalization.batch_normalization": (Alike("BatchNormalization.__init__", "tensorflow"),),  # synchronized=True
    # In a job of several processes only one writes; the others give it their parts.
    "keras.src.saving.saving_api": (
        First("save_model", _SAVE),
        First("save_weights", _SAVE),
    ),
    # Keras's general branches have shapes that depend on data, which a trace cannot represent.
    "keras.src.layers.preprocessing.image_preprocessing.equalization": (
        Alike("Equalization._custom_histogram_fixed_width", "jax"),
        Alike("Equalization._apply_equalization", "jax"),
    ),
}

# KerasHub decides by the backend's name how to compile functions that generate text and images. These edits apply to all its modules, so
# they survive renamed modules and cover future tasks; where they do not fit, a task runs eagerly, as KerasHub allows.
EDITS_OF_PACKAGE: dict[str, tuple[Then | First, ...]] = {
    "keras_hub": (
        Then(
            "make_generate_function",
            "self.generate_function = self.generate_step",
            "from keras_ocl.hooks.generation import compiled\nself.generate_function = compiled(self)",
            "from keras_ocl.hooks.generation import runs_eagerly\nruns_eagerly(self)",
        ),
        # Whether `keras.ops.dot_product_attention` is one operation; KerasHub knows this only of JAX and PyTorch.
        First("fused_attention_op_available", 'if keras.config.backend() == "ocl":\n    return True'),
    ),
}
