"""The export hook."""


class OclExportArchive:
    """Stands where other backends write a TensorFlow SavedModel, which holds TensorFlow's own operations.

    Raises:
        NotImplementedError: always; the message says what to use.
    """

    def __init__(self):
        raise NotImplementedError(
            "`export_saved_model` only currently supports the tensorflow, jax and torch backends. "
            "Save the model with `model.save('model.keras')`, load it there with KERAS_BACKEND=tensorflow and export it from that process."
        )
