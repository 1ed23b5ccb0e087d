"""keras.ops.nn, complete: what `keras.src.backend.nn` is for this backend. The functions live in files by subject."""

# ruff: noqa: F401
from keras_ocl.ops import naming
from keras_ocl.ops.nn.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_shrink,
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_shrink,
    softmax,
    softplus,
    softsign,
    sparse_plus,
    sparse_sigmoid,
    sparsemax,
    squareplus,
    tanh,
    tanh_shrink,
    threshold,
)
from keras_ocl.ops.nn.attention import dot_product_attention
from keras_ocl.ops.nn.convolution import conv, conv_transpose, depthwise_conv, separable_conv
from keras_ocl.ops.nn.ctc import ctc_decode, ctc_loss
from keras_ocl.ops.nn.encoding import depth_to_space, fold, multi_hot, one_hot, space_to_depth, unfold
from keras_ocl.ops.nn.losses import binary_crossentropy, categorical_crossentropy, psnr, sparse_categorical_crossentropy
from keras_ocl.ops.nn.normalization import batch_normalization, moments
from keras_ocl.ops.nn.pooling import adaptive_average_pool, adaptive_max_pool, average_pool, max_pool

globals().update(naming.named_operations(globals()))
