"""The backend's whole interface in one namespace, which `keras.src.backend` star-imports, as Keras 3.15 expects it.

Keras's future loader of backends expects the same parts as modules (`keras_ocl.src`); only here is `rnn` the function.
"""

# ruff: noqa: F401
from keras_ocl.hooks import distribution as distribution_lib
from keras_ocl.hooks import tensorboard
from keras_ocl.hooks.rnn import bidirectional_gru, bidirectional_lstm, gru, lstm, rnn
from keras_ocl.hooks.variable import Variable
from keras_ocl.ops import core, image, linalg, math, nn, numpy, random
from keras_ocl.ops.core import (
    IS_THREAD_SAFE,
    SUPPORTS_COMPLEX_DTYPES,
    SUPPORTS_RAGGED_TENSORS,
    SUPPORTS_SPARSE_TENSORS,
    cast,
    compute_output_spec,
    cond,
    convert_to_numpy,
    convert_to_tensor,
    device_scope,
    is_tensor,
    name_scope,
    random_seed_dtype,
    scatter,
    shape,
    stop_gradient,
    vectorized_map,
)
