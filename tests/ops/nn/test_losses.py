"""Crossentropies against NumPy in float64."""

import itertools

import numpy as np
import pytest
from keras.src import activations, backend

from keras_ocl.compiler import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.ops import nn
from keras_ocl.ops.nn import losses
from tests.ops.checking import both
from tests.primitives.checking import check_gradient

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

RNG = np.random.default_rng(3)


def log_softmax(x, axis=-1):
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def softmax(x, axis=-1):
    return np.exp(log_softmax(x, axis))


@pytest.mark.parametrize(("shape", "axis"), [((5, 3), -1), ((1, 1), -1), ((2, 7, 5), 1), ((3, 2, 33), -1), ((4, 130), 1)])
@pytest.mark.parametrize("from_logits", [True, False])
def test_class_losses(shape, axis, from_logits):
    logits = RNG.normal(size=shape)  # no probability below epsilon
    output = logits if from_logits else softmax(logits, axis) * 1.7
    output = output.astype("f4")
    target = softmax(RNG.normal(size=shape), axis).astype("f4")
    expected = -(target * log_softmax(logits, axis)).sum(axis)
    found = both(lambda t, o: losses.categorical_crossentropy(t, o, from_logits, axis), target, output)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)

    labels = RNG.integers(0, shape[axis], np.delete(shape, axis % len(shape))).astype("i4")
    expected = -np.take_along_axis(log_softmax(logits, axis), np.expand_dims(labels, axis), axis).squeeze(axis)
    found = both(lambda t, o: losses.sparse_categorical_crossentropy(t, o, from_logits, axis), labels, output)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    if axis == -1:
        found = losses.sparse_categorical_crossentropy(from_numpy(labels[..., None]), from_numpy(output), from_logits)
        np.testing.assert_allclose(to_numpy(found), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (3, 5, 7)])
def test_binary(shape):
    logits = (RNG.normal(size=shape) * 3).astype("f4")  # beyond 16, p is clipped
    target = RNG.uniform(size=shape).astype("f4")
    probabilities = (1 / (1 + np.exp(-logits.astype("f8")))).astype("f4")
    for output, from_logits in ((logits, True), (probabilities, False)):
        exact = output.astype("f8")
        p = 1 / (1 + np.exp(-exact)) if from_logits else exact  # the logarithm of 1 - p shows how p was rounded
        expected = -(target * np.log(p) + (1 - target) * np.log(1 - p))
        found = both(lambda t, o, f=from_logits: losses.binary_crossentropy(t, o, f), target, output)
        np.testing.assert_allclose(found, expected, rtol=5e-5, atol=5e-5)


def test_extreme_values_stay_finite():
    logits = np.array([[1e4, -1e4, 0], [3e38, 0, -3e38]], "f4")
    for labels in ([0, 0], [1, 2]):
        found = to_numpy(losses.sparse_categorical_crossentropy(labels, from_numpy(logits), from_logits=True))
        assert np.all(np.isfinite(found[:1])) and found[0] == [0, 2e4][labels[0]]
    sure = np.array([[1, 0], [0, 1]], "f4")
    for loss in (losses.categorical_crossentropy, losses.binary_crossentropy):
        assert np.all(np.isfinite(to_numpy(loss(from_numpy(1 - sure), from_numpy(sure)))))
    assert np.all(np.isfinite(to_numpy(losses.binary_crossentropy(from_numpy(sure), from_numpy(sure * 1e5), from_logits=True))))


def _rows_with_infinities():
    return np.array(list(itertools.product([np.inf, -np.inf, 0.0, 1.0, np.nan], repeat=3)), "f4")


