"""What the intermediates of steps are: the operation that each is a result of, and which of them a gradient reads."""

import keras
import numpy as np
import pytest
from keras import layers as L

from keras_ocl import lowering, runtime
from keras_ocl.compiler.run.intermediates import Intermediate, peak
from keras_ocl.core.origin import Origin
from tests.golden.lowered import traits
from tests.golden.models import MODELS

BATCH = 16


def dense():
    model = keras.Sequential([keras.Input((40,)), L.Dense(24, "tanh", name="hidden"), L.Dense(3, name="last")])
    model.compile("sgd", "mse")
    return model, np.zeros((BATCH, 40), "float32"), np.zeros((BATCH, 3), "float32"), BATCH


def blocks(wrap):
    class Block(L.Layer):
        def __init__(self):
            super().__init__()
            self.hidden = [L.Dense(48, "tanh") for _ in range(3)]

        def build(self, shape):
            for layer in self.hidden:
                layer.build((None, 48))

        def call(self, x):
            def inner(x):
                for layer in self.hidden:
                    x = layer(x)
                return x

            return x + wrap(inner)(x)

    i = x = keras.Input((48,))
    for _ in range(3):
        x = Block()(x)
    model = keras.Model(i, x)
    model.compile("sgd", "mse")
    return model, np.zeros((BATCH, 48), "float32"), np.zeros((BATCH, 48), "float32"), BATCH


def memory(make, record="sm_86", step=0):
    return lowering.lower(make, traits(record), name=record)[step].memory


@pytest.mark.parametrize("record", ["intel-cpu", "pocl-cpu", "sm_86", "reference"])
def test_a_gradient_reads_what_the_forward_part_writes(record):
    found = memory(dense, record)
    (hidden,) = (one for one in found.kept if "hidden" in one.origin.layer)
    assert (hidden.origin.operation, hidden.shape, hidden.dtype, hidden.nbytes) == ("Tanh", (BATCH, 24), "float32", BATCH * 24 * 4)
    assert not any(one.origin.gradient for one in found.kept)
    gradients = [one for one in found.intermediates if one.origin.gradient]
    assert gradients and not any(one.kept for one in gradients)
    assert not memory(dense, record, step=1).kept, "a prediction keeps nothing"


def test_what_only_the_forward_part_reads_is_not_kept():
    """The results of layers that are not trained: only the last one of them is read for a weight's gradient."""

    def make():
        model = keras.Sequential([keras.Input((40,)), L.Dense(24, trainable=False), L.Dense(8, trainable=False), L.Dense(3)])
        model.compile("sgd", "mse")
        return model, np.zeros((BATCH, 40), "float32"), np.zeros((BATCH, 3), "float32"), BATCH

    found = memory(make)
    shapes = {one.shape for one in found.intermediates if not one.origin.gradient}
    assert {(BATCH, 24), (BATCH, 8)} <= shapes
    assert (BATCH, 24) not in {one.shape for one in found.kept} and (BATCH, 8) in {one.shape for one in found.kept}


def test_remat_keeps_the_inputs_alone():
    def kept(wrap):
        return sum(one.shape == (BATCH, 48) for one in memory(lambda: blocks(wrap)).kept)

    assert kept(lambda function: function) >= 9 and kept(keras.remat) <= 4


@pytest.mark.parametrize("record", ["intel-cpu", "sm_86"])
@pytest.mark.parametrize("model", ["gru_two_layers", "convolutional_lstm", "mixture_of_experts", "decoder_grouped_queries"])
def test_every_buffer_of_the_arena_is_known(model, record):
    for found in (step.memory for step in lowering.lower(MODELS[model], traits(record), name=record)):
        assert 0 < found.peak_bytes <= found.arena_bytes <= 1.3 * found.peak_bytes + 4096
        assert all(0 < one.nbytes and one.first <= one.last and one.origin.operation for one in found.intermediates)
        assert found.read > 0 and found.written >= sum(one.nbytes for one in found.intermediates if one.origin.operation == "MatMul")
    assert not found.kept, "the prediction's"


def test_states_of_a_recurrence_are_kept_over_time():
    def make():
        model = keras.Sequential([keras.Input((50, 5)), L.LSTM(16, name="lstm"), L.Dense(1)])
        model.compile("sgd", "mse")
        return model, np.zeros((8, 50, 5), "float32"), np.zeros((8, 1), "float32"), 8

    for record in ("intel-cpu", "sm_86"):
        found = [one for one in memory(make, record).kept if "lstm" in one.origin.layer]
        assert sum(one.nbytes for one in found) >= 50 * 8 * 16 * 4 * 3, "h, c and the gates of every step"


def test_traffic_of_a_loop_counts_its_steps():
    def make(length):
        model = keras.Sequential([keras.Input((length, 5)), L.SimpleRNN(16)])
        return model, np.zeros((8, length, 5), "float32"), None, 8

    record = runtime.read_record("intel-cpu")
    short, long = (lowering.lower(lambda n=n: make(n), record, train=False)[0].memory for n in (20, 200))
    assert 8 < long.written / short.written < 11 and 8 < long.read / short.read < 11


def test_the_peak_is_where_the_most_bytes_are_live():
    def one(nbytes, first, last):
        return Intermediate(Origin("a", "b"), "add", (nbytes,), "int8", nbytes, first, last, False)

    some = [one(5, 0, 1), one(3, 1, 4), one(4, 2, 3), one(1, 3, 3), one(2, 4, 5)]
    at, live = peak(some)
    assert at == 1 and [x.nbytes for x in live] == [5, 3]
    assert peak([*some, one(1, 2, 3)]) == (3, [some[2], some[1], some[3], one(1, 2, 3)])
    assert peak([]) == (0, [])
