"""grad and value_and_grad."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl

X = np.array([1.0, 2.0, 3.0], "float32")
Y = np.array([0.5, -1.0, 4.0], "float32")


def weighted(x, y):
    return ops.sum(ops.square(x) * y)


def test_gradient_by_the_first_argument():
    value, gradient = keras_ocl.value_and_grad(weighted)(X, Y)
    assert float(value) == pytest.approx(32.5)
    np.testing.assert_allclose(gradient, 2 * X * Y)
    np.testing.assert_allclose(keras_ocl.grad(weighted)(X, Y), 2 * X * Y)


def test_gradient_by_several_arguments():
    gradients = keras_ocl.grad(weighted, argnums=(1, 0))(X, Y)
    assert isinstance(gradients, tuple)
    np.testing.assert_allclose(gradients[0], X**2)
    np.testing.assert_allclose(gradients[1], 2 * X * Y)


def test_one_tensor_as_two_arguments():
    x = ops.convert_to_tensor(X)
    np.testing.assert_allclose(keras_ocl.grad(weighted, argnums=1)(x, x), X**2)


def test_nests_and_unused_parts():
    def function(nest):
        return ops.sum(nest["a"] * 3)

    gradient = keras_ocl.grad(function)({"a": X, "b": [Y]})
    np.testing.assert_allclose(gradient["a"], [3, 3, 3])
    np.testing.assert_allclose(gradient["b"][0], [0, 0, 0])


def test_auxiliary_result():
    def function(x):
        return ops.sum(x * x), {"twice": 2 * x}

    (value, aux), gradient = keras_ocl.value_and_grad(function, has_aux=True)(X)
    assert float(value) == 14
    np.testing.assert_allclose(aux["twice"], 2 * X)
    np.testing.assert_allclose(gradient, 2 * X)
    gradient, aux = keras_ocl.grad(function, has_aux=True)(X)
    np.testing.assert_allclose(gradient, aux["twice"])


def test_variables():
    variable, other = keras.Variable(X), keras.Variable(Y, trainable=False)
    gradients = keras_ocl.grad(lambda y: ops.sum(variable * other * y), variables=[variable, other])(Y)
    np.testing.assert_allclose(gradients[0], Y**2)
    np.testing.assert_allclose(gradients[1], X * Y)
    np.testing.assert_allclose(keras_ocl.grad(weighted)(variable, Y), 2 * X * Y)


def test_second_derivative_in_a_compiled_function():
    cube = keras_ocl.grad(lambda x: ops.sum(x * x * x))
    second = keras_ocl.jit(keras_ocl.grad(lambda x: ops.sum(cube(x))))
    np.testing.assert_allclose(second(X), 6 * X, rtol=1e-6)


def test_bad_input():
    with pytest.raises(ValueError, match=r"scalar result.*\(3,\)"):
        keras_ocl.grad(lambda x: 2 * x)(X)
    with pytest.raises(TypeError, match="take a function, not float"):
        keras_ocl.grad(3.0)
    with pytest.raises(ValueError, match="argnums=1, but 1 arguments came by position"):
        keras_ocl.grad(weighted, argnums=1)(X, y=Y)
    with pytest.raises(ValueError, match="floating-point dtype, not int32"):
        keras_ocl.grad(weighted)(np.array([1, 2, 3], "int32"), Y)
