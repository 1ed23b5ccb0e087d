"""keras.applications: a prediction and a training step of every family, from random weights, next to TensorFlow.

Compared are logits, loss, every gradient and the moving statistics, without dropout and stochastic depth, whose random numbers differ. The
other members of the families are the same code with other widths and depths.
"""

import inspect

import keras
import numpy as np
import pytest

from tests.keras import application_cases as cases
from tests.keras.tensorflow_process import module_on_tensorflow

TOLERANCE = 1e-3
ROUNDING = 10  # times TensorFlow's own distance from float64
QUICK = ("ConvNeXtTiny", "VGG16")  # the least kernels


def step_on_tensorflow(name, path, floatx):
    module_on_tensorflow("tests.keras.application_cases", name, path, floatx, timeout=1800)
    return np.load(path)


def norm(arrays):
    return np.sqrt(sum(np.sum(np.square(a, dtype="float64")) for a in arrays))


def distances(values, reference, keys):
    """How far each variable's gradient is from the reference's. A bias before a normalization has a gradient of rounding, so 1 % of the
    whole gradient is added to a variable's own size."""
    whole = norm(reference[key] for key in keys)
    return {key: norm([values[key] - reference[key]]) / (norm([reference[key]]) + 0.01 * whole) for key in keys}


def test_every_family_is_here():
    constructors = {f.__name__: f.__module__ for f in vars(keras.applications).values() if inspect.isfunction(f)}
    assert set(constructors.values()) == {constructors[name] for name in cases.MODELS}


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in cases.MODELS])
def test_a_step_as_on_tensorflow(name, tmp_path):
    expected = step_on_tensorflow(name, tmp_path / "float32.npz", "float32")
    ours = cases.run(name)
    assert list(ours) == list(expected)
    kinds = {kind: [key for key in ours if key.startswith(kind)] for kind in ("outputs", "loss", "gradient", "statistic")}
    for kind, keys in kinds.items():
        difference, size = norm(ours[key] - expected[key] for key in keys), norm(expected[key] for key in keys)
        print(f"{kind}: {difference / size if keys else 0:.1e}")
        assert difference <= TOLERANCE * size, f"{kind}: they differ by {difference}"
        assert np.isfinite(size) and (size > 0 or not keys)
    by_variable = distances(ours, expected, kinds["gradient"])
    print(f"worst variable: {max(by_variable.values()):.1e}")
    far = [key for key, d in by_variable.items() if d > TOLERANCE]
    if not far:
        return
    # Rounding chooses among nearly equal values in a max pooling, and one winner that changes moves all gradients of the layers before it.
    # Where that happens is chance on either backend, so the worst of TensorFlow's variables, next to float64, says what rounding does.
    exact = step_on_tensorflow(name, tmp_path / "float64.npz", "float64")
    rounding = max(distances(expected, exact, kinds["gradient"]).values())
    from_exact = distances(ours, exact, kinds["gradient"])
    print(f"worst variable from float64: {max(from_exact.values()):.1e}, TensorFlow's {rounding:.1e}")
    for key in far:
        assert from_exact[key] <= ROUNDING * rounding, f"{key}: {from_exact[key]} from float64, where TensorFlow's worst is {rounding}"
