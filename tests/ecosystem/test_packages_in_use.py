"""One use of each package that builds on Keras, with TensorFlow's results beside ours: a vision task, a tuner's search, embeddings."""

import importlib.util
import json
from functools import cache

import numpy as np
import pytest

from tests.plugin.process import run_python

VISION = """
    import json
    import keras, keras_hub
    import numpy as np

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(32, 32, 3), patch_size=(8, 8), num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, dropout_rate=0.0
    )
    task = keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=4, preprocessor=None, pooling="token")
    for v in task.weights:
        v.assign(rng.normal(size=v.shape) * 0.1 + ("gamma" in v.path or "scale" in v.path))
    images, labels = rng.uniform(size=(24, 32, 32, 3)).astype("float32"), rng.integers(0, 4, 24)
    before = task.predict(images, verbose=0)
    task.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = task.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    print(json.dumps({"before": before.tolist(), "losses": losses, "after": task.predict(images, verbose=0).tolist()}))
"""

TUNER = """
    import json, tempfile
    import keras, keras_tuner
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 1))).astype("float32")

    def build(hp):
        keras.utils.set_random_seed(0)
        start = np.random.default_rng(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(hp.Choice("units", [4, 9]), "tanh"), keras.layers.Dense(1)])
        for v in model.weights:
            v.assign(start.normal(size=v.shape) * 0.3)
        model.compile(keras.optimizers.Adam(hp.Choice("rate", [0.1, 0.001])), "mse")
        return model

    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(build, "val_loss", max_trials=2, seed=3, directory=folder, overwrite=True)
        tuner.search(x, y, validation_data=(x, y), epochs=4, batch_size=32, shuffle=False, verbose=0)
        best = tuner.get_best_models(1)[0]
        trials = {t.trial_id: [t.hyperparameters.values, t.score] for t in tuner.oracle.trials.values()}
        print(json.dumps({"trials": trials, "best": tuner.get_best_hyperparameters()[0].values, "loss": best.evaluate(x, y, verbose=0)}))
"""

RECOMMENDER = """
    import json
    import keras, keras_rs
    import numpy as np

    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    table = keras_rs.layers.TableConfig(
        "t", vocabulary_size=40, embedding_dim=8, initializer="zeros", optimizer="sgd", combiner="mean", placement="default_device"
    )
    configs = {name: keras_rs.layers.FeatureConfig(name, table, (8, n), (8, 8)) for name, n in (("history", 5), ("item", 1))}
    inputs = {name: keras.Input((n,), batch_size=8, dtype="int32", name=name) for name, n in (("history", 5), ("item", 1))}
    embedding = keras_rs.layers.DistributedEmbedding(configs)
    found = embedding(inputs)
    joined = keras.layers.Concatenate()([found["history"], found["item"]])
    crossed = keras_rs.layers.FeatureCross(projection_dim=4)(joined, joined)
    dots = keras_rs.layers.DotInteraction()([found["history"], found["item"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([crossed, dots])))
    for v in model.weights:
        v.assign(rng.normal(size=v.shape) * 0.3)
    model.compile(keras.optimizers.SGD(0.05), "mse")
    data = {"history": rng.integers(0, 40, (32, 5)).astype("int32"), "item": rng.integers(0, 40, (32, 1)).astype("int32")}
    y = rng.normal(size=(32, 1)).astype("float32")
    losses = model.fit(data, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    reduced = keras_rs.layers.EmbedReduce(40, 8, embeddings_initializer="ones", combiner="sqrtn")(data["history"])
    retrieval = keras_rs.layers.BruteForceRetrieval(rng.normal(size=(30, 8)).astype("float32"), k=4)
    scores, ids = retrieval(rng.normal(size=(3, 8)).astype("float32"))
    made = {"losses": losses, "predicted": model.predict(data, batch_size=8, verbose=0), "reduced": reduced, "scores": scores, "ids": ids}
    print(json.dumps({name: np.asarray(value).tolist() for name, value in made.items()}))
"""


@cache
def used(program, backend):
    return json.loads(run_python(program, timeout=600, KERAS_BACKEND=backend).splitlines()[-1])


def both(program, *packages):
    missing = [name for name in (*packages, "tensorflow") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    return used(program, "ocl"), used(program, "tensorflow")


def test_an_image_classifier_trains_as_on_tensorflow():
    ours, theirs = both(VISION, "keras_hub")
    assert ours["losses"][1] < ours["losses"][0]
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=2e-4, err_msg=name)


def test_a_tuner_s_search_of_two_trials():
    ours, theirs = both(TUNER, "keras_tuner")
    assert ours["best"] == theirs["best"] and len(ours["trials"]) == 2
    for trial, (values, score) in ours["trials"].items():
        assert values == theirs["trials"][trial][0]
        np.testing.assert_allclose(score, theirs["trials"][trial][1], rtol=1e-3)
    np.testing.assert_allclose(ours["loss"], min(score for _, score in ours["trials"].values()), rtol=1e-4)


def test_a_recommender_s_embeddings():
    ours, theirs = both(RECOMMENDER, "keras_rs")
    assert ours["losses"][2] < ours["losses"][0] and ours["ids"] == theirs["ids"]
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)
