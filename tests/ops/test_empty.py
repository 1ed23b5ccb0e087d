"""Tensors without elements: what NumPy gives, errors where it has none, and the shapes that layers expect of an empty batch."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from tests.ops.bad_input import array
from tests.ops.samples import BINARY, UNARY, same

# Of a given number of points, or for which NumPy gives other results: these have no points, or TensorFlow's in place of NumPy's.
OTHERS = {"hanning", "hamming", "bartlett", "blackman", "squeeze", "bincount", "vander", "corrcoef", "unique", "diag", "i0", "trapezoid"}
ELEMENTWISE = [n for n in UNARY if n not in OTHERS and np.shape(UNARY[n]) == (3, 4)]
PAIRS = [
    n for n in BINARY if all(np.shape(a) == (3, 4) for a in BINARY[n]) and n not in ("append", "inner", "vdot", "cross", "isin", "digitize")
]


def empty_like(x, shape):
    return np.zeros(shape, np.asarray(x).dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=str)
def test_functions_of_one(shape):
    """Over all axes; what NumPy refuses is refused."""
    for name in ELEMENTWISE:
        x = empty_like(UNARY[name], shape)
        try:
            expected = getattr(np, name)(x)
        except (ValueError, IndexError):
            with pytest.raises(ValueError):
                getattr(ops, name)(x)
            continue
        try:
            same(getattr(ops, name)(x), expected)
        except Exception as error:
            raise AssertionError(f"{name} of shape {shape}") from error


@pytest.mark.filterwarnings("ignore")
def test_reductions_along_an_axis():
    for name in "sum prod mean var std all any count_nonzero nansum nanmean nanmedian median cumsum cumprod sort argsort".split():
        for axis in (0, 1):
            same(getattr(ops, name)(array(0, 4), axis=axis), getattr(np, name)(array(0, 4), axis=axis))
    for name in "max min argmax argmin nanmax nanargmax".split():
        with pytest.raises(ValueError, match="no elements"):
            getattr(ops, name)(array(0, 4), axis=0)
        assert getattr(ops, name)(array(0, 4), axis=1).shape == (0,)
    assert np.asarray(ops.logsumexp(array(3, 0), axis=1)).tolist() == [-np.inf] * 3
    assert np.asarray(ops.max(array(3, 0), axis=1, initial=2.0)).tolist() == [2.0] * 3


def test_functions_of_two():
    for name in PAIRS:
        a, b = (empty_like(x, (0, 4)) for x in BINARY[name])
        try:
            same(getattr(ops, name)(a, b), getattr(np, name)(a, b))
            assert getattr(ops, name)(a, b[:, :1]).shape == (0, 4)
        except Exception as error:
            raise AssertionError(name) from error


def test_products():
    for a, b in (((3, 0), (0, 4)), ((0, 3), (3, 4)), ((3, 4), (4, 0)), ((0, 2, 3), (0, 3, 4)), ((2, 0, 3), (3, 0))):
        same(ops.matmul(array(*a), array(*b)), np.matmul(array(*a), array(*b)))
    same(ops.einsum("ij,jk->ik", array(3, 0), array(0, 4)), np.zeros((3, 4)))
    same(ops.tensordot(array(3, 0), array(0, 4), axes=1), np.zeros((3, 4)))
    same(ops.dot(array(0), array(0)), 0.0)
    same(ops.outer(array(3), array(0)), np.zeros((3, 0)))


def test_movement():
    x = array(0, 4)
    for result, shape in (
        (ops.reshape(x, (2, 0, 7)), (2, 0, 7)),
        (ops.transpose(x), (4, 0)),
        (ops.concatenate([x, array(3, 4)]), (3, 4)),
        (ops.stack([x, x], 1), (0, 2, 4)),
        (ops.pad(x, 1), (2, 6)),
        (ops.tile(x, (2, 2)), (0, 8)),
        (ops.repeat(x, 3, 1), (0, 12)),
        (ops.repeat(array(3), 0), (0,)),
        (ops.roll(x, 1, 0), (0, 4)),
        (ops.flip(x), (0, 4)),
        (ops.take(array(3, 4), array(0, dtype="int32"), 1), (3, 0)),
        (ops.take_along_axis(array(3, 4), array(3, 0, dtype="int32"), 1), (3, 0)),
        (ops.scatter(array(0, 1, dtype="int32"), array(0, 4), (3, 4)), (3, 4)),
        (ops.slice(array(3, 4), (1, 1), (0, 2)), (0, 2)),
        (ops.segment_sum(array(0, 4), array(0, dtype="int32"), 3), (3, 4)),
        (ops.segment_sum(array(0, 4), array(0, dtype="int32")), (0, 4)),
        (ops.one_hot(array(0, dtype="int32"), 5), (0, 5)),
        (ops.nonzero(x)[0], (0,)),
        (ops.top_k(x, 2)[0], (0, 2)),
        (ops.where(array(0, 4, dtype="bool"), x, 1.0), (0, 4)),
        (ops.diagonal(array(0, 4)), (0,)),
        (ops.arange(0), (0,)),
        (ops.linspace(0.0, 1.0, 0), (0,)),
        (ops.split(x, 2, 1)[1], (0, 2)),
        (ops.extract_sequences(array(2, 3), 5, 1), (2, 0, 5)),
    ):
        assert tuple(result.shape) == shape == np.asarray(result).shape
    assert (np.asarray(ops.pad(x, 1)) == 0).all()
    assert (np.asarray(ops.scatter(array(0, 1, dtype="int32"), array(0, 4), (3, 4))) == 0).all()


def test_an_empty_batch():
    images, kernel = array(0, 8, 8, 3), array(3, 3, 3, 4)
    for result, shape in (
        (ops.conv(images, kernel), (0, 6, 6, 4)),
        (ops.depthwise_conv(images, array(3, 3, 3, 2)), (0, 6, 6, 6)),
        (ops.conv_transpose(images, array(3, 3, 4, 3), 2), (0, 17, 17, 4)),
        (ops.max_pool(images, 2), (0, 4, 4, 3)),
        (ops.average_pool(images, 3, 2, "same"), (0, 4, 4, 3)),
        (ops.adaptive_average_pool(images, 2), (0, 2, 2, 3)),
        (ops.batch_normalization(images, array(3), array(3), -1), (0, 8, 8, 3)),
        (ops.layer_normalization(array(0, 4)), (0, 4)),
        (ops.softmax(array(0, 4)), (0, 4)),
        (ops.log_softmax(array(0, 4)), (0, 4)),
        (ops.categorical_crossentropy(array(0, 4), array(0, 4)), (0,)),
        (ops.sparse_categorical_crossentropy(array(0, dtype="int32"), array(0, 4)), (0,)),
        (ops.dot_product_attention(array(0, 3, 2, 4), array(0, 5, 2, 4), array(0, 5, 2, 4)), (0, 3, 2, 4)),
        (ops.ctc_loss(array(0, 2, dtype="int32"), array(0, 6, 5), array(0, dtype="int32"), array(0, dtype="int32")), (0,)),
        (ops.image.resize(images, (4, 4)), (0, 4, 4, 3)),
        (ops.image.affine_transform(images, array(8)), (0, 8, 8, 3)),
        (ops.fft((array(0, 4), array(0, 4)))[0], (0, 4)),
        (ops.linalg.inv(array(0, 3, 3)), (0, 3, 3)),
        (ops.linalg.cholesky(array(0, 3, 3)), (0, 3, 3)),
        (ops.linalg.det(array(0, 3, 3)), (0,)),
        (ops.linalg.solve(array(0, 3, 3), array(0, 3, 2)), (0, 3, 2)),
        (keras.layers.LSTM(3)(array(0, 5, 4)), (0, 3)),
        (keras.layers.Dense(3)(array(0, 4)), (0, 3)),
    ):
        assert tuple(result.shape) == shape == np.asarray(result).shape


def test_a_compiled_function_and_its_gradient():
    def loss(x, w):
        return ops.sum(ops.relu(ops.matmul(x, w))) + ops.sum(w)

    x, w = ops.convert_to_tensor(array(0, 3)), ops.convert_to_tensor(array(3, 2))
    value, (dx, dw) = keras_ocl.jit(keras_ocl.value_and_grad(loss, (0, 1)))(x, w)
    assert float(value) == 15 and dx.shape == (0, 3) and (np.asarray(dw) == 1).all()
