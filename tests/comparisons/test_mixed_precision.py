"""Training in 16-bit floats: from the same weights, on the same examples, losses and updates of small networks are TensorFlow's.

How far two computations in 16 bits may be apart, TensorFlow's own tell: those in float32 and in the policy differ by what rounding does.
"""

import functools

import numpy as np
import pytest

from tests.comparisons import mixed_precision_cases as cases
from tests.keras.tensorflow_process import results_on_tensorflow

SOME = ("cnn", "lstm", "transformer", "unet")  # the others take two minutes more
OTHERS = tuple(name for name in cases.NETWORKS if name not in SOME)


@pytest.fixture(scope="module")
def tensorflows(run_folder):
    """Function from names of networks to what TensorFlow makes of them, in one process."""
    return functools.cache(lambda names: results_on_tensorflow(run_folder, "tests.comparisons.mixed_precision_cases", *names))


@pytest.mark.parametrize("policy", cases.POLICIES)
@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_training_is_tensorflows(name, policy, tensorflows):
    """No farther from TensorFlow's float32, and from its run in the policy, than twice as far as these two are apart.

    Each run rounds other intermediate results, to the same precision: as far from float32 each, they are 1.4 times as far from each other.
    And not as near to float32 as only a run in float32 is.
    """
    expected = tensorflows(SOME if name in SOME else OTHERS)
    for what, ours in cases.trained(name, policy).items():
        exact, theirs = (expected[f"{name} {p} {what}"] for p in ("float32", policy))
        from_exact, from_theirs = (np.linalg.norm(ours - other) / np.linalg.norm(theirs - exact) for other in (exact, theirs))
        assert 0.05 < from_exact <= 2 and from_theirs <= 2, (what, from_exact, from_theirs)
        if what == "losses":
            assert ours[-5:].mean() < 0.98 * ours[:5].mean(), "it learns"
