"""keras.random: what a seed means, shapes, dtypes and bad arguments. test_random_statistics.py tests the distributions."""

import keras
import numpy as np
import pytest
from keras import ops
from keras import random as kr
from keras.src.random.seed_generator import draw_seed

import keras_ocl
from keras_ocl import runtime

DRAWS = {
    "uniform": lambda seed: kr.uniform((3, 5), -1.0, 2.0, seed=seed),
    "normal": lambda seed: kr.normal((3, 5), 1.0, 2.0, seed=seed),
    "truncated_normal": lambda seed: kr.truncated_normal((3, 5), seed=seed),
    "randint": lambda seed: kr.randint((3, 5), -9, 1000, seed=seed),
    "categorical": lambda seed: kr.categorical(np.zeros((3, 9), "float32"), 5, seed=seed),
    "gamma": lambda seed: kr.gamma((3, 5), 2.0, seed=seed),
    "beta": lambda seed: kr.beta((3, 5), 2.0, 3.0, seed=seed),
    "binomial": lambda seed: kr.binomial((3, 5), 1000, 0.4, seed=seed),
    "dropout": lambda seed: kr.dropout(np.ones((3, 50), "float32"), 0.5, seed=seed),
    "shuffle": lambda seed: kr.shuffle(np.arange(50), seed=seed),
}


@pytest.mark.parametrize("name", DRAWS)
def test_an_integer_seed_repeats_and_a_generator_advances(name):
    draw = DRAWS[name]
    first = np.asarray(draw(7))
    np.testing.assert_array_equal(first, draw(7))
    assert (first != np.asarray(draw(8))).any()
    generator = kr.SeedGenerator(7)
    one, two = np.asarray(draw(generator)), np.asarray(draw(generator))
    assert (one != two).any()
    again = kr.SeedGenerator(7)
    np.testing.assert_array_equal(one, draw(again))
    np.testing.assert_array_equal(two, draw(again))
    assert (np.asarray(draw(None)) != np.asarray(draw(None))).any()


@pytest.mark.parametrize("name", DRAWS)
def test_compiled_draws_are_the_eager_ones_and_advance(name):
    generator, eager = kr.SeedGenerator(7), kr.SeedGenerator(7)
    step = keras_ocl.jit(lambda: DRAWS[name](generator))
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(step()), np.asarray(DRAWS[name](eager)), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(generator.state.numpy(), eager.state.numpy())


def test_a_draw_is_one_kernel():
    statistics = runtime.current_device().statistics
    for name in ("uniform", "normal", "truncated_normal", "randint", "categorical", "gamma", "beta", "binomial"):
        DRAWS[name](1)
        before = statistics.launches, statistics.downloads
        DRAWS[name](1)
        assert (statistics.launches - before[0], statistics.downloads) == (1, before[1]), name


def test_other_sizes_build_nothing():
    statistics = runtime.current_device().statistics
    kr.gamma((3, 5), 2.0, seed=1)
    kr.randint((3, 5), 0, 9, seed=1)
    before = statistics.kernels
    kr.gamma((30, 7), 3.0, seed=1)
    kr.randint((12, 50), 0, 99, seed=1)
    assert statistics.kernels == before


def test_draw_seed():
    assert np.asarray(kr.SeedGenerator(3).next()).shape == (2,)
    generator = kr.SeedGenerator(3)
    seeds = [np.asarray(generator.next()) for _ in range(3)]
    assert len({tuple(s) for s in seeds}) == 3
    assert draw_seed(5).dtype == "uint32"
    with pytest.raises(ValueError, match="seed"):
        draw_seed("five")


def test_the_state_is_a_variable_that_can_be_restored():
    layer = keras.layers.Dropout(0.5, seed=3)
    x = np.ones((4, 8), "float32")
    layer(x, training=True)
    (state,) = layer.variables
    kept = np.asarray(state.value)
    expected = np.asarray(layer(x, training=True))
    assert (np.asarray(state.value) != kept).any() and (np.asarray(layer(x, training=True)) != expected).any()
    state.assign(kept)
    np.testing.assert_array_equal(expected, layer(x, training=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype):
    if dtype == "float64" and not runtime.current_device().traits.fp64:
        pytest.skip("the device lacks float64")
    for draw in (
        kr.uniform((4,), dtype=dtype),
        kr.normal((4,), dtype=dtype),
        kr.truncated_normal((4,), dtype=dtype),
        kr.gamma((4,), 2.0, dtype=dtype),
        kr.beta((4,), 2.0, 3.0, dtype=dtype),
        kr.binomial((4,), 5, 0.5, dtype=dtype),
        kr.dropout(ops.ones((4,), dtype), 0.5),
    ):
        assert draw.dtype == dtype and tuple(draw.shape) == (4,)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1, 5)])
