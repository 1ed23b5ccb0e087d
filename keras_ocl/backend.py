"""What `keras.src.backend` star-imports: the backend's whole surface, flat, as Keras 3.15 expects it.

Keras's coming plug-in system takes the same parts from `ops`, `random`, `rnn` and `variable`; only here is `rnn` the function.
"""

from keras.src.backend.common.name_scope import name_scope as name_scope

from keras_ocl import distribution as distribution_lib  # noqa: F401
from keras_ocl import random as random
from keras_ocl.ops import core as core
from keras_ocl.ops import image as image
from keras_ocl.ops import linalg as linalg
from keras_ocl.ops import math as math
from keras_ocl.ops import nn as nn
from keras_ocl.ops import numpy as numpy
from keras_ocl.ops.core import cast as cast
from keras_ocl.ops.core import compute_output_spec as compute_output_spec
from keras_ocl.ops.core import cond as cond
from keras_ocl.ops.core import convert_to_numpy as convert_to_numpy
from keras_ocl.ops.core import convert_to_tensor as convert_to_tensor
from keras_ocl.ops.core import device_scope as device_scope
from keras_ocl.ops.core import is_tensor as is_tensor
from keras_ocl.ops.core import random_seed_dtype as random_seed_dtype
from keras_ocl.ops.core import scatter as scatter
from keras_ocl.ops.core import shape as shape
from keras_ocl.ops.core import stop_gradient as stop_gradient
from keras_ocl.ops.core import vectorized_map as vectorized_map
from keras_ocl.rnn import bidirectional_gru as bidirectional_gru
from keras_ocl.rnn import bidirectional_lstm as bidirectional_lstm
from keras_ocl.rnn import gru as gru
from keras_ocl.rnn import lstm as lstm
from keras_ocl.rnn import rnn as rnn
from keras_ocl.variable import Variable as Variable

IS_THREAD_SAFE = True
SUPPORTS_COMPLEX_DTYPES = True
SUPPORTS_RAGGED_TENSORS = False
SUPPORTS_SPARSE_TENSORS = False
