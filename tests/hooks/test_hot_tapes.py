"""Layers, losses and optimizers in a loop with a tape: compiled, layers and losses with their gradients; results are those of op by op."""

import gc

import keras
import numpy as np
import pytest
from keras import layers, losses, ops

import keras_ocl
from keras_ocl import runtime
from keras_ocl.compiler import eager
from keras_ocl.hooks import hot_calls
from keras_ocl.hooks import losses as hot_losses
from keras_ocl.hooks import optimizer as hot_optimizers
from tests.hooks.test_hot_calls import MADE, RNG, tensor


@pytest.fixture(autouse=True)
def cold():
    hot_calls._layers.clear()
    hot_losses._losses.clear()


def plainly(monkeypatch, call):
    """What `call` gives op by op."""
    with monkeypatch.context() as patch:
        patch.setattr(hot_calls, "elsewhere", lambda tapes: True)
        patch.setattr(hot_losses, "elsewhere", lambda tapes: True)
        patch.setattr(hot_optimizers, "elsewhere", lambda tapes: True)
        return call()


def heated(call):
    """(number of operations, result) of a call once its layers are hot."""
    for _ in range(hot_calls.HOT):
        call()
    before = eager.executed()
    result = call()
    return eager.executed() - before, result


def same(got, expected, rtol=2e-5, atol=1e-6):
    for a, b in zip(keras.tree.flatten(got), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def differentiated(layer, x, training=None, by_input=True):
    """Results, gradients by variables (None where there is none) and, where asked, by the input: of a loss of all results."""
    with keras_ocl.GradientTape() as tape:
        if by_input:
            tape.watch(x)
        result = layer(x, x) if isinstance(layer, layers.MultiHeadAttention) else layer(x, training=training)
        loss = sum(ops.mean(ops.sin(y) * (k + 1)) for k, y in enumerate(keras.tree.flatten(result)))
    return result, tape.gradient(loss, [*layer.trainable_variables, *([x] if by_input else [])])


@pytest.mark.parametrize("by_input", [True, False])
@pytest.mark.parametrize("name", MADE)
def test_gradients_are_those_of_op_by_op(name, by_input, monkeypatch):
    make, shape = MADE[name]
    layer, x = make(), tensor(*shape)
    run = lambda: differentiated(layer, x, by_input=by_input)  # noqa: E731
    expected = plainly(monkeypatch, run)
    _, got = heated(run)
    same(got, expected)
    assert hot_calls._layers[layer].taped.step.traces


def test_a_step_is_a_handful_of_operations(monkeypatch):
    model = keras.Sequential([layers.Dense(8, "tanh"), layers.LayerNormalization(), layers.Dense(3, "softmax")])
    x, y, loss = tensor(4, 5), ops.convert_to_tensor(np.array([0, 2, 1, 1])), losses.SparseCategoricalCrossentropy()

    def step():
        with keras_ocl.GradientTape() as tape:
            value = loss(y, model(x))
        return value, tape.gradient(value, model.trainable_variables)

    expected = plainly(monkeypatch, step)
    count, got = heated(step)
    assert count <= 8  # twice two compiled functions, and what the seed takes
    same(got, expected)


def test_training_updates_state_and_draws_the_numbers_of_op_by_op(monkeypatch):
    def run():
        keras.utils.set_random_seed(4)
        layer = keras.Sequential([layers.BatchNormalization(), layers.Dropout(0.5, seed=1), layers.GaussianNoise(0.1, seed=2)])
        x = ops.convert_to_tensor(np.random.default_rng(1).normal(size=(8, 4)).astype("float32"))
        return [differentiated(layer, x, training=True) for _ in range(hot_calls.HOT + 3)], layer.get_weights()

    same(run(), plainly(monkeypatch, run), rtol=1e-4)


def test_what_is_watched_counts():
    inner = layers.Dense(3, "tanh")
    layer, x = keras.Sequential([inner, layers.Dense(2), layers.BatchNormalization()]), tensor(4, 5)
    heated(lambda: differentiated(layer, x))
    with keras_ocl.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inner.kernel)
        loss = ops.sum(ops.square(layer(x)))
    kernel, bias = tape.gradient(loss, [inner.kernel, inner.bias])
    assert bias is None and np.abs(kernel).max() > 0
    with keras_ocl.GradientTape() as tape:
        loss = ops.sum(ops.square(layer(x)))
    assert tape.gradient(loss, x) is None
    mean = layer.layers[2].moving_mean  # not trainable: only because it is watched
    with keras_ocl.GradientTape() as tape:
        tape.watch(mean)
        loss = ops.sum(layer(x))
    np.testing.assert_allclose(tape.gradient(loss, mean), np.full(2, -4 / np.sqrt(1.001)), rtol=1e-4)
    inner.kernel.trainable = False  # not an attribute of the layer
    with keras_ocl.GradientTape() as tape:
        loss = ops.sum(ops.square(layer(x)))
    assert tape.gradient(loss, inner.kernel) is None
    inner.kernel.trainable = True
    with keras_ocl.GradientTape() as tape:
        loss = ops.sum(ops.square(layer(x)))
    np.testing.assert_allclose(tape.gradient(loss, inner.kernel), kernel, rtol=1e-5)


