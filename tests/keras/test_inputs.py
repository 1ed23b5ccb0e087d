"""Sources of data that other libraries provide, or that work in processes of their own; each in a fresh process."""

import importlib.util
from pathlib import Path

import keras
import pytest

from tests.hooks.regression import make_data
from tests.plugin.process import run_python

BEGIN = """
import keras
import numpy as np
from tests.hooks.regression import Reference, batches, make_data, make_model

x, y = make_data()

def check(make, only_x, **options):
    "Trains, evaluates and predicts with `make()`, whose batches are those of ten rows; `only_x()` has no targets."
    model = make_model()
    reference = Reference(model)
    model.fit(make(), epochs=2, shuffle=False, validation_data=make(), verbose=0, **options)
    for part in batches(x, y, 10) * 2:
        reference.step(*part)
    reference.check(model)
    loss, _ = reference.gradients(x, y)
    np.testing.assert_allclose(model.evaluate(make(), verbose=0)[0], loss, rtol=1e-4)
    np.testing.assert_allclose(model.predict(only_x(), verbose=0), reference.forward(x), rtol=1e-4, atol=1e-5)
"""


def run(code):
    return run_python(BEGIN + code, KERAS_BACKEND="ocl", PYTHONPATH=str(Path(__file__).parents[2]))


class Parts(keras.utils.PyDataset):
    """NumPy batches of ten rows."""

    def __init__(self, targets=True, **options):
        super().__init__(**options)
        self.x, self.y = make_data()
        self.targets = targets

    def __len__(self):
        return 5

    def __getitem__(self, i):
        rows = slice(i * 10, i * 10 + 10)
        return (self.x[rows], self.y[rows]) if self.targets else (self.x[rows],)


def test_worker_processes_and_loaders_of_other_libraries():
    """Of the libraries those that are installed. Workers are forked while the device is in use, and only handle NumPy arrays."""
    code = """
from tests.keras.test_inputs import Parts

keras.ops.ones(3) + 1
options = {"use_multiprocessing": True, "workers": 2, "max_queue_size": 2}
check(lambda: Parts(**options), lambda: Parts(targets=False, **options))
"""
    if importlib.util.find_spec("torch"):
        code += """
import torch
from torch.utils.data import DataLoader, TensorDataset

rows, targets = torch.from_numpy(x), torch.from_numpy(y)
both = TensorDataset(rows, targets)
check(lambda: DataLoader(both, batch_size=10), lambda: DataLoader(TensorDataset(rows), batch_size=10, num_workers=1))
"""
    if importlib.util.find_spec("grain"):
        code += """
import grain

check(lambda: grain.MapDataset.source(list(zip(x, y))).batch(10), lambda: grain.MapDataset.source(list(x)).to_iter_dataset().batch(10))
"""
    run(code)


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tf_data():
    """Datasets, and preprocessing layers and a feature space in their pipelines, where they compute with TensorFlow."""
    run("""
import tensorflow as tf

whole = tf.data.Dataset.from_tensor_slices((x, y))
check(lambda: whole.batch(10).prefetch(2), lambda: tf.data.Dataset.from_tensor_slices(x).batch(10))
left, right = keras.utils.split_dataset((x, y), left_size=0.8)
check(lambda: left.concatenate(right).batch(10), lambda: x)

words = np.array(["red", "green", "blue", "red", "pink"] * 10)
normalize = keras.layers.Normalization()
normalize.adapt(x)
lookup = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
features = tf.data.Dataset.from_tensor_slices(({"numbers": x, "word": words}, y)).batch(10)
prepared = features.map(lambda f, y: (tf.concat([normalize(f["numbers"]), tf.cast(lookup(f["word"]), "float32")], 1), y))
first, _ = next(iter(prepared))
assert isinstance(first, tf.Tensor)
np.testing.assert_allclose(first[:, :4], ((x - x.mean(0)) / x.std(0))[:10], rtol=1e-4, atol=1e-5)
assert [list(row).index(1) for row in first.numpy()[:5, 4:]] == [1, 2, 3, 1, 0]
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
losses = model.fit(prepared, epochs=3, verbose=0).history["loss"]
assert losses[-1] < losses[0]

images = np.random.default_rng(0).random((4, 8, 8, 3), dtype="float32")
changed = tf.data.Dataset.from_tensor_slices(images).batch(4)
for layer in (keras.layers.Resizing(4, 4), keras.layers.RandomFlip(seed=1), keras.layers.Rescaling(2.0, offset=-1.0)):
    changed = changed.map(layer)
(changed,) = changed
expected = np.array(keras.ops.image.resize(images, (4, 4))) * 2 - 1
for one, original in zip(changed.numpy(), expected):
    np.testing.assert_allclose(np.sort(one, None), np.sort(original, None), rtol=1e-4, atol=1e-5)

data = {"word": words, "size": x[:, 0], "count": np.arange(50) % 3}
space = keras.utils.FeatureSpace(
    {"word": "string_categorical", "size": "float_normalized", "count": "integer_categorical"},
    crosses=[("word", "count")], crossing_dim=8, output_mode="concat",
)
rows = tf.data.Dataset.from_tensor_slices(data).batch(10)
space.adapt(rows)
encoded = rows.map(space)
width = next(iter(encoded)).shape[1]
assert width == 5 + 1 + 4 + 8
model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])
assert model.predict(encoded, verbose=0).shape == (50, 1)
""")
