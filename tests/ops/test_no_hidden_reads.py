"""No op reads its operands back to the host, except those that are declared to."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

from keras_ocl import runtime
from keras_ocl.ops import numpy as numpy_ops
from keras_ocl.ops.core import convert_to_tensor

X = np.random.default_rng(0).uniform(0.1, 0.9, (4, 6)).astype("float32")
IMAGE = np.random.default_rng(1).uniform(size=(2, 8, 8, 3)).astype("float32")
LABELS = np.array([0, 5, 2, 3], "int32")
KERNEL = np.random.default_rng(2).uniform(size=(3, 3, 3, 4)).astype("float32")

UNARY = (
    "abs absolute all any arccos arccosh arcsin arcsinh arctan arctanh argmax argmin argsort average ceil copy cos cosh count_nonzero "
    "cumprod cumsum diagonal diff erf erfinv exp expm1 flip floor isfinite isinf isnan log log10 log1p log2 logical_not logsumexp max mean "
    "median min nan_to_num negative norm normalize ones_like prod ravel reciprocal round rsqrt sign sin sinh softmax sort sqrt square std "
    "sum tan tanh trace transpose tril triu var zeros_like celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid "
    "log_softmax relu relu6 selu sigmoid silu softplus softsign"
).split()
BINARY = (
    "add arctan2 divide equal floor_divide greater greater_equal less less_equal maximum minimum mod multiply not_equal power subtract "
    "true_divide logaddexp"
).split()
OTHER = {
    "reshape": lambda: ops.reshape(X, (3, -1)),
    "concatenate": lambda: ops.concatenate([X, X], axis=0),
    "stack": lambda: ops.stack([X, X]),
    "split": lambda: ops.split(X, 2, axis=1),
    "pad": lambda: ops.pad(X, [[1, 2], [0, 1]]),
    "take": lambda: ops.take(X, LABELS, axis=1),
    "take_along_axis": lambda: ops.take_along_axis(X, LABELS[:, None], axis=1),
    "where": lambda: ops.where(ops.greater(X, 0.5), X, 0.0),
    "clip": lambda: ops.clip(X, 0.2, 0.8),
    "matmul": lambda: ops.matmul(X, X.T),
    "einsum": lambda: ops.einsum("ij,kj->ik", X, X),
    "tensordot": lambda: ops.tensordot(X, X, axes=[[1], [1]]),
    "one_hot": lambda: ops.one_hot(LABELS, 6),
    "top_k": lambda: ops.top_k(X, 2),
    "in_top_k": lambda: ops.in_top_k(LABELS, X, 2),
    "segment_sum": lambda: ops.segment_sum(X, LABELS, num_segments=6),
    "slice": lambda: ops.slice(X, (1, 2), (2, 3)),
    "slice_update": lambda: ops.slice_update(X, (1, 2), ops.ones((2, 3))),
    "scatter": lambda: ops.scatter(LABELS[:, None], X[:, 0], (6,)),
    "conv": lambda: ops.conv(IMAGE, KERNEL, padding="same"),
    "max_pool": lambda: ops.max_pool(IMAGE, 2),
    "average_pool": lambda: ops.average_pool(IMAGE, 3, 2, "same"),
    "batch_normalization": lambda: ops.batch_normalization(IMAGE, np.zeros(3, "float32"), np.ones(3, "float32"), -1),
    "moments": lambda: ops.moments(X, axes=(0,)),
    "resize": lambda: ops.image.resize(IMAGE, (5, 5)),
    "categorical_crossentropy": lambda: ops.categorical_crossentropy(X, X),
    "sparse_categorical_crossentropy": lambda: ops.sparse_categorical_crossentropy(LABELS, X),
    "binary_crossentropy": lambda: ops.binary_crossentropy(X, X),
    "getitem": lambda: convert_to_tensor(X)[1:, ::2],
    "uniform": lambda: keras.random.uniform((3, 4), seed=1),
    "normal": lambda: keras.random.normal((3, 4), seed=1),
    "truncated_normal": lambda: keras.random.truncated_normal((3, 4), seed=1),
    "randint": lambda: keras.random.randint((3, 4), 0, 9, seed=1),
    "categorical": lambda: keras.random.categorical(X, 3, seed=1),
    "dropout": lambda: keras.random.dropout(X, 0.5, seed=1),
    "shuffle": lambda: keras.random.shuffle(X, seed=1),
}
CASES = {
    **{name: partial(getattr(ops, name), X) for name in UNARY},
    **{name: partial(getattr(ops, name), X, X) for name in BINARY},
    **OTHER,
}


@pytest.mark.parametrize("name", CASES)
def test_op_reads_nothing_back(name):
    before = runtime.current_device().statistics.downloads
    result = CASES[name]()
    assert runtime.current_device().statistics.downloads == before
    assert all(ops.is_tensor(t) for t in keras.tree.flatten(result))


@pytest.mark.parametrize("name", ["nonzero", "unique"])
def test_the_check_sees_a_read(name):
    """These must read: the shape of their result depends on values."""
    before = runtime.current_device().statistics.downloads
    getattr(numpy_ops, name)(convert_to_tensor(X))
    assert runtime.current_device().statistics.downloads > before
