"""custom_op: a user's kernel in eager code, in models and under differentiation."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl

X = np.linspace(-2, 2, 24, dtype="float32").reshape(4, 6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swish():
    return keras_ocl.custom_op(
        "out[i] = x[i] / (1.0f + exp(-x[i]));",
        inputs="x",
        gradient=lambda cotangent, out, x: cotangent * (out + ops.sigmoid(x) * (1 - out)),
        name="swish",
    )


def test_elementwise():
    np.testing.assert_allclose(swish()(X), X * sigmoid(X), rtol=1e-5)


def test_gradient():
    op = swish()
    expected = X * sigmoid(X) + sigmoid(X) * (1 - X * sigmoid(X))
    np.testing.assert_allclose(keras_ocl.grad(lambda x: ops.sum(op(x)))(X), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(keras_ocl.jit(keras_ocl.grad(lambda x: ops.sum(op(x * 1.0) + 1)))(X), expected, rtol=1e-5, atol=1e-6)


def test_row_sums_with_two_inputs_and_another_shape():
    op = keras_ocl.custom_op(
        """
        float sum = 0;
        for (int k = 0; k < a_shape[1]; ++k)
            sum += a[i * a_shape[1] + k] * b[k];
        rows[i] = sum;
        """,
        inputs=("a", "b"),
        output="rows",
        shape=lambda a, b: a[:1],
    )
    b = np.arange(6, dtype="float32")
    np.testing.assert_allclose(op(X, b), X @ b, rtol=1e-5)
    np.testing.assert_allclose(op(X[:2], b), X[:2] @ b, rtol=1e-5)
    np.testing.assert_allclose(keras_ocl.jit(lambda x: op(x + 1, b) * 2)(X), (X + 1) @ b * 2, rtol=1e-5)


def test_other_dtype_and_number_of_items():
    op = keras_ocl.custom_op(
        "for (int k = 0; k < x_shape[1]; ++k) out[i * x_shape[1] + k] = (int)floor(x[i * x_shape[1] + k]);",
        inputs="x",
        dtype="int32",
        items=lambda x: x[0],
    )
    result = op(X)
    assert result.dtype == "int32"
    np.testing.assert_array_equal(result, np.floor(X).astype("int32"))


def test_ops_of_one_name_differ():
    one = keras_ocl.custom_op("out[i] = x[i] + 1;", "x", name="same")
    two = keras_ocl.custom_op("out[i] = x[i] + 2;", "x", name="same")
    np.testing.assert_allclose(keras_ocl.jit(lambda x: two(x) - one(x))(X), np.ones_like(X), rtol=1e-5)


def test_in_a_trained_model():
    op = swish()
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(op(keras.layers.Dense(8)(inputs))))
    assert model.layers[-1].input.shape == (None, 8)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    history = model.fit(np.tile(X, (8, 1)), np.tile(X.sum(1), 8), epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0] / 3
    kernel = keras.layers.Dense(3, activation=swish())(X)
    assert kernel.shape == (4, 3)


def test_errors():
    with pytest.raises(ValueError, match="distinct names"):
        keras_ocl.custom_op("", inputs=("x", "x"))
    with pytest.raises(ValueError, match="distinct names"):
        keras_ocl.custom_op("", inputs=[1])
    with pytest.raises(TypeError, match="`source` must be a string of OpenCL C, not int"):
        keras_ocl.custom_op(3, inputs="x")
    with pytest.raises(TypeError, match=r"`shape` must be a function .*, not \(3,\)"):
        keras_ocl.custom_op("out[i] = x[i];", "x", shape=(3,))
    with pytest.raises(TypeError, match="`items` must return an int, the number of work-items, not 2.5"):
        keras_ocl.custom_op("out[i] = x[i];", "x", items=lambda x: 2.5)(X)
    with pytest.raises(ValueError, match=r"takes 1 inputs \(x\), but got 2"):
        swish()(X, X)
    with pytest.raises(NotImplementedError, match="without has no gradient: pass `gradient=`"):
        op = keras_ocl.custom_op("out[i] = x[i];", "x", name="without")
        keras_ocl.grad(lambda x: ops.sum(op(x)))(X)
    with pytest.raises(ValueError, match=r"gradient for x has the shape \(\), but x has \(4, 6\)"):
        op = keras_ocl.custom_op("out[i] = x[i];", "x", gradient=lambda cotangent, out, x: ops.sum(cotangent))
        keras_ocl.grad(lambda x: ops.sum(op(x)))(X)
    with pytest.raises(RuntimeError, match="undeclared_name"):
        keras_ocl.custom_op("out[i] = undeclared_name;", "x")(X)
    np.testing.assert_allclose(swish()(X), X * sigmoid(X), rtol=1e-5)
