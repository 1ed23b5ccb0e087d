"""Shapes of functions of tensors some of whose extents nobody knows yet: what TensorFlow says, and never a number that stands for None."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops


def table(rows):
    """A layer that adds the first rows of a table to a sequence."""

    class Added(L.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(rows, 64))

        def call(self, x):
            return x + self.table[: ops.shape(x)[1]]

    return Added()


class Part(L.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(512, 64))

    def call(self, x):
        return x + ops.slice(self.table, (0, 0), (ops.shape(x)[1], 64))


SHAPES = {
    "the first rows": (lambda x: x[:, :100], (None, None, 64)),
    "the first row": (lambda x: x[:, :1], (None, None, 64)),
    "rows from far on": (lambda x: x[:, 2000:], (None, None, 64)),
    "the last rows": (lambda x: x[:, -2000:], (None, None, 64)),
    "rows between": (lambda x: x[:, 50:2000:3], (None, None, 64)),
    "rows backwards": (lambda x: x[:, 2000:10:-2], (None, None, 64)),
    "a far row": (lambda x: x[:, 2000], (None, 64)),
    "far rows": (lambda x: x[:, [0, 2000]], (None, 2, 64)),
    "many of the highest": (lambda x: ops.top_k(ops.transpose(x, (0, 2, 1)), 2000)[0], (None, 64, 2000)),
    "a known extent beside": (lambda x: x + ops.zeros((7, 64)), (None, 7, 64)),
    "both extents broadcast": (lambda x: ops.broadcast_to(x, (5, 7, 64)), (5, 7, 64)),
    "halves": (lambda x: ops.reshape(x, (-1, ops.shape(x)[1] // 2, 2, 64)), (None, None, 2, 64)),
    "thirds": (lambda x: ops.split(x, 3, 1)[0], (None, None, 64)),
    "a table's rows and a far one": (lambda x: (x + ops.zeros((512, 64))[: ops.shape(x)[1]])[:, 300], (None, 64)),
    "what is known": (lambda x: ops.reshape(x, (ops.shape(x)[0], ops.shape(x)[1], -1, 8)), (None, None, 8, 8)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    function, shape = SHAPES[name]
    assert keras.src.backend.compute_output_spec(function, keras.KerasTensor((None, None, 64))).shape == shape


@pytest.mark.parametrize("rows", [3, 512, 1000, 4096])
def test_layers_with_tables_of_any_length(rows):
    i = keras.Input((None, 64))
    model = keras.Model(i, table(rows)(i))
    assert model.output_shape == (None, None, 64)
    for length in {3, min(rows, 7)}:
        x = np.ones((2, length, 64), "float32")
        np.testing.assert_allclose(model.predict(x, verbose=0), x + np.asarray(model.layers[1].table[:length]), rtol=1e-6)


def test_slices_of_an_unknown_extent():
    assert Part()(keras.Input((None, 64))).shape == (None, None, 64)


def test_what_never_fits_is_refused_without_numbers_that_nobody_gave():
    with pytest.raises(ValueError, match=r"shapes \(None, None, 64\), \(7, 3\) cannot be broadcast"):
        keras.src.backend.compute_output_spec(lambda x: x + ops.zeros((7, 3)), keras.KerasTensor((None, None, 64)))


def test_known_shapes_are_tried_once():
    calls = []

    def refused(x):
        calls.append(x)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        keras.src.backend.compute_output_spec(refused, keras.KerasTensor((3, 64)))
    assert len(calls) == 1
