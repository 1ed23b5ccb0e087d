"""Training in 16-bit floats: from the same weights, on the same examples, losses and updates of small networks are TensorFlow's.

How far two computations in 16 bits may be apart, TensorFlow's own tell: those in float32 and in the policy differ by what rounding does.
"""

import numpy as np
import pytest

from tests.comparisons import mixed_precision_cases as cases
from tests.keras.tensorflow_process import module_on_tensorflow


@pytest.fixture(scope="module")
def tensorflows(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "tensorflow.npz"
    module_on_tensorflow("tests.comparisons.mixed_precision_cases", path)
    return np.load(path)


@pytest.mark.parametrize("policy", cases.POLICIES)
@pytest.mark.parametrize("name", cases.NETWORKS)
def test_training_is_tensorflows(name, policy, tensorflows):
    """No farther from TensorFlow's float32, and from its run in the policy, than twice as far as these two are apart.

    Each run rounds other intermediate results, to the same precision: as far from float32 each, they are 1.4 times as far from each other.
    """
    for what, ours in cases.trained(name, policy).items():
        exact, theirs = (tensorflows[f"{name} {p} {what}"] for p in ("float32", policy))
        from_exact, from_theirs = (np.linalg.norm(ours - other) / np.linalg.norm(theirs - exact) for other in (exact, theirs))
        assert from_exact <= 2 and from_theirs <= 2, (what, from_exact, from_theirs)
        if what == "losses":
            assert ours[-5:].mean() < 0.98 * ours[:5].mean(), "it learns"
