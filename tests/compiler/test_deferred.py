"""Broadcast operands of eager elementwise operations take neither memory nor a kernel of their own."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import runtime

SIZE = 1 << 16
RNG = np.random.default_rng(0)
VALUE = RNG.normal(size=(64, SIZE // 64)).astype("float32")
ROW, COLUMN = VALUE[0], VALUE[:, :1]
CASES = {  # operation, what it may take at most, in arrays of x's size: its result, and temporaries that PyTorch has too
    "times a number": (lambda x: x * 2.0, 1),
    "a number less": (lambda x: 2.0 - x, 1),
    "times a tensor of one": (lambda x: x * np.float32(2), 1),
    "maximum": (lambda x: ops.maximum(x, 0.0), 1),
    "a row": (lambda x: x + ROW, 1),
    "a column": (lambda x: x / COLUMN, 1),
    "a row and a column": (lambda x: ops.add(ROW, COLUMN), 1),
    "compare": (lambda x: x > 0.5, 0.25),
    "select": (lambda x: ops.where(x > 0.5, x, -1.0), 1.25),
    "clip": (lambda x: ops.clip(x, -1.0, 1.0), 2),
    "sum of a product": (lambda x: ops.sum(x * 2.0), 1.01),
    "any of a comparison": (lambda x: ops.any(x == 5), 0.26),
    "a broadcast row": (lambda x: ops.broadcast_to(ROW, x.shape), 1),
}


def peak(call):
    """Bytes that a call takes at most beside what was there before, with the result."""
    device = runtime.current_device()
    device.memory.peak = before = device.memory.current
    result = call()
    device.finish()
    return device.memory.peak - before, result


@pytest.mark.parametrize("name", CASES)
def test_memory(name):
    call, most = CASES[name]
    x = ops.convert_to_tensor(VALUE)
    gc.collect()
    expected = call(keras.ops.convert_to_numpy(x)) if name == "times a number" else None
    for _ in range(20):  # then it is compiled
        taken, result = peak(lambda: call(x))
        assert taken <= most * VALUE.nbytes + 16_384
    if expected is not None:
        np.testing.assert_array_equal(result, expected)


def test_numbers_and_ranks_share_kernels(monkeypatch):
    seen, original = set(), runtime.Device.build

    def build(self, specs, options="", unoptimised=None):
        seen.update(name for name, *_ in specs)
        return original(self, specs, options, unoptimised)

    monkeypatch.setattr(runtime.Device, "build", build)
    for shape in ((7,), (3, 5), (2, 3, 5), (2, 3, 2, 5)):
        value = RNG.normal(size=shape).astype("float32")
        for number in (2.0, 0.5, -7.25, np.float32(3)):
            np.testing.assert_array_equal(ops.convert_to_tensor(value) * number, value * np.float32(number))
    assert len(seen) <= 1


def test_what_reads_a_broadcast_tensor_gets_all_of_it():
    x = ops.convert_to_tensor(ROW[:4])
    wide = ops.broadcast_to(x, (3, 4))
    expected = np.broadcast_to(ROW[:4], (3, 4))
    np.testing.assert_array_equal(ops.reshape(wide, (2, 6)) * 1.0, expected.reshape(2, 6))
    np.testing.assert_array_equal(wide * 2.0, expected * 2)
    np.testing.assert_array_equal(ops.sum(wide, 1), expected.sum(1))
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(ops.stack([wide, wide * 0.0, wide]), np.stack([expected, 0 * expected, expected]))
    np.testing.assert_array_equal(wide * wide + wide, expected * expected + expected)


def test_a_broadcast_variable_keeps_its_value():
    variable = keras.Variable(np.arange(4, dtype="float32"))
    wide = ops.broadcast_to(variable, (2, 4))
    step = keras_ocl.jit(lambda: variable.assign_add(ops.ones(4)))
    step()
    variable.assign_add(ops.ones(4))
    np.testing.assert_array_equal(wide + 0.0, [np.arange(4)] * 2)
    np.testing.assert_array_equal(variable, np.arange(4) + 2)
    variable.assign(ops.zeros(4))
    step()
    np.testing.assert_array_equal(variable, np.ones(4))


def test_gradients_of_broadcast_operands():
    x, scale = ops.convert_to_tensor(VALUE[:3, :4]), keras.Variable(2.0)
    with keras_ocl.GradientTape() as tape:
        tape.watch(x)
        loss = ops.mean(x * scale * x)
    by_x, by_scale = tape.gradient(loss, [x, scale])
    np.testing.assert_allclose(by_x, VALUE[:3, :4] * 4 / 12, rtol=1e-6)
    np.testing.assert_allclose(by_scale, np.mean(VALUE[:3, :4] ** 2), rtol=1e-6)
