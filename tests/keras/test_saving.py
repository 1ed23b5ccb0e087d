"""Saving and loading: the files of this backend and of TensorFlow's are each other's."""

import textwrap

import keras
import numpy as np
import pytest

from tests.keras.tensorflow_process import on_tensorflow
from tests.primitives.checking import need_float64

x = np.random.default_rng(0).normal(size=(6, 8, 8, 3)).astype("float32")
y = np.arange(6) % 4


def make_model(rate=0.3):
    inputs = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    hidden = keras.layers.Flatten()(keras.layers.MaxPooling2D()(hidden))
    hidden = keras.layers.Dropout(rate)(hidden)
    outputs = keras.layers.Dense(4, activation="softmax", name="out")(hidden)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trained(**options):
    model = make_model(**options)
    model.fit(x, y, batch_size=3, epochs=2, verbose=0)
    return model


def in_tensorflow(code, folder):
    """Run `code` with Keras on TensorFlow in a process of its own, in `folder`."""
    on_tensorflow("import keras, numpy as np\n" + textwrap.dedent(code), folder=folder)


def same_variables(a, b):
    a, b = ([v for v in variables if v.name != "seed_generator_state"] for variables in (a, b))  # Keras does not save those
    assert [v.path.split("/")[-1] for v in a] == [v.path.split("/")[-1] for v in b]
    for one, two in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_whole_model_and_its_optimizer(tmp_path, ending):
    model = trained()
    path = tmp_path / f"model{ending}"
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    same_variables(loaded.variables, model.variables)
    if ending == ".keras":  # from the legacy format Keras restores no more than the number of steps
        same_variables(loaded.optimizer.variables, model.optimizer.variables)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)
    assert loaded.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_generators_of_a_loaded_model_start_from_their_seeds(tmp_path, ending):
    """As on TensorFlow: Keras saves the seed, not how far a generator has come."""

    def dropping():
        return keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=3), keras.layers.GaussianNoise(1.0, seed=4)])

    model, ones, path = dropping(), np.ones((2, 64), "float32"), tmp_path / f"model{ending}"
    first, second = (keras.ops.convert_to_numpy(model(ones, training=True)) for _ in range(2))
    (model.save if ending == ".keras" else model.save_weights)(path)
    loaded = keras.models.load_model(path) if ending == ".keras" else dropping()
    if ending != ".keras":
        loaded.load_weights(path)
    for expected in (first, second):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded(ones, training=True)), expected)
    assert not np.array_equal(first, second)


def test_training_goes_on_as_if_it_had_not_been_saved(tmp_path):
    model = trained(rate=0.0)  # Keras does not save the state of generators
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for m in (model, loaded):
        m.fit(x, y, batch_size=3, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("ending", [".weights.h5", ".h5"])
def test_weights(tmp_path, ending):
    model, other = trained(), make_model()
    model.save_weights(tmp_path / f"model{ending}") if ending == ".weights.h5" else model.save(tmp_path / f"model{ending}")
    other.load_weights(tmp_path / f"model{ending}")
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_weights_are_loaded_into_a_compiled_step(tmp_path):
    model = trained()
    expected = model.evaluate(x, y, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    model.fit(x, y, epochs=2, verbose=0)
    assert model.evaluate(x, y, verbose=0) != expected
    model.load_weights(tmp_path / "model.weights.h5")
    assert model.evaluate(x, y, verbose=0) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(tmp_path, dtype):
    if dtype == "float64":
        need_float64()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, dtype=dtype)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].kernel.dtype == dtype
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.astype("float64"), b.astype("float64"))


def test_a_custom_object(tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(shape[-1],), initializer="uniform")

        def call(self, x):
            return x * self.scale

    model = keras.Sequential([keras.layers.Input((3,)), Scale()])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_to_tensorflow(tmp_path):
    model = trained()
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "model.h5")
    model.save_weights(tmp_path / "model.weights.h5")
    (tmp_path / "model.json").write_text(model.to_json())
    np.savez(tmp_path / "expected.npz", *[v.numpy() for v in model.optimizer.variables], x=x, y=y, out=model.predict(x, verbose=0))
    in_tensorflow(
        """
        data = np.load("expected.npz")
        blank = keras.models.model_from_json(open("model.json").read())
        blank.load_weights("model.weights.h5")
        for model in (keras.models.load_model("model.keras"), keras.models.load_model("model.h5"), blank):
            np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["out"], rtol=1e-5, atol=1e-6)
            if model is not blank:
                for k, v in enumerate(model.optimizer.variables):
                    np.testing.assert_array_equal(v.numpy(), data[f"arr_{k}"])
        keras.models.load_model("model.keras").fit(data["x"], data["y"], verbose=0)
        """,
        tmp_path,
    )


def test_from_tensorflow(tmp_path):
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "model.json").write_text(make_model().to_json())
    in_tensorflow(
        """
        data = np.load("data.npz")
        model = keras.models.model_from_json(open("model.json").read())
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(data["x"], data["y"], batch_size=3, epochs=2, verbose=0)
        model.save("model.keras")
        model.save("model.h5")
        model.save_weights("model.weights.h5")
        np.savez("expected.npz", *[v.numpy() for v in model.optimizer.variables], out=model.predict(data["x"], verbose=0))
        """,
        tmp_path,
    )
    expected = np.load(tmp_path / "expected.npz")
    blank = make_model()
    blank.load_weights(tmp_path / "model.weights.h5")
    for model in (keras.models.load_model(tmp_path / "model.keras"), keras.models.load_model(tmp_path / "model.h5"), blank):
        np.testing.assert_allclose(model.predict(x, verbose=0), expected["out"], rtol=1e-5, atol=1e-6)
        if model is not blank:
            for k, v in enumerate(model.optimizer.variables):
                np.testing.assert_array_equal(v.numpy(), expected[f"arr_{k}"])
    keras.models.load_model(tmp_path / "model.keras").fit(x, y, verbose=0)


# ---- bad input


def test_a_file_that_does_not_fit(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    before = other.get_weights()
    with pytest.raises(ValueError, match="(?i)layer|shape|weight|expected"):
        other.load_weights(tmp_path / "model.weights.h5")
    for a, b in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises((ValueError, OSError), match="(?i)file|path|zip"):
        keras.models.load_model(tmp_path / "nowhere.keras")
    (tmp_path / "broken.keras").write_bytes(b"not a model")
    with pytest.raises((ValueError, OSError)):
        keras.models.load_model(tmp_path / "broken.keras")


def test_saved_model_export_says_what_it_cannot():
    with pytest.raises(NotImplementedError, match="tensorflow"):
        make_model().export("somewhere", format="tf_saved_model", verbose=False)
