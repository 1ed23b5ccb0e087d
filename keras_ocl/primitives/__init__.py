"""The array language's primitives: functions on Tensors that check their arguments and record or run an operation.

Each file holds a family with the shape, gradient and lowering rules of its operations side by side.
"""

# ruff: noqa: F401

from keras_ocl.core import autodiff
from keras_ocl.primitives.attention import attention, attention_logits
from keras_ocl.primitives.cond import cond, cond_p
from keras_ocl.primitives.convolution import conv, conv_filter_grad, conv_input_grad, conv_output_shape
from keras_ocl.primitives.cumulative import cummax, cummin, cumprod, cumsum, linear_recurrence, shifted
from keras_ocl.primitives.dot import dot_general
from keras_ocl.primitives.elementwise import *  # noqa: F403
from keras_ocl.primitives.indexing import dynamic_slice, dynamic_update_slice, gather, scatter, scatter_new
from keras_ocl.primitives.linalg import (
    cholesky,
    det,
    eig,
    eigh,
    inverse,
    lu,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    triangular_solve,
)
from keras_ocl.primitives.loop import scan, scan_p, while_loop
from keras_ocl.primitives.movement import (
    broadcast,
    concat,
    constant,
    full,
    inverse_permutation,
    iota,
    pad,
    reshape,
    reverse,
    slice,
    transpose,
    zeros_like,
)
from keras_ocl.primitives.nibbles import unpack_int4
from keras_ocl.primitives.random import random_binomial, random_bits, random_gamma
from keras_ocl.primitives.reduce import (
    argmax,
    argmin,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
)
from keras_ocl.primitives.sort import sort, top_k
from keras_ocl.primitives.window import reduce_window, window_argmax, window_gather_sum, window_output_shape, window_pick

autodiff.install(add, zeros_like)  # noqa: F405
