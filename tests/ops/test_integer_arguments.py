"""Counts, extents and shifts that are 0-d tensors, 0-d arrays, NumPy's integers or variables: as if they were Python's."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops
from keras.src import backend

import keras_ocl
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import tree
from keras_ocl.ops import core, image, linalg, math, nn, numpy, random
from keras_ocl.ops.integer_arguments import _OPEN, PARAMETERS

NAMESPACES = {"core": core, "image": image, "linalg": linalg, "math": math, "nn": nn, "numpy": numpy, "random": random}
X = np.arange(24, dtype="float32").reshape(4, 6)
IMAGE = np.arange(32, dtype="float32").reshape(1, 4, 4, 2)
KERNEL = np.ones((2, 2, 2, 3), "float32")
CUBE = np.arange(64, dtype="float32").reshape(4, 4, 4)
WAVE = np.arange(16, dtype="float32")
IDS = np.array([0, 0, 1, 2], "int32")
SPECTRUM = (np.ones((2, 5), "float32"), np.ones((2, 5), "float32"))


class I(int):  # noqa: E742
    """An integer that is given in one way after the other."""


def keyed(**kwargs):
    return kwargs


CASES = {  # (namespace, operation): arguments
    ("core", "scan"): keyed(f=lambda c, _: (c + 1, c), init=np.float32(0), length=I(3)),
    ("core", "unstack"): keyed(x=X, num=I(4)),
    ("core", "scatter"): keyed(indices=np.array([[1]]), values=np.ones(1, "float32"), shape=(I(3),)),
    ("core", "slice"): keyed(inputs=X, start_indices=(1, 0), shape=(I(2), I(3))),
    ("image", "gaussian_blur"): keyed(images=IMAGE, kernel_size=(I(3), I(3))),
    ("image", "resize"): keyed(images=IMAGE, size=(I(2), I(3))),
    ("image", "scale_and_translate"): keyed(
        images=IMAGE,
        output_shape=(1, I(2), I(2), 2),
        scale=np.float32([1, 1]),
        translation=np.float32([0, 0]),
        spatial_dims=(I(1), I(2)),
        method="linear",
    ),
    ("linalg", "matrix_power"): keyed(x=np.eye(3, dtype="float32") * 2, n=I(3)),
    ("math", "irfft"): keyed(x=SPECTRUM, fft_length=I(8)),
    ("math", "rfft"): keyed(x=WAVE, fft_length=I(8)),
    ("math", "stft"): keyed(x=WAVE, sequence_length=I(4), sequence_stride=I(2), fft_length=I(8)),
    ("math", "istft"): keyed(x=SPECTRUM, sequence_length=I(4), sequence_stride=I(2), fft_length=I(8), length=I(5)),
    **{("math", f"segment_{how}"): keyed(data=X, segment_ids=IDS, num_segments=I(3)) for how in ("sum", "max", "min", "prod")},
    ("math", "top_k"): keyed(x=X, k=I(2)),
    ("math", "in_top_k"): keyed(targets=IDS, predictions=X, k=I(2)),
    ("math", "extract_sequences"): keyed(x=WAVE, sequence_length=I(4), sequence_stride=I(2)),
    ("nn", "conv"): keyed(inputs=IMAGE, kernel=KERNEL, strides=I(1), dilation_rate=I(1)),
    ("nn", "conv_transpose"): keyed(
        inputs=IMAGE, kernel=np.ones((2, 2, 3, 2), "float32"), strides=I(2), output_padding=I(1), dilation_rate=I(1)
    ),
    ("nn", "depthwise_conv"): keyed(inputs=IMAGE, kernel=np.ones((2, 2, 2, 1), "float32"), strides=I(2), dilation_rate=I(1)),
    ("nn", "separable_conv"): keyed(
        inputs=IMAGE,
        depthwise_kernel=np.ones((2, 2, 2, 1), "float32"),
        pointwise_kernel=np.ones((1, 1, 2, 3), "float32"),
        strides=(I(2), I(2)),
        dilation_rate=I(1),
    ),
    ("nn", "ctc_loss"): keyed(
        target=IDS[None, 1:], output=X[None], target_length=np.array([1]), output_length=np.array([4]), mask_index=I(0)
    ),
    ("nn", "ctc_decode"): keyed(inputs=X[None], sequence_lengths=np.array([4]), mask_index=I(0)),
    ("nn", "depth_to_space"): keyed(x=np.ones((1, 2, 2, 4), "float32"), block_size=I(2)),
    ("nn", "space_to_depth"): keyed(x=IMAGE, block_size=I(2)),
    ("nn", "fold"): keyed(x=np.ones((1, 8, 4), "float32"), output_size=I(4), kernel_size=I(2), dilation=I(1), padding=I(0), stride=I(2)),
    ("nn", "unfold"): keyed(input=np.ones((1, 2, 4, 4), "float32"), kernel_size=I(2), dilation=I(1), padding=I(0), stride=(I(2), I(2))),
    ("nn", "multi_hot"): keyed(x=np.array([0, 2]), num_classes=I(4)),
    ("nn", "one_hot"): keyed(x=np.array([0, 2]), num_classes=I(4)),
    ("nn", "adaptive_average_pool"): keyed(inputs=IMAGE, output_size=I(2)),
    ("nn", "adaptive_max_pool"): keyed(inputs=IMAGE, output_size=(I(2), I(2))),
    ("nn", "average_pool"): keyed(inputs=IMAGE, pool_size=I(2), strides=I(2)),
    ("nn", "max_pool"): keyed(inputs=IMAGE, pool_size=(I(2), I(2)), strides=I(1)),
    **{("numpy", name): keyed(shape=(I(2), 3)) for name in ("ones", "zeros")},
    ("numpy", "empty"): keyed(shape=(I(0), 3)),
    ("numpy", "full"): keyed(shape=(I(2), 3), fill_value=2.0),
    ("numpy", "eye"): keyed(N=I(3), M=I(4), k=I(1)),
    ("numpy", "identity"): keyed(n=I(3)),
    ("numpy", "tri"): keyed(N=I(3), M=I(4), k=I(1)),
    ("numpy", "linspace"): keyed(start=0.0, stop=1.0, num=I(5)),
    ("numpy", "logspace"): keyed(start=0.0, stop=1.0, num=I(5)),
    ("numpy", "geomspace"): keyed(start=1.0, stop=2.0, num=I(5)),
    ("numpy", "vander"): keyed(x=WAVE, N=I(3)),
    ("numpy", "round"): keyed(x=X / 7, decimals=I(1)),
    ("numpy", "diag"): keyed(x=WAVE[:3], k=I(1)),
    ("numpy", "diagflat"): keyed(x=WAVE[:3], k=I(1)),
    ("numpy", "diagonal"): keyed(x=X, offset=I(1)),
    ("numpy", "trace"): keyed(x=X, offset=I(1)),
    ("numpy", "unravel_index"): keyed(indices=np.array([5, 7]), shape=(I(2), I(4))),
    ("numpy", "pad"): keyed(x=X, pad_width=((I(1), 0), (0, I(2)))),
    **{("numpy", name): keyed(x=CUBE, indices_or_sections=I(2)) for name in ("array_split", "hsplit", "vsplit", "dsplit")},
    ("numpy", "split"): keyed(x=X, indices_or_sections=[I(1), I(3)], axis=1),
    ("numpy", "broadcast_to"): keyed(x=WAVE[:3], shape=(I(2), I(3))),
    ("numpy", "repeat"): keyed(x=X, repeats=I(2), axis=0),
    ("numpy", "reshape"): keyed(x=X, newshape=(I(2), -1)),
    ("numpy", "roll"): keyed(x=X, shift=I(1), axis=0),
    ("numpy", "rot90"): keyed(array=X, k=I(1)),
    ("numpy", "tile"): keyed(x=X, repeats=(I(2), I(1))),
    ("numpy", "argpartition"): keyed(x=X, kth=I(2)),
    ("numpy", "unique"): keyed(x=IDS, size=I(3)),
    ("numpy", "bincount"): keyed(x=IDS, minlength=I(5)),
    ("numpy", "diff"): keyed(a=X, n=I(2)),
    **{("random", name): keyed(shape=(I(2), I(3)), seed=1) for name in ("uniform", "normal", "truncated_normal")},
    ("random", "randint"): keyed(shape=(I(2), I(3)), minval=0, maxval=9, seed=1),
    ("random", "categorical"): keyed(logits=X, num_samples=I(2), seed=1),
    ("random", "dropout"): keyed(inputs=X, rate=0.5, noise_shape=(I(4), I(1)), seed=1),
    ("random", "gamma"): keyed(shape=(I(2), I(3)), alpha=1.0, seed=1),
    ("random", "beta"): keyed(shape=(I(2), I(3)), alpha=1.0, beta=1.0, seed=1),
    ("random", "binomial"): keyed(shape=(I(2), I(3)), counts=4.0, probabilities=0.5, seed=1),
}
GIVEN = {
    "tensor": lambda n: ops.convert_to_tensor(n, "int32"),
    "array": np.array,
    "NumPy's integer": np.int64,
    "whole float": lambda n: np.float32(n),
    "variable": lambda n: keras.Variable(n, dtype="int32", trainable=False),
}


def given(arguments, how):
    return {k: tree_map(v, how) for k, v in arguments.items()}


def tree_map(value, how):
    if isinstance(value, (list, tuple)):
        return type(value)(tree_map(v, how) for v in value)
    return how(int(value)) if isinstance(value, I) else value


def results(case, how):
    leaves, _ = tree.flatten(getattr(NAMESPACES[case[0]], case[1])(**given(CASES[case], how)))
    return [ops.convert_to_numpy(leaf) for leaf in leaves]


def test_every_operation_with_such_a_parameter_is_tried():
    """Each such parameter of each operation that Keras finds in the backend."""
    parameters = set()
    for space, module in NAMESPACES.items():
        for name, function in vars(module).items():
            if inspect.isfunction(function) and getattr(getattr(backend, space), name, None) is function and not name.startswith("_"):
                found = set(inspect.signature(function).parameters) & PARAMETERS
                parameters |= {(name, p) for p in found if (name, p) not in _OPEN}
    tried = {
        (name, p) for (_, name), given in CASES.items() for p, v in given.items() if any(isinstance(n, I) for n in tree.flatten([v])[0])
    }
    inner = {"windows", "keep", "extents_of"}  # no operations
    assert len(parameters) > 80 and {p for p in parameters - tried if p[0] not in inner} == set()


@pytest.mark.parametrize("case", CASES, ids=".".join)
def test_however_an_integer_is_given(case):
    want = results(case, int)
    for name, how in GIVEN.items():
        got = results(case, how)
        assert [g.shape for g in got] == [w.shape for w in want], name
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w, err_msg=name)


@pytest.mark.parametrize("function", ["top_k", "one_hot", "segment_sum", "diag", "arange", "tri"])
def test_what_is_computed_of_extents_is_known_in_a_trace(function):
    calls = {
        "top_k": lambda x, k: ops.top_k(x, k)[0],
        "one_hot": lambda x, k: ops.one_hot(np.array([0, 1]), k),
        "segment_sum": lambda x, k: ops.segment_sum(x, np.zeros(len(x), "int32"), num_segments=k),
        "diag": lambda x, k: ops.diag(x[0], k),
        "arange": lambda x, k: ops.arange(k),
        "tri": lambda x, k: ops.tri(k),
    }
    call = calls[function]

    def step(x):
        return call(x, ops.minimum(3, ops.shape(x)[1] - 1) + 0)

    whole = Jitted(step, dynamic=(0,))
    for columns in (6, 3, 5):
        x = ops.convert_to_tensor(X[:3, :columns])
        want = ops.convert_to_numpy(call(x, min(3, columns - 1)))
        np.testing.assert_array_equal(ops.convert_to_numpy(keras_ocl.jit(step)(x)), want)
        np.testing.assert_array_equal(ops.convert_to_numpy(whole(x)), want)


@pytest.mark.parametrize("known", [6, 2, 4])
def test_what_is_computed_of_an_unknown_extent_is_known_too(known):
    def step(x):
        return ops.top_k(ops.transpose(x), ops.minimum(3, ops.shape(x)[0]))[0]

    whole = Jitted(step, dynamic=(0,))
    for rows in (known, 4, 3, 2):
        x = X[:rows]
        got = ops.convert_to_numpy(whole(ops.convert_to_tensor(x)))
        np.testing.assert_array_equal(got, np.sort(x.T, axis=1)[:, ::-1][:, :3])


def test_a_value_that_only_a_run_knows_is_one_sentence():
    top = keras_ocl.jit(lambda x, k: ops.top_k(x, k)[0])
    with pytest.raises(RuntimeError, match=r"top_k: `k` must be known where the function is traced, .* or run eagerly"):
        top(ops.convert_to_tensor(X), ops.convert_to_tensor(2, "int32"))


@pytest.mark.parametrize("k", [2.5, np.float32(2.5), np.array([1, 2]), "two", (2, 3)], ids=repr)
def test_what_is_no_integer_is_one_sentence(k):
    with pytest.raises(TypeError, match="segment_sum: `num_segments` must be (an integer|one number). Received: "):
        ops.segment_sum(X, IDS, num_segments=k)


def test_a_band_may_be_a_value_of_the_run():
    lower = keras_ocl.jit(lambda x, k: ops.tril(x, k))
    np.testing.assert_array_equal(ops.convert_to_numpy(lower(ops.convert_to_tensor(X), ops.convert_to_tensor(1, "int32"))), np.tril(X, 1))


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "bfloat16", "float32", "float8_e5m2"])
def test_numbers_of_any_dtype(dtype):
    n = ops.cast(ops.convert_to_tensor(3), dtype)
    np.testing.assert_allclose(ops.hamming(n), np.hamming(3), rtol=1e-6)
    assert ops.zeros((n, 2)).shape == (3, 2)
