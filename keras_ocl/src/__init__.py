"""The layout in which Keras's coming loader of backends looks for a package of the name ``keras_NAME``: no code, only names.

Keras (its branch ``pluggable_backend``, https://github.com/keras-team/keras/issues/23523) imports ``keras_NAME.src`` for what its own
``keras.src.backend`` offers, and ``.layer``, ``.trainer`` and ``.export`` of that for the classes that it mixes into its own. Unlike in
Keras 3.15 (`keras_ocl.backend`), operations are in `ops`, and `rnn` is a module. Where Keras lists "ocl" itself, the import hook
(`keras_ocl.plugin`) stands aside.
"""

# ruff: noqa: F401
from keras_ocl.hooks import distribution as distribution_lib
from keras_ocl.hooks import rnn, tensorboard
from keras_ocl.hooks.variable import Variable
from keras_ocl.ops import random
from keras_ocl.ops.core import (
    IS_THREAD_SAFE,
    SUPPORTS_COMPLEX_DTYPES,
    SUPPORTS_RAGGED_TENSORS,
    SUPPORTS_SPARSE_TENSORS,
    compute_output_spec,
    device_scope,
    name_scope,
)
from keras_ocl.src import ops