def test_gradients_of_gradients_see_each_operation():
    layer, x = keras.Sequential([layers.Dense(6, "tanh"), layers.Dense(1)]), tensor(3, 2)

    def curvature():
        with keras_ocl.GradientTape() as outer:
            outer.watch(x)
            with keras_ocl.GradientTape() as inner:
                inner.watch(x)
                y = ops.sum(layer(x))
            slope = inner.gradient(y, x)
            total = ops.sum(slope * slope)
        return outer.gradient(total, [x, layer.layers[0].kernel])

    expected = curvature()
    heated(lambda: differentiated(layer, x))
    same(curvature(), expected)
    with keras_ocl.GradientTape(persistent=True) as tape:
        tape.watch(x)
        slope = tape.gradient(ops.sum(layer(x)), x)
        total = ops.sum(slope * slope)
    same(tape.gradient(total, x), expected[0])


def test_a_tape_around_the_gradient_alone_sees_it():
    """A derivative along a direction, from two gradients."""
    layer, x = keras.Sequential([layers.Conv1D(3, 2, activation="tanh"), layers.Dense(2)]), tensor(2, 5, 3)

    def along(length):
        at = x[:, :length]
        with keras_ocl.GradientTape() as first:
            first.watch(at)
            y = layer(at)
        weights = ops.ones_like(y)
        with keras_ocl.GradientTape() as second:
            second.watch(weights)
            by_input = first.gradient(y, at, output_gradients=weights)
        return second.gradient(by_input, weights, output_gradients=ops.cos(at))

    expected = [along(length) for length in (5, 4, 3)]
    for length in (5, 4):  # the second makes the length unknown
        heated(lambda: differentiated(layer, x[:, :length]))  # noqa: B023
    same([along(length) for length in (5, 4, 3)], expected)


def test_results_that_do_not_count():
    layer, x = MADE["functional"][0](), tensor(2, 6, 6, 3)
    expected = {}
    for hot in (False, True):
        for k in (0, 1):
            with keras_ocl.GradientTape() as tape:
                loss = ops.sum(ops.square(layer(x)[k]))
            gradients = tape.gradient(loss, layer.trainable_variables, unconnected_gradients="zero")
            if hot:
                same(gradients, expected[k], atol=1e-4)  # of numbers up to 100
            expected[k] = gradients
        heated(lambda: differentiated(layer, x))


def test_what_changes_between_the_call_and_the_gradient_does_not_count():
    layer, x = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(2)]), tensor(3, 5)
    _, expected = differentiated(layer, x)
    heated(lambda: differentiated(layer, x))
    with keras_ocl.GradientTape() as tape:
        tape.watch(x)
        loss = ops.mean(ops.sin(layer(x)))
    kept = layer.get_weights()
    layer.set_weights([np.zeros_like(w) for w in kept])
    same(tape.gradient(loss, [*layer.trainable_variables, x]), expected)


def test_lengths_that_vary_are_traced_twice_at_most(monkeypatch, built):
    layer = keras.Sequential([layers.Conv1D(4, 3, padding="same", activation="relu"), layers.GlobalAveragePooling1D(), layers.Dense(2)])
    xs = [tensor(n, 4 + n, 3) for n in (2, 3, 4, 5)]
    expected = [plainly(monkeypatch, lambda: differentiated(layer, x)) for x in xs]  # noqa: B023
    for x in xs[:2]:
        heated(lambda: differentiated(layer, x))  # noqa: B023
    built.since()
    same([differentiated(layer, x) for x in xs], expected)
    assert built.since() == 0
    assert len(hot_calls._layers[layer].taped.step.traces) <= 2


