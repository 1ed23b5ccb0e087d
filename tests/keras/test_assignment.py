"""Gradients by variables that are assigned on the way, against TensorFlow, which runs every case in one process of its own."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl import GradientTape
from tests.keras import assignment_cases as cases
from tests.keras.tensorflow_process import results_on_tensorflow

FUNCTIONS = pytest.mark.parametrize("function", cases.FUNCTIONS, ids=lambda f: f.__name__)
COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@pytest.fixture(scope="session")
def tensorflow_results(run_folder):
    return results_on_tensorflow(run_folder, "tests.keras.assignment_cases")


@COMPILED
@FUNCTIONS
def test_functions(function, compiled, tensorflow_results):
    np.testing.assert_allclose(cases.gradients(function, compiled), tensorflow_results[function.__name__], rtol=1e-5, atol=1e-5)


@COMPILED
@FUNCTIONS
def test_functions_whose_inner_values_are_computed_again(function, compiled, tensorflow_results):
    """As without: TensorFlow's own `recompute_grad` assigns once more in the backward pass."""
    found = cases.gradients(function, compiled, keras.remat)
    np.testing.assert_allclose(found, tensorflow_results[function.__name__], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", cases.OPTIMIZERS)
@pytest.mark.parametrize("model", cases.MODELS)
def test_models(model, optimizer, tensorflow_results):
    np.testing.assert_allclose(cases.losses(model, optimizer), tensorflow_results[f"{model} {optimizer}"], rtol=1e-3, atol=1e-5)


def test_a_model_step_by_step(tensorflow_results):
    expected = tensorflow_results["spectral_normalization sgd"]
    np.testing.assert_allclose(cases.losses("spectral_normalization", "sgd", eagerly=True), expected, rtol=1e-4, atol=1e-5)


@COMPILED
@pytest.mark.parametrize("steps", [3, 7])
def test_a_step_of_a_loop_whose_inner_values_are_computed_again(steps, compiled):
    """v becomes v / 2 in each of n steps, of which each adds v * v: d/dv is the sum of 2 v over the steps."""

    def function():
        def step(i, total):
            def inner(total):
                v.assign(v * 0.5)
                return total + v * v

            return keras.remat(inner)(total)

        with GradientTape() as tape:
            y = ops.fori_loop(0, steps, step, ops.convert_to_tensor(0.0))
        return tape.gradient(y, v)

    v = keras.Variable(3.0)
    found = keras_ocl.jit(function)() if compiled else function()
    assert float(found) == pytest.approx(sum(2 * 3.0 * 0.5**k for k in range(1, steps + 1)))
    assert float(v) == 3.0 * 0.5**steps


@COMPILED
def test_gradients_of_gradients(compiled):
    """y = v³ + (2 v)³ in which v is the value that is read each time: first 3 v² + 3 (2 v)², then 6 v + 6 (2 v)."""

    def function():
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = v * v * v
                v.assign(v * 2.0)
                y = y + v * v * v
            first = inner.gradient(y, v)
        return first, outer.gradient(first, v)

    v = keras.Variable(1.0)
    assert [float(g) for g in (keras_ocl.jit(function)() if compiled else function())] == [15.0, 18.0]


@COMPILED
def test_variables_that_are_watched(compiled):
    def function():
        with GradientTape(watch_accessed_variables=False) as tape:
            w.assign(v * w)
            tape.watch([v, s])
            v.assign(w * v)
            s.assign(s * v)
            y = v * v * s + w * v
        return tape.gradient(y, (v, w, s), unconnected_gradients="zero")

    v, w, s = keras.Variable(2.0), keras.Variable(3.0), keras.Variable(0.5, trainable=False)
    gradients = keras_ocl.jit(function)() if compiled else function()
    assert [float(x) for x in (w, v, s)] == [6.0, 12.0, 6.0]
    assert [float(g) for g in gradients] == [2 * 12.0 * 6.0 + 6.0, 0.0, 144.0]


def test_a_compiled_function_that_assigns_under_a_tape():
    v = keras.Variable(3.0)
    halve = keras_ocl.jit(lambda: v.assign(v * 0.5) * v)
    with GradientTape() as tape:
        y = v * v + halve() + v * v * v
    assert float(tape.gradient(y, v)) == 6.0 + 0.5 * 1.5 + 1.5 + 3 * 1.5**2


def test_value_and_grad_by_variables():
    v = keras.Variable([3.0, 4.0])

    def function(x):
        v.assign(v / 5.0)
        return ops.sum(v * v * x)

    value, gradient = keras_ocl.value_and_grad(function, variables=[v])(ops.convert_to_tensor([1.0, 2.0]))
    np.testing.assert_allclose([value, *gradient[0]], [0.36 + 1.28, 1.2, 3.2], rtol=1e-6)


def test_an_assignment_under_a_tape_launches_nothing():
    v, x = keras.Variable([3.0, 4.0]), ops.convert_to_tensor([1.0, 2.0])
    with GradientTape() as tape:
        x = x + v
        before = keras_ocl.compiler.eager.executed()
        v.assign(x)
        assert keras_ocl.compiler.eager.executed() == before
        y = v * v
    np.testing.assert_allclose(tape.gradient(y, v), [8.0, 12.0])
