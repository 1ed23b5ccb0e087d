"""Operations that eager code repeats: compiled as one graph, with the results of primitive by primitive."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_ocl import runtime
from keras_ocl.compiler import eager, jit
from keras_ocl.core.primitive import current_trace
from keras_ocl.core.trace import ValueUnknown
from keras_ocl.ops import composites
from tests.drivers import need_signed_zeros
from tests.fixtures import built  # noqa: F401

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 7)).astype("float32")
LABELS = ops.convert_to_tensor(RNG.integers(0, 3, 5))


def heat(call):
    """What `call` gives primitive by primitive; after it its operations are hot."""
    first = call()
    for _ in range(composites.HOT):
        call()
    return first


def executed(call):
    before = eager.executed()
    result = call()
    return eager.executed() - before, result


OPERATIONS = {
    "softmax": lambda x: ops.softmax(x, axis=0),
    "log_softmax": ops.log_softmax,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "add a number": lambda x: ops.add(x, 1.5),
    "compare": lambda x: ops.greater(x, 0.25),
    "mean": lambda x: ops.mean(x, axis=(0, 1), keepdims=True),
    "std": lambda x: ops.std(x, axis=0),
    "var": ops.var,
    "take": lambda x: ops.take(x, ops.convert_to_tensor(np.array([1, -1], "int32")), axis=1),
    "where": lambda x: ops.where(ops.greater(x, 0), x, 0.0),
    "matmul": lambda x: ops.matmul(x, ops.transpose(x)),
    "concatenate": lambda x: ops.concatenate([x, x, ops.ones((2, 7))], axis=0),
    "crossentropy": lambda x: ops.sparse_categorical_crossentropy(LABELS, x, from_logits=True),
    "logsumexp": lambda x: ops.logsumexp(x, axis=1),
    "pad": lambda x: ops.pad(x, ((1, 0), (0, 2)), constant_values=3.0),
    "split": lambda x: ops.split(x, [2, 3], axis=1),
    "top_k": lambda x: ops.top_k(x, 3),
    "median": lambda x: ops.median(x, axis=1),
    "norm": ops.norm,
    "resize": lambda x: ops.image.resize(ops.reshape(x, (1, 5, 7, 1)), (9, 4)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("special", [False, True])
def test_results_are_those_of_primitive_by_primitive(name, special):
    values = X.copy()
    if special and name == "resize":
        pytest.skip("its products with weights of 0 spread a NaN as far as they reach, which is not the same for all of its forms")
    if special:
        values[1, 2], values[2, 3], values[3, 4] = np.nan, np.inf, -np.inf
    x = ops.convert_to_tensor(values)
    expected = heat(lambda: OPERATIONS[name](x))
    got = OPERATIONS[name](x)
    assert type(got) is type(expected)
    for a, b in zip(keras.tree.flatten(got), keras.tree.flatten(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_number_takes_no_kernel_of_its_own():
    x = ops.convert_to_tensor(X[:, :4])
    assert executed(lambda: OPERATIONS["add a number"](x))[0] == 1


@pytest.mark.parametrize("name", ["softmax", "gelu", "std", "mean", "crossentropy"])
def test_a_hot_operation_is_one_graph(name):
    x = ops.convert_to_tensor(X[:, :3])
    first, _ = executed(lambda: OPERATIONS[name](x))
    heat(lambda: OPERATIONS[name](x))
    assert executed(lambda: OPERATIONS[name](x))[0] == 1 < first


def test_other_sizes_reuse_the_kernels(built):  # noqa: F811
    for rows, columns in ((21, 40), (23, 45), (25, 50)):
        x = ops.convert_to_tensor(RNG.normal(size=(rows, columns)).astype("float32"))
        expected = heat(lambda x=x: ops.softmax(x))
        np.testing.assert_allclose(ops.softmax(x), expected, rtol=1e-5)
        new = built.since()
        assert new == 0 or rows == 21


def test_a_number_that_changes_compiles_few_kernels(built):  # noqa: F811
    """As of a histogram in a loop over its bins."""
    x = ops.convert_to_tensor(np.arange(24, dtype="int32").reshape(3, 8))
    heat(lambda: ops.equal(x, 0))
    built.since()
    for k in range(1, 24):
        np.testing.assert_array_equal(heat(lambda k=k: ops.equal(x, k)), np.asarray(x) == k)
        np.testing.assert_array_equal(ops.equal(x, k), np.asarray(x) == k)
    assert 0 < built.since() < 8


def test_what_an_operation_depends_on_is_told_apart():
    need_signed_zeros()
    x = ops.convert_to_tensor(np.array([1.0, 2.0], "float32"))
    for number, sign in ((0.0, False), (-0.0, True)):
        heat(lambda n=number: ops.multiply(x, n))
        assert np.signbit(np.asarray(ops.multiply(x, number))).all() == sign
    whole = ops.convert_to_tensor(np.array([1, 2], "int32"))
    for number in (1, 1.0, True):
        assert heat(lambda n=number: ops.add(whole, n)).dtype == ops.add(whole, number).dtype
    probabilities = ops.convert_to_tensor(np.array([[1.0, 0.0]], "float32"))
    heat(lambda: ops.categorical_crossentropy(np.array([[0.0, 1.0]], "float32"), probabilities))
    target = ops.convert_to_tensor(np.array([[0.0, 1.0]], "float32"))
    before = heat(lambda: ops.categorical_crossentropy(target, probabilities))
    keras.config.set_epsilon(1e-3)
    try:
        after = ops.categorical_crossentropy(target, probabilities)
    finally:
        keras.config.set_epsilon(1e-7)
    np.testing.assert_allclose([before[0], after[0]], [-np.log(1e-7), -np.log(1e-3)], rtol=0.02)


def test_logits_that_a_tensor_remembers_are_used():
    logits = ops.convert_to_tensor(np.array([[500.0, -500.0]], "float32"))
    labels = ops.convert_to_tensor(np.array([1], "int32"))
    plain = keras.activations.softmax(logits)
    del plain._keras_logits
    heat(lambda: ops.sparse_categorical_crossentropy(labels, plain))
    marked = keras.activations.softmax(logits)
    np.testing.assert_allclose(ops.sparse_categorical_crossentropy(labels, marked), [1000.0], rtol=1e-6)


def test_what_needs_values_has_them():
    for values in ([0, 1, 0, 1], [1, 1, 0, 1]):
        x = ops.convert_to_tensor(np.array(values, "float32"))
        for _ in range(composites.HOT + 3):
            np.testing.assert_array_equal(np.asarray(ops.nonzero(x)[0]), np.nonzero(values)[0])
    for most in (2, 5):
        counted = ops.convert_to_tensor(np.array([0, most, 1], "int32"))
        for _ in range(composites.HOT + 3):
            np.testing.assert_array_equal(ops.bincount(counted, minlength=4), np.bincount([0, most, 1], minlength=4))


def test_errors_are_those_of_the_first_call():
    x = ops.convert_to_tensor(X)
    heat(lambda: ops.softmax(x))
    for _ in range(composites.HOT + 3):
        with pytest.raises(ValueError, match="broadcast"):
            ops.add(x, ops.ones((4, 3)))


@pytest.mark.parametrize("error, rows", [(runtime.OutOfMemory("full"), 3), (ZeroDivisionError("a bug"), 4)])
def test_what_fails_in_compiling_is_raised(error, rows, monkeypatch):
    x = ops.convert_to_tensor(np.ones((rows, 7), "float32"))
    for _ in range(composites.HOT):  # the next call compiles it
        ops.log_softmax(x)

    def compiled(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(jit, "Compiled", compiled)
        with pytest.raises(type(error), match=str(error)):
            ops.log_softmax(x)
    np.testing.assert_allclose(ops.log_softmax(x), np.full((rows, 7), -np.log(7)), rtol=1e-6)


@pytest.mark.parametrize("error, said", [(ValueUnknown("a value is needed"), 0), (KeyError("lost"), 1)])
def test_what_cannot_be_traced_is_told_once(error, said, caplog):
    @composites.composite
    def twice(x):
        if current_trace.get() is not None:
            raise error
        return ops.add(ops.sin(x), ops.sin(x))

    x = ops.convert_to_tensor(np.ones(3, "float32"))
    with caplog.at_level("WARNING", logger="keras_ocl"):
        for _ in range(composites.HOT + 3):
            np.testing.assert_allclose(twice(x), 2 * np.sin(np.ones(3)), rtol=1e-6)
    assert len(caplog.messages) == said and all("twice" in message and "lost" in message for message in caplog.messages)
