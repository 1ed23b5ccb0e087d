"""Many tensors, many operations: eager kernels do not depend on how many there are, and compiled text grows linearly with them."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.launch.lower import program_spec

FIRST, LATER = (2, 3, 4, 5, 6, 7, 9, 12, 17), (40, 333, 2000)
RNG = np.random.default_rng(0)


@pytest.fixture
def texts(monkeypatch):
    """Function name -> characters, of every kernel that is asked for."""
    found, original = {}, runtime.Device.build

    def build(self, specs, options="", unoptimised=None):
        found.update((name, len(text)) for name, text, *_ in specs)
        return original(self, specs, options, unoptimised)

    monkeypatch.setattr(runtime.Device, "build", build)
    return found


def tensors(n, *shape):
    values = RNG.integers(-9, 9, (n, *shape)).astype("float32")
    return list(values), [ops.convert_to_tensor(v) for v in values]


def stack(n):
    values, xs = tensors(n, 2, 3)
    return ops.stack(xs, 1), np.stack(values, 1)


def stack_numbers(n):
    values, xs = tensors(n)
    return ops.stack(xs), np.stack(values)


def convert_a_list(n):
    values, xs = tensors(n)
    return ops.convert_to_tensor([[x, 1.0] for x in xs]), np.stack([values, np.ones(n)], 1)


def concatenate(n):
    values, xs = tensors(n, 4, 3, 2)
    values, xs = zip(*[(v[: k % 4], x[: k % 4]) for k, (v, x) in enumerate(zip(values, xs, strict=True))], strict=True)
    return ops.concatenate(xs, 0), np.concatenate(values, 0)


def concatenate_inside(n):
    values, xs = tensors(n, 2, 1, 3)
    return ops.concatenate(xs, 1), np.concatenate(values, 1)


def concatenate_one(n):
    values, xs = tensors(1, 2)
    return ops.concatenate(xs * n), np.concatenate(values * n)


def add(n):
    values, xs = tensors(n, 5)
    return sum(xs), sum(values)


def split(n):
    value = RNG.normal(size=(3, 2 * n)).astype("float32")
    return ops.split(ops.convert_to_tensor(value), n, 1)[n - 1], value[:, -2:]


def unstack(n):
    value = RNG.normal(size=(n, 3)).astype("float32")
    return ops.unstack(ops.convert_to_tensor(value), axis=0)[n // 2], value[n // 2]


def indices(n):
    value = np.arange(2 * n, dtype="float32").reshape(n, 2)
    x = ops.convert_to_tensor(value)
    return [x[k, 1] for k in range(n)][-1], value[-1, 1]


def gradient_of_a_sum(n):
    values, xs = tensors(n, 2)
    values, xs = values[:400], xs[:400]
    weight = keras.Variable(np.ones(2, "float32"))
    with keras_ocl.GradientTape() as tape:
        loss = sum(ops.sum(weight * x) for x in xs)
    return tape.gradient(loss, weight), sum(values)


def scan(n):
    value = np.ones((min(n, 300), 2), "float32")  # a step at a time, so that eager code takes long
    result = ops.scan(lambda s, v: (s + v, s + v), ops.zeros(2), ops.convert_to_tensor(value))[1]
    return result, np.cumsum(value, 0)


EAGER = [stack, stack_numbers, convert_a_list, concatenate, concatenate_inside, concatenate_one, add, split, unstack, indices, scan]


@pytest.mark.parametrize("case", [*EAGER, gradient_of_a_sum], ids=lambda f: f.__name__)
def test_eager_kernels_do_not_depend_on_the_number(case, texts):
    for n in FIRST:
        np.testing.assert_array_equal(*case(n))
    few, compiled = set(texts), Cache.now
    assert len(few) <= 16 and sum(texts.values()) < 40_000
    for n in LATER:
        np.testing.assert_array_equal(*case(n))
    assert set(texts) == few
    assert Cache.now - compiled <= 12, "each number is lowered anew"


def test_eager_code_that_repeats_many_tensors(texts):
    """What is called again and again with many tensors is not made one graph of them."""
    for n in (100, 101):
        for _ in range(20):
            stack_numbers(n), split(n)
    assert len(texts) <= 2


def test_on_a_record_of_a_device():
    with runtime.device_scope(runtime.RecordDevice("record", runtime.current_device().traits)):
        parts = [ops.convert_to_tensor(np.ones((2, 3), "float32"))] * 9
        assert ops.concatenate([part[1:] * 2.0 for part in parts], 1).shape == (1, 27)


def compiled_stack(xs):
    return ops.stack(xs)


def compiled_sum(xs):
    return sum(xs)


def compiled_outputs(xs):
    return [x * 2.0 for x in xs]


def compiled_chain(xs):
    x = xs[0]
    for k in range(len(xs)):
        x = ops.tanh(x + float(k % 7))
    return x


def compiled_split(xs):
    return ops.split(ops.concatenate(xs[:1] * len(xs)), len(xs))


@pytest.mark.parametrize("case", [compiled_stack, compiled_sum, compiled_outputs, compiled_chain, compiled_split], ids=lambda f: f.__name__)
def test_compiled_text_grows_linearly(case):
    def characters(n):
        with runtime.device_scope(runtime.RecordDevice("record", runtime.current_device().traits)):
            found = keras_ocl.jit(case).compiled([np.zeros((2, 3), "float32")] * n)
            return sum(len(program_spec(launch, found.device.traits)[1]) for launch in found.executable.launches)

    few, many = characters(100), characters(400)
    assert few and many < 5 * few
