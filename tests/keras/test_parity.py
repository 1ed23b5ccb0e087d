"""Per-step losses, optimizers, losses, metrics and activations against TensorFlow, which runs every case in one process of its own."""

import numpy as np
import pytest

from tests.keras import parity_cases as cases
from tests.keras.tensorflow_process import results_on_tensorflow

TOLERANCE = 1e-4


@pytest.fixture(scope="session")
def tensorflow_results(run_folder):
    return results_on_tensorflow(run_folder, "tests.keras.parity_cases")


@pytest.mark.parametrize("case", cases.CASES)
def test_as_on_tensorflow(case, tensorflow_results):
    expected = tensorflow_results[case]
    ours = cases.run(case)
    assert np.all(np.isfinite(expected)), expected
    np.testing.assert_allclose(ours, expected, rtol=TOLERANCE, atol=1e-5)


def test_sparsemax_is_the_projection_onto_the_simplex():
    """Not compared with TensorFlow's: Keras 3.15 sums cumulative sums there, so that its rows do not add up to 1."""
    import keras

    x = cases.data((5, 6)) * 2
    expected = []
    for row in x.astype("float64"):
        ordered = np.sort(row)[::-1]
        total = np.cumsum(ordered)
        count = np.sum(1 + np.arange(1, 7) * ordered > total)
        expected.append(np.maximum(row - (total[count - 1] - 1) / count, 0))
    np.testing.assert_allclose(keras.activations.sparsemax(keras.ops.convert_to_tensor(x)), expected, rtol=1e-5, atol=1e-6)


def test_schedule_free_adamw_by_its_rule():
    """Not compared with TensorFlow's: there `value` is the variable itself, so that Keras 3.15 takes the new momentum for the old."""
    import keras

    start = np.array([1.0, -2.0, 3.0])
    for eagerly in (False, True):
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(3, use_bias=False)])
        model.set_weights([start[None]])
        model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse", run_eagerly=eagerly)
        y, z, x, v = start.copy(), start.copy(), start.copy(), np.zeros(3)
        for step in range(1, 5):
            model.train_on_batch(np.ones((1, 1)), np.zeros((1, 3)))
            g = 2 * y / 3
            v = 0.999 * v + 0.001 * g * g
            z = z - 0.1 * g / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            x = (1 - 1 / step) * x + z / step
            y = 0.1 * z + 0.9 * x
        np.testing.assert_allclose(model.get_weights()[0][0], y, rtol=1e-5)


def everything(module, kind):
    return {n for n in dir(module) if isinstance(getattr(module, n), type) and issubclass(getattr(module, n), kind)}


def test_no_optimizer_loss_or_activation_is_left_out():
    import keras

    optimizers = everything(keras.optimizers, keras.optimizers.Optimizer) - {
        "Optimizer",
        "LossScaleOptimizer",
        "MultiOptimizer",
        "ScheduleFreeAdamW",
    }
    assert optimizers == set(cases.OPTIMIZERS)
    schedules = everything(keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule) - {"LearningRateSchedule"}
    assert schedules == set(cases.SCHEDULES)
    losses = everything(keras.losses, keras.losses.Loss) - {"Loss", "Circle", "CategoricalGeneralizedCrossEntropy"}
    assert losses == set(cases.LOSSES)
    metrics = everything(keras.metrics, keras.metrics.Metric) - {"Metric", "Mean", "MeanMetricWrapper", "Sum"}
    assert metrics == set(cases.METRICS)
    activations = {n for n in dir(keras.activations) if callable(getattr(keras.activations, n))} - {"deserialize", "get", "serialize"}
    assert activations - {"swish", "hard_swish", "sparsemax"} == set(cases.ACTIVATIONS)