def test_assigned_trainables_stay_op_by_op(monkeypatch, caplog):
    layer, x = layers.SpectralNormalization(layers.Dense(4, "tanh")), tensor(3, 5)
    layer(x)
    start = layer.get_weights()

    def run():
        layer.set_weights(start)
        return [differentiated(layer, x, training=True) for _ in range(hot_calls.HOT + 3)]

    expected = plainly(monkeypatch, run)
    same(run(), expected, rtol=1e-4)
    assert hot_calls._layers[layer].taped.hot is False and not caplog.messages


def test_half_precision(monkeypatch):
    layer, x = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(2)]), tensor(3, 5)
    for part in layer.layers:
        part.dtype_policy = keras.dtype_policies.get("mixed_float16")
    run = lambda: differentiated(layer, x)  # noqa: E731
    expected = plainly(monkeypatch, run)
    _, got = heated(run)
    same(got, expected, rtol=1e-2, atol=1e-3)
    assert got[0].dtype == "float16" and got[1][0].dtype == "float32"


def test_caches_may_be_emptied_between_the_call_and_the_gradient():
    layer, x = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(2)]), tensor(3, 5)
    with keras_ocl.GradientTape() as tape:
        tape.watch(x)
        loss = ops.mean(ops.sin(layer(x)))
    keras_ocl.clear_cache()
    gc.collect()
    got = tape.gradient(loss, [*layer.trainable_variables, x])
    same(got, differentiated(layer, x)[1])


def test_memory_is_given_back():
    layer, x = keras.Sequential([layers.Dense(256, "tanh"), layers.Dense(256, "tanh")]), tensor(64, 256)
    heated(lambda: differentiated(layer, x))
    gc.collect()
    before = runtime.current_device().memory.current
    for _ in range(3):
        differentiated(layer, x)
    assert runtime.current_device().memory.current == before


def in_losses():
    """(a loss of Keras's, y_true, y_pred) of every kind."""
    labels, one_hot = np.array([0, 2, 1, 1]), np.eye(3, dtype="float32")[[0, 2, 1, 1]]
    scores, numbers = RNG.normal(size=(4, 3)).astype("float32"), RNG.normal(size=(4, 3)).astype("float32")
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    given = {
        "SparseCategoricalCrossentropy": (labels, shares),
        "CTC": (np.array([[1, 2]] * 4), RNG.normal(size=(4, 5, 3)).astype("float32")),
        "CategoricalHinge": (one_hot, scores),
        "Circle": (labels, scores),
        "CategoricalGeneralizedCrossEntropy": (labels, shares),
    }
    for name in dir(losses):
        kind = getattr(losses, name)
        if isinstance(kind, type) and issubclass(kind, losses.Loss) and kind is not losses.Loss:
            shared = (one_hot, shares) if "ross" in name or "Kull" in name or name in ("Dice", "Tversky", "Poisson") else (numbers, scores)
            yield pytest.param(kind, *given.get(name, shared), id=name)


@pytest.mark.parametrize("kind, y_true, y_pred", list(in_losses()))
def test_losses_are_those_of_op_by_op(kind, y_true, y_pred, monkeypatch):
    loss, scores = kind(), ops.convert_to_tensor(y_pred)
    weights = ops.convert_to_tensor(np.array([1.0, 0.5, 0.0, 2.0], "float32"))
    if kind is losses.Dice or kind is losses.Tversky:
        weights = None  # they give one value

    def run():
        with keras_ocl.GradientTape() as tape:
            tape.watch(scores)
            value = loss(y_true, scores, sample_weight=weights)
        return value, tape.gradient(value, scores), loss(y_true, scores)

    expected = plainly(monkeypatch, run)
    count, got = heated(run)
    same(got, expected, rtol=1e-4)
    known = hot_losses._losses[loss]
    assert known.taped.step.traces and known.plain.step.traces


def test_a_loss_follows_its_settings_and_marks(monkeypatch):
    loss, x, y = losses.Huber(), tensor(4, 3), tensor(4, 3)
    heated(lambda: loss(y, x))
    small = float(loss(y, 9 * x))
    loss._fn_kwargs["delta"] = 5.0
    assert float(loss(y, 9 * x)) > 1.5 * small
    last, far = layers.Dense(3, activation="softmax"), ops.convert_to_tensor(np.array([[1.0, -1.0]], "float32"))
    last.build((None, 2))
    last.kernel.assign([[400.0, 0, 0], [0, 400, 0]])
    of_scores = losses.SparseCategoricalCrossentropy()

    def step():
        with keras_ocl.GradientTape() as tape:
            value = of_scores(np.array([1]), last(far))
        return value, tape.gradient(value, last.kernel)

    _, (value, gradient) = heated(step)
    np.testing.assert_allclose(value, 800.0, rtol=1e-5)  # of the logits: probabilities would have lost it
    np.testing.assert_allclose(gradient, [[1, -1, 0], [-1, 1, 0]], atol=1e-6)
    masked = tensor(4, 3, 2)
    truth = ops.zeros_like(masked)
    mean = losses.MeanSquaredError()
    heated(lambda: mean(truth, masked))
    keras.src.backend.set_keras_mask(masked, ops.convert_to_tensor(np.array([[True, False, False]] * 4)))
    np.testing.assert_allclose(mean(truth, masked), np.square(np.asarray(masked)[:, 0]).mean(), rtol=1e-5)