def test_shapes(shape):
    for draw in (
        kr.uniform(shape),
        kr.normal(shape),
        kr.truncated_normal(shape),
        kr.randint(shape, 0, 5),
        kr.gamma(shape, 2.0),
        kr.beta(shape, 2.0, 3.0),
        kr.binomial(shape, 5, 0.5),
        kr.dropout(np.ones(shape, "float32"), 0.5),
    ):
        assert tuple(draw.shape) == shape == np.asarray(draw).shape
    assert kr.categorical(np.zeros((0, 3), "float32"), 4).shape == (0, 4)
    assert kr.categorical(np.zeros((2, 3), "float32"), 0).shape == (2, 0)
    assert kr.shuffle(np.ones((2, 0)), axis=1).shape == (2, 0)


def test_parameters_broadcast():
    low = np.array([[0.0], [10.0]], "float32")
    high = np.array([1.0, 2.0, 3.0], "float32") + low
    x = np.asarray(kr.uniform((2, 3), low, high, seed=1))
    assert ((low <= x) & (x < high)).all()
    x = np.asarray(kr.randint((2, 3), ops.convert_to_tensor([[0], [10]]), ops.convert_to_tensor([[5], [11]]), seed=1))
    assert (x[0] < 5).all() and (x[1] == 10).all()
    assert (np.asarray(kr.randint((4,), ops.convert_to_tensor(7), ops.convert_to_tensor(7), seed=1)) == 7).all()


def test_dropout_shares_noise():
    x = np.asarray(kr.dropout(np.ones((6, 200), "float32"), 0.5, noise_shape=(1, None), seed=1))
    assert (x == x[:1]).all() and set(np.unique(x)) == {0.0, 2.0}
    assert (np.asarray(kr.dropout(np.ones((6, 5), "float32"), 1.0)) == 0).all()
    assert (np.asarray(kr.dropout(np.ones((6, 5), "float32"), 0.0)) == 1).all()


BAD = [
    (lambda: kr.uniform((2, -1)), ValueError, ["uniform", "negative", "(2, -1)"]),
    (lambda: kr.normal("ab"), TypeError, ["normal", "shape", "'ab'"]),
    (lambda: kr.uniform((2, 3), minval=np.zeros(4)), ValueError, ["uniform", "(4,)", "(2, 3)"]),
    (lambda: kr.gamma((2, 3), np.ones((2, 2, 3))), ValueError, ["gamma", "alpha", "(2, 2, 3)", "(2, 3)"]),
    (lambda: kr.beta((2,), 1.0, np.ones(3)), ValueError, ["beta", "(3,)", "(2,)"]),
    (lambda: kr.binomial((2,), np.ones(3), 0.5), ValueError, ["binomial", "(3,)", "(2,)"]),
    (lambda: kr.normal((2,), 1j), TypeError, ["normal", "mean", "complex64"]),
    (lambda: kr.gamma((2,), 1.0, dtype="int32"), ValueError, ["gamma", "int32", "floating point"]),
    (lambda: kr.uniform((2,), dtype="int32"), ValueError, ["requires a floating point"]),
    (lambda: kr.randint((2,), 0, 5, dtype="float32"), ValueError, ["requires an integer"]),
    (lambda: kr.randint((2,), 5, 5), ValueError, ["randint", "maxval", "greater", "5"]),
    (lambda: kr.randint((2,), 0, 2**64, dtype="int64"), ValueError, ["randint", "maxval", "int64"]),
    (lambda: kr.categorical(np.zeros(3), 2), ValueError, ["2-D"]),
    (lambda: kr.categorical(np.zeros((2, 0)), 2), ValueError, ["categorical", "(2, 0)", "classes"]),
    (lambda: kr.categorical(np.zeros((2, 3)), -1), ValueError, ["categorical", "negative"]),
    (lambda: kr.dropout(np.ones((2, 3)), 1.5), ValueError, ["dropout", "rate", "1.5"]),
    (lambda: kr.dropout(np.ones((2, 3), "int32"), 0.5), ValueError, ["dropout", "int32", "cast"]),
    (lambda: kr.dropout(np.ones((2, 3)), 0.5, noise_shape=(2,)), ValueError, ["dropout", "noise_shape", "(2, 3)"]),
    (lambda: kr.dropout(np.ones((2, 3)), 0.5, noise_shape=(2, 2)), ValueError, ["dropout", "(2, 2)", "(2, 3)"]),
    (lambda: kr.shuffle(np.ones((2, 3)), axis=2), ValueError, ["axis", "2"]),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_arguments(case):
    call, error, words = BAD[case]
    statistics = runtime.current_device().statistics
    before = statistics.launches
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert statistics.launches == before


def test_the_process_works_after_bad_arguments():
    assert np.isfinite(np.asarray(kr.normal((3,), seed=1))).all()
