"""keras.RematScope and keras.remat: values, gradients and state as without, in less memory."""

import dataclasses
import warnings

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_ocl
from keras_ocl import lowering, runtime

NAMES = [f"conv_{k}" for k in range(12)]
SCOPES = {
    "full": {},
    "activations": {},
    "larger_than": {"output_size_threshold": 1000},
    "list_of_layers": {"layer_names": NAMES},
}


def value(x):
    return keras.ops.convert_to_numpy(x)


def convolutions(mode, **options):
    """Twelve layers that keep a few values of 4 MiB each unless they are computed again."""
    with keras.RematScope(mode=mode, **options):
        x = y = keras.Input((32, 32, 32))
        for name in NAMES:
            y = layers.Conv2D(32, 3, padding="same", activation="gelu", name=name)(y)
        model = keras.Model(x, y)
    model.compile(keras.optimizers.SGD(), "mse")
    data = np.zeros((32, 32, 32, 32), "float32")
    return model, data, data


def arena(make, record="intel-cpu"):
    """MiB of a training step that computes nothing again by its own choice, as the default does (compiler/fuse/kept.py)."""
    keras.utils.clear_session()
    traits = dataclasses.replace(runtime.read_record(record), keep="all")
    return lowering.lower(make, traits)[0].arena_bytes / 2**20


@pytest.mark.parametrize("mode", SCOPES)
def test_it_saves_memory(mode):
    most = {"activations": 2}.get(mode, 1)  # values kept of each layer: its input, or what its activation is given besides
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert arena(lambda: convolutions(mode, **SCOPES[mode])) <= most * len(NAMES) * 4 + 24 < arena(lambda: convolutions(None))


def test_layers_that_it_does_not_name_keep_their_values():
    named = [arena(lambda count=count: convolutions("list_of_layers", layer_names=NAMES[:count])) for count in (0, 6, 12)]
    assert named[0] > named[1] > named[2]
    assert arena(lambda: convolutions("larger_than", output_size_threshold=10**9)) == named[0] == arena(lambda: convolutions(None))


def model_with_state(scope, seed=0):
    keras.utils.set_random_seed(seed)
    with scope:
        x = keras.Input((8, 8, 3))
        y = layers.Conv2D(6, 3, activation="gelu", name=NAMES[0])(x)
        y = layers.BatchNormalization()(y)
        y = layers.Dropout(0.5, seed=3)(y)
        y = layers.LayerNormalization()(layers.Flatten()(y))
        y = layers.Dense(5, "softmax", name=NAMES[1])(y)
        return keras.Model(x, y)


def data():
    random = np.random.default_rng(0)
    return random.normal(size=(24, 8, 8, 3)).astype("float32"), random.integers(0, 5, 24)


def scopes():
    return [keras.RematScope(mode=None), *(keras.RematScope(mode=mode, **options) for mode, options in SCOPES.items())]


@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}], ids=["compiled", "eagerly"])
def test_training_is_the_same(settings):
    """Losses, weights, BatchNormalization's statistics and the next seed of Dropout: updated once in a step."""
    found = []
    for scope in scopes():
        model = model_with_state(scope)
        model.compile("adam", "sparse_categorical_crossentropy", **settings)
        losses = model.fit(*data(), batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append([np.asarray(losses), *map(value, model.variables)])
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_gradients_of_a_tape_are_the_same(jit):
    x, y = data()
    found = []
    for scope in scopes():
        model = model_with_state(scope)

        def gradients(x, y, model=model):
            with keras_ocl.GradientTape() as tape:
                loss = ops.mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
            return [loss, *tape.gradient(loss, model.trainable_variables)]

        step = keras_ocl.jit(gradients) if jit else gradients
        found.append([[value(g) for g in step(ops.convert_to_tensor(x), ops.convert_to_tensor(y))] for _ in range(3)])
    for other in found[1:]:
        for step, plain in zip(other, found[0], strict=True):
            for a, b in zip(step, plain, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


class Custom(keras.Model):
    def train_step(self, batch):
        x, y = batch
        with keras_ocl.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_a_train_step_of_ones_own_saves_memory():
    def make(mode):
        model, x, y = convolutions(mode)
        model = Custom(model.inputs, model.outputs)
        model.compile(keras.optimizers.SGD(), "mse")
        return model, x, y

    assert arena(lambda: make("full")) < 0.6 * arena(lambda: make(None))


def deep(width, wraps):
    """A function of x and w of 8 x 3 operations: each three are wrapped by the first, and halves of all by the second."""

    def three(v, w):
        return ops.tanh(ops.matmul(ops.tanh(ops.matmul(ops.tanh(ops.matmul(v, w)), w)), w))

    inner, outer = wraps

    def half(v, w):
        for _ in range(4):
            v = inner(three)(v, w)
        return v

    return lambda x, w: ops.sum(outer(half)(outer(half)(x, w), w))


def test_nested():
    """Inside what is computed again, only the inputs of what is wrapped there are kept."""
    plain = lambda f: f  # noqa: E731
    w = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(64, 64)).astype("float32") * 0.1)
    x = ops.convert_to_tensor(np.random.default_rng(1).normal(size=(4096, 64)).astype("float32"))
    sizes, results = {}, []
    for name, wraps in {"none": (plain, plain), "outer": (plain, keras.remat), "both": (keras.remat, keras.remat)}.items():
        step = keras_ocl.jit(keras_ocl.grad(deep(64, wraps), argnums=(0, 1)))
        results.append([value(g) for g in step(x, w)])
        (compiled,) = step.traces
        sizes[name] = compiled.executable.live_bytes / 2**20
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert sizes["both"] < 0.8 * sizes["outer"] < 0.8 * sizes["none"]


def test_a_model_inside_a_model_is_computed_again_as_a_whole():
    """The outer one, whose gradient follows, is not: its layers are."""

    def make(mode):
        with keras.RematScope(mode=mode):
            x = y = keras.Input((32, 32, 32))
            for _ in range(4):
                a = b = keras.Input((32, 32, 32))
                for _ in range(3):
                    b = layers.Conv2D(32, 3, padding="same", activation="gelu")(b)
                y = keras.Model(a, b)(y)
            model = keras.Model(x, y)
        model.compile(keras.optimizers.SGD(), "mse")
        data = np.zeros((32, 32, 32, 32), "float32")
        return model, data, data

    assert arena(lambda: make("full")) <= (4 + 3) * 4 + 24 < arena(lambda: make("full"), "intel-cpu") + 30 < arena(lambda: make(None))