def test_a_loss_of_the_users_runs_as_it_is_written():
    seen = []

    class Mine(losses.Loss):
        def call(self, y_true, y_pred):
            seen.append(1)
            return ops.square(y_true - y_pred)

    x = tensor(2, 3)
    for _ in range(hot_calls.HOT + 4):
        Mine()(x, x)
    mine, number = Mine(), len(seen)
    for _ in range(hot_calls.HOT + 4):
        mine(x, x)
    assert len(seen) == number + hot_calls.HOT + 4


O = keras.optimizers  # noqa: E741
DECAYING = O.schedules.ExponentialDecay(0.1, 1, 0.5)
OPTIMIZERS = {
    **{name: (kind,) for name, kind in vars(O).items() if isinstance(kind, type) and issubclass(kind, O.Optimizer)},
    "momentum": (O.SGD, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "clipped": (O.Adam, {"global_clipnorm": 0.1}),
    "decayed": (O.AdamW, {"weight_decay": 0.1, "clipvalue": 0.2}),
    "averaged": (O.Adam, {"use_ema": True, "ema_overwrite_frequency": 2}),
    "accumulated": (O.SGD, {"learning_rate": 0.1, "gradient_accumulation_steps": 2}),
    "scheduled": (O.SGD, {"learning_rate": DECAYING}),
    "scaled": (lambda: O.LossScaleOptimizer(O.Adam()),),
}
for name in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer"):
    OPTIMIZERS.pop(name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_op_by_op(name, monkeypatch):
    kind, options = (*OPTIMIZERS[name], {})[:2]
    shapes = [(3, 4), (4,), (2, 2, 2)]
    first = [RNG.normal(size=shape).astype("float32") for shape in shapes]
    steps = [[RNG.normal(size=shape).astype("float32") for shape in shapes] for _ in range(4)]

    def run():
        variables, optimizer, seen = [keras.Variable(value) for value in first], kind(**options), []
        for gradients in steps:
            gradients = [ops.convert_to_tensor(g) for g in gradients]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            seen.append([np.asarray(v) for v in (*variables, *optimizer.variables)])
        return seen, optimizer

    expected, _ = plainly(monkeypatch, run)
    got, optimizer = run()
    for a, b in zip(got, expected, strict=True):
        same(a, b, rtol=1e-4)
    assert hot_optimizers._updates[getattr(optimizer, "inner_optimizer", optimizer)].traces


def test_an_update_is_one_function_that_follows_the_settings():
    variables = [keras.Variable(np.ones(3, "float32")) for _ in range(40)]
    gradients = [ops.ones((3,))] * len(variables)
    optimizer = O.SGD(0.5)
    for _ in range(2):  # the first time op by op, for so many
        optimizer.apply(gradients, variables)
    before = eager.executed()
    optimizer.apply(gradients)
    assert eager.executed() - before == 1  # the counter of steps
    np.testing.assert_allclose(variables[-1], [-0.5] * 3)
    optimizer.learning_rate = 0.25
    optimizer.apply(gradients)
    np.testing.assert_allclose(variables[-1], [-0.75] * 3)
    optimizer.clipvalue = 0.5
    optimizer.apply(gradients)
    np.testing.assert_allclose(variables[0], [-0.875] * 3)
    optimizer.learning_rate = lambda: 2.0
    optimizer.apply(gradients)
    np.testing.assert_allclose(variables[0], [-1.875] * 3)


def test_an_optimizer_of_the_users_runs_as_it_is_written():
    seen = []

    class Mine(O.SGD):
        def update_step(self, gradient, variable, learning_rate):
            seen.append(float(gradient[0]))
            super().update_step(gradient, variable, learning_rate)

    optimizer, variable = Mine(0.5), keras.Variable(np.ones(2, "float32"))
    for k in range(3):
        optimizer.apply([ops.full((2,), k)], [variable])
    assert seen == [0, 1, 2]
    np.testing.assert_allclose(variable, [-0.5, -0.5])
