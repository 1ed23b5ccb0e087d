"""Bad input to keras.ops.nn, math, linalg and image: refused in one sentence, before anything is enqueued."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.ops.bad_input import array, check_compiled, check_eager, identity, refused

A, V = array(3, 4), array(5)
COMPLEX = array(3, 4, dtype="complex64")
IMAGES, KERNEL = array(2, 8, 8, 3), array(3, 3, 3, 4)
LABELS = array(3, dtype="int32")
Q = array(2, 3, 4, 8)
POINTS = array(1, 4, 2)

CASES = [
    # activations
    ("relu", (COMPLEX,), TypeError, ["relu", "complex64"]),
    ("elu", (COMPLEX,), TypeError, ["elu", "complex64", "real"]),
    ("gelu", (COMPLEX,), TypeError, ["gelu", "complex64"]),
    ("softplus", (COMPLEX,), TypeError, ["softplus", "complex64"]),
    ("softmax", (COMPLEX,), TypeError, ["softmax", "complex64"]),
    ("softmax", (A, 2), ValueError, ["axis 2"]),
    ("log_softmax", (A, -3), ValueError, ["axis -3"]),
    ("sparsemax", (A, 2), ValueError, ["axis 2"]),
    ("glu", (array(3, 5),), ValueError, ["glu", "(3, 5)", "even"]),
    ("glu", (A, 2), ValueError, ["axis 2"]),
    # convolution
    ("conv", (array(8, 8), array(3, 3)), ValueError, ["conv", "(8, 8)", "spatial"]),
    ("conv", (IMAGES, array(3, 3, 4)), ValueError, ["conv", "(2, 8, 8, 3)", "(3, 3, 4)"]),
    ("conv", (IMAGES, array(3, 3, 2, 4)), ValueError, ["input channels 3", "in_channels 2"]),
    ("conv", (IMAGES, array(9, 9, 3, 4)), ValueError, ["empty output", "(2, 8, 8, 3)"]),
    ("conv", (IMAGES, KERNEL, 0), ValueError, ["strides", "positive", "0"]),
    ("conv", (IMAGES, KERNEL, (1, 2, 3)), ValueError, ["strides", "(1, 2, 3)"]),
    ("conv", (IMAGES, KERNEL, 1, "full"), ValueError, ["padding", "full"]),
    ("conv", (IMAGES, KERNEL, 1, "valid", None, -1), ValueError, ["dilation_rate", "positive"]),
    ("conv", (IMAGES, KERNEL, 1, "valid", "channels_middle"), ValueError, ["channels_middle"]),
    ("conv", (IMAGES.astype("int32"), KERNEL.astype("int32")), TypeError, ["conv", "int32", "float"]),
    ("depthwise_conv", (IMAGES, array(3, 3, 2, 1)), ValueError, ["input channels=3", "channels=2"]),
    ("depthwise_conv", (IMAGES, array(3, 3, 3)), ValueError, ["depthwise_conv", "(3, 3, 3)"]),
    ("separable_conv", (IMAGES, array(3, 3, 3, 2), array(1, 1, 5, 4)), ValueError, ["separable_conv", "channels", "(1, 1, 5, 4)"]),
    ("conv_transpose", (IMAGES, array(3, 3, 4, 2)), ValueError, ["channels"]),
    ("conv_transpose", (IMAGES, array(3, 4, 3)), ValueError, ["conv_transpose", "(3, 4, 3)"]),
    ("conv_transpose", (IMAGES, array(3, 3, 4, 3), -1), ValueError, ["strides", "positive"]),
    # pooling
    ("max_pool", (A, 2), ValueError, ["max_pool", "(3, 4)", "spatial"]),
    ("max_pool", (IMAGES, 9), ValueError, ["max_pool", "9", "(8, 8)"]),
    ("max_pool", (IMAGES, 0), ValueError, ["pool_size", "positive"]),
    ("average_pool", (IMAGES, 2, 0), ValueError, ["strides", "positive"]),
    ("average_pool", (IMAGES, (2, 2, 2)), ValueError, ["pool_size", "(2, 2, 2)"]),
    ("average_pool", (IMAGES, 2, 1, "full"), ValueError, ["padding", "full"]),
    ("adaptive_average_pool", (A, 2), ValueError, ["adaptive_average_pool", "(3, 4)"]),
    ("adaptive_max_pool", (IMAGES, 0), ValueError, ["output_size", "positive"]),
    # normalization
    ("batch_normalization", (IMAGES, array(4), array(3), -1), ValueError, ["batch_normalization", "mean", "(4,)"]),
    ("batch_normalization", (IMAGES, array(3), array(3), 5), ValueError, ["axis 5"]),
    ("batch_normalization", (IMAGES, array(3), array(3), -1, array(1, 3)), ValueError, ["offset", "(1, 3)"]),
    ("moments", (A, (0, 2)), ValueError, ["axis 2"]),
    # losses
    ("categorical_crossentropy", (A, array(3, 5)), ValueError, ["same shape", "(3, 4)", "(3, 5)"]),
    ("categorical_crossentropy", (A, A, False, 2), ValueError, ["axis 2"]),
    ("sparse_categorical_crossentropy", (array(4, dtype="int32"), A), ValueError, ["same shape", "(4,)", "(3, 4)"]),
    ("binary_crossentropy", (A, array(3, 1)), ValueError, ["same shape", "(3, 4)", "(3, 1)"]),
    ("psnr", (A, V, 1.0), ValueError, ["(3, 4)", "(5,)"]),
    # attention
    ("dot_product_attention", (A, A, A), ValueError, ["4D", "(3, 4)"]),
    ("dot_product_attention", (Q, array(1, 3, 4, 8), array(1, 3, 4, 8)), ValueError, ["dot_product_attention", "batch"]),
    ("dot_product_attention", (Q, array(2, 5, 4, 7), array(2, 5, 4, 8)), ValueError, ["dot_product_attention", "depth"]),
    ("dot_product_attention", (Q, array(2, 5, 3, 8), array(2, 5, 3, 8)), ValueError, ["heads", "multiple"]),
    ("dot_product_attention", (Q, Q, Q, array(2, 4, 3, 5)), ValueError, ["bias", "(2, 4, 3, 5)", "(2, 4, 3, 3)"]),
    ("dot_product_attention", (Q, Q, Q, None, array(7, dtype="bool")), ValueError, ["mask", "(7,)", "(2, 4, 3, 3)"]),
    # connectionist temporal classification
    ("ctc_loss", (LABELS, array(3, 6, 5), LABELS, LABELS), ValueError, ["(3,)", "max_length"]),
    ("ctc_loss", (array(3, 2, dtype="int32"), array(2, 6, 5), LABELS, LABELS), ValueError, ["ctc_loss", "batch"]),
    ("ctc_decode", (array(6, 5), LABELS), ValueError, ["ctc_decode", "(6, 5)"]),
    ("ctc_decode", (array(3, 6, 5), LABELS, "guess"), ValueError, ["strategy", "guess"]),
    ("ctc_decode", (array(3, 6, 5), LABELS, "beam_search", 2, 3), ValueError, ["top_paths", "beam_width"]),
    # encoding
    ("one_hot", (LABELS, -1), ValueError, ["one_hot", "-1"]),
    ("one_hot", (LABELS, 4, 3), ValueError, ["axis 3"]),
    ("unfold", (A, 2), ValueError, ["4D", "(3, 4)"]),
    ("unfold", (array(1, 1, 4, 4), 5), ValueError, ["unfold", "5", "4"]),
    ("unfold", (array(1, 1, 4, 4), 2, 1, 0, 0), ValueError, ["unfold", "stride", "positive"]),
    ("fold", (array(1, 5, 9), (4, 4), 2), ValueError, ["fold", "(1, 5, 9)"]),
    ("depth_to_space", (array(1, 3, 3, 6), 2), ValueError, ["depth_to_space", "(1, 3, 3, 6)", "2"]),
    ("space_to_depth", (array(1, 3, 4, 6), 2), ValueError, ["space_to_depth", "(1, 3, 4, 6)", "2"]),
    ("space_to_depth", (A, 2), ValueError, ["space_to_depth", "(3, 4)"]),
    # math
    ("segment_sum", (A, LABELS, -1), ValueError, ["segment_sum", "-1"]),
    ("segment_max", (A, array(3), 4), TypeError, ["segment_max", "float32", "integers"]),
    ("segment_prod", (array(3, 4, dtype="bool"), LABELS, 4), TypeError, ["segment_prod", "bool"]),
    ("top_k", (A, 5), ValueError, ["top_k", "5", "(3, 4)"]),
    ("in_top_k", (LABELS, V, 2), ValueError, ["rank"]),
    ("logsumexp", (A, 2), ValueError, ["axis 2"]),
    ("cdist", (A, array(3, 5)), ValueError, ["cdist", "match"]),
    ("fft", ((A, array(3, 5)),), ValueError, ["(3, 4)", "(3, 5)"]),
    ("rfft", (A, 0), ValueError, ["rfft", "0"]),
    ("stft", (A.astype("int32"), 2, 1, 2), TypeError, ["int32"]),
    ("extract_sequences", (A, 0, 1), ValueError, ["extract_sequences", "0"]),
    ("extract_sequences", (A, 2, 0), ValueError, ["extract_sequences", "0"]),
    # linalg
    ("linalg.cholesky", (A,), ValueError, ["square"]),
    ("linalg.inv", (V,), ValueError, ["rank", "(5,)"]),
    ("linalg.det", (A,), ValueError, ["(3, 4)"]),
    ("linalg.eigh", (array(2, 3, 4),), ValueError, ["(2, 3, 4)"]),
    ("linalg.solve", (array(3, 3), array(4, 2)), ValueError, ["(3, 3)", "(4, 2)"]),
    ("linalg.qr", (A, "r"), ValueError, ["mode"]),
    ("linalg.svd", (V,), ValueError, ["rank", "(5,)"]),
    ("linalg.norm", (A, "guess"), ValueError, ["guess"]),
    # images
    ("image.resize", (A, (2, 2)), ValueError, ["rank", "(3, 4)"]),
    ("image.resize", (IMAGES, (2, 2), "guess"), ValueError, ["interpolation", "guess"]),
    ("image.resize", (IMAGES, (0, 2)), ValueError, ["size", "positive"]),
    ("image.rgb_to_grayscale", (array(2, 8, 8, 4),), ValueError, ["(2, 8, 8, 4)"]),
    ("image.rgb_to_hsv", (IMAGES.astype("int32"),), ValueError, ["dtype", "int32"]),
    ("image.hsv_to_rgb", (array(8, 8),), ValueError, ["rank", "(8, 8)"]),
    ("image.affine_transform", (IMAGES, array(7)), ValueError, ["8", "(7,)"]),
    ("image.affine_transform", (IMAGES, array(3, 8)), ValueError, ["3 transforms", "2 images"]),
    ("image.affine_transform", (IMAGES, array(8), "guess"), ValueError, ["interpolation", "guess"]),
    ("image.perspective_transform", (IMAGES, array(1, 3, 2), POINTS), ValueError, ["(1, 3, 2)"]),
    ("image.map_coordinates", (A, array(3, 5), 1), ValueError, ["(3, 4)", "(3, 5)"]),
    ("image.map_coordinates", (A, array(2, 5), 2), ValueError, ["order", "2"]),
    ("image.gaussian_blur", (IMAGES, (0, 3)), ValueError, ["kernel_size", "(0, 3)"]),
    ("image.gaussian_blur", (IMAGES, (3, 3), (1.0, 1.0, 1.0)), ValueError, ["sigma", "(3,)"]),
    ("image.elastic_transform", (array(8, 8),), ValueError, ["rank", "(8, 8)"]),
    ("image.scale_and_translate", (IMAGES, (2, 4, 4), array(2), array(2), (1, 2), "linear"), ValueError, ["output_shape", "rank"]),
]  # fmt: skip
TRACEABLE = {"conv", "max_pool", "softmax", "batch_normalization", "categorical_crossentropy", "dot_product_attention", "ctc_loss",
             "one_hot", "segment_sum", "top_k", "linalg.cholesky", "linalg.solve", "image.resize", "image.affine_transform"}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=identity)
def test_is_refused(case):
    check_eager(case)


@pytest.mark.parametrize("case", [c for c in CASES if c[0] in TRACEABLE], ids=identity)
def test_is_refused_in_a_compiled_function(case):
    check_compiled(case)


CONTROL = [
    (lambda: ops.scan(None, 0, A), TypeError, ["callable"]),
    (lambda: ops.scan(lambda c, x: (c, x), 0), ValueError, ["xs", "length"]),
    (lambda: ops.scan(lambda c, x: (c, x), 0, [A, V]), ValueError, ["scan", "(3, 4)", "(5,)"]),
    (lambda: ops.associative_scan(ops.add, [A, V]), ValueError, ["first dimension"]),
]


@pytest.mark.parametrize("case", range(len(CONTROL)))
def test_control_flow(case):
    refused(*CONTROL[case])


def test_recurrent_layers():
    for layer, shape in ((keras.layers.LSTM(3), (2, 5)), (keras.layers.GRU(3), (2, 5, 4, 1)), (keras.layers.SimpleRNN(3), (2,))):
        with pytest.raises(ValueError, match="ndim"):
            layer(array(*shape))
    layer = keras.layers.LSTM(3)
    layer(array(2, 5, 4))
    with pytest.raises(ValueError, match="incompatible|shape"):
        layer(array(2, 5, 6))
    assert tuple(layer(array(2, 5, 4)).shape) == (2, 3)


def test_infinities_do_not_hang_lapack():
    x = np.stack([np.eye(3), np.full((3, 3), np.inf)]).astype("float32")
    u, s, v = ops.linalg.svd(x)
    np.testing.assert_allclose(s[0], 1)
    assert all(np.isnan(np.asarray(t[1])).all() for t in (u, s, v))
