"""Exports models to ONNX, from the traced graph. Other formats need other backends' tools, and their errors say so."""

import importlib.util
import os

from keras.src import tree
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.variables import standardize_dtype, standardize_shape

from keras_ocl.core.tensor import Tensor

# Protocol buffers hold less than 2 GiB; beyond, ONNX stores arrays in a file next to the model.
_LARGEST_FILE = 2**31 - 2**20


class OclExportArchive:
    """Takes the place of other backends' writers of TensorFlow SavedModels, which consist of TensorFlow's operations.

    Raises:
        NotImplementedError: always; the message says what to use.
    """

    def __init__(self):
        raise NotImplementedError(
            "`export_saved_model` only currently supports the tensorflow, jax and torch backends. "
            "Save the model with `model.save('model.keras')`, load it there with KERAS_BACKEND=tensorflow and export it from that process."
        )


def refuse_openvino():
    """Replaces `export_openvino`. Raises NotImplementedError."""
    raise NotImplementedError(
        "The OpenVINO export needs the openvino, tensorflow, jax or torch backend; here, export with format='onnx', which OpenVINO reads."
    )


def export_onnx(model, filepath, input_signature, opset_version=None):
    """Writes `model`'s inference as an ONNX file.

    Args:
        model: a built Keras model.
        filepath: where to write.
        input_signature: list of the call's positional arguments, structures of `keras.InputSpec`, `KerasTensor`, `tf.TensorSpec` or
            tensors. Extents of None stay unknown, as does the first extent of a `KerasTensor` or tensor, like with other backends.
        opset_version: ONNX's opset, 17 or later; None for 18.

    Raises:
        ImportError: the package onnx is not installed.
        ValueError, NotImplementedError: see `onnx_model`.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ImportError("ONNX export needs the package onnx: pip install 'keras-ocl[export]'.")
    import onnx

    from keras_ocl.export.onnx.model import onnx_model

    inputs = [_input(k, spec) for k, spec in enumerate(tree.flatten(input_signature))]

    def call(*arguments):
        return tree.flatten(model(*tree.pack_sequence_as(input_signature, list(arguments)), training=False))

    proto = onnx_model(call, _distinct(inputs), model.name, opset_version)
    filepath = os.fspath(filepath)
    if sum(len(array.raw_data) for array in proto.graph.initializer) < _LARGEST_FILE:
        onnx.save_model(proto, filepath)
    else:
        onnx.save_model(proto, filepath, save_as_external_data=True, location=f"{os.path.basename(filepath)}.data")


def _input(k, spec):
    from keras_ocl.export.onnx.model import Input

    shape = getattr(spec, "shape", None)
    if shape is None or getattr(spec, "dtype", None) is None:
        raise ValueError(f"ONNX export: `input_signature` must give shapes and dtypes. Received: {spec}")
    shape = list(standardize_shape(tuple(shape)))
    if isinstance(spec, (KerasTensor, Tensor)) and shape:
        shape[0] = None
    shape = tuple(n if n is not None else "batch" if axis == 0 else f"dim_{k}_{axis}" for axis, n in enumerate(shape))
    return Input(getattr(spec, "name", None) or f"input_{k}", shape, standardize_dtype(spec.dtype))


def _distinct(inputs):
    """The inputs, with a number added to repeated names."""
    taken, distinct = set(), []
    for i in inputs:
        name, count = i.name, 1
        while name in taken:
            name, count = f"{i.name}_{count}", count + 1
        taken.add(name)
        distinct.append(i._replace(name=name))
    return distinct