def _exact_log_softmax(x):
    """In float64, of what a row of logits means: the greatest subtracted first, as everywhere."""
    with np.errstate(all="ignore"):
        difference = x.astype("f8") - x.max(-1, keepdims=True)
        return difference - np.log(np.exp(difference).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_infinite_logits(name):
    """A row with +inf or NaN is NaN throughout, in the gradient too; -inf masks a class."""
    x = _rows_with_infinities()
    labels = np.arange(len(x)).astype("i4") % 3
    one_hot = np.eye(3, dtype="f4")[labels]
    exact = _exact_log_softmax(x)
    with np.errstate(all="ignore"):
        function, expected = {
            "softmax": (nn.softmax, np.exp(exact)),
            "log_softmax": (nn.log_softmax, exact),
            "sparse_categorical_crossentropy": (
                lambda o: losses.sparse_categorical_crossentropy(labels, o, from_logits=True),
                -np.take_along_axis(exact, labels[:, None], 1)[:, 0],
            ),
            "categorical_crossentropy": (
                lambda o: losses.categorical_crossentropy(one_hot, o, from_logits=True),
                -(one_hot * exact).sum(-1),
            ),
        }[name]
    np.testing.assert_allclose(both(function, x), expected, rtol=1e-5, atol=1e-6)

    def gradient(o):
        with GradientTape() as tape:
            tape.watch(o)
            result = function(o)
        return tape.gradient(result, o)

    found = both(gradient, x)
    lost = np.isnan(x).any(-1) | (x == np.inf).any(-1) | (x == -np.inf).all(-1)
    assert np.isnan(found[lost]).all()
    assert np.isfinite(found[~lost & ~np.isinf(x).any(-1)]).all()


def test_binary_at_infinite_logits():
    """Infinitely wrong is inf, infinitely right 0."""
    logits = np.repeat(np.array([np.inf, -np.inf, np.nan], "f4"), 3)
    target = np.tile(np.array([0, 1, 0.5], "f4"), 3)
    found = both(lambda t, o: losses.binary_crossentropy(t, o, from_logits=True), target, logits)
    np.testing.assert_array_equal(found, [np.inf, 0, np.inf, 0, np.inf, np.inf, *[np.nan] * 3])


@pytest.mark.parametrize("target", [0.0, 0.25, 1.0])
def test_gradient_of_binary_by_both(target):
    logits, targets = np.array([-3, -0.5, 0, 0.5, 3], "f4"), np.full(5, target, "f4")

    def gradients(t, o):
        with GradientTape() as tape:
            tape.watch([t, o])
            loss = losses.binary_crossentropy(t, o, from_logits=True)
        return tape.gradient(loss, [t, o])

    by_target, by_logit = both(gradients, targets, logits)
    np.testing.assert_allclose(by_target, -logits, rtol=1e-6)
    np.testing.assert_allclose(by_logit, 1 / (1 + np.exp(-logits)) - targets, rtol=1e-5, atol=1e-6)


def test_labels_out_of_range_count_nothing():
    output = from_numpy(RNG.normal(size=(3, 4)).astype("f4"))
    for from_logits in (True, False):
        found = to_numpy(losses.sparse_categorical_crossentropy(from_numpy(np.array([-1, 4, 0], "i4")), output, from_logits))
        assert found[0] == found[1] == 0


def test_activations_leave_their_logits():
    logits = from_numpy(np.array([[40.0, 0.0], [-200.0, 0.0]], "f4"))
    probabilities = activations.softmax(logits)
    found = losses.categorical_crossentropy(from_numpy(np.array([[0, 1], [1, 0]], "f4")), probabilities)
    np.testing.assert_allclose(to_numpy(found), [40, 200], rtol=1e-6)
    found = losses.binary_crossentropy(from_numpy(np.array([[0, 1], [1, 0]], "f4")), activations.sigmoid(logits))
    np.testing.assert_allclose(to_numpy(found), [[40, np.log(2)], [200, np.log(2)]], rtol=1e-6)
    with pytest.warns(UserWarning, match="from_logits=True"):
        losses.sparse_categorical_crossentropy(from_numpy(np.array([0, 1], "i4")), probabilities, from_logits=True)


def test_gradients():
    logits, target = RNG.normal(size=(3, 5)), softmax(RNG.normal(size=(3, 5)))
    check_gradient(lambda t, o: losses.categorical_crossentropy(t, o, True), target, logits)
    check_gradient(lambda t, o: losses.categorical_crossentropy(t, o), target, softmax(logits))
    labels = from_numpy(np.array([0, 4, 2], "i4"))
    check_gradient(lambda o: losses.sparse_categorical_crossentropy(labels, o, True), logits)
    check_gradient(lambda o: losses.sparse_categorical_crossentropy(labels, o), softmax(logits))
    check_gradient(lambda t, o: losses.binary_crossentropy(t, o, True), target, logits)
    check_gradient(lambda t, o: losses.binary_crossentropy(t, o), target, softmax(logits))


def test_gradient_at_zero_logits():
    """Networks that start with zero weights must learn."""
    zero, target = from_numpy(np.zeros((2, 1), "f4")), from_numpy(np.array([[0], [1]], "f4"))
    with GradientTape() as tape:
        tape.watch(zero)
        loss = losses.binary_crossentropy(target, zero, from_logits=True)
    np.testing.assert_allclose(to_numpy(tape.gradient(loss, zero)), [[0.5], [-0.5]])


def test_psnr():
    a, b = RNG.uniform(size=(3, 5)).astype("f4"), RNG.uniform(size=(3, 5)).astype("f4")
    found = both(lambda x, y: losses.psnr(x, y, 2.0), a, b)
    np.testing.assert_allclose(found, 20 * np.log10(2) - 10 * np.log10(np.mean((a - b) ** 2)), rtol=1e-5)


def test_errors():
    a, b = np.ones((2, 3), "f4"), np.ones((2, 4), "f4")
    for loss in (losses.categorical_crossentropy, losses.binary_crossentropy):
        with pytest.raises(ValueError, match="must have the same shape"):
            loss(from_numpy(a), from_numpy(b))
    with pytest.raises(ValueError, match="up until the last dimension"):
        losses.sparse_categorical_crossentropy(from_numpy(np.zeros(3, "i4")), from_numpy(a))
    with pytest.raises(ValueError, match="at least rank 1"):
        losses.categorical_crossentropy(from_numpy(np.float32(1)), from_numpy(np.float32(1)))
    with pytest.raises(ValueError, match="must match for PSNR"):
        losses.psnr(from_numpy(a), from_numpy(b), 1.0)


def test_loss_and_gradient_are_few_kernels():
    """Softmax, loss and its gradient: a few kernels, however many operations."""
    labels, logits = from_numpy(RNG.integers(0, 10, 64).astype("i4")), from_numpy(RNG.normal(size=(64, 10)).astype("f4"))

    def step(labels, logits):
        with GradientTape() as tape:
            tape.watch(logits)
            loss = losses.sparse_categorical_crossentropy(labels, activations.softmax(logits))
        return loss, tape.gradient(loss, logits)

    jitted = Jitted(step)
    jitted(labels, logits)
    device = logits.storage.device
    before = device.statistics.launches
    loss, gradient = jitted(labels, logits)
    assert device.statistics.launches - before <= 3
    p = softmax(to_numpy(logits).astype("f8"))
    np.testing.assert_allclose(to_numpy(gradient), p - np.eye(10)[to_numpy(labels)], atol=1e-6)
    assert backend.backend() == "ocl"
