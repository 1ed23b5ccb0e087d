"""The models people build: a transformer, a GAN, an autoencoder, a U-Net, a tagger, a forecaster, Q-learning; next to TensorFlow."""

import numpy as np
import pytest

from tests.keras import model_cases as cases
from tests.keras.tensorflow_process import results_on_tensorflow


@pytest.fixture(scope="module")
def expected(run_folder):
    return results_on_tensorflow(run_folder, "tests.keras.model_cases")


@pytest.mark.parametrize("case", ["transformer", "gan", "unet", "tagger", "forecaster"])
def test_losses_are_tensorflows(case, expected):
    ours = cases.run(case)
    assert np.all(np.isfinite(ours))
    np.testing.assert_allclose(ours, expected[case], rtol=1e-4, atol=1e-5)


def test_autoencoder_learns_as_on_tensorflow(expected):
    """Its noise is another on each backend, so the first epochs' losses are only close."""
    ours = cases.run("vae")
    np.testing.assert_allclose(ours[:4], expected["vae"][:4], rtol=0.05)
    assert ours[-1] < 0.4 * ours[0]


def test_q_learning(expected):
    ours, theirs = cases.run("dqn"), expected["dqn"]
    np.testing.assert_allclose(ours[: cases.STEPS], theirs[: cases.STEPS], rtol=1e-4)
    assert ours[-2] == theirs[-2] == 1.0, "the greedy way from every cell leads to the reward"
